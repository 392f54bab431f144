"""`overdrive run` is `python`, with one line more on standard error."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from overdrive.cli.reading_samples import ReadingSamples
from tests.conftest import Run

Write = Callable[[str], Path]

SHOW = """
import os, sys
print(sys.argv, sys.path[0], __name__, __file__, __package__, os.getcwd(), sorted(globals()))
print(sys.modules["__main__"].__dict__ is globals(), __spec__ and __spec__.name)
"""

TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.9f}")
"""


def without_our_lines(errors: str) -> str:
    return "".join(line for line in errors.splitlines(keepends=True) if not line.startswith("overdrive: "))


@pytest.mark.parametrize("script_name", ["train.py", "./train.py", "../project/train.py"])
def test_a_script_sees_what_python_would_show_it(script_name: str, script: Write, python: Run, overdrive: Run) -> None:
    path = script(SHOW)
    expected = python(script_name, "--lr", "0.1", "-m", cwd=path.parent)
    got = overdrive("run", script_name, "--lr", "0.1", "-m", cwd=path.parent)
    assert got.stdout == expected.stdout


def test_a_module_sees_what_python_would_show_it(script: Write, python: Run, overdrive: Run) -> None:
    path = script(SHOW)
    package = path.parent / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("train.py", "__main__.py"):
        (package / name).write_text(SHOW)
    for module in ("pkg.train", "pkg", "train"):
        expected = python("-m", module, "--lr", "0.1", cwd=path.parent)
        got = overdrive("run", "-m", module, "--lr", "0.1", cwd=path.parent)
        assert got.stdout == expected.stdout and got.returncode == 0


@pytest.mark.parametrize(
    "exit_reason",
    [
        "sys.exit(3)",
        "sys.exit('in words')",
        "sys.exit()",
        "raise ValueError('no')",
        "raise KeyError('x') from ValueError('y')",
        "exit(4)",
        "int('x')",
        "def f(): 1/0\nf()",
        "this is no python",
        "import no_such_module_anywhere",
        "import os\npid = os.fork()\nif pid == 0: sys.exit(7)\nprint(os.waitpid(pid, 0)[1])",
        "import atexit; atexit.register(print, 'bye'); raise SystemExit(5)",
        "sys.stderr.close()",
        "sys.stderr = None",
        "sys.stderr = open('errors.txt', 'w'); sys.exit('in words')",
    ],
)
def test_every_exit_reason_is_pythons(exit_reason: str, script: Write, python: Run, overdrive: Run) -> None:
    path = script("import sys\nprint('started')\n" + exit_reason + "\n")
    expected = python("train.py", cwd=path.parent)
    got = overdrive("run", "train.py", cwd=path.parent)
    assert got.returncode == expected.returncode
    assert got.stdout == expected.stdout
    assert without_our_lines(got.stderr) == expected.stderr


def test_what_we_say_goes_into_no_file_of_the_programs(script: Write, overdrive: Run) -> None:
    path = script("import sys\nsys.stderr = open('errors.txt', 'w', buffering=1)\nprint('mine', file=sys.stderr)\n")
    got = overdrive("run", "train.py", cwd=path.parent)
    assert "overdrive: no training step" in got.stderr
    assert (path.parent / "errors.txt").read_text() == "mine\n"


def test_a_module_of_the_programs_is_its_own_though_we_have_imported_a_namesake(
    script: Write, python: Run, overdrive: Run
) -> None:
    path = script("import secrets, click, statistics\nprint(secrets.KEY, click.KEY, statistics.median([1, 2]))\n")
    for name in ("secrets", "click"):
        (path.parent / f"{name}.py").write_text(f"KEY = '{name} of mine'\n")
    expected = python("train.py", cwd=path.parent)
    assert overdrive("run", "train.py", cwd=path.parent).stdout == expected.stdout != ""


def test_a_namesake_in_the_working_folder_is_none_of_ours(script: Write, overdrive: Run) -> None:
    """Of the command either, which is started again here."""
    path = script("import secrets\nprint(secrets.KEY)\n")
    (path.parent / "secrets.py").write_text("KEY = 'mine'\n")
    (path.parent / "train.overdrive.toml").write_text(
        'overdrive = 1\nprogram = "train.py"\ncontract = "exact"\n[[technique]]\nname = "allocator"\n'
    )
    got = overdrive("run", "train.py", cwd=path.parent)
    assert got.returncode == 0 and got.stdout == "mine\n", got.stderr


