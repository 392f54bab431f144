"""How well `overdrive doctor --for` estimates: memory against the measured peak, and step time on other thread counts.

python benchmarks/requirements.py [--only NAMES] adds a round to benchmarks/results/requirements.json

Each program is counted and timed with one thread and with all; from either, the step time of the other is predicted
by the limits of this machine, measured just before. Run it on a machine with nothing else to do, or believe nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from overdrive.core.program import Program
from overdrive.insight.requirements.counting import CannotCount, count
from overdrive.insight.requirements.step_time import least_here, on_threads
from overdrive.machine.inventory import machine, versions
from overdrive.machine.limits import Limits, measured_limits

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "requirements.json"
PROGRAMS = {
    "cnn": ("benchmarks/models/cnn.py", "--batch-size", "256"),
    "mlp": ("benchmarks/models/mlp.py", "--width", "2048", "--batch-size", "256"),
    "lstm": ("benchmarks/models/lstm.py",),
    "gpt": ("benchmarks/models/gpt.py", "--layers", "2", "--batch-size", "8", "--context", "128"),
    "resnet18": ("benchmarks/models/resnet18.py", "--width", "16", "--batch-size", "128"),
    "vae": ("tests/programs/vae.py",),
    # A call of these is a step.
    "answering encoder": ("benchmarks/inference/encoder.py", "--requests", "1000000"),
    "answering resnet18": ("benchmarks/inference/resnet18.py", "--pictures", "100000"),
}


# A machine that is shared is slower for 20 seconds now and then (steps of 1 ms took 1.6), and one number of threads
# then has it, the other has not: each is measured so often, in turns, and its fastest counts.
ROUNDS = 3


def row(words: tuple[str, ...], limits: Limits) -> dict[str, Any]:
    program = Program.parse([str(ROOT / words[0]), *words[1:]])
    most = limits.threads
    needs = {threads: count(program, threads, memory=threads == most) for threads in dict.fromkeys((most, 1))}
    for _ in range(ROUNDS - 1):
        for threads, first in needs.items():
            again = count(program, threads, memory=False)
            if again.step_seconds < first.step_seconds:
                needs[threads] = replace(first, step_seconds=again.step_seconds, data_seconds=again.data_seconds)
    all_threads, one = needs[most], needs[1]
    tensors = all_threads.measured_peak - all_threads.program
    return {
        "command": program.command().replace(str(ROOT) + "/", ""),
        "memory_by_part": dict(all_threads.at_peak),
        "program_bytes": all_threads.program,
        "estimated_peak": all_threads.estimated_peak,
        "measured_peak": all_threads.measured_peak,
        "peak_where_freed_blocks_are_kept": all_threads.kept_peak,
        "memory_error": all_threads.estimated_peak / all_threads.measured_peak - 1,
        "tensors_error": all_threads.tensors / tensors - 1 if tensors > 0 else None,
        "step_seconds": {threads: each.step_seconds for threads, each in needs.items()},
        "predicted_all_from_one": on_threads(one, limits, most),
        "predicted_one_from_all": on_threads(all_threads, limits, 1),
        "error_all_from_one": on_threads(one, limits, most) / all_threads.step_seconds - 1,
        "error_one_from_all": on_threads(all_threads, limits, 1) / one.step_seconds - 1,
        "roofline_error": least_here(all_threads, limits) / all_threads.step_seconds - 1,
        "flops": all_threads.flops,
        "bytes": all_threads.bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of programs, with commas between")
    only = set(filter(None, parser.parse_args().only.split(",")))
    began = time.time()
    limits = measured_limits(fresh=True)
    print(f"limits measured in {limits.seconds:.0f} s, others used {limits.busy_share:.0%} of the cores", flush=True)
    result: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "limits": limits.to_dict(), "rows": {}, "failed": {}}
    print(
        f"{'':10} {'estimated':>10} {'measured':>10} {'error':>7} {'tensors':>8} │ 1 thread  all  1→all  all→1",
        flush=True,
    )
    for name, words in PROGRAMS.items():
        if only and name not in only:
            continue
        try:
            found = row(words, limits)
        except CannotCount as error:
            result["failed"][name] = str(error)
            print(f"{name:10} {error}", flush=True)
            continue
        result["rows"][name] = found
        seconds = found["step_seconds"]
        print(
            f"{name:10} {found['estimated_peak'] / 1e6:7.0f} MB {found['measured_peak'] / 1e6:7.0f} MB "
            f"{found['memory_error']:+7.1%} {found['tensors_error'] or 0:+8.1%} │ {seconds[1] * 1e3:6.1f} ms "
            f"{seconds[limits.threads] * 1e3:6.1f} ms {found['error_all_from_one']:+7.1%} "
            f"{found['error_one_from_all']:+7.1%}  roofline {found['roofline_error']:+.0%}",
            flush=True,
        )
    result["seconds"] = time.time() - began
    here = {"machine": machine(), "versions": versions()}
    del here["machine"]["available_bytes"]
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rounds = kept["rounds"] if {name: kept.get(name) for name in here} == here else []
    RESULTS.write_text(json.dumps({**here, "rounds": [*rounds, result]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
