"""What `--survive` costs: a run with it beside one without, skipped steps, a signal, ranks that are killed.

python benchmarks/survive.py [--only cost,replay,signal,ranks] [--programs vae,...] [--seconds 100] [--from FOLDER]

After `public/prepare.py`, in the Python that has what these programs need. After each part it adds to
benchmarks/results/survive.json: of each program, or number of ranks, a list, the oldest first.

`cost`: a step recorded and not, in turn within a run (survive_blocks.py), and what one snapshot takes. `replay`:
what a skipped step takes, by `verify --resume`, and whether the end is the same. `signal`: from SIGTERM until the
snapshot is on disk, beside two steps and what that snapshot took; and until the process is gone. `ranks`: ranks of a
program that waits instead of computing (models/waiting.py), killed at random.

On a quiet machine `--only cost` takes about six minutes: three programs, 100 s each, and a run with snapshots.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent / "public"))

from alternate import OVERDRIVE, ROOT
from prepare import INTO, programs
from scale import WAITING, rank_of

from overdrive.core.json_data import to_json
from overdrive.evidence.speed import Pair, speedup
from overdrive.machine.inventory import machine, versions
from overdrive.survive.folder import COST, RunFolder

BLOCKS = str(ROOT / "benchmarks" / "survive_blocks.py")
RESULTS = ROOT / "benchmarks" / "results" / "survive.json"
_EVERY = 600.0  # seconds between snapshots, for which the cost is told
_PRINTED = ("step ", "loss ")  # by the program of `ranks`
_NEVER = "--every=1000000s"
_KILLS_OF_A_RUN = 5  # of ranks
_LOOKS_EVERY = 0.001  # seconds
Result = dict[str, Any]


class Place:
    """A copy of a public program, for as long as it is measured."""

    def __init__(self, name: str, base: Path, scratch: Path) -> None:
        program = programs()[name]
        self.base = scratch / name
        shutil.copytree(base / name, self.base)
        self.folder = self.base / program["folder"]
        self.words = (program["script"], *program.get("resumed", program["arguments"]))
        self.record, self.run = scratch / f"{name}.record", scratch / f"{name}.run"
        os.environ.update(program.get("environment", {}))

    def command(self, *survive: str) -> tuple[str, ...]:
        return (*OVERDRIVE, "run", "--no-plan", *survive, "--record", str(self.record), *self.words)

    def recorded(self) -> Result:
        """Of the last run."""
        found: Result = json.loads(self.record.read_text())
        return found

    def switched(self) -> Result:
        """Of one run in which recording is on and off."""
        told = self.record.with_suffix(".blocks")
        words = ("run", "--no-plan", f"--survive={self.run}", _NEVER, "--fresh", *self.words)
        alike = {**os.environ, "PYTHONHASHSEED": "0"}  # else the command starts itself again, without this
        command = (sys.executable, BLOCKS, told, *words)
        subprocess.run(command, cwd=self.folder, check=True, stdout=subprocess.DEVNULL, env=alike)
        found: Result = json.loads(told.read_text())
        if found["cannot"]:
            raise RuntimeError(found["cannot"])
        return found

    def surviving(self, *options: str) -> tuple[str, ...]:
        return self.command(f"--survive={self.run}", _NEVER, *options)


def cost(place: Place, seconds: float) -> Result:
    """Runs for about as long, three at least, in each of which recording is on and off from block to block of steps.

    Whole runs in turn differ by more than recording costs: here by -4 to +28 %.
    """
    pairs: list[Pair] = []
    passing: list[float] = []  # of a step, what it takes to pass through what is not recorded
    took, walls = 0.0, []
    while len(walls) < 3 or took + max(walls) < seconds:
        began = time.monotonic()
        found = place.switched()
        walls.append(time.monotonic() - began)
        took += walls[-1]
        pairs += [Pair(len(walls), found["block"], on, off, True) for on, off in found["pairs"]]
        passing.append(found["passed"] * found["pass"] / statistics.median(off for _, off in found["pairs"]))
    kept = place.command(f"--survive={place.run}", "--every=2s", "--fresh")
    subprocess.run(kept, cwd=place.folder, check=True, stdout=subprocess.DEVNULL)
    snapshot = RunFolder.notes_in(place.run).get(COST, math.nan)
    recording, passed = speedup(pairs), statistics.median(passing)  # how many times as long a step takes if recorded
    share = recording.estimate - 1 + passed + snapshot / _EVERY
    print(f"  {recording.low - 1:+.2%} to {recording.high - 1:+.2%} to record, {len(pairs)} pairs of blocks")
    print(f"  {passed:+.2%} to pass through, {snapshot * 1e3:.0f} ms a snapshot")
    print(f"  {share:+.2%} with snapshots every {_EVERY:.0f} s", flush=True)
    told = {"seconds": walls, "pairs": len(pairs), "recording": to_json(recording), "passing": passing}
    return {**told, "snapshot": snapshot, "share": share}


def skipped(place: Place) -> Result:
    """What a step that is skipped takes of one that is made."""
    subprocess.run(place.command(), cwd=place.folder, check=True, stdout=subprocess.DEVNULL)
    step = float(place.recorded()["seconds_per_step"])
    told = place.record.with_suffix(".resumed")
    words = ("verify", "--resume", "--kills", "3", "--seed", "1", "--copy", str(place.base), "--json", str(told))
    subprocess.run([*OVERDRIVE, *words, *place.words], cwd=place.folder, stdout=subprocess.DEVNULL)
    found = json.loads(told.read_text())
    share = found["took"]["replay"] / step if found["took"] else None
    print(f"  a skipped step takes {share if share is None else format(share, '.2%')} of one of {step * 1e3:.2f} ms")
    return {"step": step, "took": found["took"], "share": share, "end": found["verdict"], "gone_on": found["gone_on"]}


def signalled(place: Place, times: int, chance: random.Random) -> list[Result]:
    """SIGTERM at a random moment; until its snapshot is on disk, and until the process is gone."""
    began = time.monotonic()
    subprocess.run(place.surviving("--fresh"), cwd=place.folder, check=True, stdout=subprocess.DEVNULL)
    whole = time.monotonic() - began
    step = place.recorded()["seconds_per_step"]
    rows = []
    while len(rows) < times:
        wait = chance.uniform(0.4, 0.8) * whole
        process = subprocess.Popen(
            place.surviving("--fresh"), cwd=place.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(wait)
        if process.poll() is not None:  # it was faster than the first time
            whole *= 0.9
            continue
        process.send_signal(signal.SIGTERM)
        sent = time.monotonic()
        on_disk = _until(lambda: any(place.run.glob("step-*.snapshot")), process)
        process.wait()
        seconds = time.monotonic() - sent
        took = RunFolder.notes_in(place.run).get(COST)
        bound = None if took is None else 2 * step + took
        told = {"on_disk": on_disk and on_disk - sent, "bound": bound, "seconds": seconds}
        rows.append({"after": wait, "step": step, "snapshot": took, **told})
        print(f"  after {wait:.1f} s: {told}", flush=True)
    return rows


def _until(there: Callable[[], bool], process: subprocess.Popen[bytes]) -> float | None:
    """When it was so; None where the process has ended without it."""
    while not there():
        if process.poll() is not None:
            return time.monotonic() if there() else None
        time.sleep(_LOOKS_EVERY)
    return time.monotonic()


def ranks_killed(ranks: int, kills: int, chance: random.Random) -> Result:
    """Runs in each of which ranks are killed one after another; and the same run without kills.

    A run is short: each way back passes through all steps up to its snapshot, in 8 to 19 ms a step.
    """
    words = ["--ranks", str(ranks), WAITING, "--base", "0.2", "--say", "1", "--steps", str(30 * (_KILLS_OF_A_RUN + 1))]
    whole = subprocess.run([*OVERDRIVE, "run", *words], capture_output=True, text=True, check=True)
    wanted = [line for line in whole.stdout.splitlines(True) if line.startswith(_PRINTED)]
    lost: list[float] = []
    same, runs = True, 0
    while len(lost) < kills:
        lost_here, printed = _killed(words, ranks, min(_KILLS_OF_A_RUN, kills - len(lost)), chance)
        if printed != wanted:
            sys.stdout.writelines(difflib.unified_diff(wanted, printed or [], "undisturbed", "killed", n=1))
        same, runs, lost = same and printed == wanted, runs + 1, lost + lost_here
        if not lost_here:
            break
        print(f"  {len(lost)} kills of {ranks} ranks: at most {max(lost):.1f} s lost, the same: {same}", flush=True)
    return {"kills": len(lost), "runs": runs, "lost": lost, "same_output": same}


def _killed(words: list[str], ranks: int, kills: int, chance: random.Random) -> tuple[list[float], list[str] | None]:
    """Of one run: seconds from each kill to the next new line, and what it printed; None where it failed."""
    with tempfile.TemporaryDirectory(prefix="survive-") as folder:
        command = [*OVERDRIVE, "run", f"--survive={folder}/run", "--every=1s", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        printed: list[str] = []
        lost: list[float] = []
        killed_at, came_to, due = 0.0, 0, math.inf  # 0: all are there; lines by then; when the next is killed
        for line in process.stdout:
            now = time.monotonic()
            if not line.startswith(_PRINTED):
                continue
            printed.append(line)
            if killed_at and len(printed) > came_to:
                lost.append(now - killed_at)
                killed_at = 0.0
            if due == math.inf and not killed_at:
                due = now + chance.uniform(2.5, 5.0)
            if now >= due and len(lost) < kills:
                time.sleep(chance.uniform(0.0, 0.2))  # else each kill follows a line, which is not noted yet perhaps
                os.kill(rank_of(process.pid, chance.randrange(ranks)), signal.SIGKILL)
                # The step under way, and one before it, may be shown yet.
                killed_at, came_to, due = time.monotonic(), len(printed) + 2, math.inf
        return lost, None if process.wait() else printed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="cost,replay,signal,ranks")
    parser.add_argument("--programs", default="vae,word_lstm,mnist_rnn")
    parser.add_argument("--seconds", type=float, default=100.0, help="of `cost`, for each program")
    parser.add_argument("--ranks", default="2,4", help="how many there are, of `ranks`")
    parser.add_argument("--kills", type=int, default=25, help="of each number of ranks")
    parser.add_argument("--from", dest="base", type=Path, default=INTO, help="where prepare.py laid the programs")
    options = parser.parse_args()
    found: Result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    about = {"machine": machine(), "versions": versions()}
    del about["machine"]["available_bytes"]

    def keep(part: str, name: str, result: Any) -> None:
        row = {"date": time.strftime("%Y-%m-%d %H:%M"), "load": os.getloadavg()[0], "found": result}
        found.setdefault(part, {}).setdefault(name, []).append(row)
        RESULTS.write_text(json.dumps({**found, **about}, indent=1) + "\n")

    wanted = options.only.split(",")
    with tempfile.TemporaryDirectory(prefix="survive-") as scratch:
        for name in options.programs.split(",") if {"cost", "replay", "signal"} & set(wanted) else ():
            print(f"== {name}", flush=True)
            place = Place(name, options.base.resolve(), Path(scratch))
            if "cost" in wanted:
                keep("cost", name, cost(place, options.seconds))
            if "replay" in wanted:
                keep("replay", name, skipped(place))
            if "signal" in wanted:
                keep("signal", name, signalled(place, 3, random.Random(1)))
    for ranks in map(int, options.ranks.split(",")) if "ranks" in wanted else ():
        keep("ranks", str(ranks), ranks_killed(ranks, options.kills, random.Random(ranks)))


if __name__ == "__main__":
    main()
