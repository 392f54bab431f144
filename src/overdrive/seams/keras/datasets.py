"""Seams *dataset grouped* (shuffled or batched), *dataset batched* and *dataset opened*."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    import tensorflow as tf

    if hub.dataset_grouped.wanted:
        for name in ("shuffle", "batch"):
            holder = next(each for each in tf.data.Dataset.__mro__ if name in vars(each))
            patches.replace(holder, name, _grouping(hub, getattr(holder, name)))
    if hub.dataset_batched.wanted:
        for name in ("batch", "padded_batch", "ragged_batch"):
            holder = next(each for each in tf.data.Dataset.__mro__ if name in vars(each))
            patches.replace(holder, name, _batching(hub, getattr(holder, name)))
    if hub.dataset_opened.wanted:
        holder = next(each for each in tf.data.Dataset.__mro__ if "__iter__" in vars(each))
        patches.replace(holder, "__iter__", _opening(hub, holder.__iter__))
    return []


def _opening(hub: Seams, open_set: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(open_set)
    def __iter__(self: Any) -> Any:
        hub.dataset_opened.publish(self)
        return open_set(self)

    return __iter__


def _batching(hub: Seams, batch: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(batch)
    def batched(self: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        if not tf.executing_eagerly():  # within another data set's function
            return batch(self, *args, **kwargs)
        return hub.dataset_batched.run(self, functools.partial(batch, self), *args, **kwargs)

    return batched


def _grouping(hub: Seams, group: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(group)
    def grouped(self: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        eager = tf.executing_eagerly()  # else within another data set's function
        return group(hub.dataset_grouped.apply(self) if eager else self, *args, **kwargs)

    return grouped
