"""Makes the design in the trial: hls4ml's front end, precision, its bit-accurate emulation, and the same in Verilog."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.engines.runtime import Array, NoEngine
from overdrive.model_state.quiet import quiet
from overdrive.seams.points import reason_of
from overdrive.targets.fpga import rtl
from overdrive.targets.fpga.fixed import Fixed
from overdrive.targets.fpga.front_end import BACKEND, FrontEnd, Layers, Types
from overdrive.targets.fpga.precision import other_classes, passing, search, wider
from overdrive.targets.order import ANSWERS, DESIGN, RTL, made_in

_TRIES = 4  # emulations: each compiles the whole design
_ERROR = 0.01  # of the answers' size, where they are no classes

_OF_PLACES = "it answers at several places at once: all of its outputs are held to their values"
_BY_VALUE = (
    "no loss of the script shows that its outputs are classes, so that they are held to their values; of a classifier, "
    "fewer bits may do: let the script compute its loss by `nn.CrossEntropyLoss` or `F.nll_loss`, or end in a softmax"
)


def design(
    front: FrontEnd,
    calls: list[Array],
    margin: float,
    folder: Path,
    of_classes: Callable[[int], bool] = lambda outputs: False,
) -> list[str]:
    """The project under `made`, its answers beside it, and what is known of it in `DESIGN`. Returns notes for people.

    Args:
        calls: what the program gave the model, batches first.
        margin: share of inputs whose class may be another one.
        of_classes: whether so many outputs are known to be classes; else each is held to its value.

    Raises:
        NoEngine: the front end does not take the model, or no precision was enough.
    """
    inputs = _different(np.concatenate(calls))
    if len(inputs) < 2:
        raise NoEngine("the program gives it one input alone, and none is left for the test")
    own = front.answers(inputs)
    if not np.isfinite(own).all():
        raise NoEngine("it answers with NaN or infinity, which no number in fixed point is")
    places, own = own[0, 0].size > 1, own.reshape(len(own), -1)
    config = _read(front, inputs.shape[1:])
    layers = front.layers()
    # Whether the largest output is the answer, and all that counts. Of several places each has one of its own.
    known = not places and own.shape[1] > 1 and (layers.ends_in_softmax or of_classes(own.shape[1]))
    classes = own.shape[1] if known else 0
    half = np.arange(len(inputs)) % 2 == 0  # the other half is for the test alone

    allowed = passing(margin, int((~half).sum()))

    def too_far(answers: Array, wanted: Array = own[half]) -> bool:
        answers = answers.reshape(len(answers), -1)
        if classes:
            return other_classes(answers, wanted) > allowed
        off, size = (float(np.sqrt(np.square(each.astype(np.float64)).mean())) for each in (answers - wanted, wanted))
        return off > _ERROR / 2 * size

    types = search(layers, inputs[half], too_far)
    if types is None:
        raise NoEngine("no precision up to 18 bits after the point answers as it does")
    for _ in range(_TRIES):
        emulated, graph = _emulated(front, config, layers, types, inputs, made_in(folder) / "project")
        if not too_far(emulated[half]):
            break
        types = wider(types)
    else:
        raise NoEngine("the emulation does not answer as it does, however wide its layers")
    np.savez(folder / ANSWERS, own=own, emulated=emulated, tested=~half)
    told = {"classes": classes, "margin": margin, "error": _ERROR, "backend": BACKEND, "layers": _told(graph)}
    told["rtl"] = _verilog(graph, inputs, emulated, folder)
    (folder / DESIGN).write_text(json.dumps(told))
    return front.notes if classes or own.shape[1] == 1 else [*front.notes, _OF_PLACES if places else _BY_VALUE]


def _different(inputs: Array) -> Array:
    """Rows, each once: a program may evaluate on the same data again, and no row of the search may be in the test."""
    seen = {row.tobytes(): place for place, row in reversed(list(enumerate(inputs)))}
    return inputs[sorted(seen.values())]


def _verilog(graph: Any, inputs: Array, emulated: Array, folder: Path) -> dict[str, Any]:
    """What `rtl.verilog` tells, or under `left_out` why there is none."""
    place = made_in(folder) / RTL
    if lacking := rtl.missing():
        return {"left_out": lacking}
    try:
        return rtl.verilog(graph, inputs.astype(np.float64), emulated, place, folder / "simulation")
    except Exception as error:  # the project for HLS stands without it
        shutil.rmtree(place, ignore_errors=True)
        return {"left_out": str(error) if isinstance(error, NoEngine) else reason_of(error)[:200]}


def _read(front: FrontEnd, shape: tuple[int, ...]) -> dict[str, Any]:
    """hls4ml's configuration of the model, a part for each layer."""
    try:
        return front.read(shape)
    except NoEngine:
        raise
    except Exception as error:
        raise NoEngine(front.refusal(error)) from None


def _emulated(
    front: FrontEnd, config: dict[str, Any], layers: Layers, types: Types, inputs: Array, place: Path
) -> tuple[Any, Any]:
    """The answers of hls4ml's C++, of rows of outputs, and its graph."""
    for name, each in config["LayerName"].items():
        if name not in types:
            continue
        precision = each["Precision"]
        precision["result"] = types[name].text
        if (bits := layers.weight_bits(name)) is not None:
            for part in {"weight", "bias"} & precision.keys():
                precision[part] = Fixed(bits, types[name].fraction).text
    try:
        with quiet():
            made = front.converted(config, place)
            made.compile()
            found = made.predict(np.ascontiguousarray(inputs.astype(np.float64)))  # a float would cut long numbers off
    except Exception as error:
        raise NoEngine(front.refusal(error)) from None
    return np.asarray(found).reshape(len(inputs), -1), made


def _told(graph: Any) -> list[dict[str, Any]]:
    """Its layers with their types."""
    return [
        {
            "name": layer.name,
            "kind": layer.class_name,
            "result": str(layer.get_output_variable().type.precision),
            "weights": {name: str(each.type.precision) for name, each in layer.weights.items()},
            "weights_not_0": int(np.count_nonzero(layer.weights["weight"].data)) if "weight" in layer.weights else 0,
        }
        for layer in graph.get_layers()
    ]
