"""A Keras model's call as a graph of TensorFlow's, and how that becomes a file of each target.

Sources: https://docs.openvino.ai/2026/openvino-workflow/model-preparation/convert-model-tensorflow.html,
https://github.com/onnx/tensorflow-onnx#python-api-reference
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tensorflow as tf

from overdrive.core.installing import pip_install
from overdrive.engines.keras.graph import casts_fractions
from overdrive.engines.openvino import OpenVino, in_order, save
from overdrive.engines.ranges import Bounds
from overdrive.engines.runtime import NoEngine, said_nowhere, unlogged
from overdrive.seams.points import reason_of
from overdrive.targets.child import dimensions, formats
from overdrive.targets.child.dimensions import Arrays
from overdrive.targets.child.subject import Names

_OPSET = 18  # of ONNX: the newest that tf2onnx 1.17 writes


class Graph:
    """See `subject.Written`."""

    def __init__(
        self, target: str, call: Callable[..., Any], calls: Sequence[Arrays], marks: dimensions.Marks, names: Names
    ) -> None:
        """
        Args:
            call: takes the inputs one by one, and gives the outputs in order.
            calls: recorded inputs, by which it is told which dimensions are always of one size.
        """
        if target not in _SAVE:
            raise NoEngine(
                f"{target} is for models of PyTorch alone: of a Keras model openvino, onnx or triton is made"
            )
        self.artefact = formats.ARTEFACTS[target]
        self.shapes = _named(calls, marks)
        self.inputs = [
            tf.TensorSpec([None if isinstance(size, str) else size for size in shape], each.dtype, name=name)
            for shape, each, name in zip(self.shapes, calls[0], names.inputs, strict=True)
        ]
        self.function = tf.function(call, autograph=False)
        self.concrete = self.function.get_concrete_function(*self.inputs)
        kinds = "iuf" if casts_fractions(self.concrete) else "iu"  # a layer `Embedding` takes fractions, too
        # Which rows there are a graph of TensorFlow does not tell: those count that the program asked for.
        self.bounds: Bounds = {place: None for place, each in enumerate(calls[0]) if each.dtype.kind in kinds}
        self._save, self._names = _SAVE[target], names

    def end(self, name: str) -> int | None:
        """A graph of TensorFlow tells none."""
        return None

    def write(self, folder: Path) -> None:
        place = folder / self.artefact
        place.parent.mkdir(parents=True, exist_ok=True)
        with said_nowhere(), unlogged():
            self._save(self, self._names, place)


def _named(calls: Sequence[Arrays], marks: dimensions.Marks) -> list[list[int | str]]:
    """Shapes: numbers, and names of the dimensions that may vary. Those have one name that are equal in every call."""
    names: dict[tuple[int, ...], str] = {}
    shapes: list[list[int | str]] = []
    for number, places in enumerate(marks):
        shape: list[int | str] = list(calls[0][number].shape)
        for place in sorted(places):
            sizes = tuple(each[number].shape[place] for each in calls)
            shape[place] = names.setdefault(sizes, dimensions.name_of(place, names))
        shapes.append(shape)
    return shapes


def _openvino(graph: Graph, names: Names, path: Path) -> None:
    runtime = OpenVino()
    inputs = [each.op.name for each in graph.concrete.inputs[: len(graph.inputs)]]
    try:
        model = runtime.of_tensorflow(graph.concrete, inputs, ())
    except Exception as error:
        lacking = re.search(r"No conversion rule found for operations: .*", str(error))  # within many lines
        raise NoEngine(f"OpenVINO takes no such model ({lacking[0] if lacking else reason_of(error)[:200]})") from None
    given, made = runtime.places(model, inputs, [each.name for each in graph.concrete.outputs])
    save(in_order(model, given, made), names.inputs, names.outputs, path)


def _onnx(graph: Graph, names: Names, path: Path) -> None:
    if not find_spec("tf2onnx"):
        raise NoEngine(
            f"tf2onnx, which makes ONNX of TensorFlow, is not installed: `{pip_install('tf2onnx')}` brings it"
        )
    import onnx
    import tf2onnx

    try:
        model, _ = tf2onnx.convert.from_function(graph.function, input_signature=graph.inputs, opset=_OPSET)
    except Exception as error:
        raise NoEngine(f"tf2onnx takes no such model ({reason_of(error)[:200]})") from None
    made = model.graph
    given = {each.name: each for each in made.input}
    if set(given) != set(names.inputs):
        raise NoEngine("it does not read all that it is given")
    _put(made.input, [given[name] for name in names.inputs])
    outputs = []
    for name, each in zip(names.outputs, made.output, strict=True):  # tf2onnx has names of its own for them
        made.node.append(onnx.helper.make_node("Identity", [each.name], [f"output/{name}"]))
        outputs.append(onnx.helper.make_value_info(f"output/{name}", each.type))
    _put(made.output, outputs)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _put(field: Any, values: Sequence[Any]) -> None:
    del field[:]
    field.extend(values)


_SAVE: dict[str, Callable[[Graph, Names, Path], None]] = {"openvino": _openvino, "onnx": _onnx, "triton": _onnx}
