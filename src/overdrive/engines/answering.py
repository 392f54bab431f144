"""Calls of a model that an engine answers, and falls back from to the model wherever that was not proved.

An engine is built for one signature (structure, shapes, types, plain values) of one model, or for many that differ in
sizes alone, as the model is then: what its tensors hold, and all of Python's that its code can reach. Both are looked
at before each call. The first call of a signature is made by the model, and watched: what does anything but compute
gets no engine, nor what cannot be exported, because its way depends on its data say. Two are made by both, and the
model's answers are handed out; only where the engine's agree it answers by itself, but for one now and then that both
make again. Where none can answer for a model, engines may answer for modules within it (see `submodules`), by the same
rules: what goes in and comes out of them is seen, whatever the model does around them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from overdrive.core.by_identity import ByIdentity
from overdrive.engines.answers import BUSY, FORKED, HOOKED, OF_INPUTS, OF_NO_KIND, Answer, Answers
from overdrive.engines.kept import KeptEngines
from overdrive.engines.model import AnsweredTorchModel
from overdrive.engines.runtime import Runtime
from overdrive.engines.signature import Signature, signature
from overdrive.engines.submodules import Submodules, under_way
from overdrive.model_state.later_backward import wants_gradients
from overdrive.seams.torch.hooks import own_hooks
from overdrive.seams.torch.internals import function_modes
from overdrive.seams.torch.modules import first_parameter
from overdrive.seams.torch.tracing import compiled, traced


class EngineAnswers(Answers):
    """All of one session, by one library."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        early: Callable[[], object] = lambda: None,
        follow: Callable[[Any], object] = lambda module: None,
    ) -> None:
        """`follow`: see `Submodules`."""
        super().__init__(name, early)
        self._follow = follow
        self._runtime = runtime
        self._kept = KeptEngines()
        self._models: ByIdentity[AnsweredTorchModel] = ByIdentity()
        self._submodules: ByIdentity[Submodules] = ByIdentity()  # of models that no engine answers for
        self._came_within: ByIdentity[bool] = ByIdentity()
        self._thread = _Thread()
        self._busy = threading.RLock()  # an engine's memory is that of one call at a time
        self._process = os.getpid()

    def refusals(self) -> Sequence[str]:
        found = [each.refused for model, each in self._models.items() if model not in self._came_within]
        return [*found, ""] if any(each.named for each in self._submodules.values()) else found

    def called(self, model: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """A subscriber of the seam *model called*."""

        def apart(*args: Any, **kwargs: Any) -> Any:
            submodules = self._submodules.get(model)
            if submodules is None:
                submodules = self._submodules[model] = Submodules(model, self._follow)
            return submodules.call(call, args, kwargs)

        self._thread.settles = False
        answer = self._answer(model, call, apart, args, kwargs)
        if answer.left.startswith(OF_NO_KIND) and first_parameter(model) is None:
            return answer.result  # a transform of pictures is no model whose calls are counted
        if self._thread.settles:
            answer = replace(answer, settles=True)
        return self.noted(answer)

    def submodule_called(self, module: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """A subscriber of the seam of that name."""
        submodules = under_way()
        if submodules is None:
            return call(*args, **kwargs)
        submodules.came(module)
        self._came_within[module] = True

        def apart(*args: Any, **kwargs: Any) -> Any:
            submodules.replace(module)
            return call(*args, **kwargs)

        answer = self._answer(module, call, apart, args, kwargs)
        self._thread.settles |= answer.settles
        return self.noted_within(type(module).__name__, answer)

    def _answer(
        self, model: Any, call: Callable[..., Any], apart: Callable[..., Any], args: Any, kwargs: Any
    ) -> Answer:
        """`apart`: the call, where no engine answers such as this one: perhaps one answers for modules within it."""
        if os.getpid() != self._process:  # where it would wait for them for ever; the lock may be held for ever, too
            return Answer(call(*args, **kwargs), FORKED)
        served = self._models.get(model)
        given = why if (why := _unfit(model, served)) else _taken(args, kwargs)
        if isinstance(given, str):
            whole = call if not lasts(given) or (served is not None and served.answers) else apart
            return Answer(whole(*args, **kwargs), given)
        if not self._busy.acquire(blocking=False):
            return Answer(call(*args, **kwargs), BUSY)
        try:
            if served is None:
                served = self._models[model] = AnsweredTorchModel(model, self._runtime, self._kept)
            return served.answer(given, call, apart, args, kwargs)
        finally:
            self._busy.release()


class _Thread(threading.local):
    settles = False  # an engine for one of them is not there yet, or not proved


def why_the_models_own(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why no engine would answer this call, as far as that is known without looking at the model; empty where one
    may."""
    return _unfit(model, None) or (given if isinstance(given := _taken(args, kwargs), str) else "")


def lasts(why: str) -> bool:
    """Whether it may be no reason for modules within the model, and is none of this call alone."""
    return why == HOOKED or why.startswith(OF_NO_KIND)


def _taken(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature | str:
    """What engines are built for of what a call is given, or why there is none."""
    given = signature(args, kwargs)
    if isinstance(given, str):
        return f"{OF_NO_KIND} ({given})"
    if wants_gradients(given.tensors):
        return OF_INPUTS
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
        return HOOKED
    return ""
