"""Calls of a model that an engine answers, and falls back from to the model wherever that was not proved.

An engine is built for one signature (structure, shapes, types, plain values) of one model, or for many that differ in
sizes alone, as the model is then: what its tensors hold, and all of Python's that its code can reach. Both are looked
at before each call. The first call of a signature is made by the model, and watched: what does anything but compute
gets no engine, nor what cannot be exported, because its way depends on its data say. Two are made by both, and the
model's answers are handed out; only where the engine's agree it answers by itself, but for one now and then that both
make again.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from overdrive.core.progress import log
from overdrive.engines.kept import KeptEngines
from overdrive.engines.model import Answer, ServedModel
from overdrive.engines.runtime import Runtime
from overdrive.engines.signature import signature
from overdrive.seams.torch.hooks import own_hooks
from overdrive.seams.torch.internals import function_modes
from overdrive.seams.torch.tracing import compiled, traced

_TELLING = 8  # calls, after which a program has called all of its models


class EngineAnswers:
    """All of one session, by one library.

    Attributes:
        answered: calls that an engine answered.
        left: those that it left to the model, by reason.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.answered = 0
        self.left: Counter[str] = Counter()
        self._runtime = runtime
        self._name = name
        self._kept = KeptEngines()
        self._models: weakref.WeakKeyDictionary[Any, ServedModel] = weakref.WeakKeyDictionary()
        self._busy = threading.Lock()  # an engine's memory is that of one call at a time

    def told(self) -> str:
        """How often it answered, and why not more often, for people."""
        calls = self.answered + self.left.total()
        said = f"{self._name} answered {self.answered:,} of {calls:,} calls"
        most = self.left.most_common(3)
        return said + (
            f"; the model itself the others: {', '.join(f'{why} ({n:,})' for why, n in most)}" if most else ""
        )

    def in_vain(self) -> str:
        """Why it has answered nothing and will not, in words; empty where it may yet."""
        if self.answered or self.left.total() < _TELLING:
            return ""
        reasons = [each.refused for each in self._models.values()]
        if not reasons and len(self.left) == 1:  # no call was of a kind that is looked at more closely
            return next(iter(self.left))
        return reasons[0] if reasons and all(reasons) else ""

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A subscriber of the seam *model called*."""
        served = self._models.get(model)
        if (why := _unfit(model, served)) or not self._busy.acquire(blocking=False):
            return self._leave(why or "another thread is being answered", call, args, kwargs)
        try:
            given = signature(args, kwargs)
            if given is None:
                return self._leave("an input of a kind that no engine takes", call, args, kwargs)
            if torch.is_grad_enabled() and any(each.requires_grad for each in given.tensors):
                return self._leave("gradients of its inputs are recorded", call, args, kwargs)
            if served is None:
                served = self._models[model] = ServedModel(model, self._runtime, self._kept)
            return self._noted(served.answer(given, call, args, kwargs))
        finally:
            self._busy.release()

    def _noted(self, answer: Answer) -> Any:
        if answer.left:
            if answer.left not in self.left:
                log.info("%s leaves a call to the model: %s", self._name, answer.left)
            self.left[answer.left] += 1
        else:
            self.answered += 1
        return answer.result

    def _leave(self, why: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.left[why] += 1
        return call(*args, **kwargs)


def _unfit(model: Any, served: ServedModel | None) -> str:
    """Why this call is the model's, whatever it is given; empty where it need not be."""
    if isinstance(model, torch.jit.ScriptModule) or compiled(model):
        return "the program compiles the model itself"
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    if traced() or function_modes():
        return "the call is traced or observed"
    if own_hooks(model) if served is None else served.hooked(model):
        return "the program has hooks on the model"
    return ""
