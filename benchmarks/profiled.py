"""Whether `overdrive profile` says the truth: do the parts add up to the step, and does a step shrink by what was said
of its bottleneck when that is taken away? Writes results/profile.json.

    python benchmarks/profiled.py [NAME...]     all programs of tests/programs and the example, or these
"""

from __future__ import annotations

import datetime
import json
import os
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

from overdrive.machine.inventory import machine, versions  # noqa: E402
from overdrive.profile.measure import Block, CannotProfile, enough, measure, ratio, turns  # noqa: E402
from overdrive.profile.result import result_of  # noqa: E402
from overdrive.program import Program  # noqa: E402
from overdrive.trials.host import House  # noqa: E402
from overdrive.trials.order import Order  # noqa: E402
from tests.programs.manifest import PROGRAMS  # noqa: E402

RESULTS = HERE / "results" / "profile.json"
# What each intervention takes away, by the bottleneck.
TAKES = {
    "data": ("without_data", ("data",)),
    "backward": ("without_backward", ("backward",)),
    "optimizer": ("without_optimizer", ("optimizer",)),
    "forward": ("without_model", ("forward", "backward", "evaluation")),
}


def main() -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent / "src"), str(HERE.parent)])
    wanted = set(sys.argv[1:])
    done: dict[str, Any] = {}
    if wanted and RESULTS.exists():
        done = json.loads(RESULTS.read_text())["programs"]
    for name, words, folder in _programs():
        if not wanted or name in wanted:
            began = time.monotonic()
            done[name] = _one(words, folder)
            print(f"{name:20} {_line(done[name])}  ({time.monotonic() - began:.0f} s)", flush=True)
            told = {"date": datetime.date.today().isoformat(), "machine": machine(), "versions": versions()}
            RESULTS.write_text(json.dumps({**told, "programs": done}, indent=1) + "\n")


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
            with House(also=["benchmarks.interventions"]) as house:
                try:
                    found = measure(house, program, False, lambda stage: None)
                except CannotProfile as reason:
                    return {"reason": str(reason)}
                result = result_of(program, found, None, "not asked for", False)
                return {
                    "step_seconds": result["step_seconds"],
                    "parts": result["parts"],
                    "parts_off": result["parts_off"],
                    "phases": result["phases"],
                    "steps": result["steps"],
                    "pairs": found.pairs,
                    "overhead": result["overhead"],
                    "bottleneck": result["bottleneck"]["part"],
                    "sentence": result["bottleneck"]["sentence"],
                    "left_out": result["left_out"],
                    "taken_away": _interventions(house, program, found.length, result),
                }
        finally:
            os.chdir(HERE)


def _interventions(house: House, program: Program, length: int | None, result: dict[str, Any]) -> list[dict[str, Any]]:
    """The bottleneck taken away; where that is Python, the largest phase that can be."""
    whole = sum(result["phases"].values())
    found = []
    for part, (technique, phases) in TAKES.items():
        bottleneck = part == result["bottleneck"]["part"]
        if not bottleneck and (result["bottleneck"]["part"] in TAKES or part != _largest(result["phases"])):
            continue
        said = sum(result["phases"].get(phase, 0.0) for phase in phases) / whole
        blocks: list[Block] = []
        orders = Order(program, profiling="plain"), Order(program, ((technique, {}),), profiling="plain")
        processes = 0
        try:
            while not processes or not enough(blocks, length, processes):
                length = turns(house, orders, length, blocks)
                processes += 1
        except CannotProfile as reason:
            found.append({"part": part, "bottleneck": bottleneck, "said": said, "reason": str(reason)})
            continue
        if blocks:
            seen = 1 - ratio(blocks)
            found.append(
                {
                    "part": part,
                    "bottleneck": bottleneck,
                    "said": said,
                    "seen": seen,
                    "off": seen / said - 1,
                    "pairs": len(blocks),
                }
            )
    return found


def _largest(phases: dict[str, float]) -> str:
    return max(TAKES, key=lambda part: phases.get(part, 0.0))


def _line(found: dict[str, Any]) -> str:
    if "reason" in found:
        return found["reason"]
    taken = [
        f"{each['part']}{'*' if each['bottleneck'] else ''} said {each['said']:.0%} "
        + (f"seen {each['seen']:.0%}" if "seen" in each else each["reason"])
        for each in found["taken_away"]
    ]
    step = f"{found['step_seconds'] * 1e3:8.2f} ms  parts {found['parts_off']:+.1%}  {found['bottleneck']}"
    return f"{step}  {'; '.join(taken)}"


if __name__ == "__main__":
    main()
