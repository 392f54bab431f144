"""Technique `graph_call`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.engines.openvino import OpenVino
from overdrive.seams.answering import kinds_asked
from overdrive.techniques.technique import CannotInstall, Knob, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.technique import Settings


class GraphCall(Technique):
    """Makes calls of a Keras model by a graph, or by an engine of OpenVINO.

    What it does: on TensorFlow, an eager call goes through each layer in Python and starts each operation by itself.
    Here a call whose shapes and types have come before is made by a `tf.function` of the model, with its own variables.
    By `openvino`, that function is converted, and answers the batches of `predict` too. The first call of each
    signature is the model's own and watched, the next two are made by both and compared; later one now and then.

    When it helps: programs that answer requests by `model(x)`: small batches of models with many layers, where Python
    takes most of the call. OpenVINO: convolutions with normalisations, which TensorFlow leaves apart.

    When it hurts: inputs of ever new shapes, each of which is traced (eight at most); with `xla`, convolutions, which
    are slower there. An engine of OpenVINO is a copy of the weights, and takes a second or more to build. Left alone:
    models with layers or functions of the program's own, whose code may do more than compute; those that draw random
    numbers, keep a state, or add losses in a call; calls that are told to train, or that gradients are recorded of; JAX
    and PyTorch.

    What it watches: at each call, every attribute of every layer (a change has all graphs traced anew, up to four
    times), shapes, types and plain arguments; a graph reads weights where they are, and an engine is built anew where
    one of them lies in other memory. What would escape: methods of Keras's own classes that the program replaces after
    the proof, until both make a call again; weights that are written to past TensorFlow, which an engine does not see.

    Contract: exact where TensorFlow fuses nothing that rounds otherwise; else, and by OpenVINO, it falls to rounding.

    Source: https://www.tensorflow.org/guide/function;
    https://docs.openvino.ai/2026/openvino-workflow/model-preparation/convert-model-tensorflow.html
    """

    name = "graph_call"
    frameworks = ("keras",)
    programs = ("inference",)
    contract = Contract.EXACT
    fallback_contract = Contract.ROUNDING
    targets = ("forward", "other")
    expected_saving = 0.5
    usual_start = 1.0
    order = 40
    knobs = (Knob("by", "tensorflow", "what makes the calls", choices=("tensorflow", "xla", "openvino")),)

    def applies(self, facts: Facts) -> str | None:
        if facts.backend not in ("", "tensorflow"):
            return f"Keras runs on {facts.backend} here"
        if self.own(facts).get("calls") is False and not _engines(facts):
            return f"the program does not call its model eagerly, and {OpenVino().missing() or 'has a GPU'}"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        eager = [] if self.own(facts).get("calls") is False else ["tensorflow", "xla"]
        return [{"by": each} for each in [*eager, *(["openvino"] if _engines(facts) else [])]]

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        kinds = kinds_asked(seams)
        return lambda: {"calls": "call" in kinds} if kinds else {}

    def install(self, seams: Seams, settings: Settings) -> Handle:
        from overdrive.techniques.inference.graph_call.graphs import GraphCalls

        if settings["by"] == "openvino" and (reason := OpenVino().missing()):
            raise CannotInstall(reason)
        graphs = GraphCalls(str(settings["by"]))
        seams.answer_called.subscribe_innermost(graphs.called)
        return seams.handle(notes=graphs)


def _engines(facts: Facts) -> bool:
    return facts.device == "cpu" and OpenVino().missing() is None
