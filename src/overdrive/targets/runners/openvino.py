"""Answers by model.xml: `python run.py INPUTS.npz ANSWERS.npz`. Needs openvino and NumPy alone."""

import threading
from collections.abc import Mapping
from typing import Any

import checks
import openvino

# Where the processor has bf16, the default is to compute in it.
exact = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY", "PERFORMANCE_HINT": "LATENCY"}
if checks.THREADS:  # others have the other cores, and each would be bound to the first ones
    exact |= {"INFERENCE_NUM_THREADS": str(checks.THREADS), "ENABLE_CPU_PINNING": "NO"}
model = openvino.Core().compile_model(checks.artefact(), "CPU", exact)
request = model.create_infer_request()
busy = threading.Lock()  # its results lie in memory that the next call writes to, whichever thread makes that


def answer(inputs: Mapping[str, Any]) -> checks.Arrays:
    """The model's outputs by name, as arrays, of its inputs by name; ValueError where signature.json wants others."""
    arrays = checks.checked(inputs)
    with busy:
        results = request.infer(arrays, share_inputs=True, share_outputs=False)
        return checks.named([results[port] for port in model.outputs])


if __name__ == "__main__":
    checks.main(answer)
