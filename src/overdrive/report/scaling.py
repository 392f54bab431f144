"""Words for ranks: strong and weak scaling, what goes between ranks, and what each takes of memory."""

from __future__ import annotations

from overdrive.core.interval import Interval
from overdrive.core.objective import size
from overdrive.core.tune_result import Scaling, TuneResult
from overdrive.core.units import count, duration

STRONG_HEAD = ("ranks", "samples per second", "speed-up", "efficiency", "between ranks", "memory a rank")
WEAK_HEAD = ("ranks", "a step of one alone", "of all together", "efficiency")
STRONG = (
    "Strong scaling: the same batches, divided among more ranks, against one process. Efficiency is the speed-up for "
    "each of its threads, or GPUs: on CPUs ranks have no more cores than one process. Between ranks is the share of a "
    "step in which a rank exchanges something or waits for others, in the mean; memory is that of the largest."
)
WEAK = (
    "Weak scaling: as much for each rank, whether the others are there or not. One rank with its share of the batch, "
    "where the others are imagined, against all of them: what it loses then are the network and the machine that they "
    "share."
)
_NOT_KNOWN = "not measured"


def strong(result: TuneResult) -> list[tuple[str, ...]]:
    """A row of cells for each number of ranks, one process first (see `strong_head`); [] where none was measured."""
    told = [each for each in result.scaling if each.ranks]
    if not any(each.ranks and each.ranks > 1 for each in told):
        return []
    pool = bool(_pool(result))
    return [_strong(each, pool) for each in sorted(told, key=lambda each: each.ranks or 0)]


def strong_head(result: TuneResult) -> tuple[str, ...]:
    """With a column for what `doctor --pool` measured, where that was given."""
    *first, memory = STRONG_HEAD
    return (*first, "by doctor", memory) if _pool(result) else STRONG_HEAD


def weak(result: TuneResult) -> list[tuple[str, ...]]:
    """A row for each number of ranks of which it was measured (see `WEAK_HEAD`)."""
    return [
        (f"{each.ranks:,}", duration(each.alone), duration(each.together), _share(each.weak))
        for each in result.scaling
        if each.ranks and each.alone and each.together and each.weak
    ]


def notes(result: TuneResult) -> list[str]:
    """What the tables do not say: what doctor measured, and of which numbers of ranks weak scaling is not known."""
    said = []
    if pool := _pool(result):
        said.append(
            "By doctor is the share of a step that the same exchanges took where `doctor --pool` measured them "
            f"({pool}), with nothing beside them: what goes beside the backward pass counts in full there."
        )
    for each in result.scaling:
        if each.ranks and each.ranks > 1 and not each.weak:
            said.append(
                f"Weak scaling of {each.ranks:,} ranks was not measured: {each.why_not_weak or 'no reason is told'}."
            )
    return said


def _strong(row: Scaling, pool: bool) -> tuple[str, ...]:
    one = row.ranks == 1
    speed = "1.00x" if one else row.speedup.as_speedup() if row.speedup else _NOT_KNOWN
    efficiency = "100%" if one else f"{row.efficiency:.0%}" if row.efficiency else _NOT_KNOWN
    between = "-" if one else _of_step(row.communication)
    by_doctor = ["-" if one else _of_step(row.by_doctor)] if pool else []
    return (
        f"{row.ranks:,}",
        count(row.samples_per_s) if row.samples_per_s else _NOT_KNOWN,
        speed,
        efficiency,
        between,
        *by_doctor,
        size(int(row.peak_memory)) if row.peak_memory else _NOT_KNOWN,
    )


def _of_step(share: float | None) -> str:
    return f"{share:.1%}" if share is not None and 0 <= share < 100 else _NOT_KNOWN


def _share(interval: Interval | None) -> str:
    """`93% [90%, 96%]`."""
    return f"{interval.estimate:.0%} [{interval.low:.0%}, {interval.high:.0%}]" if interval else _NOT_KNOWN


def _pool(result: TuneResult) -> str:
    return next((each.pool for each in result.scaling if each.pool), "")
