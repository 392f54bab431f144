"""What a new user types wrongly: each line is answered with one sentence and exit code 2, before anything starts."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click import Context
from click.testing import CliRunner

from overdrive.cli.group import COMMANDS, cli
from overdrive.cli.line import faults_as_sentences, kept_in
from overdrive.cli.no_script import no_script
from overdrive.core import program
from overdrive.core.ledger import Ledger
from overdrive.core.program import Program
from tests.conftest import Run

PLAN = 'overdrive = 1\nprogram = "train.py"\ncontract = "rounding"\n[[technique]]\nname = "fused_optimizer"\n'
STARTED = "open('started', 'w').close()\n"

LINES = {
    "--budget 5m tune train.py": "Did you mean `overdrive tune --budget 5m train.py`?",
    "--budget 5m train.py": "Did you mean `overdrive tune --budget 5m train.py`?",
    "-v": "-v stands where a command should: `overdrive --help` lists them.",
    "help": "Did you mean `overdrive --help`?",
    "help tune": "Did you mean `overdrive tune --help`?",
    "version": "Did you mean `overdrive --version`?",
    "train": "Did you mean `overdrive run train.py`?",
    "train.py tune --lr 1": "Did you mean `overdrive tune train.py --lr 1`?",
    "tune -budget 5m train.py": "There is no option -budget. Did you mean --budget?",
    "tune --bugdet 5m train.py": "Did you mean '--budget'? `overdrive tune --help` lists the options.",
    "tune --repot x.html --budget 5m train.py": "No such option '--repot'.",
    "tune --runs many train.py": "'many' is not a whole number, 1 or more.",
    "tune --budget -5m train.py": "'-5m' is not a duration; write for example 90s, 10m or 1h30m.",
    "run --on-hang stop --hang-after 0s train.py": "a time must be longer than nothing.",
    "tune --techniques , train.py": "names no technique",
    "tune --json nowhere/x.json train.py": "there is no folder nowhere",
    "tune --json train.py --epochs 3": "--json takes a value, and train.py stands in its place.",
    "tune --json folder train.py": "folder is a folder; name a file",
    "tune -o nowhere/x.toml train.py": "choose another place with -o.",
    "tune book.ipynb": "book.ipynb is a notebook: `jupyter nbconvert --to script book.ipynb` makes a script of it.",
    "tune job.sh": "write `overdrive tune train.py` in it, where it says `python train.py`.",
    "run result.json": "result.json is no script: `overdrive report result.json` shows a result",
    "run --plan result.json train.py": "result.json: this is JSON, as a result is written by --json; a plan is TOML",
    "verify result.json train.py": "result.json: this is JSON, as a result is written by --json; a plan is TOML",
    "tune plan.toml": "plan.toml is no script: `overdrive report plan.toml` shows what a plan holds.",
    "run plan.toml train.py": "did you mean `overdrive run --plan plan.toml train.py`?",
    "run plan.toml": "did you mean `overdrive run --plan plan.toml SCRIPT`?",
    "verify plan.toml": "No program named: write plan.toml and then a SCRIPT",
    "run python train.py --epochs 3": "Leave out python, which is there already: `overdrive run train.py --epochs 3`.",
    "tune torchrun --nproc-per-node 2 train.py": "`overdrive tune --ranks N SCRIPT` in place of torchrun.",
    "submit torchrun train.py": "`overdrive submit --ranks-per-node N SCRIPT` in place of torchrun.",
    "profile accelerate launch train.py": "Name the script itself: `overdrive profile SCRIPT` in place of accelerate.",
    "run -m torch.distributed.run train.py": "`overdrive run --ranks N SCRIPT` in place of -m torch.distributed.run.",
    "run python -u -W ignore train.py": "Leave out python, which is there already: `overdrive run train.py`.",
    "run app.pyz": "app.pyz holds no script as text",
    "run package": "package is a folder, not a script: `-m package` runs it.",
    "run --on ray --ranks 1 train.py": "--on takes --ranks 2 or more",
    "run -m train.py": "-m takes a module's name, not a file's: `overdrive run train.py`.",
    "tune -m nowhere.train": "There is no module nowhere, neither in the folder ",
    "run gone.py": "gone.py is a link to nowhere.py, which is not there.",
    "run --plan broken.toml train.py": "broken.toml line 1: this is no valid TOML (it ends too early)",
    "run --plan none.toml train.py": "none.toml: there is no such plan; `overdrive tune train.py` makes one",
    "tune": "No program named: give a script after the options (train.py), or -m MODULE.",
    "run --record tensorbord:runs train.py": "there is no tracker tensorbord, only tensorboard, mlflow, wandb",
    "run --record folder train.py": "folder is a folder; name a file",
    "doctor --for --ranks 8..4096 train.py": "say how they are connected (--link hdr).",
    "doctor --for --ranks 1 train.py": "'1' is no number of ranks, 2 or more; write for example 8 or 8..4096.",
    "doctor --for --ranks 8..4 train.py": "'8..4' is no number of ranks",
    "doctor --for --ranks 8..16 --link idr train.py": "10Gbit,50us, or one of 10gbe, 25gbe,",
    "doctor --for --ranks 8 --link hdr --slow 1%,2x train.py": "are for more and more ranks: --for --ranks 8..4096.",
    "doctor --for --ranks 8..16 --link hdr --slow 2x train.py": "write for example 1%,1.5x.",
    "doctor --for --ranks 8..16 --link hdr --mtbf 5y train.py": "--back 0.1s,20s,2ms --steps 100000.",
    "doctor --for --ranks 8..16 --link hdr --back 1s,2s train.py": "write for example 0.1s,20s,2ms.",
    "doctor --for --ranks 8..16 --link hdr --steps 9 train.py": "of ranks that fail: say how often (--mtbf 5y).",
    "doctor --for --ranks 8..16 --link hdr --memory 80GB train.py": "--memory is for one number of --ranks.",
    "doctor --pool --ranks 2..4": "--pool is measured with one number of --ranks.",
    "doctor --mtbf 5y": "are for more and more ranks",
    "doctor --quick --json nowhere/x.json": "there is no folder nowhere",
    "report one.toml two.toml three.toml": "no third plan: three.toml",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("train.py", "job.sh", "book.ipynb"):
        (tmp_path / name).write_text(STARTED)
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "result.json").write_text('{"verdict": null}')
    (tmp_path / "broken.toml").write_text("overdrive = ")
    (tmp_path / "folder").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").touch()
    (tmp_path / "app.pyz").touch()
    (tmp_path / "gone.py").symlink_to("nowhere.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("line", "says"), LINES.items(), ids=LINES)
def test_a_wrong_line_is_answered_in_one_sentence(line: str, says: str, folder: Path) -> None:
    answer = CliRunner().invoke(cli, line.split(), prog_name="overdrive")
    assert answer.exit_code == 2 and says in answer.stderr, answer.output
    assert answer.stderr.startswith("overdrive: ") and answer.stderr.count("\n") == 1 and not answer.stdout
    assert not (folder / "started").exists()


@pytest.mark.parametrize("line", ["run train.py", "tune train.py", "report plan.toml"])
def test_a_working_folder_that_is_gone_is_told(line: str, folder: Path) -> None:
    (folder / "folder" / "gone").mkdir()
    os.chdir(folder / "folder" / "gone")
    (folder / "folder" / "gone").rmdir()
    answer = CliRunner().invoke(cli, line.split(), prog_name="overdrive")
    assert answer.exit_code == 2 and answer.stderr.count("\n") == 1, answer.output
    assert answer.stderr == "overdrive: The working folder is no longer there: change to one that is.\n"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_command_that_stands_in_place_of_a_launcher_has_such_options(name: str) -> None:
    told = re.search("`overdrive (.*)SCRIPT`", no_script(name, ["torchrun", "train.py"]))
    command = cli.get_command(Context(cli), name)
    assert told and command
    options = {word for word in told[1].split() if word.startswith("-")}
    assert options <= {each for option in command.params for each in option.opts}


def test_ctrl_c_ends_every_command_as_it_ends_the_long_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(words: object) -> Program:
        raise KeyboardInterrupt

    monkeypatch.setattr("overdrive.cli.submit.parse_program", stopped)
    answer = CliRunner().invoke(cli, ["submit", "train.py"])
    assert (answer.exit_code, answer.stderr) == (130, "overdrive: stopped.\n")


def test_another_ctrl_c_at_once_breaks_off_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before, cleaned = signal.getsignal(signal.SIGTERM), list[int]()
    now = time.monotonic()
    monkeypatch.setattr("overdrive.cli.line.time", SimpleNamespace(monotonic=lambda: now))
    try:
        with pytest.raises(SystemExit) as ended, faults_as_sentences():
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)
                cleaned.append(1)
                now += 60  # what cleans up hangs
                signal.raise_signal(signal.SIGINT)
                cleaned.append(2)
    finally:
        signal.signal(signal.SIGTERM, before)
        afterwards = signal.signal(signal.SIGINT, signal.default_int_handler)
    assert ended.value.code == 130 and cleaned == [1]
    assert afterwards is signal.SIG_IGN, "or another one as the command ends kills it"


def test_a_command_that_was_not_interrupted_leaves_ctrl_c_as_it_was() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with faults_as_sentences():
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_command_in_the_background_passes_over_ctrl_c() -> None:
    before, old = signal.getsignal(signal.SIGTERM), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with faults_as_sentences():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, old)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_stops_a_command_is_told_where_nothing_could_be_kept(
    number: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a home that cannot be written to: "what was established is kept" was said of that too."""
    (tmp_path / "file").touch()
    before = signal.getsignal(signal.SIGTERM)
    said = []
    try:
        for folder in ("file", "home"):
            ledger = Ledger.open(tmp_path / folder / "ledger.sqlite")
            with pytest.raises(SystemExit) as ended, faults_as_sentences(), ledger, kept_in(ledger):
                signal.raise_signal(number)
            assert ended.value.code == code
            said.append(capsys.readouterr().err)
            signal.signal(signal.SIGINT, signal.default_int_handler)
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert said[0].startswith(f"overdrive: stopped. Not all that was established is kept: the ledger {tmp_path}/file")
    assert said[0].endswith("so nothing is kept of this run.\n")
    assert said[1] == "overdrive: stopped. What was established is kept: the same command goes on from there.\n"


