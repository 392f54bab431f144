"""What a Keras model is given: copies of the last calls of each shape, and batches of the data it is evaluated by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overdrive.engines.keras.given import NUMERIC, Given
from overdrive.seams.keras.answers import PREDICT
from overdrive.seams.keras.internals import array_of, batches_again, mask_of
from overdrive.targets.child.kept import KeptCalls

_BATCHES = 12  # of data, that are read
_OF_CLASSES = frozenset(
    ("sparse_categorical_crossentropy", "categorical_crossentropy", "categorical_focal_crossentropy")
)


@dataclass(frozen=True)
class Call:
    """`given`: with arrays of its own as leaves."""

    given: Given

    @property
    def arrays(self) -> list[Any]:
        return list(self.given.leaves)

    @property
    def size(self) -> int:
        return sum(each.nbytes for each in self.given.leaves)


@dataclass
class CalledModel(KeptCalls):
    framework = "keras"

    rows: int = 0  # see `watch.KerasWatch`
    in_training: bool = False  # what is kept is what it is trained by
    data: Any = None  # Keras's iterator over those of the last evaluation

    def __post_init__(self) -> None:
        if self.rows:
            self.of_a_shape = self.rows

    def note(self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call that answers (see `seams.keras.answers`)."""
        self.count += 1
        if kind != PREDICT:
            self._note(kind, args, kwargs)
            return
        for batch in args[0]:
            self._note(PREDICT, ([batch],), {})

    def evaluated_by(self, data: Any) -> None:
        self.count += data.num_batches or 1
        self.data = data

    def trained_by(self, data: Any) -> None:
        self.evaluated_by(data)
        self.in_training = True

    def read(self) -> None:
        """The data of the last evaluation, once more."""
        if self.data is None:
            return
        rows = read = 0
        shape = None
        for batch in batches_again(self.data):
            kept = self._note(PREDICT, ([batch],), {})  # with labels, which are left aside there
            shape, read = shape or kept, read + 1
            rows += len(kept.kept[-1].arrays[0]) if kept else 0
            enough = rows >= self.rows or not rows  # it may hold nothing that is taken
            if read >= _BATCHES and enough:  # it need not end
                break
        if shape is not None:
            shape.count += max(0, (self.data.num_batches or 0) - read)
        elif not self.left:
            self.left["the data that it is evaluated by cannot be read a second time"] += self.data.num_batches or 1

    def of_classes(self, outputs: int) -> bool:
        """By the loss that it is compiled with."""
        loss = getattr(self.model, "loss", None)
        name = getattr(loss, "name", None) or getattr(loss, "__name__", None) or loss
        return isinstance(name, str) and name in _OF_CLASSES

    def _note(self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = Given.of(kind, args, kwargs)
        if given is None or not given.numeric:
            self.left[f"it is given {_odd(args)}"] += 1
            return None
        copied = replace(given, leaves=tuple(map(_copied, given.leaves)))
        _, structure, _, values = given.key
        form = kind, structure, tuple((each.dtype.name, each.ndim) for each in copied.leaves), values
        sizes = tuple(tuple(each.shape) for each in copied.leaves)
        return self.keep((form, sizes), form, sizes, Call(copied))


def _copied(leaf: Any) -> Any:
    return np.array(leaf if isinstance(leaf, np.ndarray) else array_of(leaf), order="C")


def _odd(args: tuple[Any, ...]) -> str:
    """What it is of an input that no artefact takes, in words."""
    for leaf in keras.tree.flatten(args):
        kind = getattr(leaf, "dtype", None)
        name = str(getattr(kind, "name", kind))
        if isinstance(leaf, str) or name in ("string", "object") or name.startswith("str"):
            return "text"
        if not isinstance(leaf, (np.ndarray, tf.Tensor)):
            return f"a {type(leaf).__name__}"
        if mask_of(leaf) is not None:
            return "an array with a mask"
        if name not in NUMERIC or 0 in leaf.shape:
            return "an empty array" if name in NUMERIC else f"an array of {name}"
    return "no array"
