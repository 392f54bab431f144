"""`make gpu`: the GPU tests and benchmarks in one command, under 10 minutes. Writes benchmarks/results/gpu-DEVICE.json.

python benchmarks/gpu.py [--minutes 9.5] [--rows "ResNet-18,GPT"] [--no-smoke] [--no-tests] [--device cpu --tiny]
                         [--public FOLDER [--programs nanogpt,mnist] [--public-minutes 5]]

Uses the machine's own Python and PyTorch, and no network. What Overdrive needs and the machine lacks is taken from
wheels in .whl/ (`make gpu-wheels` fetches them where there is a network). First, beside each other, since nothing is
timed, a smoke of two minutes at most, every technique that may act on a GPU for a few steps (gpu_smoke.py), and the
tests, side by side where pytest-xdist is there (those that make whole tunes are left to
`python -m pytest tests/gpu -m tunes`); then tunes of public programs, where `public/prepare.py` has laid them in
FOLDER; then the device's limits; then row by row until the time is over: what had none is named as not run. What is
done is written at once: a run that is cut short still tells. Rows are chosen by any part of their names; "none" has
none. With few rows there is time to tune each of them; else "Overdrive at a contract" is a plan given beforehand, and
the table says so. Exits with 1 where a technique crashed or gave other losses, where a test failed, or
where not all tests came to their end. Without a GPU it says so and writes nothing, but for a dry run of everything
with small models: --device cpu --tiny.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_ready import no_gpu, one_process_only, render_images, use_carried_wheels

ROOT = Path(__file__).resolve().parent.parent
_UNTIMED_SECONDS = 120.0  # of the smoke and the tests
_SIDE_BY_SIDE = 4  # most of a test is a process that starts
_LIMITS_SECONDS = 90.0
_ONE_PROCESS = (
    "This GPU takes one process at a time (compute mode Exclusive_Process): only the smoke is run, a case after the "
    "other. For all of it: `nvidia-smi -c DEFAULT` as root, or `--gpu_cmode=shared` where Slurm has that."
)


def run_tests(seconds: float, log: Path) -> dict[str, Any]:
    """The GPU tests, and what became of them within the time."""
    if find_spec("pytest") is None:
        return {"not_run": "pytest is not installed here"}
    timeout = ["--timeout", "90"] if find_spec("pytest_timeout") else []
    workers = ["-n", str(_SIDE_BY_SIDE)] if find_spec("xdist") else []
    command = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-m", "not tunes", *timeout, *workers, "tests/gpu"]
    began = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = log.read_text(errors="replace")
    outcomes = outcomes_in(text)
    result: dict[str, Any] = {
        name.lower(): sum(outcome == name for _, outcome in outcomes)
        for name in ("PASSED", "FAILED", "SKIPPED", "ERROR")
    }
    reasons = reasons_in(text)
    result["failures"] = {test: reasons.get(test, "") for test, outcome in outcomes if outcome in ("FAILED", "ERROR")}
    result["complete"] = code is not None
    result["seconds"] = round(time.monotonic() - began, 1)
    if code != 0:
        print(text[-6000:])
    return result


def outcomes_in(text: str) -> list[tuple[str, str]]:
    """Tests and what became of them, from pytest's output; with several workers it has the outcome first."""
    kinds = "PASSED|FAILED|SKIPPED|ERROR"
    alone = re.findall(rf"^(tests/\S.*?) ({kinds})\b", text, re.MULTILINE)
    beside = re.findall(rf"^\[gw\d+\] \[ *\d+%\] ({kinds}) (tests/\S.*?) *$", text, re.MULTILINE)
    return alone + [(test, outcome) for outcome, test in beside]


def reasons_in(text: str) -> dict[str, str]:
    """Why tests failed, as tests/gpu/conftest.py writes it at once: the lines that pytest marks."""
    told = re.findall(r"^!! (tests/.*)\n((?:.*\n)*?)!! end$", text, re.MULTILINE)
    return {
        test: "\n".join(line[1:].strip() for line in lines.splitlines() if re.match(r"E\s", line))[:600]
        for test, lines in told
    }


def all_well(tests: dict[str, Any]) -> bool:
    """Whether all tests came to their end, and none of them failed."""
    return bool(tests.get("complete")) and not tests.get("failed") and not tests.get("error")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.5, help="for everything")
    parser.add_argument("--rows", default="", help="parts of rows' names; all rows where empty")
    parser.add_argument("--public", type=Path, help="the folder that public/prepare.py filled")
    parser.add_argument("--programs", default="nanogpt,mnist", help="of these, in this order")
    parser.add_argument("--public-minutes", type=float, default=5.0, help="for each of them")
    parser.add_argument("--no-smoke", action="store_true")
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.set_defaults(at_once=None)
    parser.add_argument("--tiny", action="store_true", help="small models and nothing compiled: a dry run")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    if options.device == "cuda" and (reason := no_gpu()):
        print(reason)
        return 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if reason := use_carried_wheels(folder):
            print(reason)
            return 1
        if options.device == "cuda" and one_process_only():
            print(_ONE_PROCESS)
            options.no_tests, options.rows, options.public, options.at_once = True, "none", None, 1
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        return measured(options, folder, end)