def test_a_package_that_asks_for_what_is_missing_says_for_what(script: Write, python: Run, overdrive: Run) -> None:
    package = script("").parent / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("import no_such_module_anywhere\n")
    (package / "__main__.py").touch()
    for module in ("pkg", "pkg.part"):
        expected = python("-m", module, cwd=package.parent)
        got = overdrive("run", "-m", module, cwd=package.parent)
        assert got.returncode == expected.returncode == 1
        assert without_our_lines(got.stderr).splitlines()[-1] == expected.stderr.splitlines()[-1]


def test_an_error_inside_a_model_shows_no_frame_of_ours(script: Write, warm_python: Run, warm_run: Run) -> None:
    path = script(TRAIN.replace("torch.randn(8, 4)", "torch.randn(8, 4 if step < 3 else 5)"))
    plan = path.parent / "train.overdrive.toml"
    plan.write_text('overdrive = 1\nprogram = "train.py"\ncontract = "statistical"\n[[technique]]\nname = "autocast"\n')
    expected = warm_python("train.py", cwd=path.parent)
    got = warm_run("train.py", cwd=path.parent)
    assert got.returncode == expected.returncode == 1
    assert "src/overdrive" not in got.stderr
    assert without_our_lines(got.stderr).splitlines()[-1] == expected.stderr.splitlines()[-1]


