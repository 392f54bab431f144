"""The files of each target, and what they are made and run by."""

from __future__ import annotations

from overdrive.core.installing import package_of
from overdrive.machine.cpu import instructions
from overdrive.targets.child import triton

ARTEFACTS = {
    "onnx": "model.onnx",
    "triton": triton.ARTEFACT,
    "openvino": "model.xml",
    "aoti": "model.pt2",
}
_FRAMEWORKS = {"torch": ("torch",), "keras": ("keras", "tensorflow")}
_TO_ONNX = {"torch": ("onnx", "onnxscript"), "keras": ("onnx", "tf2onnx")}
_RUN_BY = {
    "onnx": ("onnxruntime",),
    "triton": ("onnxruntime",),
    "openvino": ("openvino",),
    "aoti": (),
    "fpga": ("hls4ml", "da4ml"),
}


def versions(target: str, framework: str = "torch") -> dict[str, str]:
    """Of what made it, and of what runs it. `framework`: its room's name."""
    makers = _TO_ONNX[framework] if "onnxruntime" in _RUN_BY[target] else ()
    found = map(package_of, (*_FRAMEWORKS[framework], *makers, *_RUN_BY[target]))
    return {name: version for name, version in found if version}


def processor(target: str) -> dict[str, list[str]]:
    """What a signature says of the processor that an artefact needs: those of libraries run on any."""
    return {"instructions": instructions()} if target == "aoti" else {}
