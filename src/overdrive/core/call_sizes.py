"""What the calls of a program that trains nothing were given, by the sizes of their inputs, as data and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from overdrive.core.bounds import positive, text
from overdrive.core.units import listed, several

OTHERS = "other sizes"  # of calls whose sizes are not known, or were not kept apart
_KEPT = 24  # sizes, in a result
_TOLD = 3  # in a sentence


@dataclass(frozen=True)
class CallSize:
    """`given`: "16 × 3 × 224 × 224", with commas between several inputs."""

    given: str = text(200)
    calls: int | None = positive()


def call_sizes(counts: Mapping[str, int], most: int = _KEPT) -> tuple[CallSize, ...]:
    """Those that came most often first; what is beyond `most` of them is one line, the last."""
    known = sorted((item for item in counts.items() if item[0] != OTHERS), key=lambda item: -item[1])
    found = [CallSize(given, calls) for given, calls in known[:most]]
    beyond, unknown = known[most:], counts.get(OTHERS, 0)
    if beyond or unknown:
        name = OTHERS if unknown else several(len(beyond), "other size")
        found.append(CallSize(name, unknown + sum(calls for _, calls in beyond)))
    return tuple(found)


def told(counts: Mapping[str, int]) -> str:
    """In a sentence; "" where all calls are given the same sizes."""
    if len(counts) < 2:
        return ""
    named = [f"{each.given} ({each.calls or 0:,})" for each in call_sizes(counts, _TOLD)]
    return f"calls were given {listed(named)}"


def first_of(sizes: Sequence[CallSize], most: int) -> list[tuple[str, int]]:
    """Name and calls of the first, and all others together."""
    rows = [(each.given, each.calls or 0) for each in sizes]
    if len(rows) <= most:
        return rows
    return [*rows[: most - 1], ("all others", sum(calls for _, calls in rows[most - 1 :]))]
