"""The rows of the GPU's table: each with a deadline of its own, and a failure of one loses no other."""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from alternate import OVERDRIVE, ROOT
from turns import Arm, by_hand, plain, ratio, ratio_text, step_in_turn

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.program import Program
from overdrive.core.records import TrialOver
from overdrive.core.settings import Chosen
from overdrive.core.trial_spec import TrialSpec
from overdrive.techniques.catalogue import catalogue, conflict
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

Result = dict[str, Any]
LEVELS = ("exact", "rounding", "statistical")
# What is taken together where there is no time to tune, by name, as far as the catalogue has it and it applies.
GIVEN = (
    *("sample_cache", "device_resident", "prefetch", "deferred_scalars", "fused_optimizer", "channels_last"),
    *("tf32", "cuda_graphs", "autocast"),
)
_TUNE_FROM = 120.0  # seconds that a tune must have, else the plan is the given one
_MEASURE_SECONDS = 75.0  # that starting and stepping all arms of a row takes, compiling included
ROW_SECONDS = 60.0  # that a row has at the least: with 33, on an H100, hardly an arm came to its usual pace
GRACE = 20.0  # after its deadline a row is broken off
_ROUNDS = 12
_FEWEST_ROUNDS = 3  # of which a speed is told
_BUSY_SECONDS = 1.5  # during which the GPU's use is sampled


@dataclass(frozen=True)
class Row:
    """A program: a model of benchmarks/models/, or the example with its files."""

    model: str
    words: tuple[str, ...]
    tiny: tuple[str, ...] = ()  # further words of a dry run
    # With the data on the device already, pinned memory and workers would only make it slower.
    hand: str = "compile,bf16,channels_last,fused,no_item"
    files: bool = False

    def program(self, tiny: bool) -> Program:
        if self.files:
            return Program(str(ROOT / "examples" / "cifar_cnn.py"), (*self.words, "--epochs", "1000"))
        return plain(self.model, self.all_words(tiny)).program

    def expert(self, tiny: bool) -> TrialSpec:
        if self.files:
            peer = str(ROOT / "benchmarks" / "peers" / "cifar_expert.py")
            return TrialSpec(Program(peer, (*self.words, "--epochs", "1000")))
        hand = self.hand.replace("compile,", "") if tiny else self.hand
        return by_hand(self.model, hand, self.all_words(tiny))

    def all_words(self, tiny: bool) -> tuple[str, ...]:
        return (*self.words, *(self.tiny if tiny else ()))


ROWS = {
    "example CNN, JPEG files, batch 64": Row("cnn", ("--batch-size", "64"), files=True),
    "example CNN, JPEG files, batch 512": Row("cnn", ("--batch-size", "512"), files=True),
    "ResNet-18, batch 128": Row("resnet18", ("--batch-size", "128"), ("--width", "8", "--batch-size", "16")),
    "GPT 12x384, context 256, batch 32": Row(
        "gpt", ("--batch-size", "32"), ("--layers", "2", "--width", "64", "--context", "32", "--batch-size", "8")
    ),
    "LSTM 2x256, batch 64": Row("lstm", ("--batch-size", "64"), ("--hidden", "32", "--length", "16")),
    "MLP 4x1024, batch 128": Row("mlp", ("--batch-size", "128"), ("--width", "64")),
    "example CNN, in memory, batch 64": Row("cnn", ("--batch-size", "64")),
    "example CNN, in memory, batch 512": Row("cnn", ("--batch-size", "512")),
}  # fmt: skip


class Late(Exception):
    """A row went on after its deadline."""


@contextlib.contextmanager
def broken_off_at(deadline: float) -> Iterator[None]:
    """Raises Late inside, wherever it is, when the time has come (main thread only)."""

    def ring(*_: object) -> None:
        raise Late("broken off at its deadline")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, deadline - time.monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def limits_and_costs(rows: Mapping[str, Row], device: str, tiny: bool, seconds: float) -> Result:
    """See limits.py; a model's cost does not depend on where its data comes from."""
    wanted = {name: (row.model, row.all_words(tiny)) for name, row in rows.items()}
    command = [sys.executable, str(ROOT / "benchmarks" / "limits.py"), device, json.dumps(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1][:300])
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def all_facts(pool: TrialPool, rows: Mapping[str, Row], tiny: bool, deadline: float) -> dict[str, Facts | str]:
    """What each program is like, or why it does not run; all at once, since nothing is timed."""

    def one(row: Row) -> Facts | str:
        trial = Trial(pool, TrialSpec(row.program(tiny)))
        try:
            trial.first_step(deadline)
            trial.run(4)
            trial.run(4, profile=True)
            return trial.facts()
        except TrialOver as over:
            return str(over.exit_reason)
        finally:
            trial.stop()

    with ThreadPoolExecutor(1 if tiny else 4) as threads:
        return dict(zip(rows, threads.map(one, rows.values()), strict=True))


