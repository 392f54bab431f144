"""OpenVINO on the CPU. Source: https://docs.openvino.ai/2026/openvino-workflow/model-preparation/convert-model-pytorch.html"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from overdrive.engines.runtime import Array, Engine

TITLE = "OpenVINO"
_TELEMETRY = "openvino_telemetry"


def missing() -> str | None:
    return None if find_spec("openvino") else "OpenVINO is not installed: `pip install openvino` brings it"


def build(graph: Any, inputs: Sequence[Array], threads: int) -> Engine:
    model = converted(graph, [list(given.shape) for given in inputs])
    import openvino as ov

    # Where the processor has bf16, the default is to compute in it.
    exact = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
    # On several streams one call is no faster, and what other streams would do is another program.
    one = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": str(threads)}
    compiled = ov.Core().compile_model(model, "CPU", {**exact, **one, "ENABLE_CPU_PINNING": "NO"})
    request = compiled.create_infer_request()

    def answer(given: Sequence[Array]) -> list[Array]:
        results = request.infer(list(given), share_inputs=True, share_outputs=False)
        return [results[port] for port in compiled.outputs]

    return answer


def converted(graph: Any, shapes: Sequence[Sequence[int]]) -> Any:
    """The `openvino.Model` of an exported graph. `shapes`: of its inputs; -1 is a dimension that may vary."""
    with _telling_nobody():
        import openvino as ov

    model = ov.convert_model(graph)
    model.reshape({port: list(shape) for port, shape in zip(model.inputs, shapes, strict=True)})
    return model


@contextmanager
def _telling_nobody() -> Iterator[None]:
    """Within it OpenVINO finds no telemetry to import: it would report each conversion to its makers."""
    if _TELEMETRY in sys.modules or "openvino" in sys.modules:  # the program's own import came first
        yield
        return
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[_TELEMETRY]
