"""Quantities that a candidate's runs lack, or have as no finite number, where the original's runs have them.

They are judged as runs that fail are: refused where so many more lack one by Fisher's exact test at p < 0.01, corrected
for as many ways of lacking as there are; not called equivalent where one run does and none of the original's. What
lies between is left to more runs, since programs print lines by chance: that a result is the best so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from overdrive.evidence.convergence import fisher

_REFUSED_P, _DOUBT_P = 0.01, 0.05

_Numbers = Mapping[str, float]


@dataclass(frozen=True)
class Lacking:
    """`names`: all that speak against the candidate."""

    faults: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def look(original: Sequence[_Numbers], candidate: Sequence[_Numbers]) -> Lacking:
    """The numbers of both arms' runs, by name."""
    # By the runs that lack them: the numbers of one line are one way of lacking.
    ways: dict[tuple[tuple[bool, ...], ...], list[str]] = {}
    for name in sorted({name for run in original for name in run}):
        way = tuple(tuple(name not in run for run in arm) for arm in (original, candidate))
        if any(map(any, way)):
            ways.setdefault(way, []).append(name)
    faults: list[str] = []
    doubts: list[str] = []
    against: list[str] = []
    for way, names in ways.items():
        own, its = map(sum, way)
        p = min(1.0, len(ways) * fisher((own, len(original)), (its, len(candidate))))
        if p < _DOUBT_P or (its and not own):
            more = f" (and {len(names) - 1} others)" if len(names) > 1 else ""
            lacks = f"{names[0]}{more} is missing or not finite in {its} of its {len(candidate)} runs"
            told = f"{lacks} and {own or 'none'} of the original's"
            (faults if p < _REFUSED_P else doubts).append(told)
            against += names
    return Lacking(tuple(faults), tuple(doubts), tuple(against))
