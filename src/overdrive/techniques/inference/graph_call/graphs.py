"""The graphs of a session, by model and signature, and what is watched so that each stays the model's own call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_COMPARED = 2  # calls that both make before a graph answers by itself
_EVERY = 512  # afterwards the first, second, fourth, eighth, … and each of so many
_MOST_MODELS = 8  # that are kept alive, with what their layers held
_MOST_GRAPHS = 8  # of one model: each new shape is traced, which takes some tenths of a second
_MOST_CHANGES = 4  # of a model's attributes
_CLOSE, _CLOSE_EACH = 1e-4, 1e-2  # error by the answer's root mean square: on the average, and any single element's
# Attributes that are no part of a call: what compile() was given, and what fit() and predict() made.
_APART = ("loss", "train_function", "test_function", "predict_function")
_PLAIN = (bool, int, float, str, type(None))


class GraphCalls:
    """Of one session.

    Attributes:
        answered: calls that a graph made.
        left: why the model made others itself, the last reason of each model that has one for good.
    """

    def __init__(self, xla: bool) -> None:
        self.answered = 0
        self.left: list[str] = []
        self._xla = xla
        self._models: dict[int, _Model] = {}  # by id, the oldest first

    def called(self, subject: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A subscriber of the seam *answer called*."""
        model, kind = subject
        if kind != "call":
            return call(*args, **kwargs)
        known = self._models.get(id(model))
        if known is None:
            if len(self._models) >= _MOST_MODELS:
                self._models.pop(next(iter(self._models)), None)
            known = self._models[id(model)] = _Model(model, self._xla)
        refused = known.refused
        result, by_graph = known.answer(call, args, kwargs)
        self.answered += by_graph
        if known.refused and not refused:
            self.left.append(known.refused)
        return result

    def told(self) -> str:
        """For people."""
        why = f"; {', '.join(self.left)}" if self.left else ""
        return f"graph_call made {self.answered:,} calls by a graph{why}"


class _Graph:
    """Of one signature. `run` is None until it comes a second time."""

    def __init__(self) -> None:
        self.run: Any = None
        self.compared = self.answers = 0

    def due(self) -> bool:
        """Whether the model is to make the next call too."""
        if self.compared < _COMPARED:
            return True
        self.answers += 1
        return self.answers & (self.answers - 1) == 0 or self.answers % _EVERY == 0


