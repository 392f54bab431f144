"""Commands that find their way: what a line that is not quite right is answered, and what is noticed in one that is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from overdrive.cli import causes
from overdrive.cli.group import cli
from overdrive.cli.misplaced import Misplaced, misplaced
from overdrive.cli.values import Duration
from tests.conftest import Run, long_but
from tests.schemas import held

Write = Callable[[str], Path]

PLAN = 'overdrive = 1\nprogram = "train.py"\ncontract = "rounding"\n[[technique]]\nname = "fused_optimizer"\n'


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train.py", "--lr", "1"), "Did you mean `overdrive run train.py --lr 1`"),
        (("-m", "pkg.train"), "Did you mean `overdrive run -m pkg.train`"),
        (("train.overdrive.toml",), "Did you mean `overdrive report train.overdrive.toml`"),
        (("tunr", "train.py"), "Did you mean `overdrive tune train.py`"),
        (("frobnicate",), "There is no command frobnicate"),
        (("tune", "--bugdet", "2m", "train.py"), "--budget"),
        (("techniques", "chanels_last"), "closest: channels_last"),
        (("tune", "--techniques", "chanels_last", "train.py"), "closest: channels_last"),
        (("tune", "--budget", "5x", "train.py"), "did you mean 5m?"),
        (("tune", "--json", "train.py"), "train.py is a script"),
        (("run", "trian.py"), "closest: train.py"),
        (("report", "train.py"), "There is no plan train.overdrive.toml: `overdrive tune train.py` makes one"),
        (("verify", "train.py"), "There is no plan train.overdrive.toml: `overdrive tune train.py` makes one"),
        (("report", "one.overdrive.toml", "other.overdrive.toml", "more"), "no third plan: more"),
    ],
)
def test_a_line_that_is_not_quite_right_is_answered_with_what_was_meant(
    words: tuple[str, ...], says: str, script: Write, overdrive: Run
) -> None:
    path = script("print('must not start')\n")
    done = overdrive(*words, cwd=path.parent)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert says in done.stderr


DURATIONS = {"90": 90, "2 minutes": 120, "1.5h": 5400, "1h 30min": 5400, "2MIN": 120, "30 sec": 30}


@pytest.mark.parametrize(("text", "seconds"), DURATIONS.items())
def test_durations_as_people_write_them(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("text", "meant"), [("1:30", "1m30s"), ("2d", "48h"), ("5mn", "5m"), ("1h30", "1h30m"), ("3hr30x", "")]
)
def test_a_duration_that_is_none_is_told_what_it_may_have_been(text: str, meant: str) -> None:
    with pytest.raises(click.BadParameter) as failed:
        Duration().convert(text, None, None)
    assert (f"did you mean {meant}?" in str(failed.value)) == bool(meant)


def noticed(command: str, *words: str) -> str | None:
    context = click.Context(cli)
    found = cli.get_command(context, command)
    assert found is not None
    result = misplaced(command, found, ["--contract", "exact"], words)
    return result.meant if result else None


def test_options_of_ours_after_the_script_are_noticed() -> None:
    start = "overdrive tune --contract exact"
    assert noticed("tune", "train.py", "--budget", "2m", "--lr", "1") == f"{start} --budget 2m train.py --lr 1"
    assert noticed("tune", "train.py", "--budget=2m") == f"{start} --budget=2m train.py"
    assert noticed("tune", "train.py", "-o", "x.toml") == f"{start} -o x.toml train.py"
    assert noticed("tune", "-m", "pkg.train", "--force") == f"{start} --force -m pkg.train"
    assert noticed("tune", "train.py", "--lr", "1", "--epochs", "3", "-h", "--help") is None
    assert noticed("tune", "train.py", "--budget", "lots") is None  # a value that --budget would not take
    assert noticed("tune", "train.py", "--budget") is None
    assert noticed("tune", "train.py", "--", "--budget", "2m") is None
    assert noticed("run", "train.py", "--budget", "2m") is None  # none of run's


def test_an_option_after_the_script_goes_to_the_script_and_is_told_once(script: Write, overdrive: Run) -> None:
    path = script("import sys\nprint(sys.argv[1:])\n")
    starts_again = PLAN.replace("fused_optimizer", "allocator")
    (path.parent / "train.overdrive.toml").write_text(starts_again)
    done = overdrive("run", "train.py", "--plan", "other.toml", cwd=path.parent)
    assert done.stdout == "['--plan', 'other.toml']\n" and done.returncode == 0
    assert done.stderr.count("Did you mean `overdrive run --plan other.toml train.py`?") == 1
    assert "`overdrive run -- train.py --plan other.toml` says so" in done.stderr
    told = overdrive("run", "--", "train.py", "--plan", "other.toml", cwd=path.parent)
    assert told.stdout == done.stdout and "Did you mean" not in told.stderr


def test_the_plan_beside_the_script_is_reported_and_verified(script: Write, overdrive: Run) -> None:
    path = script("raise SystemExit('must not start')\n")
    plan = path.parent / "train.overdrive.toml"
    plan.write_text(PLAN)
    done = overdrive("report", "train.py", "--epochs", "3", cwd=path.parent)
    assert done.returncode == 0 and "fused_optimizer" in done.stdout and done.stderr == ""
    done = overdrive("report", "-m", "train", "-o", "out.html", cwd=path.parent)
    assert done.returncode == 0 and (path.parent / "out.html").exists(), done.stderr
    plan.write_text(PLAN.split("[[")[0])  # nothing in it
    done = overdrive("verify", "train.py", "--epochs", "3", cwd=path.parent)
    assert done.returncode == 0 and "train.overdrive.toml changes nothing" in done.stdout


@pytest.mark.parametrize("command", ["run", "verify"])
def test_another_scripts_plan_is_refused_unless_forced(command: str, script: Write, overdrive: Run) -> None:
    path = script("print('started')\n")
    (path.parent / "other.toml").write_text('overdrive = 1\nprogram = "other.py"\n')
    words = ("--plan", "other.toml", "train.py") if command == "run" else ("other.toml", "train.py")
    done = overdrive(command, *words, cwd=path.parent)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "was found for other.py, not for train.py" in done.stderr and "--force" in done.stderr
    done = overdrive(command, "--force", *words, cwd=path.parent)
    assert done.returncode == 0 and done.stdout, done.stderr


FAILS = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
{end}
"""


