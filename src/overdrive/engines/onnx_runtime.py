"""ONNX Runtime on the CPU. Source: https://onnxruntime.ai/docs/api/python/api_summary.html"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from overdrive.core.installing import pip_install
from overdrive.core.variables import variables_set
from overdrive.engines.runtime import Array, Engine, Place, unlogged, versions_of

_NEEDED = ("onnxruntime", "onnx", "onnxscript")
_NO_TELEMETRY = {"ORT_DISABLE_TELEMETRY": "1"}
_LARGEST = 1 << 31  # bytes of a model that is handed over in one piece


class OnnxRuntime:
    title = "ONNX Runtime"
    calibrating = 0
    narrow = False

    def missing(self) -> str | None:
        lacking = [name for name in _NEEDED if not find_spec(name)]
        if not lacking:
            return None
        what = "is not installed" if "onnxruntime" in lacking else f"cannot export without {' and '.join(lacking)}"
        return f"ONNX Runtime {what}: `{pip_install(*lacking)}` brings it"

    @property
    def versions(self) -> str:
        return versions_of(_NEEDED)

    def converted(self, graph: Any, examples: Sequence[Sequence[Array]], places: Sequence[Place] = ()) -> bytes:
        if sum(each.nbytes for each in graph.state_dict.values()) >= _LARGEST:
            raise ValueError("it has 2 GB of weights or more")
        model: bytes = converted(graph).model_proto.SerializeToString()
        return model

    def saved(self, model: bytes) -> Mapping[str, bytes]:
        return {"onnx": model}

    def loaded(self, parts: Mapping[str, bytes]) -> bytes:
        return parts["onnx"]

    def engine(self, model: bytes, threads: int) -> Engine:
        with variables_set(_NO_TELEMETRY):  # it collects nothing to send to its makers, and keeps no file of it
            import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 4  # fatal errors: what is said is no line of the program's
        # Threads spin for work within a call, of an encoder's 4.2 ms instead of 5.1, and no longer: after it they would
        # take the cores from those of PyTorch.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]

        def answer(given: Sequence[Array]) -> Sequence[Array]:
            results: Sequence[Array] = session.run(None, dict(zip(names, given, strict=True)))
            return results

        return answer


def converted(graph: Any, inputs: Sequence[str] | None = None, outputs: Sequence[str] | None = None) -> Any:
    """The `torch.onnx.ONNXProgram` of an exported graph. `inputs`, `outputs`: their names; its own where not given."""
    import torch

    with unlogged():
        model = torch.onnx.export(graph, dynamo=True, verbose=False, input_names=inputs, output_names=outputs)
    assert model is not None
    return model
