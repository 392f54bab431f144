"""Seam *dataset grouped* (shuffled or batched)."""

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
    return []


def _grouping(hub: Seams, group: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(group)
    def grouped(self: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        eager = tf.executing_eagerly()  # else within another data set's function
        return group(hub.dataset_grouped.apply(self) if eager else self, *args, **kwargs)

    return grouped
