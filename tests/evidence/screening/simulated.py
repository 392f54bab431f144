"""Blocks of live trials that are only numbers, with a known truth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from overdrive.evidence.screening import Design, Factor, Observation, Row, on_in, on_off


@dataclass
class Program:
    """What its blocks take: logarithms of seconds per sample, by the labels that are on."""

    costs: Mapping[str, float]  # of labels; negative is faster
    together: Mapping[tuple[str, str], float] = field(default_factory=dict)  # of two, beside that
    noise: float = 0.05  # of a block
    freedom: int = 0  # of Student's t, that the noise is; 0: normal
    process: float = 0.05  # spread between processes
    varies: float = 0.0  # spread of the effects between processes
    drift: float = 0.0  # for each block, in one direction
    bursts: float = 0.0  # share of pairs of which one block took three times as long
    late: float = 0.0  # share of a change that comes one block late
    seed: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self._number = itertools.count()

    def screened(
        self,
        design: Design,
        active: Collection[str],
        pairs: int,
        processes: int = 4,
        blocks: Sequence[Observation] = (),
    ) -> list[Observation]:
        """`blocks` and so many further pairs, shared out among fresh processes."""
        found = list(blocks)
        first = 1 + max((block.process for block in found), default=-1)
        for process in range(processes):
            level = self.process * self.rng.standard_normal()
            own = {label: self.varies * self.rng.standard_normal() for label, cost in self.costs.items() if cost}
            before: float | None = None
            for _ in range(process * pairs // processes, (process + 1) * pairs // processes):
                number = 1 + max((block.pair for block in found), default=-1)
                disturbed = self.rng.integers(2) if self.rng.random() < self.bursts else -1
                for half, row in enumerate(design.next_pair(active, self.rng)):
                    change = self._change(row, design.factors, own)
                    at = float(next(self._number))
                    late = self.late * ((change if before is None else before) - change)
                    before = change
                    slow = math.log(3) if half == disturbed else 0.0
                    seconds = level + change + late + self._noise() + self.drift * at + slow
                    found.append(Observation(first + process, number, row, seconds, at))
        return found

    def _change(self, row: Row, factors: Sequence[Factor], own: Mapping[str, float]) -> float:
        on = set(on_in(row, factors))
        cost = sum(self.costs.get(label, 0.0) + own.get(label, 0.0) for label in on)
        return cost + sum(more for pair, more in self.together.items() if on.issuperset(pair))

    def _noise(self) -> float:
        if not self.freedom:
            return self.noise * self.rng.standard_normal()
        return self.noise * self.rng.standard_t(self.freedom) / math.sqrt(self.freedom / (self.freedom - 2))


def switches(*labels: str, placebos: int = 0) -> Design:
    """A design of so many that are on or off."""
    return Design([*map(on_off, labels), *(on_off(f"placebo{at}", placebo=True) for at in range(placebos))])


def names(design: Design) -> list[str]:
    return [label for factor in design.factors for label in factor.levels]
