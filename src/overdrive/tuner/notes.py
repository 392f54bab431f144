"""What a reader of the result must know besides its figures, in sentences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from overdrive.core.contract import Contract
from overdrive.core.tune_result import Figures
from overdrive.core.units import duration, listed, unit_of, whole_unit_of
from overdrive.machine.shared_memory import PLACE, needed
from overdrive.techniques.catalogue import catalogue
from overdrive.tuner.figures import figures
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import names_of
from overdrive.tuner.whole_runs import LENGTHS, whole_run

_SLOWED = 1.5  # times as long as in the control
_CROWDED = 0.5  # share of the free shared memory; measured while the program's own workers held some of it


def notes_of(found: Findings, before: Figures | None, after: Figures | None) -> Iterator[str]:
    if found.refusal:
        yield found.refusal
    if found.objective.latency:
        yield from _of_calls(found, after if found.chosen else before)
    elif before and after:
        gains = ", ".join(f"{whole_run(before, after, steps):.2g}x for {steps:,}" for steps in LENGTHS)
        of, units = whole_unit_of(found.inference), f"{unit_of(found.inference)}s"
        length = f"With start-up{_beside(found)}, a whole run gains by its length in {units}"
        yield f"The speed-up is that of a {of}. {length}: {gains}."
    yield from _slowed(found, before)
    yield from _swaps(found)
    yield from _crowded(found)
    yield from _noise_scale(found)
    yield from found.notes


def _beside(found: Findings) -> str:
    """What a whole run has beside start-up and steps."""
    if found.inference:
        return ""
    between = found.between
    if between is None:
        return ", but without evaluations and checkpoints"
    if not between.before and not between.after:
        return ""
    before, after = (duration(each) if each else "nothing" for each in (between.before, between.after))
    return f" and what comes between epochs ({before} after each {between.steps:,.0f} steps, {after} under the plan)"


def _slowed(found: Findings, before: Figures | None) -> Iterator[str]:
    """Where other programs have come since the control: what the plan is compared with is not the program alone."""
    control = figures(found.control, new=False) if found.control else None
    if not (found.beside_others() and before and control and before.seconds_per_step and control.seconds_per_step):
        return
    if before.seconds_per_step > _SLOWED * control.seconds_per_step:
        unit = unit_of(found.inference)
        yield (
            f"When the tune began, a {unit} of the untouched program took {duration(control.seconds_per_step)}; beside "
            f"the plan it took {duration(before.seconds_per_step)}, since others held the cores: on a quiet machine "
            "the plan may gain less, or nothing."
        )


def _swaps(found: Findings) -> Iterator[str]:
    """What took the place of something else in the plan."""
    for _, new in itertools.groupby(found.chosen, lambda each: id(each.before)):
        swapped = list(new)
        out = [each.name for each in swapped[0].before if each.name not in dict(found.best())]
        if out:
            won = f"{swapped[0].duel.describe()} against the plan with {'it' if len(out) == 1 else 'them'}"
            yield f"{listed(names_of(swapped))} took the place of {listed(out)}: {won}."


def _of_calls(found: Findings, side: Figures | None) -> Iterator[str]:
    """Times are of calls alone; whether they are as short as was asked for."""
    yield "All times are those of the model's calls, without what the program does between two of them."
    within = found.objective.within
    if within is None:
        return
    if side is None or side.most is None:
        yield f"Too few calls were measured to tell whether 99 of 100 are answered within {duration(within)}."
        return
    said = f"99 of 100 calls are answered in {duration(side.most.estimate)}, {duration(side.most.high)} at most"
    asked = f"the {duration(within)} that were asked for"
    if side.most.high <= within:
        yield f"{said}: within {asked}."
    else:
        yield f"{said}: {'not within' if side.most.low > within else 'not surely within'} {asked}."


def _noise_scale(found: Findings) -> list[str]:
    """What a larger batch can be worth, where one was tried."""
    facts = found.control.old_facts if found.control else None
    tried = {each.name for each in found.adopted} | {
        each.name for each in [*found.rejected, *found.dropped] if each.duel
    }
    opened = any(name in catalogue() and catalogue()[name].contract is Contract.OPEN for name in tried)
    if facts is None or not facts.noise_scale or not opened:
        return []
    # A rough figure: three looks at one small program, at different steps, gave 45, 68 and 342 samples.
    size = (
        f"roughly {float(f'{facts.noise_scale:.1g}'):,.0f} samples, from a few steps"
        if math.isfinite(facts.noise_scale)
        else "too large to be told from a few steps"
    )
    return [
        f"The gradient's noise scale early in this training is {size} (a batch has {facts.samples_per_step:,.0f}). "
        "Batches well below it need nearly as many samples as now for the same loss, and fewer steps; batches "
        "above it need more samples. It grows during training. Speeds are in samples, whatever the batch."
    ]


def _crowded(found: Findings) -> list[str]:
    """A warning where the program's own workers come near the limit of the shared memory."""
    facts = found.control.old_facts if found.control else None
    if facts is None or facts.shared_memory is None:
        return []
    most = sum(needed(each.workers, each.prefetch, each.batch_bytes) for each in facts.loaders)
    if most <= _CROWDED * facts.shared_memory:
        return []
    return [
        f"The program's own workers may put {most / 1e6:,.0f} MB into {PLACE} at once, and "
        f"{facts.shared_memory / 1e6:,.0f} MB were free there: when it is full, a worker ends with a bus error. "
        "Fewer workers, a smaller prefetch_factor or a larger limit (docker: --shm-size) avoid that."
    ]
