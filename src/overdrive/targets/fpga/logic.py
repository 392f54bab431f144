"""A design of hls4ml's as logic of da4ml's, layer by layer: the same numbers, bit for bit.

A layer computes without loss, and its result is then cut to its type, as hls4ml's C++ has it. What is here are
symbols: no number flows until the design is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from overdrive.engines.runtime import NoEngine

ADDERS = 1, -1, -1  # da4ml's: an addition takes one unit of time, however wide its numbers are
_DEPTH = 2  # additions more than the fewest that a product of a matrix may take one after the other
_MOST = 50_000  # products, each of which is gates of its own: some 500,000 look-up tables


def logic(graph: Any) -> Any:
    """da4ml's logic (`CombLogic`) of an hls4ml graph.

    Raises:
        NoEngine: it has a layer, or a type, that has no form here; the message names it.
    """
    from da4ml.trace import comb_trace

    values: dict[str, Any] = {}
    layers = list(graph.get_layers())
    if (products := sum(map(_products, layers))) > _MOST:
        raise NoEngine(f"it multiplies {products:,} times, and up to {_MOST:,} products are laid out side by side")
    for layer in layers:
        kind = layer.class_name
        if kind not in _LAYERS:
            raise NoEngine(f"its layer {layer.name} ({kind}) has no form in it")
        values[layer.outputs[0]] = _LAYERS[kind](layer, [values[name] for name in layer.inputs if name in values])
    given = [values[each.outputs[0]] for each in layers if each.class_name == "Input"]
    if len(given) != 1 or len(graph.outputs) != 1:
        raise NoEngine("it has several inputs or outputs")
    return comb_trace(given[0], values[graph.outputs[0]])


def _products(layer: Any) -> int:
    if "weight" not in layer.weights:
        return 0
    places = _size(layer, "out_height") * _size(layer, "out_width")
    return int(np.count_nonzero(layer.weights["weight"].data)) * places


def bits(layer: Any, kind: Any) -> tuple[int, int, int]:
    """Of one of its types: whether it has a sign, bits before the point without the sign, and after it."""
    modes = str(kind.rounding_mode), str(kind.saturation_mode)
    if modes[0] not in ("TRN", "RND") or modes[1] not in ("WRAP", "SAT"):
        raise NoEngine(f"its layer {layer.name} is of a type ({kind}) that has no form in it")
    return int(kind.signed), kind.integer - int(kind.signed), kind.width - kind.integer


def _cut(layer: Any, value: Any, kind: Any) -> Any:
    """To one of its types."""
    return value.quantize(*bits(layer, kind), str(kind.saturation_mode), str(kind.rounding_mode))


def _result(layer: Any, value: Any) -> Any:
    variable = layer.get_output_variable()
    return _cut(layer, value, variable.type.precision).reshape(tuple(int(each) for each in variable.shape))


def _constants(layer: Any, name: str) -> Any:
    """Weights as the C++ has them: it reads what hls4ml prints, of as many digits as the type has bits."""
    from da4ml.trace.ops import quantize

    weights = layer.weights[name]
    kind = weights.type.precision
    printed = np.array([float(each) for each in weights]).reshape(weights.data.shape)
    return quantize(printed, *bits(layer, kind), str(kind.saturation_mode), str(kind.rounding_mode))


def _input(layer: Any, _: list[Any]) -> Any:
    from da4ml.trace import FixedVariableArray, HWConfig

    variable = layer.get_output_variable()
    shape = tuple(int(each) for each in variable.shape)
    signed, before, after = (np.full(shape, each) for each in bits(layer, variable.type.precision))
    return FixedVariableArray.from_kif(
        signed,
        before,
        after,
        HWConfig(*ADDERS),
        solver_options={"hard_dc": _DEPTH},
    )


def _dense(layer: Any, inputs: list[Any]) -> Any:
    return _result(layer, _summed(layer, inputs[0] @ _constants(layer, "weight"), inputs[0]))


def _convolution(layer: Any, inputs: list[Any]) -> Any:
    """Weights are (height, width, channels, filters); a place's padding is left out of its sum."""
    weights = _constants(layer, "weight")
    image, window = _image(layer, inputs[0]), (_size(layer, "filt_height"), _size(layer, "filt_width"))
    weights = weights.reshape(*window, -1, weights.shape[-1])
    if image.shape[-1] != weights.shape[2] or _size(layer, "dilation") != 1:
        raise NoEngine(f"its layer {layer.name} (a convolution of groups, or with holes) has no form in it")
    sums = [
        image[rows, columns].reshape((-1,)) @ weights[tops, lefts].reshape(-1, weights.shape[-1])
        for rows, columns, tops, lefts in _windows(layer, window)
    ]
    return _result(layer, _summed(layer, np.stack(sums), inputs[0]))


