"""Technique `openvino_narrow`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import FORMATS, Facts
from overdrive.techniques.inference import OF_THE_MODEL, answered_by
from overdrive.techniques.technique import Knob, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.technique import Settings

_PRECISIONS = {"bfloat16": "bf16", "int8": "int8"}


class OpenVinoNarrow(Technique):
    """Has an engine of OpenVINO in bf16 or int8 answer the model's calls.

    What it does: what `openvino` does, in fewer bits. For int8 the inputs of the first 16 calls of a signature, which
    the model itself answers, give the ranges of values in it; NNCF then makes the engine, with weights and activations
    in eight bits and, in transformers, without those products that lose too much.

    When it helps: inference on a CPU. int8 helps convolutions and large matrix products, on processors with VNNI or AMX
    most, bf16 those with avx512_bf16 or AMX.

    When it hurts: small models, where changing formats takes as long as computing; more than eight shapes of inputs, of
    which in int8 each needs an engine of its own. Quantising takes seconds, in the first run that begins with these
    inputs; what came of it is kept on disk.

    What it watches: the same as `openvino`. Of the answers that both make again, one that lies farther off than 30 % of
    the answer's size ends the engine. What would escape, beside what escapes `openvino`: kinds of input that neither
    the first 16 calls had, whose ranges were seen, nor the calls of the proof.

    Contract: statistical. Answers to recorded inputs are compared with the model's own, sample by sample, over calls
    that nothing was calibrated by.

    Source: https://docs.openvino.ai/2026/openvino-workflow/model-optimization-guide/quantizing-models-post-training.html;
    Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference, 2018
    """

    name = "openvino_narrow"
    frameworks = ("torch", "keras")
    programs = ("inference",)
    contract = Contract.STATISTICAL
    targets = ("forward",)
    expected_saving = 0.65
    usual_start = 15.0
    settles_in = 20  # calls: 16 give the ranges, two are made by both
    switchable = True
    compare_all = True  # which is faster hangs on the model and the processor, and int8 is oftener refused
    conflicts = ("openvino", "onnxruntime", *OF_THE_MODEL)
    order = 38
    knobs = (Knob("format", "int8", "the number format", choices=tuple(_PRECISIONS)),)

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        from overdrive.engines.looking import look_at_calls

        return look_at_calls(seams)

    def applies(self, facts: Facts) -> str | None:
        from overdrive.engines.openvino import OpenVino
        from overdrive.engines.session import of_no_use

        runtime = OpenVino() if facts.bf16_fast else OpenVino("int8")
        return of_no_use(runtime, facts, self.own(facts)) or facts.not_in_32_bits()

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        from overdrive.engines.openvino import OpenVino

        found = [] if OpenVino("int8").missing() else ["int8"]
        return [{"format": each} for each in [*(["bfloat16"] if facts.bf16_fast else []), *found]]

    def settling(self, settings: Settings) -> int:
        return self.settles_in if settings["format"] == "int8" else 0

    def computes_in(self, settings: Settings) -> str:
        return FORMATS.get(str(settings["format"]), "int8")

    def install(self, seams: Seams, settings: Settings) -> Handle:
        from overdrive.engines.openvino import OpenVino

        runtime = OpenVino(_PRECISIONS[str(settings["format"])])
        return answered_by(runtime, self.name, seams, of_keras=runtime)
