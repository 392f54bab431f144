"""A model of PyTorch as an exported graph, and how that becomes a file of each target."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from overdrive.engines import onnx_runtime, openvino
from overdrive.engines.bounds import bounds_of, placing
from overdrive.engines.exported import exported
from overdrive.engines.ranges import Bounds
from overdrive.model_state.quiet import quiet
from overdrive.model_state.state import State
from overdrive.targets.child import dimensions, formats
from overdrive.targets.child.dimensions import Arrays
from overdrive.targets.child.subject import Names, Shapes
from overdrive.targets.child.torch.flat import FlatModel

_ENDLESS = 1 << 48


class Graph:
    """See `subject.Written`."""

    def __init__(self, target: str, flat: FlatModel, example: Arrays, marks: dimensions.Marks) -> None:
        """`example`: zeros of the inputs' shapes, which is all that `torch.export` looks at."""
        self.artefact = formats.ARTEFACTS[target]
        zeros = tuple(map(torch.from_numpy, example))
        self.graph = exported(flat, zeros, {}, State([flat]), _asked(marks) if any(marks) else None)
        self.shapes = _named(_inputs(self.graph))
        kinds = [each.dtype.kind for each in example]
        places = {number: ends for number, ends in bounds_of(self.graph).items() if kinds[number] in "iu"}
        self.bounds: Bounds = {**places, **{number: None for number in placing(self.graph) if kinds[number] == "f"}}

    def end(self, name: str) -> int | None:
        ends = []
        for value, shape in zip(_inputs(self.graph), self.shapes, strict=True):
            for size, each in zip(value.shape, shape, strict=True):
                known = self.graph.range_constraints.get(size.node.expr) if each == name else None
                if known is not None and str(known.upper).isdigit() and int(known.upper) < _ENDLESS:
                    ends.append(int(known.upper))
        return min(ends, default=None)


def write(target: str, graph: Any, shapes: Shapes, names: Names, folder: Path) -> None:
    """The artefact's file in this folder. `graph`: of `torch.export`."""
    place = folder / formats.ARTEFACTS[target]
    place.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        _SAVE[target](graph, shapes, names, place)


def _asked(marks: dimensions.Marks) -> dict[str, Any]:
    """What `torch.export` is asked for; where the model does not allow it, a dimension becomes fixed."""
    automatic = torch.export.Dim.AUTO
    return {"tensors": tuple(dict.fromkeys(sorted(places), automatic) or None for places in marks)}


def _inputs(graph: Any) -> list[Any]:
    given = graph.graph_signature.user_inputs
    return [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder" and node.name in given]


def _named(values: Sequence[Any]) -> list[list[int | str]]:
    """Shapes: numbers, and names of the dimensions that may vary."""
    names: dict[str, str] = {}
    shapes: list[list[int | str]] = []
    for value in values:
        shape: list[int | str] = []
        for place, size in enumerate(value.shape):
            known = isinstance(size, int)
            shape.append(size if known else names.setdefault(str(size), dimensions.name_of(place, names)))
        shapes.append(shape)
    return shapes


def _onnx(graph: Any, shapes: Shapes, names: Names, path: Path) -> None:
    onnx_runtime.converted(graph, names.inputs, names.outputs).save(str(path))


def _openvino(graph: Any, shapes: Shapes, names: Names, path: Path) -> None:
    model = openvino.converted(graph, [[-1 if isinstance(each, str) else each for each in shape] for shape in shapes])
    openvino.save(model, names.inputs, names.outputs, path)


def _aoti(graph: Any, shapes: Shapes, names: Names, path: Path) -> None:
    from overdrive.seams.torch.aot import package

    package(graph, path)


_SAVE: dict[str, Callable[[Any, Shapes, Names, Path], None]] = {
    "onnx": _onnx,
    "triton": _onnx,
    "openvino": _openvino,
    "aoti": _aoti,
}