class _Model:
    """One with its graphs. `refused`: why it has none, for good."""

    def __init__(self, model: Any, xla: bool) -> None:
        self.refused = ""
        self._model = model
        self._xla = xla
        self._held: Any = None  # what the layers' attributes were
        self._changes = 0
        self._graphs: dict[Any, _Graph] = {}

    def answer(self, call: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, bool]:
        """The call's result, and whether a graph gave it; an error of the model's own call passes."""
        key = None if self.refused else _signature(args, kwargs)
        if key is None or not self._model.built or not self._holds():
            return call(*args, **kwargs), False
        graph = self._graphs.get(key)
        if graph is None:
            if len(self._graphs) >= _MOST_GRAPHS:
                return call(*args, **kwargs), False
            return self._first(key, call, args, kwargs), False
        if graph.due():
            result = call(*args, **kwargs)
            self._compare(graph, result, args, kwargs)
            return result, False
        return graph.run(*_tensors(args)), True

    def _holds(self) -> bool:
        """Whether the layers are what they were; else all that was traced of them is gone."""
        held = _attributes(self._model)
        if self._held is None or not _same(held, self._held):
            self._changes += self._held is not None
            self._held = held
            self._graphs.clear()
            self.refused = _own_code(self._model)
            if self._changes > _MOST_CHANGES:
                self.refused = "the model changes from call to call"
        return not self.refused

    def _first(self, key: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The model's own call; what it does besides computing leaves the model alone for good."""
        import keras

        from overdrive.seams.keras.internals import mask_of

        model = self._model
        before, losses = _frozen(model), len(model.losses)
        result = call(*args, **kwargs)
        self._held = _attributes(model)  # it may have been built by it
        if not all(map(np.array_equal, before, _frozen(model))):
            self.refused = "a call changes what the model holds, or draws random numbers"
        elif len(model.losses) > losses:  # those of regularised weights were there before
            self.refused = "a call adds losses"
        elif any(mask_of(each) is not None for each in keras.tree.flatten(result)):
            self.refused = "its answers have masks"
        else:
            self._graphs[key] = _Graph()
        return result

    def _made(self, args: Any, kwargs: Any) -> Any:
        import tensorflow as tf

        def call_model(*given: Any) -> Any:
            return self._model(*given, **kwargs)

        # Of a function for each signature TensorFlow would warn that it is traced often.
        return tf.function(call_model, jit_compile=self._xla, autograph=False).get_concrete_function(*_tensors(args))

    def _compare(self, graph: _Graph, result: Any, args: Any, kwargs: Any) -> None:
        try:
            if graph.run is None:
                graph.run = self._made(args, kwargs)
            made = graph.run(*_tensors(args))
        except Exception as error:  # of tracing or compiling: the model has its own call
            self.refused = f"no graph can be made of it ({type(error).__name__})"
            return
        if not _close(result, made):
            self.refused = "a graph's answer was another one"
        graph.compared += 1


def _signature(args: Any, kwargs: Any) -> Any:
    """Equal for calls that one graph can make; None where something is given that is no dense array."""
    import keras
    import tensorflow as tf

    if not all(isinstance(each, _PLAIN) for each in kwargs.values()):
        return None
    given = keras.tree.flatten(args)
    if not given or any(not isinstance(each, (np.ndarray, tf.Tensor)) or each.dtype == object for each in given):
        return None
    forms = tuple((type(each), tuple(each.shape), each.dtype) for each in given)
    return repr(keras.tree.map_structure(lambda _: 0, args)), forms, tuple(sorted(kwargs.items()))


def _frozen(model: Any) -> list[Any]:
    """What its variables hold that no gradient changes: moving means, states, seeds."""
    import keras

    return [keras.ops.convert_to_numpy(each) for each in model.non_trainable_variables]


def _tensors(args: Any) -> Any:
    import keras
    import tensorflow as tf

    return keras.tree.map_structure(tf.convert_to_tensor, args)


def _attributes(model: Any) -> list[Any]:
    """Of all layers, in order: the layer, and its attributes with what those hold that are containers."""
    from overdrive.seams.keras.internals import layers_of

    return [(layer, [(name, *_inside(value)) for name, value in vars(layer).items()]) for layer in layers_of([model])]


def _inside(value: Any) -> tuple[Any, ...]:
    if isinstance(value, (list, tuple)):
        return value, *value
    return (value, *value.values()) if isinstance(value, dict) else (value,)


def _same(one: list[Any], other: list[Any]) -> bool:
    """By identity."""
    if len(one) != len(other):
        return False
    for (layer, mine), (same, its) in zip(one, other, strict=True):
        if layer is not same or len(mine) != len(its):
            return False
        for a, b in zip(mine, its, strict=True):
            if len(a) != len(b) or not all(x is y for x, y in zip(a, b, strict=True)):
                return False
    return True


def _own_code(model: Any) -> str:
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


def _close(one: Any, other: Any) -> bool:
    """Whether they are of one form and differ by rounding."""
    import keras

    try:
        keras.tree.assert_same_structure(one, other)
    except (ValueError, TypeError):
        return False
    return all(_alike(np.array(a), np.array(b)) for a, b in zip(*map(keras.tree.flatten, (one, other)), strict=True))


def _alike(mine: Any, its: Any) -> bool:
    if mine.shape != its.shape or mine.dtype != its.dtype:
        return False
    if mine.dtype.kind in "biuOSU":
        return bool(np.array_equal(mine, its))
    one, other = mine.astype(np.float64), its.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(other)) or not np.array_equal(one[~finite], other[~finite], True):
        return False
    errors, size = (one - other)[finite], np.sqrt(np.mean(np.square(one[finite]))) if finite.any() else 0.0
    if not errors.size:
        return True
    return bool(np.sqrt(np.mean(np.square(errors))) <= _CLOSE * size and np.abs(errors).max() <= _CLOSE_EACH * size)
