"""The machine's clock jumps by an hour, forward and back, at random moments: nothing is measured or bounded by it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overdrive.core.plan import Plan
from overdrive.techniques.catalogue import catalogue
from tests.cli.test_killed_tune import TRAIN as KEEPS_SAMPLES
from tests.conftest import Run
from tests.survive.killed import survive
from tests.survive.test_survive import TRAIN

pytest.importorskip("torch")
pytestmark = pytest.mark.faults

HOUR = 3600
TIME = r" at ([0-9.]+)"
# With the time in each line, and long enough for jumps.
TIMED = TRAIN.replace("print(step, f", "time.sleep(0.1); print(line := f'{step} at {time.time():.3f}', f").replace(
    "{step},{loss.item()}", "{line},{loss.item()}"
)


@pytest.fixture
def jumping(tmp_path: Path) -> dict[str, str]:
    """The variables under which a process sees such a clock, and all that it starts."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc")
    library = tmp_path / "clock.so"
    source = Path(__file__).with_name("jumping_clock.c")
    flags = ("-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl", "-lpthread")
    made = subprocess.run([compiler, *flags], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"gcc cannot compile for this: {made.stderr}")
    return {"LD_PRELOAD": str(library), "JUMPS_SEED": "1"}


@pytest.mark.fault(26)
def test_a_run_that_is_killed_and_gone_on_with_ends_bit_for_bit_while_the_clock_jumps(
    jumping: dict[str, str], tmp_path: Path
) -> None:
    whole = survive(tmp_path, "whole", TIMED)
    assert whole.returncode == 0, whole.stderr
    first = survive(tmp_path, "killed", TIMED, dies=17, every="0.3s", variables=jumping)
    assert first.returncode == -signal.SIGKILL, first.stderr
    second = survive(tmp_path, "killed", TIMED, every="0.3s", variables={**jumping, "JUMPS_SEED": "2"})
    assert second.returncode == 0 and "gone on after step" in second.stderr, first.stderr + second.stderr
    said = first.stdout + second.stdout
    assert without_times(said) == without_times(whole.stdout)
    log = (tmp_path / "killed" / "log.csv").read_text()
    assert without_times(log) == without_times((tmp_path / "whole" / "log.csv").read_text())
    assert (tmp_path / "killed" / "best.pt").read_bytes() == (tmp_path / "whole" / "best.pt").read_bytes()
    times = [float(each) for each in re.findall(TIME, log)]
    assert len(times) == 24 and max(times) - min(times) > HOUR / 2  # that it did jump


def without_times(text: str) -> str:
    return re.sub(TIME, "", text)


@pytest.mark.fault(26)
@pytest.mark.timeout(600)
def test_a_tune_comes_to_its_verdict_while_the_clock_jumps(
    jumping: dict[str, str], tmp_path: Path, python: Run
) -> None:
    """Neither ended by an hour that is only told, nor waiting for one; and no number of it has an hour in it."""
    (tmp_path / "train.py").write_text(KEEPS_SAMPLES)
    words = ("-m", "overdrive", "tune", "--budget", "90s", "--json", "found.json", "train.py")
    done = python(*words, cwd=tmp_path, timeout=500, env={**os.environ, **jumping})
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stdout + done.stderr
    plan = Plan.read(tmp_path / "train.overdrive.toml", catalogue())
    assert plan.speedup and "sample_cache" in {each.name for each in plan.techniques}, done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    seconds = dict(seconds_in(found))
    assert seconds and all(abs(each) < HOUR / 2 for each in seconds.values()), seconds


def seconds_in(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Of a result, all numbers whose name says that they are seconds."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from seconds_in(each, f"{name}.{key}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from seconds_in(each, f"{name}.{number}")
    elif isinstance(value, (int, float)) and "second" in name.rpartition(".")[2]:
        yield name, value