def measured(options: argparse.Namespace, folder: Path, end: float) -> int:
    import torch
    from gpu_rows import (
        GRACE,
        ROW_SECONDS,
        ROWS,
        all_facts,
        broken_off_at,
        least_seconds,
        limits_and_costs,
        measure,
        table,
    )

    from overdrive.machine.inventory import machine, versions
    from overdrive.trials.pool import TrialPool

    on_gpu = options.device == "cuda"
    if not on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    name = torch.cuda.get_device_name() if on_gpu else "dry run on a CPU"
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    target = Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results") / f"gpu-{slug}.json"
    wanted = [each.strip().lower() for each in options.rows.split(",") if each.strip()]
    rows = {name: row for name, row in ROWS.items() if not wanted or any(each in name.lower() for each in wanted)}
    results: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {"rows": {}}
    results.update(
        date=datetime.date.today().isoformat(), device=name, machine=machine(), versions=versions(),
        cuda=torch.version.cuda, python=sys.version.split()[0], tiny=options.tiny,
    )  # fmt: skip

    def write() -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(results, indent=1) + "\n")

    untimed_parts(options, end, results, folder, write, any(row.files for row in rows.values()))
    if options.public:
        results["public"] = {}
        public(options, end, results["public"], write)
    costs: dict[str, Any] = {}
    print("== limits", flush=True)
    try:
        found = limits_and_costs(rows, options.device, options.tiny, _LIMITS_SECONDS)
        results["limits"], costs = found["limits"], least_seconds(found)
        print(f"  {results['limits']}", flush=True)
    except Exception as error:
        results["limits"] = {"failed": f"{type(error).__name__}: {error}"}
    with TrialPool() as pool:
        print("== what the programs are like", flush=True)
        facts = all_facts(pool, rows, options.tiny, time.monotonic() + _LIMITS_SECONDS)
        for number, (row_name, row) in enumerate(rows.items()):
            left = end - GRACE - time.monotonic()
            seconds = min(left, max(ROW_SECONDS, left / (len(rows) - number)))
            deadline = time.monotonic() + seconds
            if seconds < (15 if options.tiny else ROW_SECONDS / 2):
                results["rows"].setdefault(row_name, {"not_run": "no time was left"})
                continue
            print(f"== {row_name}, {seconds:.0f} s", flush=True)
            own = folder / str(number)
            own.mkdir()
            try:
                with broken_off_at(deadline + GRACE):
                    results["rows"][row_name] = measure(
                        pool,
                        row,
                        facts[row_name],
                        costs.get(row_name, {}),
                        options.tiny,
                        options.device,
                        deadline,
                        own,
                    )
            except Exception as error:
                results["rows"][row_name] = {"not_run": f"{type(error).__name__}: {error}"[:300]}
            at = datetime.datetime.now().isoformat("T", "minutes")  # rows of several calls stand in one file
            results["rows"][row_name].update(at=at, torch=torch.__version__)
            write()
    write()
    lines = table(results["rows"])
    print("\n".join(lines))
    print(f"written: {target}")
    return said_well(results, options)


def untimed_parts(
    options: argparse.Namespace,
    end: float,
    results: dict[str, Any],
    folder: Path,
    write: Callable[[], None],
    images: bool,
) -> None:
    """The smoke, the tests, and what the example reads, beside each other."""
    left = end - time.monotonic()
    seconds = min(_UNTIMED_SECONDS, left) if options.at_once is None else left - _LIMITS_SECONDS
    with ThreadPoolExecutor() as beside:
        rendered = beside.submit(render_images) if images else None
        if not options.no_tests:
            print("== tests", flush=True)
            tests = beside.submit(run_tests, seconds, folder / "tests.log")
        if not options.no_smoke:
            print("== smoke: every technique for a few steps", flush=True)
            results["smoke"] = {}
            smoke(options, seconds, results["smoke"], write)
        if not options.no_tests:
            results["tests"] = tests.result()
            print(f"  {results['tests']}", flush=True)
            write()
        if rendered and (reason := rendered.result()):
            print(reason, flush=True)


def smoke(options: argparse.Namespace, seconds: float, into: dict[str, Any], write: Callable[[], None]) -> None:
    """Each case is in `into`, and written, when it is done."""
    import gpu_smoke

    lock = threading.Lock()

    def keep(name: str, result: dict[str, Any]) -> None:
        with lock:
            into[name] = result
            print(gpu_smoke.table({name: result})[-1], flush=True)
            write()

    gpu_smoke.run(gpu_smoke.cases(options.tiny), options.device, False, seconds, keep, options.at_once)


def public(options: argparse.Namespace, end: float, into: dict[str, Any], write: Callable[[], None]) -> None:
    """Tunes of programs that nobody here wrote, each as its authors have it on a GPU."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "public"))
    from prepare import programs
    from run import Place, tune

    known = programs()
    for name in options.programs.split(","):
        program = {**known[name], "arguments": known[name].get("on_gpu", known[name]["arguments"])}
        minutes = min(options.public_minutes, (end - time.monotonic()) / 60)
        if minutes < 1 or not (options.public / name).is_dir():
            into[name] = {"not_run": "no time was left" if minutes < 1 else f"{options.public / name} is not there"}
            continue
        print(f"== {name}, tuned for {minutes:.1f} minutes", flush=True)
        into[name] = {"arguments": program["arguments"]}
        into[name] |= tune("statistical", minutes, Place(name, program, options.public.resolve(), "gpu"))
        write()


def said_well(results: dict[str, Any], options: argparse.Namespace) -> int:
    """The exit code, with what was not well."""
    wrong = []
    if not options.no_smoke:
        # One that had no time tells nothing.
        known = {name: each for name, each in results["smoke"].items() if "not_run" not in each}
        bad = {name: each for name, each in known.items() if not each.get("same")}
        wrong += [f"{name}: {each.get('failed', 'other losses')}" for name, each in bad.items()]
    if not options.no_tests and not all_well(results["tests"]):
        wrong.append(f"the tests did not all pass: {results['tests']}")
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