def test_what_could_not_be_copied_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for error, says in (
        (shutil.Error([("a/b", "c/b", "no permission"), ("d", "e", "f")]), "a/b could not be copied: no permission."),
        (shutil.SpecialFileError("`x` is a named pipe"), "A file could not be used: `x` is a named pipe."),
        (FileNotFoundError(2, "No such file", "x"), "x could not be used: No such file."),
    ):
        with pytest.raises(SystemExit), faults_as_sentences():
            raise error
        assert capsys.readouterr().err == f"overdrive: {says} Your script was not touched.\n"


def test_ranks_without_pytorch_are_refused_in_one_sentence(folder: Path, python: Run) -> None:
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['overdrive', 'run', '--ranks', '2', 'train.py']\n"
    done = python("-c", code + "from overdrive.cli import main; sys.exit(main())", cwd=folder)
    assert done.returncode == 1 and done.stderr.startswith("overdrive: This Python is "), done.stderr
    assert "torch is not installed there" in done.stderr and done.stderr.count("\n") == 1


def test_a_link_to_nowhere_beside_the_script_is_no_part_of_the_program(folder: Path) -> None:
    """An editor's lock is one (`.#train.py`), while a file is open there."""
    before = Program("train.py").identity()
    (folder / "other.py").symlink_to("nobody@nowhere.1234")
    assert Program("train.py").identity() == before
    (folder / "module.py").write_text("")
    assert Program("train.py").identity() != before


