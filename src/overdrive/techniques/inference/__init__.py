"""Techniques for programs that only call their model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overdrive.techniques.technique import CannotInstall

if TYPE_CHECKING:
    from overdrive.engines.runtime import OfTensorFlow, Runtime
    from overdrive.seams.hub import Handle, Seams

# What changes a model's own call does nothing for an engine that answers in its place, or keeps it from being built.
OF_THE_MODEL = (
    *("autocast", "compile", "channels_last", "fft_convolution", "fast_max_pool"),
    "graph_call",
)

# Seconds to export and convert a model, on two busy cores. No screening takes in what needs so long: of a ResNet-18's
# slow calls most were still made by both, and it told 0.57x of OpenVINO.
TO_BUILD = 12.0


def answered_by(runtime: Runtime, name: str, seams: Seams, of_keras: OfTensorFlow | None = None) -> Handle:
    """Have engines of this library answer the model's calls, for the technique of this name.

    Args:
        of_keras: has those of Keras's models on TensorFlow answered, too.

    Raises:
        CannotInstall: the library is not there.
    """
    from overdrive.engines.session import Answering

    if reason := runtime.missing():
        raise CannotInstall(reason)
    answering = Answering(runtime, name, seams, of_keras)

    def ended(stands_in: Any) -> None:
        """A model that no engine can answer for leaves nothing to be measured, and in a run nothing to watch."""
        if why := answering.in_vain():
            raise CannotInstall(why)

    seams.model_called.subscribe_innermost(answering.called)
    seams.submodule_called.subscribe_innermost(answering.submodule_called)
    if of_keras:
        seams.answer_called.subscribe_innermost(answering.answer_called)
    seams.step_ends.subscribe(ended)
    seams.blameless.add(name)
    return seams.handle(notes=answering)
