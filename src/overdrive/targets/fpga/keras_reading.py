"""A Keras model as hls4ml is to read it: a copy in which each layer is one of hls4ml's."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import keras
import numpy as np

from overdrive.engines.runtime import NoEngine
from overdrive.seams.keras.internals import maker_of

_WITHOUT_EFFECT = re.compile(r"\w*Dropout\w*|GaussianNoise|ActivityRegularization")  # where nothing is trained
_FOLDED_INTO = keras.layers.Dense, keras.layers.Conv1D, keras.layers.Conv2D


class Reading:
    """The copy, in fp32.

    Activations are layers of their own, named as hls4ml names them; normalisations are part of the weights before them,
    where that layer's output goes nowhere else: hls4ml would keep them as layers with scales of their own. What does
    nothing but in training is gone. So is a softmax at the end: the largest of what it is given is the largest of what
    it gives. `softmax`: there was one.
    """

    def __init__(self, model: Any) -> None:
        """
        Raises:
            NoEngine: it is not made of layers that are called once each.
        """
        if not getattr(model, "inputs", None):
            raise NoEngine("it is no sequential and no functional model, and hls4ml reads these alone")
        copy = keras.models.clone_model(model)
        copy.set_weights(model.get_weights())
        flat = keras.Model(copy.inputs, copy.outputs)  # of a sequential model, too, the tensors between its layers
        for each in flat.operations:
            if not isinstance(each, keras.layers.Layer) or isinstance(each, keras.Model):
                raise NoEngine(f"hls4ml reads layers alone, and its part {each.name} is a {type(each).__name__}")
        if len(flat.inputs) != 1 or len(flat.outputs) != 1:
            raise NoEngine("it has several inputs or outputs")
        self._answer = flat.outputs[0]
        self._users = Counter(id(each) for layer in flat.layers for each in _given(layer))
        self._users[id(self._answer)] += 1
        self._made: dict[int, Any] = {}  # by tensor of the flat model: the copy's
        self._makers: dict[int, tuple[Any, Any]] = {}  # by the same: layers that a normalisation may become part of
        self.softmax = False
        for layer in flat.layers:
            self._take(layer)
        self.model = keras.Model(self._of(flat.inputs[0]), self._of(self._answer))

    def _of(self, tensor: Any) -> Any:
        """The copy's, of one of the flat model's.

        Raises:
            NoEngine: the layer that gives it is called several times, of which it tells one.
        """
        if id(tensor) not in self._made:
            raise NoEngine(f"its layer {maker_of(tensor).name} is called several times")
        return self._made[id(tensor)]

    def _take(self, layer: Any) -> None:
        output = layer.output
        if isinstance(layer, keras.layers.InputLayer):
            self._made[id(output)] = keras.Input(output.shape[1:], dtype="float32", name=_name(layer))
            return
        given = [self._of(each) for each in _given(layer)]
        if _WITHOUT_EFFECT.fullmatch(type(layer).__name__) or self._folded(layer):
            found = given[0]
        elif output is self._answer and _is_softmax(layer):
            found, self.softmax = given[0], True
        else:
            found = self._copied(layer, given)
        self._made[id(output)] = found

    def _copied(self, layer: Any, given: list[Any]) -> Any:
        if _is_relu(layer):
            return keras.layers.Activation("relu", name=_name(layer))(given[0])
        config = {**layer.get_config(), "name": _name(layer), "dtype": "float32"}
        activation = None
        if hasattr(layer, "activation") and not isinstance(layer, (keras.layers.Activation, keras.layers.RNN)):
            activation, config["activation"] = layer.activation, None
        foldable = isinstance(layer, _FOLDED_INTO) and activation in (None, keras.activations.linear)
        if foldable:
            config["use_bias"] = True  # a normalisation may follow, which has one
        made = type(layer).from_config(config)
        found = made(given[0] if len(given) == 1 else given)
        weights = layer.get_weights()
        if foldable and len(weights) < len(made.weights):
            weights.append(np.zeros(made.weights[-1].shape, np.float32))
        made.set_weights(weights)
        if foldable:
            self._makers[id(layer.output)] = layer, made
        if activation in (None, keras.activations.linear):
            return found
        if layer.output is self._answer and activation is keras.activations.softmax:
            self.softmax = True
            return found
        return keras.layers.Activation(activation, name=f"{_name(layer)}_{activation.__name__}")(found)

    def _folded(self, norm: Any) -> bool:
        """Whether it is a normalisation that has become part of the layer before it."""
        if not isinstance(norm, keras.layers.BatchNormalization):
            return False
        before = norm.input
        if id(before) not in self._makers or self._users[id(before)] > 1:
            return False
        layer, made = self._makers[id(before)]
        last = len(before.shape) - 1
        if norm.axis not in (-1, last) or getattr(layer, "data_format", "channels_last") != "channels_last":
            return False
        mean, variance = (np.asarray(each) for each in (norm.moving_mean, norm.moving_variance))
        scale = (np.asarray(norm.gamma) if norm.scale else 1.0) / np.sqrt(variance + norm.epsilon)
        kernel, bias = made.get_weights()
        made.set_weights([kernel * scale, (bias - mean) * scale + (np.asarray(norm.beta) if norm.center else 0.0)])
        return True


def _given(layer: Any) -> list[Any]:
    return [] if isinstance(layer, keras.layers.InputLayer) else list(keras.tree.flatten(layer.input))


def _is_softmax(layer: Any) -> bool:
    if isinstance(layer, keras.layers.Softmax):
        return layer.axis in (-1, len(layer.output.shape) - 1)
    return isinstance(layer, keras.layers.Activation) and layer.activation is keras.activations.softmax


def _is_relu(layer: Any) -> bool:
    """A layer of that kind hls4ml 1.3 takes for one with a threshold, which no Verilog is made of."""
    plain = isinstance(layer, keras.layers.ReLU) and layer.max_value is None
    return plain and not layer.negative_slope and not layer.threshold


def _name(layer: Any) -> str:
    """It becomes a name in C++."""
    return re.sub(r"\W", "_", layer.name)
