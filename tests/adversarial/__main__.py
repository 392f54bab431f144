"""python -m tests.adversarial made|leaves|looks|matrix|programs|models: runs such plainly and under plans, and compares.

made      programs that are made here, from idioms and a seed
leaves    two programs for each leaf: one draws random numbers
looks     the same programs, which are not run: whether the guard sees what they write
matrix    the cases of shared/adversarial/matrix.py
programs  the programs of shared/adversarial/programs that change their data, with their arguments
models    those that change their model, and those that end in odd ways (not those that look at their interpreter: these
          runs are forks of another)
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.adversarial.compared import OF_MODELS, PLANS, Counts, compare, racing
from tests.adversarial.forked_runs import Job

SHARED = Path(__file__).parents[2].parent / "shared" / "adversarial"

# Of each program, the arguments that it takes.
ARGUMENTS: dict[str, list[tuple[str, ...]]] = {
    "d01_aliasing.py": [("rows",), ("slow",)],
    "d05_rare_rng.py": [
        *((kind,) for kind in ("np", "rs", "py", "torch", "gpy", "gnp", "gt", "sys")),
        *itertools.product(("np", "torch", "gpy", "gnp"), ("lock", "drop")),
    ],
    "d10_files.py": [("files",), ("mem",), ("rows",)],
    "d11_torchvision.py": [
        (kind,)
        for kind in (
            *("flip", "append", "replace", "mean", "compose", "nested", "bydict", "targets", "data", "perm", "nohead"),
            *("crop", "permepoch"),
        )
    ],
    "m11_ckpt_late.py": [(), *((str(first),) for first in range(1, 8))],
    "m12_eval_before_backward.py": [(kind,) for kind in ("eval", "scale", "swap", "hook", "data")],
    "m15_add_graph.py": [
        *itertools.product(("fx", "trace", "script", "func", "flops", "prof", "detect"), ("0", "2")),
    ],
    "e03_exit.py": [
        (kind,)
        for kind in (
            *("exit3", "exitstr", "exitbig", "exitobj", "osexit", "raise", "group", "handler", "thread", "threadraise"),
            *("fork", "forkfall", "assert", "syntax", "unraisable", "warnerr"),
        )
    ],
    "d06_warmup_counter.py": [
        (kind,) for kind in ("modlist", "modint", "count", "func", "attr", "torchattr", "time", "rowcount")
    ],
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.adversarial", description=__doc__)
    parser.add_argument("kind", choices=("made", "leaves", "looks", "matrix", "programs", "models"))
    parser.add_argument("--shared", type=Path, default=SHARED, help="where matrix and programs are")
    parser.add_argument("--plans", help="some of those of the kind; with + at the end: with what another run kept")
    parser.add_argument("--count", type=int, default=300, help="programs to make")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=math.inf, help="no program is begun after that")
    parser.add_argument("--only", default="", help="those whose name has this in it; several with commas")
    parser.add_argument("--all", action="store_true", help="tell of each run, not of those that differ alone")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    known = OF_MODELS if options.kind == "models" else PLANS
    plans = {name: known[name.rstrip("+")] for name in (options.plans.split(",") if options.plans else known)}
    began, counts = time.monotonic(), Counts()
    folder = Path(tempfile.mkdtemp(prefix="adversarial-"))  # no TemporaryDirectory, which each fork would clean up
    try:
        if options.kind == "looks":
            from tests.adversarial.looks import looked

            found = looked(_made(options), folder, options.all)
            print(", ".join(f"{number} {verdict}" for verdict, number in found.most_common()))
            return 1 if found["MISSED"] else 0
        wanted = options.only.split(",")
        jobs = [job for job in _programs(options, folder) if any(each in job.name for each in wanted)]
        in_time = itertools.takewhile(lambda _: time.monotonic() - began < 60 * options.minutes, jobs)
        for each in compare(in_time, plans, folder, options.at_once):
            counts.add(each)
            if each.differences or options.all:
                last = "to the end" if each.under_plan.last else ""
                print(each.text(), f"\n    {each.under_plan.served} served {last}", flush=True)
        differ = {each.job.name: replace(each.job, plan=None, plan_name="", again=False) for each in counts.different}
        races = racing(differ.values(), folder, options.at_once)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(counts.text())
    if races:
        print(f"{len(races)} differ from themselves, run plainly: {', '.join(sorted(races))}")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if differ.keys() - races else 0


def _made(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, str]]]:
    from tests.adversarial.made import each_leaf, programs

    if options.kind != "made":
        yield from each_leaf()
    if options.kind != "leaves":
        yield from programs(options.count, options.seed)


def _programs(options: argparse.Namespace, folder: Path) -> Iterator[Job]:
    if options.kind in ("made", "leaves"):
        for name, files in _made(options):
            place = folder / "made" / name
            place.mkdir(parents=True)
            for file, text in files.items():
                (place / file).write_text(text)
            yield Job(name, tuple(place / file for file in files))
    elif options.kind == "matrix":
        made = folder / "matrix"
        subprocess.run([sys.executable, options.shared / "matrix.py", made], check=True, capture_output=True)
        paths = sorted(made.glob("*__*.py"))
        random.Random(options.seed).shuffle(paths)  # where there is no time for all, some of each kind have run
        for path in paths:
            yield Job(path.stem, (path, options.shared / "programs" / "config.py"))
    else:
        beside = [options.shared / "programs" / name for name in ("dump.py", "config.py")]
        begins = ("m", "e03", "e05") if options.kind == "models" else ("d",)
        paths = (options.shared / "programs").glob("*_*.py")
        for path in sorted(each for each in paths if each.name.startswith(begins)):
            for arguments in ARGUMENTS.get(path.name, [()]):
                yield Job(" ".join((path.name, *arguments)), (path, *beside), arguments)


if __name__ == "__main__":
    sys.exit(main())
