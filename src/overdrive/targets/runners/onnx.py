"""Answers by an ONNX file: `python run.py INPUTS.npz ANSWERS.npz`. Needs onnxruntime and NumPy alone."""

import os
from collections.abc import Mapping
from typing import Any

import checks

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # or it keeps a file of what it sends to its makers
import onnxruntime

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = checks.THREADS
session = onnxruntime.InferenceSession(checks.artefact(), options, providers=["CPUExecutionProvider"])
names = [each.name for each in session.get_inputs()]


def answer(inputs: Mapping[str, Any]) -> checks.Arrays:
    """The model's outputs by name, as arrays, of its inputs by name; ValueError where signature.json wants others."""
    return checks.named(session.run(None, dict(zip(names, checks.checked(inputs), strict=True))))


if __name__ == "__main__":
    checks.main(answer)
