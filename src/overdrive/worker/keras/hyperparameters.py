"""Sets and sees the hyperparameters of a Keras program inside a trial (see `worker.hyperparameter_watch`).

Learning rate, weight decay, momentum and betas of an optimizer; the batch size that `fit` cuts arrays into, and that of
a `tf.data.Dataset`; dropout rates. Nothing here imports Keras before it has arrived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from overdrive.core.hyperparameters import (
    DROPOUT,
    FIRST_DIMENSION,
    INPUT,
    LOADER,
    OPTIMIZER,
    Hyperparameters,
    ValuePlace,
)
from overdrive.core.settings import Value
from overdrive.seams.hub import Seams
from overdrive.seams.varied import line_of_program

Heard = Callable[[list[ValuePlace]], None]


class KerasValues:
    """
    Attributes:
        optimizers: how many were used so far.
    """

    def __init__(self, wanted: Hyperparameters, values: dict[str, Value], heard: Heard) -> None:
        """
        Args:
            values: what is to be set, by the places' keys.
            heard: told of each place, of batches of that which the first step takes its own from.
        """
        self.optimizers = 0
        self._wanted, self._values, self._heard = wanted, values, heard
        self._seams: Seams | None = None
        self._rates: Any = None
        self._fits = False
        self._of_fit: ValuePlace | None = None  # of the call under way
        self._dataset: Any = None  # that it was given, or that the program iterates over
        self._batched: WeakKeyDictionary[Any, ValuePlace] = WeakKeyDictionary()  # by data set
        self._stepped = False
        self._told = 0  # rows of the step log
        self._dropouts: Counter[float] = Counter()  # by rate

    def __call__(self, seams: Seams) -> None:
        self._seams = seams
        seams.optimizer_built.subscribe(self._built)
        if self._wanted.ramp or any(key.startswith(OPTIMIZER) for key in self._wanted.values):
            seams.rate_used.subscribe(lambda asked: (asked[0], self._rates.rate(*asked) if self._rates else asked[1]))
        if self._wanted.look or any(key.startswith(LOADER) for key in self._wanted.values):
            seams.fit_called.subscribe(self._fit)
            seams.dataset_batched.subscribe(self._batch)
        if self._wanted.look or any(key.startswith(DROPOUT) for key in self._wanted.values):
            seams.dropout_made.subscribe(self._dropout)
        if self._wanted.look:
            seams.dataset_opened.subscribe(self._opened)
            seams.step_ends.subscribe(self._step)

    def loss(self) -> float | None:
        """The mean of the losses since it was asked last; None where there were none."""
        from overdrive.seams.keras.step_log import LOSS, LOSSES, number, step_log_of

        if not self.optimizers or self._seams is None:
            return None
        step_log = step_log_of(self._seams)
        step_log.read()
        rows = step_log.rows[self._told :]
        self._told = len(step_log.rows)
        losses = [(number(row[LOSS]), int(row[LOSSES])) for row in rows]
        count = sum(each for _, each in losses)
        return sum(loss * each for loss, each in losses) / count if count else None

    def _built(self, optimizer: Any, rate: Any, where: str) -> None:
        from overdrive.seams.keras import values

        self.optimizers += 1
        self._rates = self._rates or values.ScaledRates(self._wanted.ramp)
        self._heard(values.of_optimizer(optimizer, rate, where, self._values, self._rates))

    def _dropout(self, rate: float) -> float:
        """Those of one rate are one place, as of PyTorch's modules."""
        self._dropouts[rate] += 1
        count = self._dropouts[rate]
        place = ValuePlace(DROPOUT, "p", rate, of=f"{count} layer{'s' if count > 1 else ''}")
        self._heard([place])
        return float(self._values.get(place.key, rate))

    def _fit(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from overdrive.seams.keras import values

        args, kwargs, self._of_fit, given = values.of_fit(args, kwargs, line_of_program(), self._values)
        self._fits, self._dataset = True, given
        try:
            return call(*args, **kwargs)
        finally:
            self._fits, self._of_fit = False, None

    def _batch(self, dataset: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from overdrive.seams.keras import values

        args, kwargs, place = values.of_batch(args, kwargs, line_of_program(), self._values)
        made = call(*args, **kwargs)
        if place:
            self._batched[made] = place
        return made

    def _opened(self, dataset: Any) -> None:
        if not self._fits:
            self._dataset = dataset

    def _step(self, optimizer: Any) -> None:
        """Of the first one's batch it is asked where its size comes from."""
        if self._stepped or not self.optimizers or self._seams is None:
            return
        from overdrive.seams.keras.step_log import SAMPLES, step_log_of

        self._stepped = True
        step_log = step_log_of(self._seams)
        step_log.read()
        samples = next((size for row in step_log.rows if (size := int(row[SAMPLES]))), 0)
        place = self._of_fit or self._of_dataset(samples)
        if place is None and samples:
            place = ValuePlace(INPUT, FIRST_DIMENSION, samples)
        self._heard([place] if place else [])

    def _of_dataset(self, samples: int) -> ValuePlace | None:
        """Of the data sets behind the one that is trained on, that which gives as many samples at once."""
        from overdrive.seams.keras.internals import data_sets_behind

        known = map(self._batched.get, data_sets_behind(self._dataset))
        return next((place for place in known if place and place.value == samples), None)
