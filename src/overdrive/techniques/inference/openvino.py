"""Technique `openvino`."""

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


class OpenVino(Technique):
    """Has an engine of OpenVINO, built from the very model, answer the model's calls.

    What it does: a call whose shapes, types and plain values have come before is answered by an engine that
    `torch.export` and OpenVINO make of the model, in its own number format. The first call of each signature is
    watched, the next are made by both and compared. Before each call the model's tensors and all of Python's that its
    code can reach are looked at: an engine of other weights is built anew, up to four times. Whatever was not proved is
    the model's own call: another shape, dropout or batch statistics in training mode, hooks, autocast, gradients of
    inputs, NaN and infinity among them (OpenVINO makes numbers of NaN), places that are in none of the model's tables
    (it answers those, too). Where it can answer for no call of a model it answers for the largest modules within it, by
    the same rules. A run says how often which was the case. Of Keras on TensorFlow it answers `model(x)` and
    the batches of `predict`, by an engine of the call's own graph.

    When it helps: inference on a CPU: fused convolutions with weights packed in advance, small batches of transformers,
    where Python and PyTorch's dispatcher take most of the time.

    When it hurts: masks of minus infinity that the model is given, since each such call is its own. To look for NaN
    takes about 0.3 ms for a million fractions, to look for the ends of whole numbers as much. Shapes that differ in
    more than sizes get eight engines at most; of more than four sizes one engine answers for all, after two calls of
    each. Each engine is a copy of the weights and takes seconds to build, once: what it is built from is kept on disk
    for later runs. Models whose way depends on their data, that change their own tensors, print, or draw random numbers
    are left alone, with the reason; of Keras also those with layers or functions of the program's own, and each shape
    has an engine of its own.

    What it watches: before each call, the model's tensors by their content and all of Python's that its code can reach
    (of Keras: each variable that the graph reads, and every attribute of every layer); now and then (one call in 512,
    one in 16 of models that look at values) both make it and are compared. What would escape, until then: a model whose
    way hangs on the values of its input in a case that has not come yet; state that C code keeps; methods of Keras's
    own classes that the program replaces.

    Contract: rounding. The same mathematics, other orders of summation; OpenVINO's default of computing in bf16 where
    the processor can is switched off.

    Source: https://docs.openvino.ai/2026/openvino-workflow/model-preparation/convert-model-pytorch.html,
    https://docs.openvino.ai/2026/openvino-workflow/model-preparation/convert-model-tensorflow.html
    """

    name = "openvino"
    frameworks = ("torch", "keras")
    programs = ("inference",)
    contract = Contract.ROUNDING
    targets = ("forward",)
    expected_saving = 0.5
    usual_start = TO_BUILD
    switchable = True
    conflicts = OF_THE_MODEL
    order = 38

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        from overdrive.engines.looking import look_at_calls

        return look_at_calls(seams)

    def applies(self, facts: Facts) -> str | None:
        from overdrive.engines.openvino import OpenVino as Runtime
        from overdrive.engines.session import of_no_use

        return of_no_use(Runtime(), facts, self.own(facts))

    def install(self, seams: Seams, settings: Settings) -> Handle:
        from overdrive.engines.openvino import OpenVino as Runtime

        runtime = Runtime()
        return answered_by(runtime, self.name, seams, of_keras=runtime)
