"""The exit codes that docs/exit-codes.md promises: each is produced here."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from overdrive.cli import tune as tune_command
from overdrive.cli.group import cli
from tests.cli.test_watching import LOSES, hangs
from tests.conftest import ROOT, Run

Write = Callable[[str], Path]

WAITS = "print('ready', flush=True)\nopen('ready', 'w').close()\nimport time\ntime.sleep(60)\n"
STOPPED = "overdrive: stopped. What was established is kept: the same command goes on from there.\n"
BEGINS_ANEW = "overdrive: stopped, and nothing was written: the same command begins anew.\n"


def test_the_page_names_those_that_are_tested_here() -> None:
    page = (ROOT / "docs" / "exit-codes.md").read_text()
    assert set(re.findall(r"^\| `(\d+)`", page, re.MULTILINE)) == {"0", "1", "2", "65", "70", "74", "75", "130", "143"}


def test_run_ends_as_the_program_does(script: Write, overdrive: Run) -> None:
    path = script("raise SystemExit(7)\n")
    assert overdrive("run", "train.py", cwd=path.parent).returncode == 7


def test_0_1_and_2(script: Write, overdrive: Run) -> None:
    path = script("raise SystemExit(7)\n")
    assert overdrive("techniques", cwd=path.parent).returncode == 0
    assert overdrive("tune", "train.py", cwd=path.parent).returncode == 1  # the program failed
    assert overdrive("tune", "--budget", "never", "train.py", cwd=path.parent).returncode == 2
    assert overdrive("report", "nothing.toml", cwd=path.parent).returncode == 2


@pytest.mark.fault("nan")
def test_65_is_a_loss_that_is_not_finite(script: Write, warm_run: Run) -> None:
    path = script(LOSES)
    got = warm_run("--on-nan", "stop", "train.py", cwd=path.parent)
    assert got.returncode == 65 and got.stdout == "step 1\nstep 2\nstep 3\n"
    assert "the loss of step 4 is nan: the run ends here" in got.stderr and "Traceback" not in got.stderr
    assert (path.parent / "last").read_text() == "kept"  # its `finally`, as where it had called sys.exit there


@pytest.mark.fault("hang")
def test_75_is_a_run_that_stands(script: Write, warm_run: Run) -> None:
    path = script(hangs("print('here'); stands()"))
    got = warm_run("--on-hang", "stop", "--hang-after", "1s", "train.py", cwd=path.parent)
    assert got.returncode == 75 and got.stdout == "here\n", got.stderr
    assert "no step and no batch for 1 s, since step 10; the stacks" in got.stderr
    assert " in stands\n" in (path.parent / "train.stacks.txt").read_text()


def test_70_is_a_defect_of_overdrives_own(script: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> int:
        raise AssertionError("broken")

    monkeypatch.setattr(tune_command, "tune", breaks)
    before = signal.getsignal(signal.SIGTERM)
    try:
        answer = CliRunner().invoke(cli, ["tune", str(script(""))])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert answer.exit_code == 70 and "a defect of its own (AssertionError: broken)" in answer.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.fault(10)
def test_a_signal_is_answered_with_what_is_kept(number: int, code: int, script: Write) -> None:
    process = _started("tune", path=script(WAITS))
    assert process.stdout is not None and "Tuning train.py" in process.stdout.readline()
    time.sleep(1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (code, STOPPED)


@pytest.mark.parametrize("command", [("profile",), ("search", "--list")], ids=" ".join)
def test_what_keeps_nothing_does_not_promise_to_go_on(command: tuple[str, ...], script: Write) -> None:
    path = script(WAITS)
    process = _started(*command, path=path)
    while process.poll() is None and not _waits(process.pid):
        time.sleep(0.1)
    time.sleep(2)  # a child is there before its trial is
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, BEGINS_ANEW)


def _waits(number: int) -> bool:
    """Whether its trial has been started."""
    return bool(psutil.Process(number).children(recursive=True))


def _started(*command: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "overdrive", *command, "train.py"],
        cwd=path.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_attempt_that_cannot_even_be_given_up_ends_the_process(tmp_path: Path) -> None:
    """On a full disk: it would have gone on with zeros for numbers."""
    pytest.importorskip("torch")
    from overdrive.survive.ending import Ending
    from overdrive.survive.folder import RunFolder
    from overdrive.survive.interval import SnapshotInterval
    from overdrive.survive.output import UnsavedOutput
    from overdrive.survive.survivor import Survivor
    from overdrive.survive.under_plan import UnderPlan

    def full(**notes: Any) -> None:
        raise OSError(28, "No space left on device")

    folder = RunFolder(tmp_path / "run", {}, fresh=False)
    folder.note = full  # type: ignore[method-assign]
    anew: Any = pytest.fail
    survivor = Survivor(folder, UnsavedOutput(), SnapshotInterval(None), Ending(None), print, anew, UnderPlan())
    child = os.fork()
    if not child:
        try:
            survivor.begin_anew("it asks for something else")
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == os.EX_IOERR
    folder.close()