def test_ctrl_c_ends_it_as_it_ends_python(script: Write) -> None:
    """With what the program has registered for its end, and what lies in its files' buffers."""
    path = script(
        "import atexit, time\natexit.register(print, 'bye')\nlog = open('log.txt', 'a')\nlog.write('one line\\n')\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    outcomes = []
    for command in ([sys.executable, "train.py"], [sys.executable, "-m", "overdrive", "run", "train.py"]):
        process = subprocess.Popen(command, cwd=path.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
        outcomes.append((process.returncode, output, without_our_lines(errors)))
    assert outcomes[0] == outcomes[1] and outcomes[0][:2] == (-signal.SIGINT, "bye\n")
    assert (path.parent / "log.txt").read_text() == "one line\n" * 2


def test_a_script_without_torch_does_not_get_torch(script: Write, overdrive: Run) -> None:
    path = script("import sys\nprint('torch' in sys.modules, 'numpy' in sys.modules)\n")
    got = overdrive("run", "train.py", cwd=path.parent)
    assert got.stdout == "False False\n"
    assert "no training step" in got.stderr


def test_without_a_plan_no_technique_is_read(script: Write, overdrive: Run) -> None:
    """The catalogue takes 0.03 s."""
    path = script("import sys\nprint([each for each in sys.modules if each.startswith('overdrive.techniques.')])\n")
    got = overdrive("run", "train.py", cwd=path.parent)
    assert got.stdout == "['overdrive.techniques.technique', 'overdrive.techniques.catalogue']\n"


def test_a_script_is_the_first_to_import_numpy_under_a_plan_too(script: Write, overdrive: Run) -> None:
    """Having said by a variable how many threads it is to have."""
    path = script("import sys\nprint('numpy' in sys.modules)\n")
    plan = path.parent / "train.overdrive.toml"
    plan.write_text(
        'overdrive = 1\nprogram = "train.py"\ncontract = "rounding"\n[[technique]]\nname = "fused_optimizer"\n'
    )
    got = overdrive("run", "train.py", cwd=path.parent)
    assert got.stdout == "False\n" and not got.returncode, got.stderr


def test_gradients_after_the_only_step_are_no_rate(script: Write, warm_run: Run, tmp_path: Path) -> None:
    """Of 12 batches that are added up by eight, four are left over: their samples had a time of 0."""
    path = script(
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "m = torch.nn.Linear(4, 1)\no = torch.optim.SGD(m.parameters(), 0.1)\n"
        "for i, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(48, 4)), 4)):\n"
        "    m(x).mean().backward()\n"
        "    if i == 7:\n        o.step()\n"
    )
    done = warm_run("--record", str(tmp_path / "one.json"), "train.py", cwd=path.parent)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert json.loads((tmp_path / "one.json").read_text())["samples_per_s"] is None


ELSEWHERE = """
import multiprocessing, sys, time

def work(until):
    while time.process_time() < until:
        pass

process = multiprocessing.get_context("fork").Process(target=work, args=(float(sys.argv[1]) * time.process_time(),))
process.start()
process.join()
"""


@pytest.mark.parametrize(("share", "told"), [("2", ": most of its work was done by processes that"), ("0", "\n")])
def test_a_program_whose_processes_work_is_told_that_they_are_not_counted(
    share: str, told: str, script: Write, overdrive: Run
) -> None:
    path = script(ELSEWHERE)
    said = overdrive("run", path.name, share, cwd=path.parent).stderr
    assert f"no training step was seen in this program{told}" in said


def test_a_program_that_only_calls_its_model_is_told_what_can_be_done_for_it(
    script: Write, warm_run: Run, tmp_path: Path
) -> None:
    path = script("import torch\nprint(torch.nn.Linear(2, 2)(torch.ones(1, 2)).shape)\n")
    assert "; if it only calls its model, `overdrive tune`" in warm_run("--no-plan", path.name, cwd=path.parent).stderr
    other = script("print(1)\n")
    said = warm_run("--no-plan", other.name, cwd=other.parent).stderr
    assert "no training step was seen in this program\n" in said


def test_the_tuners_side_never_imports_a_framework(python: Run, tmp_path: Path) -> None:
    code = (
        "import sys, overdrive.cli.tune, overdrive.techniques.catalogue as c\n"
        "c.catalogue()\nprint('torch' in sys.modules)"
    )
    assert python("-c", code, cwd=tmp_path).stdout == "False\n"


def test_a_record_tells_steps_losses_and_a_hash(script: Write, warm_run: Run, tmp_path: Path) -> None:
    path = script(TRAIN)
    records = []
    for name in ("one.json", "two.json"):
        done = warm_run("--record", str(tmp_path / name), "train.py", cwd=path.parent)
        assert done.returncode == 0
        records.append(json.loads((tmp_path / name).read_text()))
    assert records[0]["losses"] == records[1]["losses"]
    assert records[0]["parameters"] == records[1]["parameters"] and len(records[0]["parameters"]) == 64
    assert records[0]["steps"] == 5 and len(records[0]["losses"]) == 5
    assert f"{float.fromhex(records[0]['losses'][-1][0]):.9f}\n" == done.stdout
    assert f"{records[0]['loss_values'][-1][0]:.9f}\n" == done.stdout
    assert records[0]["learning_rates"] == [0.1] * 5


@pytest.mark.parametrize(("end", "code", "last"), [("", 0, None), ("raise ValueError('mine')", 1, "ValueError: mine")])
@pytest.mark.parametrize("broken", ["losses", "parameters_hash"])
def test_a_record_that_cannot_be_made_hides_and_fails_nothing(
    broken: str, end: str, code: int, last: str | None, script: Write, overdrive: Run
) -> None:
    """As where a GPU's context is dead, after an index that was out of range."""
    path = script(
        "import overdrive.worker.recording as ours\n"
        "def fails(*_):\n    raise RuntimeError('device-side assert triggered\\nmore of it')\n"
        f"ours.Recorder.{broken} = fails\n{end}\n"
    )
    done = overdrive("run", "--record", "run.json", path.name, cwd=path.parent)
    told = "overdrive: the record could not be made (RuntimeError: device-side assert triggered)"
    assert done.returncode == code and told in done.stderr.splitlines(), done.stderr
    assert last is None or done.stderr.splitlines()[-1] == last
    assert not (path.parent / "run.json").exists() and "whole_run" not in done.stderr


def test_a_record_lies_where_it_was_named_though_the_program_goes_elsewhere(script: Write, overdrive: Run) -> None:
    path = script("import os\nos.mkdir('away')\nos.chdir('away')\nopen('metrics.json', 'w').write('mine')\n")
    assert overdrive("run", "--record", "metrics.json", "train.py", cwd=path.parent).returncode == 0
    assert json.loads((path.parent / "metrics.json").read_text())["steps"] == 0
    assert (path.parent / "away" / "metrics.json").read_text() == "mine"


def test_the_plan_beside_the_script_is_used_unless_told_otherwise(script: Write, warm_run: Run) -> None:
    path = script(TRAIN)
    (path.parent / "train.overdrive.toml").write_text(
        'overdrive = 1\nprogram = "train.py"\ncontract = "rounding"\n[[technique]]\nname = "fused_optimizer"\n'
    )
    assert "fused_optimizer" in warm_run("train.py", cwd=path.parent).stderr
    assert "no plan" in warm_run("--no-plan", "train.py", cwd=path.parent).stderr


def test_a_plan_for_another_script_is_used_where_forced_and_told_once(script: Write, overdrive: Run) -> None:
    path = script(TRAIN)
    plan = path.parent / "other.toml"
    start_again = '[[technique]]\nname = "allocator"\n'
    plan.write_text('overdrive = 1\nprogram = "other.py"\ncontract = "exact"\n' + start_again)
    got = overdrive("run", "--force", "--plan", "other.toml", "train.py", cwd=path.parent)
    assert got.returncode == 0 and got.stderr.count("was found for other.py, not for train.py") == 1


def test_a_plan_with_a_technique_that_was_let_go_of_runs_without_it(
    script: Write, warm_python: Run, overdrive: Run
) -> None:
    path = script(TRAIN)
    plan = path.parent / "train.overdrive.toml"
    plan.write_text(
        'overdrive = 1\nprogram = "train.py"\ncontract = "exact"\n'
        '[[technique]]\nname = "batch_fetch"\n'
        '[[technique]]\nname = "packed_files"\nsettings = { index = "/nowhere/index.json" }\n'
        '[[technique]]\nname = "allocator"\n'  # which starts the process again
    )
    got = overdrive("run", "train.py", cwd=path.parent)
    assert got.returncode == 0 and got.stdout == warm_python("train.py", cwd=path.parent).stdout
    assert "train.overdrive.toml (allocator)" in got.stderr
    for name in ("batch_fetch", "packed_files"):
        assert got.stderr.count(f"overdrive: left out {name}: removed on 2026-11-24") == 1
    told = overdrive("report", plan.name, cwd=path.parent)
    assert told.returncode == 0 and "left out batch_fetch: removed on" in told.stderr
    told = overdrive("techniques", "batch_fetch", cwd=path.parent)
    assert told.returncode == 2 and "batch_fetch was removed on" in told.stderr


def test_a_plan_of_the_forked_prefetch_still_loads(script: Write, warm_run: Run) -> None:
    path = script(TRAIN)
    (path.parent / "train.overdrive.toml").write_text(
        'overdrive = 1\nprogram = "train.py"\n[[technique]]\nname = "prefetch"\nsettings = { depth = 3 }\n'
    )
    assert "train.overdrive.toml (nothing to do for prefetch)" in warm_run("train.py", cwd=path.parent).stderr


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('overdrive = 1\nprogram = "a"\ncontract = "exact"\n[[technique]]\nname = "warp"\n', 5, "warp"),
        (
            'overdrive = 1\nprogram = "a"\ncontract = "rounding"\n[[technique]]\nname = "threads"\n'
            "settings = { count = 0 }\n",
            6,
            "count",
        ),
        ('overdrive = 1\nprogram = "a\n', 2, ""),
        ('overdrive = 1\nprogram = "a"\ncontract = "exact"\ncolour = "red"\n', 4, "colour"),
    ],
)
@pytest.mark.fault(24)
def test_a_faulty_plan_is_refused_with_its_line_before_the_program_starts(
    text: str, line: int, says: str, script: Write, overdrive: Run
) -> None:
    path = script("print('must not start')\n")
    (path.parent / "plan.toml").write_text(text)
    got = overdrive("run", "--plan", "plan.toml", "train.py", cwd=path.parent)
    assert got.returncode == 2 and got.stdout == ""
    assert f"line {line}" in got.stderr and says in got.stderr and "Traceback" not in got.stderr


