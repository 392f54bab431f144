"""Keras's layers as PyTorch's modules, which they are on its backend: what they keep, and where. Imports neither."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterable
from typing import Any


def is_layer(module: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and hasattr(keras, "layers") and isinstance(module, keras.layers.Layer)


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
        if code := getattr(getattr(each, "__wrapped__", each), "__code__", None):
            found.update(line.argval for line in dis.get_instructions(code) if line.opname == "STORE_ATTR")
    return frozenset(found)


def kept_by_layers(modules: Iterable[Any]) -> list[tuple[dict[str, Any], str]]:
    """Where calls keep something: tables and names of what layers have besides what is trained (running means, states
    of generators), which on this backend are parameters that need no gradient. Each once."""
    found: dict[int, tuple[dict[str, Any], str]] = {}
    for module in modules:
        if is_layer(module) and (held := module._modules.get("_torch_params")) is not None:
            for name, each in held._parameters.items():
                if not each.requires_grad:
                    found.setdefault(id(each), (held._parameters, name))
    return [*found.values()]


def compute_in_double(modules: Iterable[Any]) -> None:
    """Layers convert what they are given, and what they read of their variables, to the type of their policy."""
    layers = [each for each in modules if is_layer(each)]
    if not layers:
        return
    policy = sys.modules["keras"].DTypePolicy("float64")
    policy._variable_dtype = "float32"  # where it is another type, a layer converts what it reads
    for each in layers:
        each.dtype_policy = policy
