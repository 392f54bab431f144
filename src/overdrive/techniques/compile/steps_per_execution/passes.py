"""Passes over data of unknown length, with several steps in a call: each ends as Keras ends it one step at a time.

Keras finds the end of such data by a step that gets no batch. TensorFlow begins with that step all the same, and what
needs no batch is done: iterations are counted, weights decay, layers draw random numbers. And Keras ends later passes
after as many batches as the first one had, and one. Both are a part of what is trained, so the last steps of a pass go
one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Passes:
    """Of one `fit`.

    Args:
        model: that is trained.
        epochs: Keras's iterator over them, whose data have no length that is known.
        grouped: the model's train function, of several steps.
        single: ... of one.
    """

    def __init__(self, model: Any, epochs: Any, grouped: Callable[..., Any], single: Callable[..., Any]) -> None:
        import tensorflow as tf

        self._model = model
        self._epochs = epochs
        self._steps = epochs.steps_per_execution
        self._grouped = grouped
        self._single = single
        self._open_data = epochs._get_iterator
        with tf.device("/CPU:0"):
            self._fetched = tf.Variable(0, dtype=tf.int64, trainable=False)
        epochs._get_iterator = self._opened
        self._count_in_bar()

    def _count_in_bar(self) -> None:
        """The bar shows the batches that there were. Keras counts whole calls: 32 where the second of two calls of 16
        steps found 9."""
        from keras.callbacks import ProgbarLogger

        shown = ProgbarLogger.on_train_batch_end

        def show(bar: Any, batch: int, logs: Any = None) -> None:
            most = self._epochs._num_batches
            made = int(self._fetched) if most is None else min(self._epochs._steps_seen, most)
            shown(bar, min(batch, made - 1) if bar.model is self._model else batch, logs)

        ProgbarLogger.on_train_batch_end = show
        self._bar = shown

    def close(self) -> None:
        """At the end of the `fit`."""
        from keras.callbacks import ProgbarLogger

        ProgbarLogger.on_train_batch_end = self._bar

    def _opened(self) -> Any:
        data = self._open_data()
        if self._epochs._num_batches is not None:
            return data  # the first pass has told
        self._fetched.assign(0)
        return data.filter(lambda *_: self._fetched.assign_add(1) > 0)

    def train(self, iterator: Any) -> Any:
        """In the place of the train function."""
        epochs = self._epochs
        most = epochs._num_batches  # of this pass
        before = epochs._steps_seen - self._steps
        if most is not None and before + self._steps >= most:
            return self._one_by_one(iterator, before, most)
        try:
            return self._grouped(iterator)
        except StopIteration:
            if most is None:
                epochs._num_batches = int(self._fetched) + 1
            return self._single(iterator)  # which finds no more, as one step at a time does

    def _one_by_one(self, iterator: Any, before: int, most: int) -> Any:
        import tensorflow as tf

        logs = self._single(iterator)
        for made in range(before + 1, most):
            try:
                logs = self._single(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                self._epochs._steps_seen = made  # fewer than `most`: else Keras opens the data once more
                break
        return logs