def test_bad_commands_are_answered_in_one_sentence(script: Write, overdrive: Run) -> None:
    path = script("print('must not start')\n")
    for words in (("run",), ("run", "nope.py"), ("run", "."), ("run", "--plan", "nope.toml", "train.py"),
                  ("run", "--fast", "train.py"), ("techniques", "warp"), ("tune", "nope.py"),
                  ("run", "-m", "no.such.module")):  # fmt: skip
        got = overdrive(*words, cwd=path.parent)
        assert got.returncode == 2, words
        assert got.stdout == "" and "Traceback" not in got.stderr


def test_a_technique_that_must_precede_the_process_is_there(script: Write, overdrive: Run) -> None:
    path = script("import os\nprint(os.environ['MALLOC_TOP_PAD_'], __name__)\n")
    (path.parent / "train.overdrive.toml").write_text(
        'overdrive = 1\nprogram = "train.py"\ncontract = "exact"\n[[technique]]\nname = "allocator"\n'
    )
    got = overdrive("run", "train.py", cwd=path.parent)
    assert got.stdout == f"{256 << 20} __main__\n"


def test_a_technique_whose_variables_the_user_has_set_is_left_out(
    script: Write, overdrive: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script("import os\nprint(os.environ['MALLOC_TRIM_THRESHOLD_'], os.environ.get('MALLOC_MMAP_THRESHOLD_'))\n")
    (path.parent / "train.overdrive.toml").write_text(
        'overdrive = 1\nprogram = "train.py"\ncontract = "exact"\n[[technique]]\nname = "malloc_trim"\n'
    )
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    got = overdrive("run", "train.py", cwd=path.parent)
    assert got.stdout == "65536 None\n"
    assert "left out malloc_trim: MALLOC_TRIM_THRESHOLD_ is set already" in got.stderr


def test_using_puts_a_block_of_code_under_a_plan(script: Write, warm_python: Run) -> None:
    path = script(
        "import overdrive, torch\n"
        "before = torch.get_num_threads()\n"
        "with overdrive.using('plan.toml') as session:\n"
        "    print(torch.get_num_threads(), session.active)\n"
        "print(torch.get_num_threads() == before)\n"
    )
    (path.parent / "plan.toml").write_text(
        'overdrive = 1\nprogram = "notebook"\ncontract = "rounding"\n'
        '[[technique]]\nname = "threads"\nsettings = { count = 3 }\n[[technique]]\nname = "allocator"\n'
    )
    got = warm_python("train.py", cwd=path.parent)
    assert got.stdout == "3 ['threads']\nTrue\n", got.stderr
    assert "left out allocator" in got.stderr


@pytest.mark.parametrize("terminal", [False, True])
def test_who_waits_for_samples_is_told(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    seconds = [0.0]
    waiting = ReadingSamples(lambda: seconds[0])

    def read(done: int, at: float) -> str:
        seconds[0] = at
        waiting(done, 4000)
        return capsys.readouterr().err

    line = "\roverdrive: {} of 4,000 samples read\033[K" if terminal else "overdrive: {} of 4,000 samples read\n"
    assert read(10, 0.0) == read(1000, 1.9) == ""  # nobody asks about that
    assert read(1100, 2.1) == line.format("1,100")
    assert read(1200, 2.2) == ""
    assert read(2000, 33.0) == line.format("2,000")
    assert read(4000, 34.0) == ("\r\033[K" if terminal else "")
    assert read(10, 35.0) == "" and read(20, 38.0) == line.format("20")  # another data set


NEAR_THE_LIMIT = """
import sys, torch

def depth(n=0):
    try:
        return depth(n + 1)
    except RecursionError:
        return n

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(1, 1)

    def forward(self, x):
        print(depth() >= int(sys.argv[2]))
        return self.fc(x)

print(depth() >= int(sys.argv[1]))
model = Net()
torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 1))
"""


def write_plan(script: Path, *names: str) -> None:
    techniques = [f'[[technique]]\nname = "{each}"\ncontract = "rounding"\nverdict = "FASTER"\n' for each in names]
    head = f'overdrive = 1\nprogram = "{script.name}"\ncontract = "rounding"\n'
    (script.parent / "plan.toml").write_text("\n".join([head, *techniques]))


def test_a_program_may_recurse_as_deep_as_in_python(script: Write, python: Run, overdrive: Run) -> None:
    path = script(NEAR_THE_LIMIT)
    write_plan(path, "channels_last", "activation_checkpointing", "fused_optimizer")
    got = overdrive("run", "--plan", "plan.toml", path.name, "997", "993", cwd=path.parent)
    assert got.stdout == python(path.name, "997", "993", cwd=path.parent).stdout == "True\nTrue\n"


WARNS = """
import torch
torch.set_warn_always(True)
x = torch.ones(1, requires_grad=True)
for _ in range(3):
    float(x * 2)
    int(x * 3)
(x * 2).item()
"""


def test_warnings_name_the_programs_place_and_come_once_for_each(
    script: Write, warm_python: Run, warm_run: Run
) -> None:
    path = script(WARNS)
    write_plan(path, "deferred_scalars")
    expected = warm_python(path.name, cwd=path.parent)
    got = warm_run("--plan", "plan.toml", path.name, cwd=path.parent)
    assert "UserWarning" in expected.stderr and without_our_lines(got.stderr) == expected.stderr
