"""Calls of a model that an engine answers, and falls back from to the model wherever that was not proved.

An engine is built for one signature (structure, shapes, types, plain values) of one model, or for many that differ in
sizes alone, as the model is then: what its tensors hold, and all of Python's that its code can reach. Both are looked
at before each call. The first call of a signature is made by the model, and watched: what does anything but compute
gets no engine, nor what cannot be exported, because its way depends on its data say. Two are made by both, and the
model's answers are handed out; only where the engine's agree it answers by itself, but for one now and then that both
make again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from overdrive.core.by_identity import ByIdentity
from overdrive.engines.answers import BUSY, FORKED, OF_NO_KIND, Answer, Answers
from overdrive.engines.kept import KeptEngines
from overdrive.engines.model import AnsweredTorchModel
from overdrive.engines.runtime import Runtime
from overdrive.engines.signature import Signature, signature
from overdrive.seams.torch.hooks import own_hooks
from overdrive.seams.torch.internals import function_modes
from overdrive.seams.torch.modules import first_parameter
from overdrive.seams.torch.tracing import compiled, traced


class EngineAnswers(Answers):
    """All of one session, by one library."""

    def __init__(self, runtime: Runtime, name: str, early: Callable[[], object] = lambda: None) -> None:
        super().__init__(name, early)
        self._runtime = runtime
        self._kept = KeptEngines()
        self._models: ByIdentity[AnsweredTorchModel] = ByIdentity()
        self._busy = threading.Lock()  # an engine's memory is that of one call at a time
        self._process = os.getpid()

    def refusals(self) -> Sequence[str]:
        return [each.refused for each in self._models.values()]

    def called(self, model: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """A subscriber of the seam *model called*."""
        if os.getpid() != self._process:  # where it would wait for them for ever; the lock may be held for ever, too
            return self._leave(FORKED, call, args, kwargs)
        served = self._models.get(model)
        if (why := _unfit(model, served)) or not self._busy.acquire(blocking=False):
            return self._leave(why or BUSY, call, args, kwargs)
        try:
            given = _taken(args, kwargs)
            if isinstance(given, str):
                if first_parameter(model) is None:  # a transform of pictures is no model whose calls are counted
                    return call(*args, **kwargs)
                return self._leave(given, call, args, kwargs)
            if served is None:
                served = self._models[model] = AnsweredTorchModel(model, self._runtime, self._kept)
            return self.noted(served.answer(given, call, args, kwargs))
        finally:
            self._busy.release()

    def _leave(self, why: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self.noted(Answer(call(*args, **kwargs), why))


def why_the_models_own(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why no engine would answer this call, as far as that is known without looking at the model; empty where one
    may."""
    return _unfit(model, None) or (given if isinstance(given := _taken(args, kwargs), str) else "")


def _taken(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature | str:
    """What engines are built for of what a call is given, or why there is none."""
    given = signature(args, kwargs)
    if isinstance(given, str):
        return f"{OF_NO_KIND} ({given})"
    if torch.is_grad_enabled() and any(each.requires_grad for each in given.tensors):
        return "gradients of its inputs are recorded"
    return given


def _unfit(model: Any, served: AnsweredTorchModel | None) -> str:
    """Why this call is the model's, whatever it is given; empty where it need not be."""
    if isinstance(model, torch.jit.ScriptModule):
        return "it is a TorchScript module, whose code engines cannot be built from"
    if compiled(model):
        return "the program compiles the model itself"
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    if traced() or function_modes():
        return "the call is traced or observed"
    if own_hooks(model) if served is None else served.hooked(model):
        return "the program has hooks on the model"
    return ""
