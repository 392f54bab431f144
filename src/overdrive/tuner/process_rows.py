"""The part of a screening that switches from process to process: what has to be there before one starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from overdrive.evidence.screening import (
    Design,
    Effects,
    Factor,
    Observation,
    ProcessMean,
    Row,
    error_of,
    estimate_of_processes,
    mean_of,
    on_in,
    on_off,
)

FEWEST, WANTED = 4, 8  # processes; with 8 an effect has an error of 2 % where processes differ by 3 %


class ProcessRows:
    """Which of these techniques each process starts with: every other process is the mirror image of the one before."""

    def __init__(self, names: Sequence[str], rng: np.random.Generator) -> None:
        self.design = Design([on_off(name) for name in names], shortest=4)
        self.racing = list(names)
        self.made: list[Row] = []  # of all processes so far
        self._pair: tuple[Row, Row] = ((), ())
        self._rng = rng

    def next_names(self) -> tuple[str, ...]:
        """Of the next process."""
        if len(self.made) % 2 == 0:
            self._pair = self.design.next_pair(self.racing, self._rng)
        row = self._pair[len(self.made) % 2]
        factors = self.design.factors
        self.made.append(tuple(level * (each.name in self.racing) for each, level in zip(factors, row, strict=False)))
        return on_in(self.made[-1], factors)

    def leave(self, names: Collection[str]) -> None:
        self.racing = [name for name in self.racing if name not in names]

    def wanted(self) -> bool:
        """Whether another process would tell something."""
        return bool(self.racing) and len(self.made) < WANTED

    def runs(self, blocks: Sequence[Observation], factors: Sequence[Factor], within: Effects) -> dict[int, ProcessMean]:
        """By the number of each process of which enough counts: its time, less what was switched within it.

        Args:
            factors: what was switched within the processes; `within`: what that does.
        """
        explained: dict[int, list[Observation]] = {}
        for block in blocks:
            of_row = float(within.of_plan(on_in(block.row, factors)) @ within.mean)
            rest = replace(block, log_seconds=block.log_seconds - of_row)
            explained.setdefault(block.process, []).append(rest)
        runs: dict[int, ProcessMean] = {}
        for number, each in explained.items():
            try:
                runs[number] = ProcessMean(number // 2, self.made[number], *mean_of(each), each[0].at)
            except ValueError:
                continue  # none of its pairs counts
        return runs

    def effects(self, runs: Mapping[int, ProcessMean], spread: float) -> Effects | None:
        """What these techniques do; None from too few processes.

        Args:
            spread: between processes, one standard deviation of log seconds.
        """
        both = [run for number, run in runs.items() if number ^ 1 in runs]
        if not self.design.factors or len(both) < FEWEST:
            return None
        return estimate_of_processes(both, self.design.factors, spread)

    def variance(self, runs: Mapping[int, ProcessMean], around: Effects | None) -> tuple[float, int]:
        """Of log seconds between processes that have the same techniques, and its degrees of freedom; 0 of none."""
        rest = []
        for run in runs.values():
            on = around.of_plan(on_in(run.row, self.design.factors)) @ around.mean if around else 0.0
            rest.append(run.log_seconds - float(on))
        freedom = len(rest) - 1 - (len(around.terms) if around else 0)
        if freedom <= 0:
            return 0.0, 0
        return max(0.0, float(np.var(rest)) * len(rest) / freedom - error_of([*runs.values()]) ** 2), freedom
