"""A step log of training steps: one row of whole numbers for each application of an optimizer.

How a row is written is the backend's own (`on_NAME`): a TensorFlow program's graphs write it, on PyTorch and JAX it
is put together when a step has been made. How rows are read is the same for all.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from overdrive.seams.hub import Seams
from overdrive.seams.keras.control import backend
from overdrive.seams.step_counter import StepCounter

# Rows that are kept where nobody asks for all of them; a graph's variable holds as many.
CAPACITY = 8192
OPTIMIZER, LOSSES, LOSS, SAMPLES, RATE = range(5)
_OWN = 5  # columns of every row: those above
_MOST_PENDING = 1024  # steps whose numbers stay on their device


@dataclass
class Application:
    """One application of an optimizer, as it is traced or as it runs."""

    optimizer: Any
    gradients: Sequence[Any]
    variables: Sequence[Any]
    losses: Sequence[Any] = ()
    inputs: Sequence[Any] = ()  # what models were given since the last one: (model, training, tensors) each
    rate: Any = 0.0  # the learning rate that it was applied with
    samples: Any = None  # of the batch that `fit` fetched; None where that is not known
    labels: Sequence[Any] = ()  # what loss objects were given besides the models' answers


@dataclass(frozen=True)
class Columns:
    """More columns for each row. All are called where the step is traced, or where it runs if it is not."""

    width: int
    fill: Callable[[Application], Sequence[Any]]  # after the application: scalars of int64
    before: Callable[[Application], None] | None = None
    evaluated: Callable[[Sequence[Any], Sequence[Any]], None] | None = None  # (inputs, answers) of a model's call
    gradients: bool = False  # whether `fill` looks at them: on JAX they are kept from the step only then


class StepLog:
    """Rows, and the optimizers that they are of."""

    def __init__(self) -> None:
        self._kept: list[Any] | None = None  # the optimizers, where they are kept alive
        self._optimizers: list[Callable[[], Any]] = []  # weak: a program that makes one after the other gives them up
        self._gone: dict[int, _Gone] = {}
        self.samples = 0  # of all rows read so far
        self._clock = StepCounter()
        self.rows: list[np.ndarray[Any, Any]] = []  # read so far, in order
        self.columns: list[Columns] = []
        self.losses = False  # whether they are asked for (see `GraphStepLog.write`)

    def add_columns(self, columns: Columns) -> int:
        """Returns the index of the first. Call it before the first step."""
        first = self.width
        self.columns.append(columns)
        return first

    @property
    def width(self) -> int:
        return _OWN + sum(each.width for each in self.columns)

    @property
    def keep(self) -> bool:
        """Whether all rows stay in `rows` when they have been read, or only those of the last steps; and whether
        optimizers, which hold their models' weights, stay alive when the program has given them up."""
        return self._kept is not None

    @keep.setter
    def keep(self, keep: bool) -> None:
        self._kept = self.optimizers if keep else None

    @property
    def optimizers(self) -> list[Any]:
        """Those that are alive, in the order in which they were first applied."""
        return [each for ref in self._optimizers if (each := ref()) is not None]

    @property
    def known(self) -> int:
        """How many optimizers there were so far."""
        return len(self._optimizers)

    def optimizer(self, place: int) -> Any:
        """That of a number; where it is gone, something in its stead that is always the same."""
        found = self._optimizers[place]()
        return self._gone.setdefault(place, _Gone()) if found is None else found

    def before(self, application: Application) -> None:
        for each in self.columns:
            if each.before:
                each.before(application)

    def evaluated(self, given: Sequence[Any], heard: Sequence[Any]) -> None:
        """A model was called to evaluate."""
        for each in self.columns:
            if each.evaluated:
                each.evaluated(given, heard)

    def filled(self, application: Application) -> list[Any]:
        return [value for each in self.columns for value in each.fill(application)]

    def place(self, optimizer: Any) -> int:
        """Its number, which it has from now on."""
        for number, known in enumerate(self._optimizers):
            if known() is optimizer:
                return number
        self._optimizers.append(weakref.ref(optimizer))
        if self._kept is not None:
            self._kept.append(optimizer)
        return len(self._optimizers) - 1

    def settle(self) -> None:
        """Bring the program's variables up to date, where the backend keeps their values elsewhere meanwhile."""

    def news(self) -> list[Any]:
        """The optimizers of the rows written since the last time; may wait for them."""
        raise NotImplementedError

    def read(self) -> None:
        """Bring all rows written so far into `rows`."""
        raise NotImplementedError

    def by_step(self) -> list[list[Any]]:
        """Its rows by training step: the last of each is of the leading optimizer (see `Clock`)."""
        self.read()
        clock = StepCounter()
        steps: list[list[Any]] = []
        pending: list[Any] = []
        for row in self.rows:
            pending.append(row)
            if clock.tick(self.optimizer(int(row[OPTIMIZER]))):
                steps.append(pending)
                pending = []
        return steps

    def take(self, rows: Sequence[np.ndarray[Any, Any]]) -> None:
        """These were read. A batch that several optimizers are applied to (a GAN's) is counted once."""
        for row in rows:
            if self._clock.tick(self.optimizer(int(row[OPTIMIZER]))):
                self.samples += int(row[SAMPLES])
        self.rows += rows
        if not self.keep:
            del self.rows[:-CAPACITY]