def _summed(layer: Any, products: Any, given: Any) -> Any:
    """With its bias, in the type that hls4ml adds them up in, which has to hold all bits of each product."""
    accumulator = layer.get_attr("accum_t").precision
    after = bits(layer, accumulator)[2]
    finest = max(int(given.kif[2].max()) + bits(layer, layer.weights["weight"].type.precision)[2], 0)
    if finest > after:
        raise NoEngine(f"its layer {layer.name} cuts each product to {accumulator}, and has no form in it")
    bias = np.floor(_constants(layer, "bias") * 2.0**after) / 2.0**after
    return _cut(layer, products + bias, accumulator)


def _scaled(layer: Any, inputs: list[Any]) -> Any:
    return _result(layer, inputs[0] * _constants(layer, "scale") + _constants(layer, "bias"))


def _activation(layer: Any, inputs: list[Any]) -> Any:
    kind = layer.get_attr("activation")
    if kind not in ("relu", "linear"):
        raise NoEngine(f"its layer {layer.name} ({kind}) has no form in it")
    return _result(layer, np.maximum(inputs[0], 0) if kind == "relu" else inputs[0])


def _pooling(layer: Any, inputs: list[Any]) -> Any:
    if layer.get_attr("pool_op") != "Max":
        raise NoEngine(f"its layer {layer.name} (an average) has no form in it")
    image, window = _image(layer, inputs[0]), (_size(layer, "pool_height"), _size(layer, "pool_width"))
    found = [
        np.amax(image[rows, columns].reshape((-1, image.shape[-1])), axis=0)
        for rows, columns, *_ in _windows(layer, window)
    ]
    return _result(layer, np.stack(found))


def _moved(layer: Any, inputs: list[Any]) -> Any:
    return _result(layer, inputs[0].transpose(layer.get_attr("perm")))


def _reshaped(layer: Any, inputs: list[Any]) -> Any:
    return _result(layer, inputs[0])


def _added(layer: Any, inputs: list[Any]) -> Any:
    if layer.get_attr("op") != "add" or len(inputs) != 2:
        raise NoEngine(f"its layer {layer.name} ({layer.get_attr('op')}) has no form in it")
    return _result(layer, inputs[0] + inputs[1])


def _size(layer: Any, name: str) -> int:
    """Of an image's or a window's; a row of values is an image of height 1."""
    return int(layer.get_attr(name, 0 if name.startswith("pad") else 1))


def _image(layer: Any, value: Any) -> Any:
    return value.reshape((_size(layer, "in_height"), _size(layer, "in_width"), -1))


def _windows(layer: Any, window: tuple[int, int]) -> Iterator[tuple[slice, slice, slice, slice]]:
    """For each place of the result, in order: rows and columns of the image, and of the window, that meet there."""
    for top in range(_size(layer, "out_height")):
        rows = _meet(
            top * _size(layer, "stride_height") - _size(layer, "pad_top"), window[0], _size(layer, "in_height")
        )
        for left in range(_size(layer, "out_width")):
            start = left * _size(layer, "stride_width") - _size(layer, "pad_left")
            columns = _meet(start, window[1], _size(layer, "in_width"))
            yield rows[0], columns[0], rows[1], columns[1]


def _meet(start: int, width: int, end: int) -> tuple[slice, slice]:
    first, last = max(start, 0), min(start + width, end)
    return slice(first, last), slice(first - start, last - start)


_LAYERS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "Input": _input,
    "Dense": _dense,
    "Conv1D": _convolution,
    "Conv2D": _convolution,
    "PointwiseConv1D": _convolution,
    "PointwiseConv2D": _convolution,
    "BatchNormalization": _scaled,
    "ApplyAlpha": _scaled,
    "Activation": _activation,
    "Pooling1D": _pooling,
    "Pooling2D": _pooling,
    "Reshape": _reshaped,
    "Transpose": _moved,
    "Merge": _added,
}
