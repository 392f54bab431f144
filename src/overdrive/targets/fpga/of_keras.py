"""A Keras model as hls4ml reads it, layer by layer, and what it answers where each layer is in fixed point.

Source: https://fastmachinelearning.org/hls4ml/frontend/keras.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np

from overdrive.engines.closeness import close
from overdrive.engines.runtime import Array, NoEngine, said_nowhere
from overdrive.seams.points import reason_of
from overdrive.targets.fpga.fixed import Fixed, integer_bits
from overdrive.targets.fpga.front_end import BACKEND, WIDE, Types, converting
from overdrive.targets.fpga.keras_reading import Reading

_NO_SOFTMAX = "the softmax at its end is left out: the largest of what it is given is the largest of what it gives"


class KerasLayers:
    """See `front_end.Layers`."""

    def __init__(self, model: Any, ends_in_softmax: bool = False) -> None:
        """`model`: of a `Reading`."""
        self._model = model
        self._ends_in_softmax = ends_in_softmax
        self.names = [each.name for each in model.layers]
        self._weighted = {each.name: each for each in model.layers if hasattr(each, "kernel")}

    @property
    def ends_in_softmax(self) -> bool:
        return self._ends_in_softmax

    def ranges(self, inputs: Array) -> dict[str, float]:
        largest: dict[str, float] = {}
        self._run(inputs, {}, largest)
        return largest

    def answers(self, inputs: Array, types: Types) -> Array:
        with self._held(types):
            return self._run(inputs, types, {})

    def weight_bits(self, name: str) -> int | None:
        if name not in self._weighted:
            return None
        return integer_bits(max(float(np.abs(each).max()) for each in self._weighted[name].get_weights()))

    def _run(self, inputs: Array, types: Types, largest: dict[str, float]) -> Array:
        values: dict[int, Array] = {}  # by tensor of the model
        for layer in self._model.layers:  # in order
            if isinstance(layer, keras.layers.InputLayer):
                found = inputs
            else:
                given = [values[id(each)] for each in keras.tree.flatten(layer.input)]
                found = np.asarray(layer(given[0] if len(given) == 1 else given, training=False))
            largest[layer.name] = float(np.abs(found).max())
            values[id(layer.output)] = types[layer.name].of(found) if layer.name in types else found
        return values[id(self._model.outputs[0])]

    @contextmanager
    def _held(self, types: Types) -> Iterator[None]:
        """Within it, weights are of these types."""
        saved = [(each, each.get_weights()) for name, each in self._weighted.items() if name in types]
        try:
            for layer, weights in saved:
                after = types[layer.name].fraction
                layer.set_weights([Fixed(integer_bits(float(np.abs(each).max())), after).of(each) for each in weights])
            yield
        finally:
            for layer, weights in saved:
                layer.set_weights(weights)


class KerasFrontEnd:
    """See `front_end.FrontEnd`."""

    def __init__(self, model: Any) -> None:
        """
        Raises:
            NoEngine: it is not made of layers that are called once each.
        """
        self._own = model
        with said_nowhere():
            self._read = Reading(model)
        self.notes = [_NO_SOFTMAX] if self._read.softmax else []

    def answers(self, inputs: Array) -> Array:
        """Without a softmax at the end."""
        with said_nowhere():
            own, found = (np.asarray(each(inputs, training=False)) for each in (self._own, self._read.model))
        if own.ndim < 2:
            raise NoEngine("it answers something else than one tensor of rows")
        compared = np.asarray(keras.ops.softmax(found)) if self._read.softmax else found
        if np.isfinite(own).all() and (own.shape != compared.shape or not close(own, compared)):
            raise NoEngine("layer by layer it answers otherwise than as a whole")
        return found

    def read(self, shape: tuple[int, ...]) -> dict[str, Any]:
        import hls4ml

        converters = hls4ml.converters
        parse = converters.parse_keras_v3_model

        def without_da4ml(model: Any) -> Any:
            return parse(model, allow_da_fallback=False)

        # It has da4ml try layers that it does not take first, which fails without a name, and asks nobody.
        converters.parse_keras_v3_model = without_da4ml
        try:
            with said_nowhere():
                config: dict[str, Any] = hls4ml.utils.config_from_keras_model(
                    self._read.model, granularity="name", backend=BACKEND, default_precision=WIDE
                )
        finally:
            converters.parse_keras_v3_model = parse
        return config

    def layers(self) -> KerasLayers:
        return KerasLayers(self._read.model, self._read.softmax)

    def converted(self, config: dict[str, Any], place: Path) -> Any:
        import hls4ml

        return hls4ml.converters.convert_from_keras_model(
            self._read.model, **converting(config, place), allow_da_fallback=False
        )

    def refusal(self, error: Exception) -> str:
        said = reason_of(error)[:200]
        layers = self._read.model.layers
        named = [each.name for each in layers if re.search(rf"\b{type(each).__name__}\b", said)]
        return f"hls4ml's front end does not take {f'its layer {named[0]} ' if named else 'it '}({said})"
