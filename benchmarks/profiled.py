"""Whether `overdrive profile` says the truth: do the parts add up to the step, and does a step shrink by what was said
of its bottleneck when that is taken away? Writes results/profile.json.

    python benchmarks/profiled.py [NAME...]     all programs of tests/programs and the example, or these
    python benchmarks/profiled.py --missing     those that are not in the results yet
    python benchmarks/profiled.py --table       the results as a table
"""

from __future__ import annotations

import datetime
import json
import os
import random
import shutil
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Without this folder: this file has the name of a module of the standard library.
sys.path[:] = [str(HERE.parent), str(HERE.parent / "src"), *(each for each in sys.path if each != str(HERE))]

from overdrive.core.json_data import to_json  # noqa: E402
from overdrive.core.program import Program  # noqa: E402
from overdrive.core.records import TrialOver  # noqa: E402
from overdrive.core.trial_spec import TrialSpec  # noqa: E402
from overdrive.insight.profile.blocks import BlockPair, ratio, standard_error, undisturbed  # noqa: E402
from overdrive.insight.profile.measure import CannotProfile, measure  # noqa: E402
from overdrive.insight.profile.measured import Measured  # noqa: E402
from overdrive.insight.profile.record import Profile  # noqa: E402
from overdrive.insight.profile.result import profile_of  # noqa: E402
from overdrive.machine.inventory import machine, versions  # noqa: E402
from overdrive.trials.pool import TrialPool  # noqa: E402
from overdrive.trials.trial import Trial  # noqa: E402
from tests.programs.manifest import PROGRAMS  # noqa: E402

RESULTS = HERE / "results" / "profile.json"
# What each intervention takes away, by the bottleneck. Python's own time cannot be: the largest phase is then.
TAKES = {
    "data": ("without_data", ("data",)),
    "backward": ("without_backward", ("backward",)),
    "optimizer": ("without_optimizer", ("optimizer",)),
    "forward": ("without_model", ("forward", "backward", "evaluation")),
    "evaluation": ("without_evaluation", ("evaluation",)),
}
WARM_UP = 9
BLOCK_SECONDS = 0.15
SECONDS = 4.0  # of a side, at most
PAIRS = 14  # at least, where the program is long enough
SURE = 0.01  # the standard error of the ratio, for fewer than that
PROCESSES = 3  # pairs of, at most


def main() -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent / "src"), str(HERE.parent)])
    wanted = set(sys.argv[1:])
    if "--table" in wanted:
        print(_table(json.loads(RESULTS.read_text())["programs"]))
        return
    done: dict[str, Any] = {}
    if wanted and RESULTS.exists():
        done = json.loads(RESULTS.read_text())["programs"]
    if "--missing" in wanted:
        wanted = {name for name, _, _ in _programs()} - set(done)
        if not wanted:
            return
    for name, words, folder in _programs():
        if not wanted or name in wanted:
            began, load = time.monotonic(), os.getloadavg()[0]
            done[name] = _one(words, folder)
            print(f"{name:20} {_line(done[name])}  ({time.monotonic() - began:.0f} s)", flush=True)
            done[name] |= {"threads": os.environ.get("OMP_NUM_THREADS", "unset"), "load_before": round(load, 2)}
            header = {"date": datetime.date.today().isoformat(), "machine": machine(), "versions": versions()}
            RESULTS.write_text(json.dumps({**header, "programs": done}, indent=1) + "\n")


def _programs() -> list[tuple[str, tuple[str, ...], Path]]:
    folder = HERE.parent / "tests" / "programs"
    found = [(each.name, each.command, folder) for each in PROGRAMS if all(find_spec(module) for module in each.needs)]
    return [*found, ("example", ("cifar_cnn.py",), HERE.parent / "examples")]


