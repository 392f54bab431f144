"""`overdrive doctor --for SCRIPT`: the memory that a program needs, and its step time on other hardware."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from overdrive.cli.json_output import STDOUT, console_beside, write_json
from overdrive.cli.layout import technique_of
from overdrive.cli.many_ranks import OnRanks
from overdrive.core.json_data import to_json
from overdrive.core.program import Program
from overdrive.core.requirements_result import (
    LaunchTime,
    MemoryNeeds,
    OnGpu,
    OnThreads,
    RankLayout,
    Requirements,
    StepCost,
)
from overdrive.core.unlike_ranks import Sizes
from overdrive.insight.requirements.counting import count
from overdrive.insight.requirements.gpus import Gpu, gpus, known
from overdrive.insight.requirements.layouts import layouts
from overdrive.insight.requirements.needs import Needs
from overdrive.insight.requirements.ranks import CannotForetell, may_be_measured, ranks_of, with_steps
from overdrive.insight.requirements.scale import at_sizes
from overdrive.insight.requirements.step_time import LAUNCH, least_here, on_gpu, on_threads
from overdrive.machine.limits import Limits, LimitsUnavailable, measured_limits
from overdrive.report.requirements import requirements
from overdrive.version import __version__

# What a GPU must have free besides the tensors, in bytes and as a share of them: CUDA's own context with the libraries'
# kernels, and what an allocator cannot fill. Assumed, not measured here.
CONTEXT = 0.6e9
UNFILLED = 0.1


def wanted(
    program: Program, quick: bool = False, json_path: Path | None = None, on_ranks: OnRanks | Sizes | None = None
) -> int:
    """Count, measure, predict, and print. Returns the exit code.

    Args:
        on_ranks: under which layouts a step is foretold on so many ranks, or one layout on more and more of them.

    Raises:
        CannotCount: the program fails, or makes too few steps.
    """
    live = sys.stderr.isatty() and not json_path

    def tell(sentence: str) -> None:
        if live:
            print(sentence, file=sys.stderr)

    missing: list[str] = []
    limits: Limits | None = None
    needs = count(program, tell=tell)  # before the machine is measured: of a program that fails it is said at once
    tell("Measuring what this machine can do (under a minute, once) ...")
    try:
        limits = measured_limits(quick=quick)
    except LimitsUnavailable as error:
        missing.append(str(error))
    result = judged(needs, limits, program.command())
    if isinstance(on_ranks, Sizes):
        try:
            may_be_measured(needs)
            sizes = at_sizes(program, on_ranks, technique_of, needs.usual_seconds, needs.samples, tell)
            result = replace(result, sizes=sizes)
        except CannotForetell as error:
            missing.append(f"No step is foretold on ranks: {error}.")
    elif on_ranks:
        found, network = _among_ranks(program, needs, on_ranks, quick, tell)
        result = replace(result, layouts=tuple(found), network=network)
    result = replace(result, notes=(*result.notes, *missing))
    write_json(json_path, to_json(result))
    if json_path != STDOUT:
        requirements(result, console_beside(json_path))
    return 0


def _among_ranks(
    program: Program, needs: Needs, asked: OnRanks, quick: bool, tell: Callable[[str], None]
) -> tuple[list[RankLayout], str]:
    """The layouts, with how long a step takes where that can be foretold; and the name of the network."""
    try:
        may_be_measured(needs)
        there = ranks_of(asked.count, asked.link, quick, tell)
    except CannotForetell as error:
        whole, *others = layouts(needs, asked.count, asked.memory)
        return [whole, *(replace(each, why=str(error)) for each in others)], ""
    found = layouts(needs, asked.count, asked.memory, apart=not there.together)
    return with_steps(program, found, lambda layout: technique_of(layout, asked.count), there, tell), there.name


def judged(needs: Needs, limits: Limits | None, program: str) -> Requirements:
    """All that `--json` writes, but for layouts."""
    launch = limits.measures["cuda.launch"].value if limits and "cuda.launch" in limits.measures else LAUNCH
    here = known(limits.gpu) if limits and limits.gpu and needs.device == "cuda" else None
    return Requirements(
        overdrive=__version__,
        date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        program=program,
        device=needs.device,
        threads=needs.threads,
        step=StepCost(
            seconds=needs.step_seconds,
            data_seconds=needs.data_seconds,
            samples=needs.samples,
            flops=needs.flops,
            bytes=needs.bytes,
            operators=needs.calls,
            roofline_seconds=(least_here(needs, limits) or None) if limits else None,
        ),
        memory=MemoryNeeds(
            parts={part: needs.at_peak[part] for part in needs.parts},
            tensors=needs.tensors,
            program=needs.program if needs.device == "cpu" else None,
            estimated_peak=needs.estimated_peak,
            measured_peak=needs.measured_peak,
            kept_peak=needs.kept_peak or None,
        ),
        threads_seconds=_by_threads(needs, limits) if limits and needs.device == "cpu" else (),
        gpus=tuple(_on(needs, gpu, launch) for gpu in gpus()),
        launch_seconds=LaunchTime(launch, launch != LAUNCH),
        gpu_here=_on(needs, here, launch) if here else None,
        notes=tuple(needs.notes),
        inference=needs.inference,
    )


def _on(needs: Needs, gpu: Gpu, launch: float) -> OnGpu:
    room = (gpu.memory - CONTEXT) / (1 + UNFILLED)
    return OnGpu(
        name=gpu.name,
        memory=gpu.memory,
        needed=needs.tensors * (1 + UNFILLED) + CONTEXT,
        fits=needs.tensors <= room,
        largest_batch=needs.largest_batch(room),
        as_it_is=on_gpu(needs, gpu, launch=launch),
        half=on_gpu(needs, gpu, half=True, launch=launch),
        source=gpu.source,
    )


def _by_threads(needs: Needs, limits: Limits) -> tuple[OnThreads, ...]:
    """Step times with 1, 2, 4, … and all granted cores; only of those limits are known."""
    most = limits.threads
    numbers = sorted({*(2**power for power in range(most.bit_length()) if 2**power <= most), most} - {needs.threads})
    return tuple(OnThreads(number, on_threads(needs, limits, number)) for number in numbers)
