"""Train, test and predict functions of models, seen from outside: where Keras's steps end in Python. Those of training
do on PyTorch and JAX, answers on TensorFlow too."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras.src.trainers.data_adapters import data_adapter_utils

from overdrive.seams.patch import Patches

KINDS = ("train", "test", "predict")
Wrap = Callable[[Any, str, Callable[..., Any]], Any]  # (model, kind, function), returns what is called instead


class Functions:
    """Puts `wrap` around each function that a model makes, and takes it off again."""

    def __init__(self, trainer: Any, wrap: Wrap, kinds: Sequence[str] = KINDS) -> None:
        self._trainer = trainer
        self._wrap = wrap
        self._kinds = kinds
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()

    def enter(self, patches: Patches) -> None:
        for kind in self._kinds:
            name = f"make_{kind}_function"
            patches.replace(self._trainer, name, self._making(kind, getattr(self._trainer, name)))

    def _making(self, kind: str, make: Callable[..., Any]) -> Callable[..., Any]:
        name = f"{kind}_function"

        @functools.wraps(make)
        def making(model: Any, *args: Any, **kwargs: Any) -> Any:
            before = getattr(model, name)
            if before is not None and not hasattr(before, "overdrive_wraps"):
                setattr(model, name, None)  # made before we came
            result = make(model, *args, **kwargs)
            made = getattr(model, name)
            if made is not None and not hasattr(made, "overdrive_wraps"):
                wrapped = self._wrap(model, kind, made)
                wrapped.__dict__["overdrive_wraps"] = made
                setattr(model, name, wrapped)
                self._models.add(model)
            return result

        return making

    def leave(self) -> None:
        """They are made again when they are needed."""
        for model in list(self._models):
            for kind in self._kinds:
                if hasattr(getattr(model, f"{kind}_function"), "overdrive_wraps"):
                    setattr(model, f"{kind}_function", None)
        self._models.clear()


def parts_of(batch: Any) -> tuple[list[Any], list[Any]]:
    """The arrays of a batch as such a function is given it: inputs, and all else. Of what only a `train_step` of the
    program's own can take apart (four parts, say) all are inputs."""
    try:
        x, y, weights = data_adapter_utils.unpack_x_y_sample_weight(batch)
    except ValueError:
        x, y, weights = batch, None, None
    inputs, others = (
        [each for each in keras.tree.flatten(part) if hasattr(each, "shape")] for part in (x, (y, weights))
    )
    return inputs, others
