"""Seams *dataset passed* (to `fit`, whatever the data came as), *dataset iterated* (a loop of the program's own) and
*dataset grouped* (shuffled or batched)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    import tensorflow as tf
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    if hub.dataset_passed.wanted:
        make = TFEpochIterator.__init__

        @functools.wraps(make)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            plain = self._distributed_dataset
            if isinstance(plain, tf.data.Dataset):  # else a strategy spreads it over devices
                self._distributed_dataset = hub.dataset_passed.run(self, lambda: plain)

        patches.replace(TFEpochIterator, "__init__", __init__)
    if hub.dataset_grouped.wanted:
        for name in ("shuffle", "batch"):
            holder = next(each for each in tf.data.Dataset.__mro__ if name in vars(each))
            patches.replace(holder, name, _grouping(hub, getattr(holder, name)))
    if hub.dataset_iterated.wanted:
        holder = next(each for each in tf.data.Dataset.__mro__ if "__iter__" in vars(each))
        open_dataset = holder.__iter__

        @functools.wraps(open_dataset)
        def __iter__(self: Any) -> Any:
            if not tf.executing_eagerly():
                return open_dataset(self)
            return hub.dataset_iterated.run(self, open_dataset, self)

        patches.replace(holder, "__iter__", __iter__)
    return []


def _grouping(hub: Seams, group: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(group)
    def grouped(self: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        eager = tf.executing_eagerly()  # else within another data set's function
        return group(hub.dataset_grouped.apply(self) if eager else self, *args, **kwargs)

    return grouped
