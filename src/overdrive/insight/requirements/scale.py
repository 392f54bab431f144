"""Steps on ranks in growing numbers: at each size it is measured what one of them does, and the others are played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from overdrive.core.program import Program
from overdrive.core.requirements_result import AtSize, AtSizes
from overdrive.core.settings import Chosen
from overdrive.core.unlike_ranks import Failures, Sizes
from overdrive.insight.requirements.failures import cost_of
from overdrive.insight.requirements.ranks import CannotForetell, noted, ranks_of
from overdrive.insight.requirements.unlike import Unlike, longest_of, step_of

_STEPS = (16, 64)  # that are noted, and their spread taken


def at_sizes(
    program: Program,
    sizes: Sizes,
    technique_of: Callable[[str, int], Chosen],
    alone: float,
    samples: float,
    tell: Callable[[str], None] = lambda _: None,
) -> AtSizes:
    """
    Args:
        technique_of: a layout and a number of ranks.
        alone, samples: seconds and samples of a step in one process.
    """
    rows: list[AtSize] = []
    varied = 0, 1.0
    for ranks in sizes.each():
        tell(f"Measuring what one of {ranks:,} ranks does.")
        there = ranks_of(ranks, sizes.link, quick=True)
        try:
            notes, told = noted(program, technique_of(f"{sizes.layout}={ranks}", ranks), there, steps=_STEPS)
            step = step_of(notes, there.network, ranks, sizes.slow)
        except (CannotForetell, ValueError) as error:
            rows.append(AtSize(ranks, {}, why=str(error)))
            continue
        varied = varied if rows and varied[0] else longest_of(notes[0])
        rows.append(replace(at_size(ranks, step, alone, sizes.failures), told=told))
    name = f"machines as this one, over {sizes.link.name}"
    return AtSizes(sizes.layout, name, alone, samples, varied, sizes.stated, tuple(rows))


def at_size(ranks: int, step: Unlike, alone: float, failures: Failures | None) -> AtSize:
    """A step by its parts, given one of a run in which no rank is lost."""
    share = min(step.computing, alone / ranks)
    parts = {
        "share": share,
        "beside": step.computing - share,
        "slowest": step.slowest,
        "network": step.network,
        "failures": 0.0,
    }
    if failures is None:
        return AtSize(ranks, parts)
    seconds = sum(parts.values())
    cost = cost_of(failures, ranks, seconds)
    if cost.seconds is not None:
        parts["failures"] = max(0.0, cost.seconds / failures.steps - seconds)
    return AtSize(ranks, parts, cost.seconds, cost.lost, cost.ends)
