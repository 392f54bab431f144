"""What must stand as it was for a graph of a Keras model to be the model's own call, and what is no call of Keras's
own alone."""

from __future__ import annotations

from operator import is_
from typing import Any

# Attributes that are no part of a call: what compile() was given, and what fit() and predict() made.
_APART = ("loss", "train_function", "test_function", "predict_function")


class Standing:
    """The attributes of all layers of a model, by identity, with what those hold that are containers.

    Which layers there are is among them. Some microseconds for each layer.
    """

    def __init__(self, model: Any) -> None:
        from overdrive.seams.keras.internals import layers_of

        self._layers = layers_of([model])
        self._held = [_parts(vars(layer)) for layer in self._layers]
        containers = [each for layer in self._layers for each in vars(layer).values() if isinstance(each, (list, dict))]
        self._inside = [_parts(each) for each in containers]

    def same(self) -> bool:
        return all(_same(*each) for each in self._held) and all(_same(*each) for each in self._inside)


def _parts(thing: Any) -> tuple[Any, Any, Any]:
    return (thing, list(thing), list(thing.values())) if isinstance(thing, dict) else (thing, list(thing), None)


def _same(thing: Any, members: list[Any], values: list[Any] | None) -> bool:
    if len(thing) != len(members):
        return False
    if values is None:
        return all(map(is_, thing, members))
    return all(map(is_, thing.values(), values)) and list(thing) == members


def own_code(model: Any) -> str:
    """What of the model is the program's own code, in words; empty where nothing is."""
    import keras

    from overdrive.seams.keras.internals import layers_of

    for layer in layers_of([model]):
        kind = type(layer)
        if not _of_keras(kind) or kind is keras.layers.Lambda:
            return f"the layer {kind.__name__} is the program's own code"
        if getattr(layer, "stateful", False):
            return f"the layer {layer.name} keeps a state"
        for each in getattr(layer, "operations", ()):  # of a functional model; not all are layers
            if not _of_keras(type(each)):
                return f"the operation {type(each).__name__} is the program's own code"
        for name, value in vars(layer).items():
            if name not in _APART and callable(value) and not _of_keras(value) and not _of_keras(type(value)):
                return f"{layer.name}.{name} is the program's own code"
    return ""


def _of_keras(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] in ("keras", "tensorflow")


def frozen(model: Any) -> list[Any]:
    """What its variables hold that no gradient changes: moving means, states, seeds."""
    import keras

    return [keras.ops.convert_to_numpy(each) for each in model.non_trainable_variables]