def given(facts: Facts, tiny: bool) -> dict[str, list[Chosen]]:
    """By contract: the techniques of GIVEN that apply and go together; and the loosest with `compile` in the place of
    `cuda_graphs`, which cannot go with it and stands first."""
    chosen = {level: _together(GIVEN, Contract(level), facts) for level in LEVELS}
    compiled = () if tiny else ("compile", *(name for name in GIVEN if name != "cuda_graphs"))
    if compiled:
        chosen[f"{LEVELS[-1]}, compiled"] = _together(compiled, Contract(LEVELS[-1]), facts)
    return chosen


def _together(names: Sequence[str], level: Contract, facts: Facts) -> list[Chosen]:
    mine: list[Chosen] = []
    for name in names:
        technique = catalogue().get(name)
        if technique is None or not level.allows(technique.contract):
            continue
        if technique.applies(facts) or conflict(name, [other for other, _ in mine]):
            continue
        candidates = technique.candidates(facts)
        if candidates:
            mine.append((name, candidates[0]))
    return mine


def tuned(row: Row, tiny: bool, seconds: float, folder: Path) -> dict[str, list[Chosen]]:
    """By contract: the part of a tune's plan that keeps it. One tune, at the loosest level."""
    program = row.program(tiny)
    out = folder / "tune.json"
    command = [
        *OVERDRIVE, "tune", "--contract", "statistical", "--budget", f"{seconds:.0f}s",
        "-o", str(folder / "plan.toml"), "--json", str(out), program.target, *program.arguments,
    ]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True, timeout=seconds + 30)
    found = json.loads(out.read_text())["techniques"]
    return {
        level: [
            (each["name"], each["settings"]) for each in found if Contract(level).allows(Contract(each["contract"]))
        ]
        for level in LEVELS
    }


def measure(
    pool: TrialPool, row: Row, facts: Facts | str, costs: Result, tiny: bool, device: str, deadline: float, folder: Path
) -> Result:
    """One row; what was measured before its deadline is kept, whatever came after."""
    result: Result = {}
    if isinstance(facts, str):
        return {"not_run": f"the plain program: {facts}"}
    seconds = deadline - time.monotonic() - _MEASURE_SECONDS
    plans, result["plan"] = given(facts, tiny), "given, not tuned: no time"
    if seconds >= _TUNE_FROM:
        try:
            plans, result["plan"] = tuned(row, tiny, seconds, folder), f"tuned for {seconds:.0f} s"
        except (subprocess.SubprocessError, OSError) as error:
            result["plan"] = f"given, since the tune failed ({type(error).__name__})"
    program = row.program(tiny)
    arms = {"plain": TrialSpec(program), "by hand": row.expert(tiny)}
    same: dict[str, str] = {}  # a contract whose plan is that of a stricter one is not measured twice
    for level, plan in plans.items():
        twin = next((name for name, spec in arms.items() if spec == TrialSpec(program, tuple(plan))), None)
        if twin:
            same[f"Overdrive {level}"] = twin
        else:
            arms[f"Overdrive {level}"] = TrialSpec(program, tuple(plan))
    watched = [Arm(name, spec) for name, spec in arms.items()]
    alone: dict[str, Result] = {}  # what was seen of an arm while the others stood still

    def watch_use(arm: Arm, trial: Trial, pace: float) -> None:
        if time.monotonic() < deadline:
            steps = max(1, round(_BUSY_SECONDS / pace))
            alone[arm.name] = {"gpu_idle": idle_share(trial, steps) if device == "cuda" else None}
            trial.run(steps, profile=True)
            alone[arm.name]["waits_for_data"] = trial.facts().share("data")

    try:
        step_in_turn(pool, watched, _ROUNDS, deadline, together=not tiny, while_alone=watch_use)
    except Late as late:
        result["cut_short"] = str(late)
    by_name = {arm.name: _cell(arm, watched[0], facts, costs, alone.get(arm.name, {})) for arm in watched}
    by_name.update({name: {"same_as": twin} for name, twin in same.items()})
    result["arms"] = by_name
    result["techniques"] = {level: [name for name, _ in plan] for level, plan in plans.items()}
    return result


