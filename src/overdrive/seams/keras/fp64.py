"""Makes a Keras program compute in fp64, and draw the random numbers that it draws in fp32."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from overdrive.seams.hub import Seams
from overdrive.seams.keras.control import backend
from overdrive.seams.keras.internals import layers_of
from overdrive.seams.keras.layers_on_torch import is_layer, modules_of
from overdrive.seams.patch import Patches


def compute_in_double(seams: Seams) -> None:
    """Until the session ends."""
    import keras
    from keras.src.trainers.data_adapters import array_slicing

    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    patches = Patches()
    policy: Any = keras.DTypePolicy
    patches.replace(policy, "_parse_name", _in_double(policy._parse_name))
    restore_width, restore_types = _widen_jax(patches), _keep_double()
    draws = importlib.import_module(f"keras.src.backend.{backend()}.random")
    for name in ("normal", "uniform", "truncated_normal"):
        patches.replace(draws, name, _drawn_narrow(getattr(draws, name)))
    patches.replace(draws, "dropout", _dropout(draws.dropout))
    convert = array_slicing.convert_to_sliceable

    def convert_to_sliceable(arrays: Any, *args: Any, **kwargs: Any) -> Any:
        """Data of fp64 reaches the program rounded to fp32, and so it must reach its target."""
        return convert(keras.tree.map_structure(_rounded, arrays), *args, **kwargs)

    patches.replace(array_slicing, "convert_to_sliceable", convert_to_sliceable)

    def undo() -> None:
        patches.restore()
        restore_width()
        restore_types()
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])

    seams.on_undo(undo)


@contextmanager
def layers_in_double(model: Any) -> Iterator[None]:
    """Within it, each layer of the model computes in fp64 where it is called, with the variables that it has.

    A policy says what a layer computes in and what its variables are of; where these differ it widens what it reads.
    """
    policy = _double()
    before = [(layer, layer.dtype_policy) for layer in layers_of([model])]
    try:
        for layer, _ in before:
            layer.dtype_policy = policy
        yield
    finally:
        for layer, own in before:
            layer.dtype_policy = own


def to_double(model: Any) -> None:
    """From here on the layers among the modules of a model on PyTorch compute in fp64: for a process that ends soon."""
    layers = [each for each in modules_of(model) if is_layer(each)]
    if layers:
        _keep_double()
    for each in layers:
        each.dtype_policy = _double()


def _double() -> Any:
    import keras

    policy = keras.DTypePolicy("float64")
    policy._variable_dtype = "float32"
    return policy


def _keep_double() -> Callable[[], None]:
    """Have operations compute in fp64 what they are given in fp64, of which Keras makes fp32 on PyTorch and JAX, even
    under a `floatx` of float64. Returns what undoes it."""
    from keras.src.backend.common.dtypes import BIT64_TO_BIT32_DTYPE

    before = dict(BIT64_TO_BIT32_DTYPE)
    BIT64_TO_BIT32_DTYPE["float64"] = "float64"
    return lambda: BIT64_TO_BIT32_DTYPE.update(before)


def _in_double(parse: Callable[[Any, Any], tuple[str, str]]) -> Callable[[Any, Any], tuple[str, str]]:
    """A policy that the program sets for all layers (`mixed_bfloat16`), or for one, or has in a saved model, says what
    they compute in. Its name stays: by that Keras scales losses."""

    @functools.wraps(parse)
    def parsed(policy: Any, name: Any) -> tuple[str, str]:
        computed, kept = parse(policy, name)
        return ("float64" if "float" in computed else computed), ("float64" if "float" in kept else kept)

    return parsed


def _type_of_layers() -> str:
    """Which the program's layers compute in, unless one has a policy of its own: dropout draws its numbers in that."""
    import keras

    name = keras.config.dtype_policy().name
    return next((each for each in ("bfloat16", "float16") if name.endswith(each)), "float32")


def _rounded(value: Any) -> Any:
    return value.astype(np.float32) if isinstance(value, np.ndarray) and value.dtype == np.float64 else value


def _drawn_narrow(draw: Callable[..., Any]) -> Callable[..., Any]:
    def drawn(shape: Any, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        import keras

        if dtype not in (None, "float64"):
            return draw(shape, *args, dtype=dtype, **kwargs)
        return keras.ops.cast(draw(shape, *args, dtype="float32", **kwargs), "float64")

    return drawn


def _dropout(draw: Callable[..., Any]) -> Callable[..., Any]:
    def dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
        import keras

        if not 0 < rate < 1 or keras.backend.standardize_dtype(inputs.dtype) != "float64":
            return draw(inputs, rate, noise_shape, seed)
        kept = draw(keras.ops.ones_like(inputs, _type_of_layers()), rate, noise_shape, seed) > 0
        return keras.ops.where(kept, inputs / (1 - rate), keras.ops.zeros_like(inputs))

    return dropout


def _widen_jax(patches: Patches) -> Callable[[], None]:
    """JAX has fp64 only where it is asked for, and then draws other random numbers. Returns what undoes it."""
    if backend() != "jax":
        return lambda: None
    import jax

    before = bool(jax.config.jax_enable_x64)
    jax.config.update("jax_enable_x64", True)
    draw = jax.random.bernoulli

    def bernoulli(key: Any, p: Any = 0.5, *args: Any, **kwargs: Any) -> Any:
        return draw(key, np.float32(p) if isinstance(p, float) else p, *args, **kwargs)

    patches.replace(jax.random, "bernoulli", bernoulli)
    return lambda: jax.config.update("jax_enable_x64", before)
