"""The configuration that Triton's server reads of a model."""

from __future__ import annotations

import re

from overdrive.targets.child.triton import config

SIGNATURE = {
    "inputs": [
        {"name": "images", "shape": ["batch", 3, 9, 9], "dtype": "float32"},
        {"name": "scale", "shape": [], "dtype": "float64"},
    ],
    "outputs": [
        {"name": "best", "shape": ["batch"], "dtype": "int64"},
        {"name": "sure", "shape": ["batch"], "dtype": "bool"},
    ],
}


def test_it_names_inputs_and_outputs_with_their_types_and_whole_shapes() -> None:
    told = config(SIGNATURE)
    assert told.startswith('name: "model"\nbackend: "onnxruntime"\nmax_batch_size: 0\n')
    given, answered = re.findall(r"(?:input|output) \[\n(.*?)\n\]", told, flags=re.S)
    assert given.split(",\n") == [
        '  { name: "images" data_type: TYPE_FP32 dims: [ -1, 3, 9, 9 ] }',
        '  { name: "scale" data_type: TYPE_FP64 dims: [ 1 ] reshape: { shape: [ ] } }',
    ]
    assert answered.split(",\n") == [
        '  { name: "best" data_type: TYPE_INT64 dims: [ -1 ] }',
        '  { name: "sure" data_type: TYPE_BOOL dims: [ -1 ] }',
    ]