def _cell(arm: Arm, base: Arm, facts: Facts, costs: Result, alone: Result) -> dict[str, Any]:
    seconds = arm.seconds_per_step
    cell: Result = {"setup_seconds": arm.setup_seconds, "left_out": dict(arm.left_out), "failed": arm.failure}
    if seconds is None:
        return cell
    samples = costs["batch"] if costs else facts.samples_per_step
    against = ratio(base, arm)
    cell.update(
        seconds_per_step=seconds,
        samples_per_s=samples / seconds,
        against_plain=vars(against) if against and arm is not base else None,
        gpu_idle=alone.get("gpu_idle"),
        waits_for_data=alone.get("waits_for_data"),
        peak_bytes=arm.peak_memory or None,
        rounds=[len(each) for each in arm.fields],
    )
    if costs:
        cell["share_of_limit"] = costs["least_seconds"] / seconds
        cell["limit"] = costs["limit"]
    return cell


def least_seconds(found: Result) -> dict[str, Result]:
    """Each row's costs with the shortest time that the measured limits allow a step."""
    limits = found["limits"]
    flops = max(value for name, value in limits.items() if name.endswith("flops_per_s"))
    both = {}
    for name, cost in found["costs"].items():
        products, copies = cost["flops"] / flops, cost["bytes"] / limits["copy_bytes_per_s"]
        both[name] = {
            **cost,
            "least_seconds": max(products, copies),
            "limit": "matrix product" if products > copies else "memory",
        }
    return both


def idle_share(trial: Trial, steps: int) -> float | None:
    """The share of time in which no kernel ran, as the driver counts it, while `steps` steps are made."""
    ask = _utilization()
    seen: list[tuple[float, float]] = []
    over = threading.Event()

    def sample() -> None:
        while ask and not over.wait(0.05):
            used = ask()
            if used is not None:
                seen.append((time.monotonic(), used))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    began = time.monotonic()
    try:
        trial.run(steps)
    finally:
        ended = time.monotonic()
        over.set()
        sampler.join(2)
    # The driver's figure is of the last sixth of a second up to a second: the first are of before.
    shares = [used for at, used in seen if began + (ended - began) / 2 <= at <= ended]
    return 1 - statistics.fmean(shares) if shares else None


def gpu_uuid() -> str:
    """As NVML writes it, of the GPU that PyTorch computes on, whatever the order of CUDA_VISIBLE_DEVICES; "" for a part
    that MIG cut, or where this PyTorch does not tell."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    uuid = str(getattr(properties, "uuid", ""))
    return f"GPU-{uuid}" if uuid and " MIG " not in properties.name else ""


def _utilization() -> Callable[[], float | None] | None:
    """Asks the driver's library, which every machine with an NVIDIA GPU has; None where it does not answer."""

    class Rates(ctypes.Structure):
        _fields_: ClassVar = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]

    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle, rates = ctypes.c_void_p(), Rates()
    uuid = gpu_uuid()
    if not uuid or nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        return None  # of a part that MIG cut, NVML tells no use

    def ask() -> float | None:
        return None if nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) else rates.gpu / 100

    return ask


def table(results: Mapping[str, Result]) -> list[str]:
    lines = [
        "| program | how | samples/s | against plain | share of the limit | GPU idle | waits for data | peak memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in results.items():
        if "plan" in row:
            lines.append(f"| {name} | *plans: {row['plan']}* | | | | | | |")
        if "arms" not in row:
            lines.append(f"| {name} | not run: {row.get('not_run', '?')} | | | | | | |")
            continue
        for how, arm in row["arms"].items():
            lines.append(f"| {name} | {how} | {' | '.join(_cells(arm))} |")
    return lines


def _cells(arm: Result) -> Sequence[str]:
    if "same_as" in arm:
        return f"the plan is that of {arm['same_as']}", *[""] * 5
    if "samples_per_s" not in arm:
        return f"failed: {arm['failed'] or 'no time'}", *[""] * 5
    if sum(arm["rounds"]) < _FEWEST_ROUNDS:
        return "too few rounds to tell", *[""] * 5
    share = arm.get("share_of_limit")
    return (
        f"{arm['samples_per_s']:,.0f}",
        ratio_text(arm["against_plain"]) if arm["against_plain"] else "1",
        f"{share:.1%} ({arm['limit']})" if share is not None else "–",
        "–" if arm["gpu_idle"] is None else f"{arm['gpu_idle']:.0%}",
        "–" if arm["waits_for_data"] is None else f"{arm['waits_for_data']:.1%}",
        "–" if arm["peak_bytes"] is None else f"{arm['peak_bytes'] / 2**20:,.0f} MiB",
    )