class _Gone:
    """An optimizer that is no more."""


@dataclass(frozen=True)
class _Pending:
    optimizers: Sequence[int]
    numbers: Any  # how many losses, their mean, and the learning rate, for each; still on its device, maybe
    samples: int
    more: Sequence[Sequence[int]]  # columns


class HostStepLog(StepLog):
    """Of a backend whose steps end in Python: what is still to be computed is read later."""

    def __init__(self) -> None:
        super().__init__()
        self._pending: list[_Pending] = []
        self._news: list[Any] = []

    def add(self, optimizers: Sequence[Any], numbers: Any, samples: int, more: Sequence[Sequence[int]]) -> None:
        """One training step's rows, in the order of `optimizers`."""
        if len(self._pending) >= _MOST_PENDING:
            self.read()
        self._pending.append(_Pending([*map(self.place, optimizers)], numbers, samples, more))
        self._news += optimizers

    def news(self) -> list[Any]:
        news, self._news = self._news, []
        return news

    def read(self) -> None:
        pending, self._pending = self._pending, []
        rows = []
        for each in pending:
            found = np.asarray(each.numbers, np.float64).reshape(-1, 3)
            for i, place in enumerate(each.optimizers):
                count, loss, rate = found[i]
                samples = each.samples if i == 0 else 0
                row = [place, int(count), whole(loss), samples, whole(rate), *each.more[i]]
                rows.append(np.array(row, np.int64))
        self.take(rows)


def unwrapped(optimizer: Any) -> Any:
    """The optimizer itself, where one that scales losses is around it."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def rate_of(optimizer: Any) -> Any:
    """Its learning rate, where asking for it has no effect: that of a schedule, by the count of steps, or a number."""
    from keras.optimizers.schedules import LearningRateSchedule

    given = optimizer._learning_rate
    if callable(given) and not isinstance(given, LearningRateSchedule):
        return 0.0  # a function of the program's
    return optimizer._get_current_learning_rate()


def path_of(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)


_step_logs: weakref.WeakKeyDictionary[Seams, StepLog] = weakref.WeakKeyDictionary()
_asked: weakref.WeakSet[Seams] = weakref.WeakSet()  # for losses


def ask_for_losses(hub: Seams) -> None:
    """Have the step log of a session keep them, be it there by now or not. Call it before the first step."""
    _asked.add(hub)
    if hub in _step_logs:
        _step_logs[hub].losses = True


def step_log_of(hub: Seams) -> StepLog:
    """The one step log of a session. Keras must be there, for the backend to be known."""
    if hub not in _step_logs:
        made = importlib.import_module(f"overdrive.seams.keras.on_{backend()}").make_step_log()
        made.losses = hub in _asked
        _step_logs[hub] = made
    return _step_logs[hub]


def whole(number: float) -> int:
    """A number of fp64 as the whole number of the same bits."""
    return int(np.float64(number).view(np.int64))


def number(value: int) -> float:
    """The way back."""
    return float(np.int64(value).view(np.float64))