ENDS = ["raise ValueError('no')", "import no_such_module_anywhere", "1 / 0"]


@pytest.mark.parametrize("end", long_but(ENDS[:1], ENDS))
def test_before_a_traceback_nothing_of_ours_is_said(end: str, script: Write, warm_python: Run, warm_run: Run) -> None:
    path = script(FAILS.format(end=end))
    (path.parent / "train.overdrive.toml").write_text(PLAN)
    expected = warm_python("train.py", cwd=path.parent)
    done = warm_run("train.py", cwd=path.parent)
    assert done.returncode == expected.returncode == 1
    assert done.stderr == expected.stderr and "Traceback" in done.stderr


def bare_python(tmp_path: Path) -> Path:
    """An environment that has Overdrive and nothing that a script needs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    return tmp_path / "bare" / "bin" / "python"


def test_the_wrong_environment_is_named_with_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path(sys.executable).resolve()  # not one of pyenv's, which asks PATH for itself
    monkeypatch.setattr(sys, "executable", str(bare_python(tmp_path)))
    other = tmp_path / "bin"
    other.mkdir()
    (other / "python").write_text(f'#!/bin/sh\nexec "{real}" "$@"\n')
    (other / "python").chmod(0o755)
    monkeypatch.setenv("PATH", str(other))
    told = causes.wrong_environment("json")  # which any Python has
    assert str(tmp_path / "bare") in told and f"{other / 'python'} has it" in told and "pip install" in told
    told = causes.wrong_environment("no_such_module_anywhere")
    assert str(tmp_path / "bare") in told and "has it" not in told and "pip install" not in told
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "helpers.py").touch()
    monkeypatch.chdir(tmp_path / "mine")
    assert "has it" not in causes.wrong_environment("helpers"), "it lies in this folder, and in no environment"
    monkeypatch.setenv("PATH", "/nowhere")
    assert causes.wrong_environment("torch").endswith(f"`{sys.executable} -m pip install torch` installs it.")


def test_tune_says_which_python_lacks_a_module(script: Write, overdrive: Run) -> None:
    path = script("import no_such_module_anywhere\n")
    done = overdrive("tune", "train.py", cwd=path.parent)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert sys.executable in last and "no_such_module_anywhere is not installed there" in last


def test_a_script_that_refuses_our_option_is_told_whose_it_may_be(script: Write, overdrive: Run) -> None:
    path = script("import argparse\nargparse.ArgumentParser().parse_args()\n")
    done = overdrive("tune", "train.py", "--budget", "2m", cwd=path.parent)
    assert done.returncode == 1 and "unrecognized arguments" in done.stderr
    assert "Did you mean `overdrive tune --budget 2m train.py`?" in done.stderr.splitlines()[-1]


def test_a_parser_that_raises_is_understood_as_well() -> None:
    """Hugging Face's does; after its traceback the line at the start is far above."""
    found = Misplaced("--budget 2m", "overdrive tune --budget 2m train.py", "overdrive tune -- train.py --budget 2m")
    raised = "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--budget', '2m']"
    assert "Did you mean `overdrive tune --budget 2m train.py`?" in causes.cause(raised, found)
    assert causes.cause("ValueError: no such optimizer", found) == ""


