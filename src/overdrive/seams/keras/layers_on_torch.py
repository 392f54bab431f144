"""Keras's layers as PyTorch's modules, which they are on its backend: what they keep, and where. Imports neither."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from typing import Any

from overdrive.seams.keras.internals import layers_in


def is_layer(module: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and hasattr(keras, "layers") and isinstance(module, keras.layers.Layer)


def modules_of(model: Any) -> list[Any]:
    """All modules of a model, itself first; also layers that a layer has in a list, of which PyTorch does not know."""
    found: dict[int, Any] = {}
    waiting = [model]
    while waiting:
        for module in waiting.pop().modules():
            if id(module) not in found:
                found[id(module)] = module
                waiting += layers_in(module, recursive=False) if is_layer(module) else ()
    return [*found.values()]


def named_modules(model: Any) -> list[tuple[str, Any]]:
    """The same with their names: PyTorch's, or else a layer's own; that of the model itself is empty."""
    names = {id(module): name for name, module in model.named_modules()}
    return [(names.get(id(each), getattr(each, "name", "")), each) for each in modules_of(model)]


def trainers_own(module: Any) -> frozenset[str]:
    """Names of attributes that `compile`, `fit` and callbacks set on a model of Keras; none for other modules.

    They are for training it: Keras's own code does not look at them in a call, and `fit` sets some again and again.
    """
    if not is_layer(module) or not isinstance(module, sys.modules["keras"].Model):
        return frozenset()
    return _set_by(tuple(each for each in type(module).__mro__ if _trains(each)))


def _trains(kind: type) -> bool:
    return kind.__module__.startswith("keras.") and kind.__module__.endswith(".trainer")


@functools.cache
def _set_by(kinds: tuple[type, ...]) -> frozenset[str]:
    functions = [each for kind in kinds for each in vars(kind).values()]
    functions += [part for each in functions if isinstance(each, property) for part in (each.fget, each.fset)]
    found = {"history"}  # set by the callback of that name
    for each in functions:
        if code := getattr(inspect.unwrap(each), "__code__", None):
            found.update(line.argval for line in dis.get_instructions(code) if line.opname == "STORE_ATTR")
    return frozenset(found)


def kept_by_layers(model: Any) -> list[tuple[dict[str, Any], str]]:
    """Where calls keep something: tables and names of what layers have besides what is trained (running means, states
    of generators), which on this backend are parameters that need no gradient. Each once."""
    found: dict[int, tuple[dict[str, Any], str]] = {}
    for module in modules_of(model):
        if is_layer(module) and (held := getattr(module, "_torch_params", None)) is not None:
            for name, each in held._parameters.items():
                if not each.requires_grad:
                    found.setdefault(id(each), (held._parameters, name))
    return [*found.values()]


def buffers_of(model: Any) -> list[Any]:
    """All that calls of a model may write to and nobody trains: PyTorch's buffers, and what Keras's layers keep."""
    return [*model.buffers(), *(table[name] for table, name in kept_by_layers(model))]
