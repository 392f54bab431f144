"""OpenVINO on the CPU, in fp32, bf16 or int8.

Sources: https://docs.openvino.ai/2026/openvino-workflow/model-preparation/convert-model-pytorch.html,
https://docs.openvino.ai/2026/openvino-workflow/model-preparation/convert-model-tensorflow.html,
https://docs.openvino.ai/2026/openvino-workflow/model-optimization-guide/quantizing-models-post-training.html
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from overdrive.core.installing import pip_install
from overdrive.engines.runtime import Array, Engine, NoEngine, Place, unlogged, versions_of

_TELEMETRY = "openvino_telemetry"
_CALIBRATING = 16  # calls: NNCF's own default is 300 samples, which some batches are


@dataclass(frozen=True)
class OpenVino:
    """`precision`: "f32", "bf16", or "int8" (weights and activations, by ranges seen in the first calls)."""

    precision: str = "f32"

    @property
    def title(self) -> str:
        return "OpenVINO" if self.precision == "f32" else f"OpenVINO in {self.precision}"

    @property
    def calibrating(self) -> int:
        return _CALIBRATING if self.precision == "int8" else 0

    @property
    def narrow(self) -> bool:
        return self.precision != "f32"

    @property
    def versions(self) -> str:
        return versions_of(self._needed)

    @property
    def _needed(self) -> Sequence[str]:
        return ("openvino", "nncf") if self.precision == "int8" else ("openvino",)

    def missing(self) -> str | None:
        lacking = [name for name in self._needed if not find_spec(name)]
        if not lacking:
            return None
        what = "is not installed" if "openvino" in lacking else "cannot quantise without nncf"
        return f"OpenVINO {what}: `{pip_install(*lacking)}` brings it"

    def converted(self, graph: Any, examples: Sequence[Sequence[Array]], places: Sequence[Place] = ()) -> Any:
        sizes = [list(given.shape) for given in examples[-1]]
        for number, dim in places:
            sizes[number][dim] = -1
        return self._in_its_precision(converted(graph, sizes), examples)

    def of_tensorflow(self, function: Any, inputs: Sequence[str], examples: Sequence[Sequence[Array]]) -> Any:
        with _telling_nobody(), unlogged():
            import openvino as ov

            # Weights that it shares are read where the program's own variables lie.
            model = ov.convert_model(function, share_weights=False)
        places = self.places(model, inputs, ())[0]
        return self._in_its_precision(model, [[each[place] for place in places] for each in examples])

    def places(self, model: Any, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[list[int], list[int]]:
        if len(model.inputs) != len(inputs):
            raise NoEngine("it does not read all that it is given")
        given = [_place(port.names, inputs) for port in model.inputs]
        made = [port.names for port in model.outputs]
        # Outputs of equal value are one, with the names of all.
        return given, [next(place for place, names in enumerate(made) if name in names) for name in outputs]

    def _in_its_precision(self, model: Any, examples: Sequence[Sequence[Array]]) -> Any:
        if self.precision != "int8":
            return model
        with _telling_nobody(), unlogged():
            return _quantised(model, examples)

    def saved(self, model: Any) -> Mapping[str, bytes]:
        """OpenVINO's IR: a text about the graph, and the weights as they are. Not what it compiles of that, which it
        takes over unseen, and which is one processor's."""
        import openvino as ov

        with TemporaryDirectory(prefix="overdrive-engine-") as folder:
            text = Path(folder) / "model.xml"
            ov.save_model(model, text, compress_to_fp16=False)
            return {"xml": text.read_bytes(), "bin": text.with_suffix(".bin").read_bytes()}

    def loaded(self, parts: Mapping[str, bytes]) -> Any:
        with _telling_nobody():
            import openvino as ov

        return ov.Core().read_model(parts["xml"], parts["bin"])

    def engine(self, model: Any, threads: int) -> Engine:
        import openvino as ov

        # Where the processor has bf16, the default is to compute in it.
        hint = "bf16" if self.precision == "bf16" else "f32"
        mode = {"EXECUTION_MODE_HINT": "ACCURACY"} if self.precision == "f32" else {}
        # On several streams one call is no faster, and what other streams would do is another program.
        one = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": str(threads)}
        settings = {"INFERENCE_PRECISION_HINT": hint, **mode, **one, "ENABLE_CPU_PINNING": "NO"}
        compiled = ov.Core().compile_model(model, "CPU", settings)
        request, types = (
            compiled.create_infer_request(),
            [each.get_element_type().to_dtype() for each in compiled.inputs],
        )
        results = range(len(compiled.outputs))

        def answer(given: Sequence[Array]) -> list[Array]:
            # `request.infer(given)` finds out what it was given by 30 calls of Python: 58 µs where this takes 17.
            for place, (each, dtype) in enumerate(zip(given, types, strict=True)):
                request.set_input_tensor(place, ov.Tensor(np.asarray(each, dtype, order="C"), shared_memory=True))
            request.infer()
            return [np.array(request.get_output_tensor(place).data) for place in results]

        return answer


def _place(names: set[str], known: Sequence[str]) -> int:
    return next(place for place, name in enumerate(known) if name in names)


def _quantised(model: Any, examples: Sequence[Sequence[Array]]) -> Any:
    import nncf

    names = [port.any_name for port in model.inputs]
    given = [dict(zip(names, each, strict=True)) for each in examples]
    transformer = {"model_type": nncf.ModelType.TRANSFORMER} if _attends(model) else {}
    return nncf.quantize(model, nncf.Dataset(given), subset_size=len(given), **transformer)


def _attends(model: Any) -> bool:
    """Whether it has attention, some of whose products lose too much in eight bits."""
    kinds = {each.get_type_name() for each in model.get_ops()}
    return "ScaledDotProductAttention" in kinds or ({"Softmax", "MatMul"} <= kinds and "Convolution" not in kinds)


def converted(graph: Any, shapes: Sequence[Sequence[int]]) -> Any:
    """The `openvino.Model` of an exported graph. `shapes`: of its inputs; -1 is a dimension that may vary."""
    with _telling_nobody(), unlogged():
        import openvino as ov

        model = ov.convert_model(graph)
    # Plain values are inputs to it, which nothing reads: exporting made constants of them.
    plain = {each.arg.name for each in graph.graph_signature.input_specs if hasattr(each.arg, "value")}
    for port in [each for each in model.inputs if not each.names.isdisjoint(plain)]:
        model.remove_parameter(port.get_node())
    model.reshape({port: list(shape) for port, shape in zip(model.inputs, shapes, strict=True)})
    return model


def in_order(model: Any, given: Sequence[int], made: Sequence[int]) -> Any:
    """The same model, with inputs and results in another order.

    Args:
        given: which input each of its own is to be; `made`: at which of its results each of the results is.
    """
    import openvino as ov

    inputs = [model.inputs[list(given).index(place)].get_node() for place in range(len(given))]
    results = [ov.opset13.result(model.outputs[place].get_node().input_value(0)) for place in made]
    return ov.Model(results, inputs, model.get_friendly_name())


def save(model: Any, inputs: Sequence[str], outputs: Sequence[str], path: Path) -> None:
    """OpenVINO's IR, with these names in order."""
    import openvino as ov

    for ports, wanted in ((model.inputs, inputs), (model.outputs, outputs)):
        for port, name in zip(ports, wanted, strict=True):
            port.get_tensor().set_names({name})
    ov.save_model(model, str(path), compress_to_fp16=False)


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