def test_a_script_that_reads_standard_input_is_told_of_the_option_for_it(script: Write, overdrive: Run) -> None:
    path = script("print(input())\n")
    done = overdrive("tune", "train.py", cwd=path.parent)
    assert done.returncode == 1 and "--stdin FILE" in done.stderr.splitlines()[-1]
    (path.parent / "in.txt").write_text("a line\n")
    done = overdrive("tune", "--stdin", "in.txt", "train.py", cwd=path.parent)
    assert "made no training step" in done.stderr and "EOFError" not in done.stderr  # it was read to its end


def test_only_who_asks_for_a_line_is_told_of_standard_input() -> None:
    asked, cut = "EOFError: EOF when reading a line", "EOFError: Ran out of input"  # of pickle
    assert "--stdin FILE" in causes.cause(asked) and causes.cause(cut) == ""
    assert causes.cause(asked, stdin="in.txt") == "It asks for more lines than in.txt has."


def test_standard_input_that_trials_do_not_get_is_told(script: Write) -> None:
    path = script("print(len(__import__('sys').stdin.read()))\n")
    (path.parent / "in.txt").write_text("a line\n")
    command = [sys.executable, "-m", "overdrive", "tune", "train.py"]
    with (path.parent / "in.txt").open() as given:
        done = subprocess.run(command, cwd=path.parent, stdin=given, capture_output=True, text=True)
    assert done.stderr.count("--stdin FILE gives each of them a file") == 1
    done = subprocess.run(command, cwd=path.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert "--stdin" not in done.stderr


def test_json_to_standard_output_stands_there_alone(script: Write, overdrive: Run) -> None:
    import json

    path = script("")
    (path.parent / "train.overdrive.toml").write_text(PLAN)
    told = json.loads(overdrive("report", "train.py", "--json", "-", cwd=path.parent).stdout)
    assert [each["name"] for each in told["techniques"]] == ["fused_optimizer"]
    cards = json.loads(overdrive("techniques", "--json", "-", cwd=path.parent).stdout)
    for card in cards:
        held("technique", card)
    assert overdrive("techniques", "--json", "one.json", "threads", cwd=path.parent).stdout == ""
    assert json.loads((path.parent / "one.json").read_text())["name"] == "threads"
    done = overdrive("run", "--json", "-", "train.py", cwd=path.parent)
    assert done.returncode == 2 and "Standard output is the program's own" in done.stderr


def test_every_command_takes_json_in_the_same_way() -> None:
    for name in cli.list_commands(click.Context(cli)):
        answer = CliRunner().invoke(cli, [name, "--help"])
        assert "--json FILE" in answer.output, name
