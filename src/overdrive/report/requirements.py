"""Prints what hardware a program needs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from overdrive.core.requirements_result import OnGpu, Prediction, RankLayout, Requirements
from overdrive.core.units import rate, several, unit_of
from overdrive.report.paper import Paper
from overdrive.report.scale import sizes

_PARTS = {
    "parameters": "weights and buffers",
    "gradients": "",
    "optimizer states": "momentum and the like",
    "activations": "kept from forward to backward, with the batch",
    "workspace": "alive for a moment only, at the peak",
}
# Of benchmarks/results/planner.json: layouts measured, and by how much their foretold step was off, median and worst.
FORETOLD = (12, 0.14, 0.29)
_OF_A_CALL = "inputs, answers and what lies between the layers, at the peak of a call"


def requirements(result: Requirements, console: Console) -> None:
    """Print all of it."""
    paper = Paper(console)
    paper.say(f"What {result.program} needs", "bold")
    paper.say()
    _memory(result, paper)
    _layouts(result.layouts, paper)
    _steps_of_layouts(result, paper)
    if result.sizes:
        sizes(result.sizes, paper)
    _step(result, paper)
    _gpus(result, paper)
    for note in result.notes:
        paper.say(note if note.endswith(".") else f"{note[:1].upper()}{note[1:]}.")


def _memory(result: Requirements, paper: Paper) -> None:
    memory, device = result.memory, result.device
    said = {**_PARTS, "workspace": _OF_A_CALL} if result.inference else _PARTS
    body = [(name, size(memory.parts[name]), said[name]) for name in said if name in memory.parts]
    body.append(("tensors at the peak", size(memory.tensors), "what a GPU has to hold"))
    if memory.program is not None:
        between = f"libraries and data, between two {unit_of(result.inference)}s (measured)"
        body.append(("program", size(memory.program), between))
    paper.rows(("memory", "bytes", ""), body)
    estimated, measured = memory.estimated_peak, memory.measured_peak
    if not measured:
        return
    of = "the process" if device == "cpu" else "the GPU's tensors"
    paper.say(
        f"Counted from shapes and types, {of} at the peak: {size(estimated)}. Measured in a trial: {size(measured)} "
        f"({_against(estimated, measured)})."
    )
    if (kept := memory.kept_peak or 0) > 1.05 * measured:
        paper.say(
            f"As it runs, it takes {size(kept)}: the C library keeps blocks that were freed "
            "(`overdrive tune --objective memory` looks for ways to spend less)."
        )
    paper.say()


def _layouts(found: Sequence[RankLayout], paper: Paper) -> None:
    if not found:
        return
    fits = {None: "", True: "fits", False: "too large"}
    states = ("gradients", "optimizer states")
    rows = [
        (
            each.layout,
            size(each.bytes),
            size(each.parts["parameters"]),
            size(sum(each.parts[name] for name in states)),
            size(each.parts["activations"] + each.parts["workspace"]),
            fits[each.fits],
        )
        for each in found
    ]
    paper.rows(("a rank, at the peak", "bytes", "weights", "their states", "activations", ""), rows, right=True)
    for each in found:
        if said := ". ".join(f"{told[:1].upper()}{told[1:]}" for told in each.told) or each.said:
            paper.say(f"{each.layout}: {said}.")
    paper.say()


def _steps_of_layouts(result: Requirements, paper: Paper) -> None:
    foretold = [each for each in result.layouts if each.seconds is not None]
    if result.network:
        alone = result.layouts[0].seconds or 0.0
        rows = [
            (each.layout, rate(each.seconds, "s"), f"{alone / each.seconds:.2f}x", f"{each.communication or 0:.0%}")
            for each in foretold
            if each.seconds
        ]
        paper.rows(("a step", "seconds", "speed", "waiting"), rows, right=True)
    untold: dict[str, list[str]] = {}
    for each in result.layouts:
        if each.seconds is None:
            untold.setdefault(each.why, []).append(each.layout)
    for why, names in untold.items():
        paper.say(f"No step is foretold of {', '.join(names)}: {why}.")
    if result.network:
        paper.say(_fastest(foretold), "bold")
        count, median, worst = FORETOLD
        paper.say(
            f"What a rank does was measured, with the others imagined; what goes between ranks is reckoned "
            f"({result.network}). Of {count} layouts measured on 2 ranks of a CPU, the foretold "
            f"step was off by {median:.0%} in the median, by {worst:.0%} at worst."
        )
    if result.layouts:
        paper.say()


def _fastest(foretold: Sequence[RankLayout]) -> str:
    """Of those that fit: the first is one process."""
    fitting = [each for each in foretold if each.fits is not False]
    if not fitting:
        return "None of those whose step is foretold fits."
    best = min(fitting, key=lambda each: each.seconds or 0.0)
    of = "Of what fits" if best.fits else "Of these"
    if best is foretold[0]:
        return f"{of} nothing is faster than one process."
    return f"{of}, {best.layout} is the fastest."


def _step(result: Requirements, paper: Paper) -> None:
    step = result.step
    where = f"{result.threads} thread{'s' if result.threads > 1 else ''}" if result.device == "cpu" else "the GPU"
    waiting = f", {rate(step.data_seconds, 's')} of it waiting for data" if step.data_seconds > 0 else ""
    paper.say(
        f"A {unit_of(result.inference)} of {several(round(step.samples), 'sample')} takes {rate(step.seconds, 's')} "
        f"here on {where}{waiting}: "
        f"{step.operators:,} operators, {step.flops / 1e9:,.3g} GFLOP, {size(step.bytes)} moved."
    )
    for each in result.threads_seconds:
        count = each.threads
        paper.say(f"With {count} thread{'s' if count > 1 else ''} it would take about {rate(each.seconds, 's')}.")
    paper.say()


def _row(gpu: OnGpu) -> tuple[str, ...]:
    share = max(0.01, gpu.needed / gpu.memory)
    used = f"{share:.0%}" if gpu.fits else "too little"
    times = (_span(gpu.as_it_is), _span(gpu.half), gpu.as_it_is.bound_by) if gpu.fits else ("-", "-", "-")
    return gpu.name, f"{gpu.memory / 1e9:.0f} GB", used, f"{gpu.largest_batch:,}" if gpu.largest_batch else "-", *times


def _gpus(result: Requirements, paper: Paper) -> None:
    unit = unit_of(result.inference)
    header = ("GPU", "memory", "used", "largest batch", f"{unit} as it is", "in 16 bits", "bound by")
    paper.rows(header, [_row(each) for each in result.gpus], right=True)
    launch = result.launch_seconds
    seen = "measured here" if launch.measured else "assumed"
    less = " (calls with few samples reach less)" if result.inference else ""
    paper.say(
        f"{unit.capitalize()}s on GPUs are a roofline over data sheets (`--json` names them), operator by operator: "
        f"with all at its peak, to 40 % of that, which well-made training reaches{less}. Giving out an operator is "
        f"taken to cost {rate(launch.value, 's')} ({seen}), and Python's own time to be this machine's: torch.compile "
        f"and CUDA graphs save much of both. {_error(result)}"
    )


def _error(result: Requirements) -> str:
    step, here = result.step, result.gpu_here
    if here:
        least, usual = here.as_it_is.least, here.as_it_is.usual
        within = "within" if least <= step.seconds <= usual else "outside"
        return (
            f"Of the {here.name} in this machine it says {_span(here.as_it_is)}, and "
            f"{rate(step.seconds, 's')} was measured: {within} that."
        )
    if step.roofline_seconds and step.seconds:
        return (
            f"No GPU was here to compare it with. The same sum with this processor's measured limits gives "
            f"{rate(step.roofline_seconds, 's')} for the {unit_of(result.inference)}, and "
            f"{rate(step.seconds, 's')} was measured "
            f"({step.seconds / step.roofline_seconds:.1f} times that)."
        )
    return "It was compared with no measurement here."


def size(value: float) -> str:
    """ "1.23 GB": bytes with three figures."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= 0.9995 * unit:
            return f"{value / unit:.3g} {name}" if value < 999.5 * unit else f"{value / unit:,.0f} {name}"
    return f"{value:.0f} B"


def _span(prediction: Prediction) -> str:
    """ "1.2 to 3 ms"."""
    low, high = rate(prediction.least, "s"), rate(prediction.usual, "s")
    if low == high:
        return low
    (number, unit), (_, other) = low.split(), high.split()
    return f"{number} to {high}" if unit == other else f"{low} to {high}"


def _against(estimated: float, measured: float) -> str:
    error = estimated / measured - 1
    return (
        f"the estimate is {abs(error):.0%} too {'high' if error > 0 else 'low'}" if abs(error) >= 0.005 else "the same"
    )
