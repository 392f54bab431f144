"""Seam *model called*: the outermost `nn.Module.__call__`.

A call that fails under our techniques, at whatever step, is undone (see `undoing`), and made again without them. So a
model that begins to call `.view()` under channels_last runs on as its author wrote it. Where a technique's own code
failed, it alone is left out. Where the model's did, any technique in force may be the cause, and all are left out;
then an error of the program's own comes out of its own call, as in plain Python.

Made again are calls that ended in one of Python's or PyTorch's usual errors. A class that a program derives from
`Exception` itself is its way to leave a model early, and passes: a second call would have its effects twice. Of a
second call's effects, what the first has printed is not printed again, and what it set on modules is put back.

What is called inside a backward pass is no call of the program's: there, activations are made again. Nor is a module
without parameters that is called while samples are fetched: it is a transform (torchvision's are modules). And a model
that the program has traced (`torch.jit.trace`, TensorBoard's `add_graph`) is to be what its author wrote: a trace of
ours would hold our casts, and the second one, by which PyTorch checks the first, others. Inside a transform of
`torch.func` (`vmap`, `grad`) there is nothing to see: its tensors have no memory, nor has what is made of others there.
A `forward` that the program calls itself is followed in sessions that ask for it (`Seams.follows_forward`).
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch._C import _is_tracing
from torch.compiler import is_compiling  # `torch` is slow to tell its names, and this is asked for each sample
from torch.nn.utils.parametrize import ParametrizationList

from overdrive.core.by_identity import ByIdentity
from overdrive.core.progress import log
from overdrive.core.units import listed
from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches, plain_of
from overdrive.seams.points import Answer, Failing, reason_of
from overdrive.seams.torch import fetches
from overdrive.seams.torch.answers import TorchAnswers, answers_of
from overdrive.seams.torch.called_directly import CalledDirectly
from overdrive.seams.torch.internals import (
    function_modes,
    in_backward,
    keeps_saved_tensors_elsewhere,
    unseen_by_modes,
)
from overdrive.seams.torch.modules import first_parameter
from overdrive.seams.torch.submodules import is_named, tell
from overdrive.seams.torch.tracing import traced, transformed
from overdrive.seams.torch.undoing import Moment, Undoable, holds_nothing

_Result = TypeVar("_Result")
_is_meta = attrgetter("is_meta")


class _Thread(threading.local):
    model = False  # the call of one is under way


_patched: weakref.WeakKeyDictionary[Seams, tuple[_Thread, _Calls, CalledDirectly | None]] = weakref.WeakKeyDictionary()

# What a layout, a number format or a part of a batch may make a model fail with.
_USUAL = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    answers = answers_of(hub)
    wanted = hub.model_called.wanted or hub.model_begins.wanted
    if not (answers or wanted or any(point.wanted for point in hub.operators.values())):
        return []
    plain = torch.nn.Module.__call__
    outermost = _Outermost(hub, answers)
    inside = outermost.inside
    directly = CalledDirectly(patches, outermost.forward) if hub.follows_forward else None

    @functools.wraps(plain)
    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or inside.model or _is_tracing() or transformed() or _trains(type(self)):
            if is_named(self) and not (is_compiling() or _is_tracing() or transformed()):
                return tell(hub, plain, self, args, kwargs)
            return plain(self, *args, **kwargs)
        if directly and directly.has(self):
            return plain(self, *args, **kwargs)
        return outermost.call(plain, self, args, kwargs)

    fetches.enter(hub, patches)
    patches.replace(torch.nn.Module, "__call__", __call__)
    _patched[hub] = inside, outermost.calls, directly

    def leave() -> None:
        _patched.pop(hub, None)

    return [leave]


def is_patched(hub: Seams) -> bool:
    """Whether this session sees every outermost call of a module."""
    return hub in _patched


def follow_forward(hub: Seams, module: torch.nn.Module) -> None:
    """Have it told where the `forward` of a module is called by itself, in sessions that ask for it."""
    if directly := _patched[hub][2]:
        directly.follow(module)


def call_inside(hub: Seams, owner: str, model: torch.nn.Module, args: Any, kwargs: Any, undone: bool = False) -> Any:
    """A model's call, later than the program made it, by those that act inside of `owner` around it.

    Args:
        undone: where it fails it is undone, and made again without techniques, as a call of the program's is.
    """
    inside, calls, _ = _patched[hub]
    before, inside.model = inside.model, True
    try:
        plain = functools.partial(plain_of(torch.nn.Module.__call__), model)
        if undone:
            return calls.run(model, plain, args, kwargs, owner)
        return hub.model_called.inside(owner, model, plain)(*args, **kwargs)
    finally:
        inside.model = before


class _Outermost:
    """Calls of modules that are not within others, told to all who want to know."""

    def __init__(self, hub: Seams, answers: TorchAnswers | None) -> None:
        self.inside = _Thread()
        self.calls = _Calls(hub)
        self._hub = hub
        self._answers = answers
        self._begins = hub.model_begins

    def call(self, whole: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """`whole`: PyTorch's call of any module, or a forward that the program calls itself."""
        if isinstance(module, ParametrizationList):
            # Where a weight is read that others make (`parametrizations.weight_norm`): wherever that is, as while
            # wav2vec 2.0 is loaded, it is no model.
            return self._alone(whole, module, args, kwargs)
        hub, answers = self._hub, self._answers
        told = bool(self._begins.subscribers)
        if told:  # before who acts is known: it may be others when they are told
            self._begins.publish(module)
        called = hub.model_called
        if called.subscribers and (answer := called.answered_ahead(module, args, kwargs)) is not None:
            return answer
        if fetches.calls_plain_leaf(module):  # as most transforms are: known in a tenth of the time
            return whole(module, *args, **kwargs)
        step = answers.begins(module) if answers else None
        operators = [point for point in hub.operators.values() if point.techniques]
        others = called.subscribers or hub.function_called.techniques
        if not (operators or others or step) or in_backward():
            return self._alone(whole, module, args, kwargs) if told else whole(module, *args, **kwargs)
        if _shapes_only(args) or _is_transform(module):
            return whole(module, *args, **kwargs)
        self.inside.model = True
        try:
            call = functools.partial(whole, module)
            if operators and not others and holds_nothing(module):
                result = self.calls.stateless(operators, module, call, args, kwargs)
            elif operators or called.techniques or hub.function_called.techniques:
                result = self.calls.run(module, call, args, kwargs)
            else:
                result = called.run(module, call, *args, **kwargs)
        finally:
            self.inside.model = False
        if answers and step:
            answers.ended(step)
        return result

    def forward(self, plain: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """A model's own method, which the program may have called by itself."""
        if is_compiling() or _is_tracing() or transformed():
            return plain(module, *args, **kwargs)
        if self.inside.model:
            if is_named(module):
                return tell(self._hub, plain, module, args, kwargs)
            return plain(module, *args, **kwargs)
        return self.call(plain, module, args, kwargs)

    def _alone(self, whole: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """A call of which it was told that it begins, or of no model: those within it are not told."""
        self.inside.model = True
        try:
            return whole(module, *args, **kwargs)
        finally:
            self.inside.model = False


class _Calls:
    """Calls of models under techniques, each of which may have to be undone."""

    def __init__(self, hub: Seams) -> None:
        self._hub = hub
        self._models: ByIdentity[Undoable] = ByIdentity()
        self._classes: dict[type, Undoable] = {}
        # Of those that hold nothing, whether calls of this class came to an operator that a technique answers for.
        self._come: dict[type, bool] = {}

    def stateless(
        self,
        operators: list[Answer],
        model: torch.nn.Module,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A call of a module that holds nothing: a loss, say.

        Where its class never came to one of these operators it is the program's own, of which nothing need be undone:
        to provide for that takes 80 us. Where it comes to one after all, nobody is asked this time. That keeps other
        tensors for the backward pass than the next call will: not where somebody counts them, as checkpoints do.
        """
        apart = self._come.get(type(model)) is False and not keeps_saved_tensors_elsewhere()
        for each in operators:
            each.came, each.rests = False, apart
        try:
            return call(*args, **kwargs) if apart else self.run(model, call, args, kwargs)
        finally:
            for each in operators:
                each.rests = False
            came = any(each.came for each in operators)
            self._come[type(model)] = came or self._come.get(type(model), False)

    def run(
        self, model: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any, outermost: str | None = None
    ) -> Any:
        """`outermost`: the call is made by those that act inside of this technique's."""
        point = self._hub.model_called
        moment = self._before(model, args, kwargs)
        try:
            while True:
                try:
                    if outermost is not None:
                        return point.inside(outermost, model, call)(*args, **kwargs)
                    return point.run(model, call, *args, **kwargs)
                except Failing as failing:
                    faults = {failing.owner: failing.reason} if failing.reason else {}
                except _USUAL as error:
                    reason = f"the model's call failed with it ({reason_of(error)})"
                    suspects = [name for name in acting(self._hub) if name not in self._hub.blameless]
                    faults = dict.fromkeys(suspects, reason)
                    if not faults or moment is None:
                        raise
                # Here, where the error is gone, and what it held of the first call with it: memory was perhaps short.
                left = _unseen(moment.undo) if moment is not None else []
                besides = f"; from the first call, {listed(left)} could not be put back" if left else ""
                for name, why in faults.items():
                    self._hub.leave_out(name, why + besides)
        finally:
            if moment is not None:
                self._over(model, moment)

    def _over(self, model: torch.nn.Module, moment: Moment) -> None:
        try:
            _unseen(moment.over)
        except Exception as error:  # it is looked at anew
            log.info("what a call of %s writes to was not seen: %s", type(model).__name__, reason_of(error))
            self._models.pop(model, None)

    def _before(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Moment | None:
        """None where the call cannot be undone: it is traced, say, and a copy would be traced with it."""
        if traced():
            return None
        try:
            return _unseen(self._known(model).before, model, args, kwargs)
        except Exception as error:  # its buffers were given up or exchanged
            log.info("a call of %s could not be undone: %s", type(model).__name__, reason_of(error))
            self._models.pop(model, None)
            return None

    def _known(self, model: torch.nn.Module) -> Undoable:
        if holds_nothing(model):
            known = self._classes.get(type(model))
            if known is None:
                known = self._classes[type(model)] = Undoable()
            return known
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = Undoable()
        return found


def _unseen(call: Callable[..., _Result], *args: Any) -> _Result:
    """What we do with tensors is none of the calls that a mode of the program's is told of."""
    if not function_modes():
        return call(*args)
    with unseen_by_modes():
        return call(*args)


def acting(hub: Seams) -> list[str]:
    """The techniques that may make a model's call another one."""
    found = hub.model_called.techniques + hub.function_called.techniques
    for point in hub.operators.values():
        found += point.techniques
    return found


def _is_whole_step(kind: Any) -> bool:
    """Whether its call makes whole steps, as a learner of learners does: the models are those that it calls."""
    code = getattr(getattr(kind, "forward", None), "__code__", None)  # a scripted class has none
    return code is not None and {"backward", "step"} <= set(code.co_names)


_trains: Callable[[Any], bool] = functools.lru_cache(256)(_is_whole_step)


def _is_transform(module: torch.nn.Module) -> bool:
    return fetches.under_way() and first_parameter(module) is None


def _shapes_only(given: Any) -> bool:
    """Whether the first thing given has no data: the model is called to learn its shapes (Keras does, on PyTorch)."""
    while isinstance(given, (list, tuple, dict)) and given:
        given = next(iter(given.values() if isinstance(given, dict) else given))
    if isinstance(given, torch.Tensor):
        return bool(_unseen(_is_meta, given))
    keras = sys.modules.get("keras")
    return hasattr(keras, "KerasTensor") and isinstance(given, keras.KerasTensor)  # type: ignore[union-attr]
