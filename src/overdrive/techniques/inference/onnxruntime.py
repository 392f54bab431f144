"""Technique `onnxruntime`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.inference import OF_THE_MODEL, TO_BUILD, answered_by
from overdrive.techniques.technique import Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.technique import Settings


class OnnxRuntime(Technique):
    """Has a session of ONNX Runtime, built from the very model, answer the model's calls.

    What it does: what `openvino` does, by ONNX Runtime: the model is exported by `torch.onnx`, its graph is optimised,
    and calls whose signature was proved are answered by it. All else is the model's own call (ONNX Runtime loses NaN in
    `max_pool`, attention and `sign`, and counts negative places from the end of a table); a run says how often.

    When it helps: inference on a CPU, transformers with small batches above all.

    When it hurts: as `openvino`: masks of minus infinity, ever new shapes, a copy of the weights for each engine (2 GB
    at most), some seconds to build one, which is kept on disk for later runs. Exporting needs `onnx` and `onnxscript`
    beside it.

    What it watches: as `openvino`, before each call. What would escape: what escapes `openvino`.

    Contract: rounding. The same mathematics, other orders of summation.

    Source: https://docs.pytorch.org/docs/stable/onnx_export.html
    """

    name = "onnxruntime"
    programs = ("inference",)
    contract = Contract.ROUNDING
    targets = ("forward",)
    expected_saving = 0.4
    usual_start = TO_BUILD
    switchable = True
    conflicts = ("openvino", *OF_THE_MODEL)
    order = 38

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        from overdrive.engines.looking import look_at_calls

        return look_at_calls(seams)

    def applies(self, facts: Facts) -> str | None:
        from overdrive.engines.onnx_runtime import OnnxRuntime
        from overdrive.engines.session import of_no_use

        return of_no_use(OnnxRuntime(), facts, self.own(facts))

    def install(self, seams: Seams, settings: Settings) -> Handle:
        from overdrive.engines.onnx_runtime import OnnxRuntime

        return answered_by(OnnxRuntime(), self.name, seams)
