"""How well ranks that are unlike, and ranks that fail, are foretold: against two real ones of this machine.

python benchmarks/scale.py     writes benchmarks/results/scale.json; three minutes

The program waits instead of computing (benchmarks/models/waiting.py), so that two cores have room for both ranks, and
what is compared is the play: the wait for the slowest, and what a lost rank costs a run under `--survive`. Ranks are
killed at moments that are drawn; what a start and a skipped step take is measured at the kills of a first run, and a
second is foretold with it, and with what they took in itself.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from overdrive.cli.layout import technique_of
from overdrive.core.json_data import to_json
from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.insight.requirements.failures import Back, ran, survival_of
from overdrive.insight.requirements.ranks import noted, ranks_of
from overdrive.insight.requirements.unlike import step_with
from overdrive.machine.inventory import machine, versions
from overdrive.survive.folder import COST, GONE_ON, RunFolder
from overdrive.survive.interval import SnapshotInterval
from overdrive.trials.launchers.ranks import RanksLauncher
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "scale.json"
WAITING = str(ROOT / "benchmarks" / "models" / "waiting.py")
RANKS = 2
UNLIKE = {  # what the program is told, and how many times as long its ranks compute
    "alike": ((), (1.0, 1.0)),
    "varying": (("--spread", "0.01"), (1.0, 1.0)),
    "one slow": (("--slow", "1.5"), (1.5, 1.0)),
    "one slow, varying": (("--spread", "0.01", "--slow", "1.5"), (1.5, 1.0)),
}
_STEPS = 96
_EVERY, _STEP = 3.0, 0.02  # seconds from snapshot to snapshot, and of a call


def steps_measured(words: tuple[str, ...]) -> float:
    with TrialPool() as pool:
        spec = TrialSpec(Program(WAITING, arguments=words), (technique_of("data=2", RANKS),), losses=False)
        trial = Trial(pool, spec, RanksLauncher(RANKS, pool.launcher))
        try:
            trial.first_step()
            trial.run(5)
            return trial.run(_STEPS).seconds / _STEPS
        finally:
            trial.stop()


def unlike() -> dict[str, object]:
    ranks = ranks_of(RANKS, None, quick=True)
    found = {}
    for name, (words, factors) in UNLIKE.items():
        alike = words[: words.index("--slow")] if "--slow" in words else words
        program = Program(WAITING, arguments=alike)
        notes, _ = noted(program, technique_of("data=2", RANKS), ranks, steps=(_STEPS, _STEPS))
        foretold = step_with(notes, ranks.network, np.array(factors), np.random.default_rng(0))
        measured = steps_measured(words)
        found[name] = {"foretold": foretold, "measured": measured, "error": foretold / measured - 1}
        error = foretold / measured - 1
        print(f"{name:18} {foretold * 1e3:6.1f} ms foretold, {measured * 1e3:6.1f} measured: {error:+.1%}", flush=True)
    errors = sorted(abs(each["error"]) for each in found.values())
    print(f"steps off by {statistics.median(errors):.0%} in the median, {errors[-1]:.0%} at worst")
    return {"rows": found}


@dataclass
class Killed:
    """A run of which ranks were killed; seconds since its first step, but for `step`, one in the median, `snapshot`,
    what the last one cost. `back`: by kill."""

    seconds: float = 0.0
    step: float = 0.0
    snapshot: float = 0.0
    kills: list[float] = field(default_factory=list)
    back: list[Back] = field(default_factory=list)


def run_killed(steps: int, gaps: list[float]) -> Killed:
    """Under --survive, with a rank killed after each of these seconds."""
    found = Killed()
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        words = [sys.executable, "-m", "overdrive", "run", "--survive=" + folder + "/run", f"--every={_EVERY}s"]
        words += ["--ranks", str(RANKS), WAITING, "--steps", str(steps), "--base", str(_STEP)]
        process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        began, killed_at, said = 0.0, 0.0, ""
        seen: list[tuple[int, float]] = []
        waiting = list(gaps)
        for line in process.stdout:
            now = time.monotonic()
            if line.startswith("step "):
                began = began or now
                if len(found.back) < len(found.kills) and "gone on" in said:
                    step, skipped, last = RunFolder.notes_in(Path(folder) / "run")[GONE_ON]
                    found.back.append(Back(step, skipped - killed_at, last - killed_at))
                    said = ""
                seen.append((int(line.split()[1]), now))
            if "gone on after step" in line:
                said = line
            if line.startswith("loss "):
                found.seconds = now - began
            if waiting and began and len(found.back) == len(found.kills) and now - (killed_at or began) >= waiting[0]:
                waiting.pop(0)
                killed_at = time.monotonic()
                found.kills.append(killed_at - began)
                os.kill(rank_of(process.pid, 1), signal.SIGKILL)
        assert process.wait() == 0 and len(found.kills) == len(gaps), "the run did not come to its end"
        found.snapshot = RunFolder.notes_in(Path(folder) / "run")[COST]
    steps = [(later - sooner) / (last - first) for (first, sooner), (last, later) in itertools.pairwise(seen)]
    found.step = statistics.median(steps)
    return found


def rank_of(parent: int, rank: int) -> int:
    for each in psutil.Process(parent).children(recursive=True):
        if each.environ().get("RANK") == str(rank):
            return each.pid
    raise RuntimeError(f"rank {rank} is not there")


def failing() -> dict[str, object]:
    """What a start and a skipped step take, of one run; and another foretold with it, whose failures are the same."""
    first = run_killed(1000, [5.0, 12.0])
    survival = survival_of(first.snapshot, first.back)
    assert survival is not None, "it skipped no step"
    chance = random.Random(1)
    second = run_killed(1500, [chance.uniform(2.0, 14.0) for _ in range(3)])
    own = survival_of(first.snapshot, second.back)
    assert own is not None
    plain = 1500 * second.step
    found: dict[str, object] = {
        "step": second.step,
        "kills": second.kills,
        "gone on after": [to_json(each) for each in second.back],
    }
    found["measured"] = second.seconds
    for name, each in {"with what another run took": survival, "with what it took itself": own}.items():
        gaps = np.diff([0.0, *second.kills]).tolist()
        foretold = ran(1500, second.step, each, SnapshotInterval(_EVERY), iter(gaps)).seconds
        error, lost = foretold / second.seconds - 1, (foretold - plain) / (second.seconds - plain) - 1
        print(
            f"{name}: {foretold:.1f} s foretold, {second.seconds:.1f} measured: {error:+.1%}, what is lost {lost:+.1%}"
        )
        found[name] = {"survival": to_json(each), "foretold": foretold, "error": error, "error of what is lost": lost}
    return {**found, "without failures": plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["steps", "failures"], help="the other half stays as it was")
    only = parser.parse_args().only
    here = {"machine": machine(), "versions": versions()}
    del here["machine"]["available_bytes"]
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() and only else {}
    for name, half in {"steps": unlike, "failures": failing}.items():
        if only in (None, name):
            kept[name] = {"date": time.strftime("%Y-%m-%d %H:%M"), "load": os.getloadavg()[0], **half()}
            RESULTS.write_text(json.dumps({**kept, **here}, indent=1) + "\n")


if __name__ == "__main__":
    main()
