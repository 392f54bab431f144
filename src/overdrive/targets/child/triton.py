"""The folder that Triton's server serves a model from: a model repository, around an ONNX file.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY, MODEL = "repository", "model"
ARTEFACT = f"{REPOSITORY}/{MODEL}/1/model.onnx"
_TYPES = {
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "bool": "TYPE_BOOL",
    **{f"{kind}{bits}": f"TYPE_{kind.upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}


def write_config(folder: Path, signature: Mapping[str, Any]) -> None:
    """`config.pbtxt`, by the signature."""
    (folder / REPOSITORY / MODEL / "config.pbtxt").write_text(config(signature))


def config(signature: Mapping[str, Any]) -> str:
    """The model's configuration, in protobuf's text format.

    Shapes are whole: the batch is a dimension like others, and the server puts no requests together, which is not
    proved to change no answer.
    """
    lines = [f'name: "{MODEL}"', 'backend: "onnxruntime"', "max_batch_size: 0"]
    for side in ("input", "output"):
        entries = [_tensor(each) for each in signature[f"{side}s"]]
        lines += [f"{side} [", ",\n".join(entries), "]"]
    lines += ["instance_group [", "  { count: 1 kind: KIND_CPU }", "]"]
    return "\n".join(lines) + "\n"


def _tensor(each: Mapping[str, Any]) -> str:
    shape = ", ".join("-1" if isinstance(size, str) else str(size) for size in each["shape"])
    dims = f"dims: [ {shape} ]" if shape else "dims: [ 1 ] reshape: { shape: [ ] }"  # it knows no shape without any
    return f'  {{ name: "{each["name"]}" data_type: {_TYPES[each["dtype"]]} {dims} }}'
