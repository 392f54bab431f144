"""What is believed of a candidate's gain before it is measured: a mixture of nothing, little, and much."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_SHIPPED = Path(__file__).with_name("gains.json")
_LEAST_WEIGHT = 0.02  # that any part keeps, whatever a record says: else no measurement could overrule it
_STRENGTH = 4.0  # gains on record that the usual prior counts as much as


@dataclass(frozen=True)
class PriorPart:
    """Normal, of the gain: the logarithm of a speedup."""

    weight: float
    centre: float
    spread: float  # standard deviation; 0: it is the centre itself


@dataclass(frozen=True)
class Prior:
    """A mixture of parts. The usual one: in .6 nothing, in .2 some per cent either way, in .2 much.

    With a single wide part 10 to 25 % of gains of 5 % are lost (statistics-review.md, 8.3).

    Raises:
        ValueError: a weight below 0.02, or they do not add up to 1: such a prior could not be overruled.
    """

    parts: tuple[PriorPart, ...] = (PriorPart(0.6, 0.0, 0.0), PriorPart(0.2, 0.0, 0.06), PriorPart(0.2, 0.05, 0.35))

    def __post_init__(self) -> None:
        weights = [part.weight for part in self.parts]
        if min(weights) < _LEAST_WEIGHT or not math.isclose(sum(weights), 1.0, abs_tol=1e-6):
            raise ValueError(f"the weights of a prior must be 0.02 or more and add up to 1, and are {weights}")


USUAL = Prior()


def learned(gains: Iterable[tuple[float, float]]) -> Prior:
    """The prior of a technique by its record, for instance on this class of machine; USUAL counts as much as four
    programs.

    Args:
        gains: logarithm of a speedup and its standard error, one for each program.
    """
    sums = [_STRENGTH * part.weight for part in USUAL.parts]
    count = _STRENGTH
    for gain, error in gains:
        heights = [part.weight * _height(gain, part, error) for part in USUAL.parts]
        total = sum(heights)
        if total > 0:
            sums = [each + height / total for each, height in zip(sums, heights, strict=True)]
            count += 1
    weights = [max(_LEAST_WEIGHT, each / count) for each in sums]
    rest = sum(weights)
    weights = [_LEAST_WEIGHT + (each - _LEAST_WEIGHT) * _share(rest, len(weights)) for each in weights]
    return Prior(
        tuple(PriorPart(weight, part.centre, part.spread) for weight, part in zip(weights, USUAL.parts, strict=True))
    )


def shipped(device: str) -> dict[str, list[tuple[float, float]]]:
    """What screenings of public programs measured, by technique: logarithms of speedups and their standard errors.

    Of `gains.json`, which `benchmarks/public/gains.py` makes from the results of the benchmark.

    Args:
        device: that the programs ran on, "cpu" or "cuda"; of another than was measured there is nothing.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for gains in json.loads(_SHIPPED.read_text()).get(device, {}).values():
        for name, (gain, error) in gains.items():
            found.setdefault(name, []).append((gain, error))
    return found


def _share(rest: float, count: int) -> float:
    """By how much what exceeds the least weights has to shrink for all to add up to 1."""
    least = count * _LEAST_WEIGHT
    return (1 - least) / (rest - least)


def _height(gain: float, part: PriorPart, error: float) -> float:
    deviation = math.hypot(part.spread, max(error, 1e-4))
    return math.exp(-0.5 * ((gain - part.centre) / deviation) ** 2) / deviation
