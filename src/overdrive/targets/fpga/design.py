"""Makes the design in the trial: hls4ml's front end, precision, its bit-accurate emulation, and the same in Verilog."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from overdrive.engines.runtime import NoEngine
from overdrive.model_state.quiet import quiet
from overdrive.seams.points import reason_of
from overdrive.targets.fpga import rtl
from overdrive.targets.fpga.graph import Fixed, Layers, folded
from overdrive.targets.fpga.precision import other_classes, passing, search, wider
from overdrive.targets.order import ANSWERS, DESIGN, RTL, made_in

BACKEND = "Vitis"
_PROJECT = "model"
_TRIES = 4  # emulations: each compiles the whole design
_ERROR = 0.01  # of the answers' size, where they are no classes

Types = Mapping[str, Fixed]

_OF_PLACES = "it answers at several places at once: all of its outputs are held to their values"
_BY_VALUE = (
    "no loss of the script shows that its outputs are classes, so that they are held to their values; of a classifier, "
    "fewer bits may do: let the script compute its loss by `nn.CrossEntropyLoss` or `F.nll_loss`, or end in a softmax"
)


def design(
    model: torch.nn.Module,
    calls: list[torch.Tensor],
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
    inputs = _different(torch.cat(calls))
    if len(inputs) < 2:
        raise NoEngine("the program gives it one input alone, and none is left for the test")
    own = _answers(model, inputs)
    places, own = own[0, 0].numel() > 1, own.flatten(1)
    model, config = _read(model, tuple(inputs.shape[1:]))
    layers = Layers(model)
    # Whether the largest output is the answer, and all that counts. Of several places each has one of its own.
    known = not places and own.shape[1] > 1 and (layers.ends_in_softmax or of_classes(own.shape[1]))
    classes = own.shape[1] if known else 0
    half = torch.arange(len(inputs)) % 2 == 0  # the other half is for the test alone

    allowed = passing(margin, int((~half).sum()))

    def too_far(answers: torch.Tensor, wanted: torch.Tensor = own[half]) -> bool:
        answers = answers.flatten(1)
        if classes:
            return other_classes(answers, wanted) > allowed
        off, size = (float(each.double().square().mean().sqrt()) for each in (answers - wanted, wanted))
        return off > _ERROR / 2 * size

    with torch.no_grad():
        types = search(layers, inputs[half], too_far)
    if types is None:
        raise NoEngine("no precision up to 18 bits after the point answers as it does")
    for _ in range(_TRIES):
        emulated, graph = _emulated(model, config, layers, types, inputs, made_in(folder) / "project")
        if not too_far(torch.from_numpy(emulated)[half]):
            break
        types = wider(types)
    else:
        raise NoEngine("the emulation does not answer as it does, however wide its layers")
    np.savez(folder / ANSWERS, own=own.numpy(), emulated=emulated, tested=~half.numpy())
    told = {"classes": classes, "margin": margin, "error": _ERROR, "backend": BACKEND, "layers": _told(graph)}
    told["rtl"] = _verilog(graph, inputs, emulated, folder)
    (folder / DESIGN).write_text(json.dumps(told))
    return [] if classes or own.shape[1] == 1 else [_OF_PLACES if places else _BY_VALUE]


def _answers(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """
    Raises:
        NoEngine: they are not numbers by rows.
    """
    with torch.no_grad(), quiet():
        own = model(inputs)
    if not isinstance(own, torch.Tensor) or own.dim() < 2:
        raise NoEngine("it answers something else than one tensor of rows")
    if not own.isfinite().all():
        raise NoEngine("it answers with NaN or infinity, which no number in fixed point is")
    return own


def _different(inputs: torch.Tensor) -> torch.Tensor:
    """Rows, each once: a program may evaluate on the same data again, and no row of the search may be in the test."""
    seen = {row.numpy().tobytes(): place for place, row in reversed(list(enumerate(inputs)))}
    return inputs[sorted(seen.values())]


def _verilog(graph: Any, inputs: torch.Tensor, emulated: Any, folder: Path) -> dict[str, Any]:
    """What `rtl.verilog` tells, or under `left_out` why there is none."""
    place = made_in(folder) / RTL
    if lacking := rtl.missing():
        return {"left_out": lacking}
    try:
        return rtl.verilog(graph, inputs.double().numpy(), emulated, place, folder / "simulation")
    except Exception as error:  # the project for HLS stands without it
        shutil.rmtree(place, ignore_errors=True)
        return {"left_out": str(error) if isinstance(error, NoEngine) else reason_of(error)[:200]}


def _read(model: torch.nn.Module, shape: tuple[int, ...]) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The model as hls4ml is given it, and its configuration of it, a part for each layer."""
    import hls4ml

    try:
        with quiet():
            given = folded(model)
            config: dict[str, Any] = hls4ml.utils.config_from_pytorch_model(
                given, shape, granularity="name", backend=BACKEND, default_precision="fixed<32,12>"
            )
    except Exception as error:
        raise NoEngine(_refusal(model, error)) from None
    return given, config


def _refusal(model: torch.nn.Module, error: Exception) -> str:
    """hls4ml names the kind of a layer; a model may have it under several names."""
    said = reason_of(error)[:200]
    kind = re.search(r"Unsupported layer (\w+)", said)
    named = [name for name, each in model.named_modules() if kind and type(each).__name__ == kind.group(1)]
    return f"hls4ml's front end does not take {f'its layer {named[0]} ' if named else 'it '}({said})"


def _emulated(
    model: torch.nn.Module, config: dict[str, Any], layers: Layers, types: Types, inputs: torch.Tensor, place: Path
) -> tuple[Any, Any]:
    """The answers of hls4ml's C++, of rows of outputs, and its graph."""
    import hls4ml

    for name, each in config["LayerName"].items():
        if name not in types:
            continue
        precision = each["Precision"]
        precision["result"] = types[name].text
        if name in layers.weighted:
            bits = layers.weight_bits(name)
            for part in {"weight", "bias"} & precision.keys():
                precision[part] = Fixed(bits, types[name].fraction).text
    try:
        with quiet():
            made = hls4ml.converters.convert_from_pytorch_model(
                model,
                output_dir=str(place),
                project_name=_PROJECT,
                hls_config=config,
                backend=BACKEND,
                io_type="io_parallel",
            )
            made.compile()
            found = made.predict(np.ascontiguousarray(inputs.double().numpy()))  # a float would cut long numbers off
    except Exception as error:
        raise NoEngine(_refusal(model, error)) from None
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