def _one(words: tuple[str, ...], source: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "programs"
        shutil.copytree(source, folder)
        os.chdir(folder)
        try:
            program = Program.parse(words)
            with TrialPool(also=["benchmarks.interventions"]) as pool:
                try:
                    found = measure(pool, program, False, lambda stage: None)
                except CannotProfile as reason:
                    return {"reason": str(reason)}
                result = profile_of(program, found, None, "not asked for", False)
                return {
                    "step_seconds": result.step_seconds,
                    "parts": result.parts,
                    "parts_off": result.parts_off,
                    "phases": result.phases,
                    "steps": result.steps,
                    "pairs": found.pairs,
                    "overhead": to_json(result.overhead),
                    "bottleneck": result.bottleneck.part,
                    "sentence": result.bottleneck.sentence,
                    "left_out": result.left_out,
                    "taken_away": _interventions(pool, program, found, result),
                }
        finally:
            os.chdir(HERE)


def _interventions(pool: TrialPool, program: Program, found: Measured, result: Profile) -> list[dict[str, Any]]:
    """The bottleneck taken away; where that is Python, the largest phase that can be."""
    whole = sum(result.phases.values())
    named = result.bottleneck.part
    part = named if named in TAKES else _largest(result.phases)
    technique, phases = TAKES[part]
    said = sum(result.phases.get(phase, 0.0) for phase in phases) / whole
    row = {"part": part, "bottleneck": part == named, "said": said}
    # Workers go on making batches while they are not asked for: with them, blocks of one process cannot take turns.
    turns = not (part == "data" and result.workers)
    blocks: list[BlockPair] = []
    try:
        for processes in range(PROCESSES):
            _alternate(pool, program, found, technique, turns, blocks, processes)
            if len(blocks) >= PAIRS and standard_error(undisturbed(blocks)) <= SURE and turns:
                break
    except _LeftOut as reason:
        return [{**row, "reason": str(reason)}]
    if len(blocks) < 2:
        return [{**row, "reason": "too short for blocks with it and without it"}]
    kept = undisturbed(blocks)
    seen, error = 1 - ratio(kept), standard_error(kept)
    return [{**row, "seen": seen, "error": error, "off": seen / said - 1, "pairs": len(kept)}]


class _LeftOut(Exception):
    """The message is the reason."""


def _alternate(
    pool: TrialPool,
    program: Program,
    found: Measured,
    technique: str,
    turns: bool,
    blocks: list[BlockPair],
    processes: int,
) -> None:
    """Blocks of two copies over the same steps, appended to `blocks`: one as it is, one with a phase taken away.

    `turns`: which is which changes from block to block; else one is never changed.
    """
    start, size = WARM_UP, max(1, round(BLOCK_SECONDS / found.step))
    if found.length is not None:
        start = max(3, min(start, found.length // 5))
        size = max(1, min(size, (found.length - start) // 6))
    settings = [{"start": start, "size": size, "first": first} for first in ((0, 1) if turns else (2, 3))]
    copies = [Trial(pool, TrialSpec(program, ((technique, each),), profiling="plain")) for each in settings]
    rng, seconds, pairs = random.Random(len(blocks)), 0.0, 0
    try:
        for copy in copies:
            copy.first_step()
            copy.run(start - copy.step)
        while seconds < SECONDS and (found.length is None or copies[0].step + size <= found.length):
            without = pairs % 2 if turns else 0
            took = {}
            for place in rng.sample((0, 1), 2):
                took[place] = copies[place].run(size).seconds
            if reason := copies[without].left_out.get(technique):
                raise _LeftOut(reason)
            if pairs or found.length is not None:  # the first warms up what hands out again
                blocks.append(BlockPair(size, took[1 - without], took[without], {}, {}, processes, without))
            seconds, pairs = seconds + took[1 - without], pairs + 1
    except TrialOver as over:
        if over.exit_reason.kind != "ended":
            raise _LeftOut(str(over)) from None
    finally:
        for copy in copies:
            copy.stop()


def _largest(phases: dict[str, float]) -> str:
    return max(TAKES, key=lambda part: phases.get(part, 0.0))


def _line(found: dict[str, Any]) -> str:
    if "reason" in found:
        return found["reason"]
    taken = [
        f"{each['part']}{'*' if each['bottleneck'] else ''} said {each['said']:.1%} "
        + (f"seen {each['seen']:.1%} ±{each['error']:.1%}: {each['off']:+.0%}" if "seen" in each else each["reason"])
        for each in found["taken_away"]
    ]
    timing = f"timing {found['overhead']['timed']:+.1%} ±{found['overhead']['error']:.1%}"
    step = f"{found['step_seconds'] * 1e3:8.2f} ms  parts {found['parts_off']:+.1%}"
    return f"{step}  {timing}  {found['bottleneck']}  {'; '.join(taken)}"


def _table(programs: dict[str, Any]) -> str:
    lines = ["| program | step | parts off | timing costs | bottleneck | taken away | said | seen |", f"{'|---' * 8}|"]
    for name, found in programs.items():
        if "reason" in found:
            lines.append(f"| {name} | | | | {found['reason']} | | | |")
            continue
        (taken,) = found["taken_away"]
        away = taken["part"] + (" and backward" if taken["part"] == "forward" else "")
        seen = f"{taken['seen']:.1%} ± {taken['error']:.1%}" if "seen" in taken else taken["reason"]
        timing = f"{found['overhead']['timed']:+.1%} ± {found['overhead']['error']:.1%}"
        step = f"{found['step_seconds'] * 1e3:.1f} ms | {found['parts_off']:+.1%}"
        lines.append(f"| {name} | {step} | {timing} | {found['bottleneck']} | {away} | {taken['said']:.1%} | {seen} |")
    rows = [each for each in programs.values() if "reason" not in each]
    taken_all = [each for row in rows for each in row["taken_away"] if "seen" in each]
    near = sum(abs(each["off"]) <= 0.15 for each in taken_all)
    named = [each for each in taken_all if each["bottleneck"]]
    return "\n".join(
        [
            *lines,
            "",
            f"Parts within 5 %: {sum(abs(row['parts_off']) <= 0.05 for row in rows)} of {len(rows)}. "
            f"Seen within 15 % of what was said: {near} of {len(taken_all)}; of them the named bottleneck: "
            f"{sum(abs(each['off']) <= 0.15 for each in named)} of {len(named)}.",
        ]
    )


if __name__ == "__main__":
    main()
