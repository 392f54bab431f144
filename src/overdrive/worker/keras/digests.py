"""The digest log of a Keras program (see `worker.digests`).

It is more columns of the step log (see `seams.keras.step_log`), so that it holds every step of a call that makes many.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from overdrive.core.records import StepRecord
from overdrive.seams.hub import Seams
from overdrive.seams.keras.control import backend
from overdrive.seams.keras.step_log import (
    RATE,
    SAMPLES,
    Application,
    Columns,
    StepLog,
    number,
    path_of,
    step_log_of,
    unwrapped,
)
from overdrive.worker import digests
from overdrive.worker.digests import NUDGE, PARTS, hashed, plain
from overdrive.worker.keras import ops

_MOST_SLOTS = 4  # tensors a step, of what models are given, that are told apart
_SLOT = 5  # columns: a mark (2 for fractions, 1 for all else, 0 for none), a checksum, and the sketch's three numbers
_HEAD = ("batches", "calls", "evaluations", "evaluated", "heard")
_NO_SETTINGS = ("name", "learning_rate")


class DigestLog(digests.DigestLog):
    """An observer."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self._step_log: StepLog | None = None
        self._ops: Any = None
        self._first = 0
        self._settings = ""
        self._models: list[Any] = []
        self._evaluations: Any = None
        self._touched = False
        self._trained: list[Any] = []

    def __call__(self, seams: Seams) -> None:
        seams.framework_ready.subscribe(lambda: self._ready(seams))

    def _ready(self, seams: Seams) -> None:
        if self._step_log is None and backend():
            self._step_log, self._ops = step_log_of(seams), ops()
            self._evaluations = self._ops.Tally()
            width = len(_HEAD) + _SLOT * _MOST_SLOTS + len(PARTS) * self.bits
            self._first = self._step_log.add_columns(Columns(width, self._fill, self._before, self._evaluated))

    def _before(self, application: Application) -> None:
        self._trained = list(application.variables)
        with self._ops.outside(), contextlib.suppress(Exception):  # variables that this very graph makes have no value
            self._perturb()

    def _perturb(self) -> None:
        if self.perturbed and not self._touched and self._step_log is not None:
            self._step_log.settle()
            for variable, value in [(each, self._ops.value_of(each)) for each in self._trained]:
                variable.assign(value * (1 + NUDGE))
            self._touched = True

    def _evaluated(self, given: Sequence[Any], heard: Sequence[Any]) -> None:
        answers = self._ops.checksum(heard) if self.bits else self._ops.constant(0)
        self._evaluations.add(self._ops.checksum(given), answers)

    def _fill(self, application: Application) -> list[Any]:
        ops = self._ops
        tensors = [each for _, _, given in application.inputs for each in given]
        modes = [_mode(training) for _, training, _ in application.inputs]
        calls = int(hashed(modes)[:14], 16)
        row = [ops.checksum([*tensors, *application.labels]), ops.constant(calls), *self._evaluations.take()]
        none = ops.constant(0)
        for tensor in tensors[:_MOST_SLOTS]:
            fractions = ops.is_of_fractions(tensor)
            row += [ops.constant(1 + fractions), ops.checksum([tensor])]
            row += ops.sketch(tensor) if fractions else [none] * 3
        row += [none] * (_SLOT * max(0, _MOST_SLOTS - len(tensors)))
        if self.bits:
            assert self._step_log is not None
            self._step_log.settle()
            row += [ops.checksum(variables) for variables in self._variables(application)]
        return row

    def _variables(self, application: Application) -> list[Iterable[Any]]:
        """By `PARTS`."""
        for model, _, _ in application.inputs:
            if all(known is not model for known in self._models):
                self._models.append(model)
        others = {id(each): each for model in self._models for each in model.non_trainable_variables}
        drawn = [each for each in others.values() if "seed_generator_state" in path_of(each)]
        buffers = [each for each in others.values() if "seed_generator_state" not in path_of(each)]
        return [application.variables, buffers, unwrapped(application.optimizer).variables, drawn]

    def stepped(self) -> None:
        """Settings are plain numbers of the optimizers; the learning rate is in every row."""
        if self._step_log is None:
            return
        self._perturb()  # a model that was made within its first step
        self._step_log.settle()
        told = []
        for optimizer in self._step_log.optimizers:
            config = _settings_of(unwrapped(optimizer))
            told.append(sorted((key, plain(value)) for key, value in config.items() if key not in _NO_SETTINGS))
        self._settings = hashed(told)

    @property
    def entries(self) -> list[StepRecord]:
        """Of each step of the step log; the optimizers' settings are those that were seen last before it was asked."""
        return [self._entry(rows) for rows in self._step_log.by_step()] if self._step_log is not None else []

    def _entry(self, rows: Sequence[Any]) -> StepRecord:
        mine = [row[self._first :] for row in rows]
        head = [dict(zip(_HEAD, map(int, row), strict=False)) for row in mine]
        evaluated = [[float(each["evaluated"] % 2**52)] for each in head if each["evaluations"]]
        first = len(_HEAD) + _SLOT * _MOST_SLOTS
        places = range(first, first + len(PARTS) * self.bits)
        return self.entry(
            batches=hashed(each["batches"] for each in head),
            samples=sum(int(row[SAMPLES]) for row in rows),
            calls=hashed((each["calls"], each["evaluations"]) for each in head),
            inputs=[slot for row in mine for slot in _slots(row[len(_HEAD) :])],
            evaluation=evaluated,
            settings=self._settings + hashed(number(row[RATE]) for row in rows),
            heard=hashed(each["heard"] for each in head),
            parts=[hashed(int(row[place]) for row in mine) for place in places],
        )


def _settings_of(optimizer: Any) -> dict[str, Any]:
    try:
        return dict(optimizer.get_config())
    except Exception:  # as with a schedule of the program's own, which cannot be saved
        named = {key: value for key, value in vars(optimizer).items() if not key.startswith("_")}
        return {key: value for key, value in named.items() if isinstance(value, (bool, int, float, str, type(None)))}


def _slots(columns: Any) -> list[list[float]]:
    slots = []
    for place in range(0, _SLOT * _MOST_SLOTS, _SLOT):
        mark, check, *numbers = columns[place : place + _SLOT]
        if mark:
            slots.append([float(int(check) % 2**52), *(map(number, numbers) if mark == 2 else ())])
    return slots


def _mode(training: Any) -> Any:
    return training if isinstance(training, (bool, type(None))) else "a tensor"