def test_modules_below_the_script_are_part_of_the_program_and_folders_of_data_are_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(600):
        (folder / "data" / f"{number:03d}").mkdir(parents=True)
    modules = folder / "source" / "package" / "models"
    modules.mkdir(parents=True)
    opened: list[str] = []
    scandir = os.scandir

    def noted(path: str) -> object:
        opened.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", noted)
    before = Program("train.py").identity()
    assert "./data" in opened and "./data/003" not in opened and "./source/package/models" in opened
    (folder / "data" / "003" / "module.py").write_text("")
    assert Program("train.py").identity() == before
    (folder / "data" / "module.py").write_text("")
    assert Program("train.py").identity() != before, "a folder of the program's, with many results in it"
    before = Program("train.py").identity()
    (modules / "module.py").write_text("")
    assert Program("train.py").identity() != before
    monkeypatch.setattr(program, "_MOST_SEEN", 3)
    before = Program("train.py").identity()
    (modules / "module.py").write_text("edited")
    assert Program("train.py").identity() == before
    (folder / "module.py").write_text("")
    assert Program("train.py").identity() != before


def test_a_script_that_may_not_be_read_is_told_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "train.py")  # root may read all
    answer = CliRunner().invoke(cli, ["tune", "train.py"])
    assert (answer.exit_code, answer.stderr) == (2, "overdrive: Cannot read train.py: you have no permission to.\n")


def test_a_script_with_the_name_of_an_option_is_a_script(folder: Path, overdrive: Run) -> None:
    (folder / "o").write_text("import sys\nsys.exit('it ran')\n")
    done = overdrive("tune", "o", cwd=folder)
    assert done.returncode == 1 and "it ran" in done.stderr  # and not: did you mean -o?


def test_a_script_that_refuses_its_own_line_has_the_last_word(folder: Path, overdrive: Run) -> None:
    (folder / "train.py").write_text("import sys\nsys.exit('usage: train.py --lr LR')\n")
    done = overdrive("run", "train.py", cwd=folder)
    assert (done.returncode, done.stderr) == (1, "usage: train.py --lr LR\n")


def test_a_record_goes_into_a_folder_that_is_made_for_it(folder: Path, overdrive: Run) -> None:
    done = overdrive("run", "--record", "out/deep/run.json", "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "out" / "deep" / "run.json").read_text())["steps"] == 0
