"""Technique `graph_call`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.seams.answering import kinds_asked
from overdrive.techniques.technique import Knob, Technique

if TYPE_CHECKING:
    from overdrive.engines.answers import Answers
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.technique import Settings


class GraphCall(Technique):
    """Makes calls of a Keras model by a graph, where the program calls `model(x)` eagerly.

    What it does: on TensorFlow, an eager call goes through each layer in Python and starts each operation by itself.
    Here a call whose shapes and types have come before is made by a `tf.function` of the model, with its own variables.
    The first call of each signature is the model's own and watched, the next two are made by both and compared; later
    one now and then.

    When it helps: programs that answer requests by `model(x)`: small batches of models with many layers, where Python
    takes most of the call.

    When it hurts: inputs of ever new shapes, each of which is traced (eight at most); with `xla`, convolutions, which
    are slower there. Left alone: models with layers or functions of the program's own, whose code may do
    more than compute; those that draw random numbers, keep a state, or add losses in a call; calls that are told to
    train, or that gradients are recorded of; JAX and PyTorch.

    What it watches: at each call, every attribute of every layer (a change has all graphs traced anew, up to four
    times), shapes, types and plain arguments; weights are read where they are, and may change. What would escape:
    methods of Keras's own classes that the program replaces after the proof, until both make a call again.

    Contract: exact where TensorFlow fuses nothing that rounds otherwise; else it falls to rounding.

    Source: https://www.tensorflow.org/guide/function
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
    knobs = (Knob("xla", False, "whether XLA compiles the graph"),)

    def applies(self, facts: Facts) -> str | None:
        if elsewhere := facts.not_on_tensorflow():
            return elsewhere
        if self.own(facts).get("calls") is False:
            return "the program does not call its model eagerly"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        return [{"xla": False}, {"xla": True}]

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        kinds = kinds_asked(seams)
        return lambda: {"calls": "call" in kinds} if kinds else {}

    def install(self, seams: Seams, settings: Settings) -> Handle:
        graphs = _Graphs(bool(settings["xla"]), seams.call_doubled.publish)
        seams.answer_called.subscribe_innermost(graphs.called)
        return seams.handle(notes=graphs)


class _Graphs:
    """Imports Keras when a model is called.

    Attributes:
        answers: None before that.
    """

    def __init__(self, xla: bool, early: Callable[[], object]) -> None:
        self.answers: Answers | None = None
        self._xla = xla
        self._early = early

    def called(self, subject: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A subscriber of the seam *answer called*."""
        if self.answers is None:
            from overdrive.engines.keras.answering import KerasAnswers
            from overdrive.engines.keras.graph import Graphs

            self.answers = KerasAnswers(Graphs(self._xla), GraphCall.name, self._early)
        return self.answers.called(subject, call, *args, **kwargs)

    @property
    def settling(self) -> int:
        """Calls so far that no graph answered yet, and later one may."""
        return self.answers.settling if self.answers else 0

    def told(self) -> str:
        """How often a graph answered, for people."""
        return self.answers.told() if self.answers else f"{GraphCall.name} was not asked: no model was called"
