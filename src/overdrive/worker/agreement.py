"""Compares a candidate's answers with the program's own, sample by sample, in calls with the same inputs.

What an answer is made of are arrays of samples x places x classes (see `worker.torch.answer_replay`). Scores are
compared by their values and by which class has the largest (of a single class: whether it is above zero); labels and
other whole numbers by whether they are the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.worker.replay import CALL, ReplayedCandidate, Steps

Array = np.ndarray[Any, Any]
_MOST_CLASSES = 64  # whose samples are looked at one class at a time


@dataclass
class _Variance:
    """Of an output over all samples, about the mean of each class."""

    count: int = 0
    sums: Array | float = 0.0
    squares: float = 0.0
    classes: int = 0

    def add(self, scores: Array) -> None:
        """Scores: samples x places x classes."""
        if self.count and scores.shape[-1] != self.classes:  # about the mean of all, then
            self.count, self.classes, self.sums = self.count * self.classes, 1, np.full(1, np.sum(self.sums))
            scores = scores.reshape(1, -1, 1)
        self.classes = scores.shape[-1]
        rows = scores.reshape(-1, self.classes)
        self.count += len(rows)
        self.sums = self.sums + rows.sum(axis=0)
        self.squares += float(np.square(rows).sum())

    def told(self) -> tuple[float, float]:
        """The standard deviation, and the root mean square."""
        elements = max(1, self.count * self.classes)
        about = float(np.square(self.sums).sum()) / max(1, self.count)
        return max(0.0, (self.squares - about) / elements) ** 0.5, (self.squares / elements) ** 0.5


class Agreement(ReplayedCandidate):
    """The program under a plan, given the inputs that a run of the program as it is was given (role "answers")."""

    def __init__(self, program: Steps, steps: Sequence[int], folder: Path) -> None:
        super().__init__(program, steps, folder)
        self._inputs: dict[int, list[float]] = {}
        self._variances: dict[str, _Variance] = defaultdict(_Variance)

    def _finish(self, step: int, results: dict[str, Array], inputs: list[float]) -> None:
        self._inputs[step] = inputs
        super()._finish(step, results, inputs)

    def _note(self, step: int, kind: str, name: str, found: Any, expected: Any) -> None:
        name = name.partition(CALL)[0]  # all calls of one model are taken together
        self._rows.append({"step": step, "tensor": name, **self._compared(name, expected, found)})

    def _compared(self, name: str, mine: Array | None, its: Array | None) -> dict[str, Any]:
        if mine is None or its is None or mine.shape != its.shape or mine.dtype.kind != its.dtype.kind:
            return {"form": False}
        if mine.dtype.kind != "f":
            return {"form": True, "other": (mine != its).mean(axis=(1, 2)).tolist()}
        finite = np.isfinite(mine)
        if not np.array_equal(finite, np.isfinite(its)) or not np.array_equal(mine[~finite], its[~finite], True):
            return {"form": True, "finite": False}
        # A mask's infinities are the same in both, and no part of an error.
        mine, its = (np.where(finite, each, 0.0).astype(np.float64) for each in (mine, its))
        self._variances[name].add(mine)
        chosen, others = _chosen(mine, finite), _chosen(its, finite)
        told = {"other": (chosen != others).mean(axis=1), "error": np.square(its - mine).mean(axis=(1, 2))}
        if mine.shape[1] == 1 and 2 <= mine.shape[2] <= _MOST_CLASSES:
            told["classes"] = chosen[:, 0]
        return {"form": True, "finite": True, **{name: each.tolist() for name, each in told.items()}}

    def report(self) -> dict[str, Any]:
        told = super().report()
        spreads = {name: each.told() for name, each in self._variances.items()}
        # Calls that were given the same say the same.
        known: dict[tuple[float, ...], int] = {}
        repeated = [step for step, inputs in self._inputs.items() if known.setdefault(tuple(inputs), step) != step]
        return {**told, "spreads": spreads, "repeated": repeated}


def _chosen(scores: Array, finite: Array) -> Array:
    """Samples x places: the class with the largest score."""
    if scores.shape[2] == 1:
        return scores[:, :, 0] > 0
    chosen: Array = np.where(finite, scores, -np.inf).argmax(axis=2)
    return chosen
