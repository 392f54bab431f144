"""How an exported graph becomes a file of each target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overdrive.core.installing import package_of
from overdrive.engines import onnx_runtime, openvino
from overdrive.machine.cpu import instructions
from overdrive.targets.child import triton

Shapes = Sequence[Sequence[int | str]]


@dataclass(frozen=True)
class Names:
    inputs: list[str]
    outputs: list[str]


def write(target: str, graph: Any, shapes: Shapes, names: Names, folder: Path) -> str:
    """The artefact's file in this folder. `shapes`: of the inputs; a name is a dimension that may vary."""
    name, save = _FORMATS[target]
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    save(graph, shapes, names, folder / name)
    return name


def versions(target: str) -> dict[str, str]:
    """Of what made it, and of what runs it."""
    found = map(package_of, ("torch", *_MODULES[target]))
    return {name: version for name, version in found if version}


def processor(target: str) -> dict[str, list[str]]:
    """What a signature says of the processor that an artefact needs: those of libraries run on any."""
    return {"instructions": instructions()} if target == "aoti" else {}


def _onnx(graph: Any, shapes: Shapes, names: Names, path: Path) -> None:
    onnx_runtime.converted(graph, names.inputs, names.outputs).save(str(path))


def _openvino(graph: Any, shapes: Shapes, names: Names, path: Path) -> None:
    model = openvino.converted(graph, [[-1 if isinstance(each, str) else each for each in shape] for shape in shapes])
    for ports, wanted in ((model.inputs, names.inputs), (model.outputs, names.outputs)):
        for port, name in zip(ports, wanted, strict=True):
            port.get_tensor().set_names({name})
    import openvino as ov

    ov.save_model(model, str(path), compress_to_fp16=False)


def _aoti(graph: Any, shapes: Shapes, names: Names, path: Path) -> None:
    from overdrive.seams.torch.aot import package

    package(graph, path)


_OF_ONNX = ("onnx", "onnxscript", "onnxruntime")
_MODULES = {
    "onnx": _OF_ONNX,
    "triton": _OF_ONNX,
    "openvino": ("openvino",),
    "aoti": (),
    "fpga": ("hls4ml", "da4ml"),
}
Save = Callable[[Any, Shapes, Names, Path], None]
_FORMATS: dict[str, tuple[str, Save]] = {
    "onnx": ("model.onnx", _onnx),
    "triton": (triton.ARTEFACT, _onnx),
    "openvino": ("model.xml", _openvino),
    "aoti": ("model.pt2", _aoti),
}
