"""Where tensors of two places meet in one call, they are brought together; what leaves torch comes from here.

The program's tensors stay where it makes them, on the CPU, with the random numbers that it draws there. Its models
live there. So a batch goes over when it meets the model, a target when it meets the model's result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from overdrive.techniques.device.device.memo import Memo
from overdrive.techniques.device.device.place import Place
from overdrive.techniques.device.device.rules import ELEMENTWISE, Rule, keeps_lengths_here, plain_factories, rule_of

Call = tuple[Callable[..., Any], Any, Any]  # a function, its arguments, its keyword arguments
_Tensor = torch.Tensor
_DEEPEST = 3  # lists in lists of tensors: `x[(a, b)]`, the hidden state of an LSTM


class Contact:
    """The subscriber of the seam *function called*."""

    def __init__(self, place: Place, memo: Memo) -> None:
        self.place = place
        self.memo = memo
        self.making = False  # whether factories make their tensors there: while a model that lives there is called
        self.home = False  # everything has been brought back, and what is still there comes back as well

    def __call__(self, call: Call) -> Call:
        func, args, kwargs = call
        found = self._look(args, 0)
        if kwargs:
            found |= self._look(tuple(kwargs.values()), 0)
        if found < _THERE:
            return self._all_here(call, found)
        if self.home:
            return func, self.each(args, self._bring), self.each(kwargs, self._bring)
        name = getattr(func, "__name__", "").partition(".")[0]  # `torch.ops.aten.add_.Tensor` is an `add_`
        rule = rule_of(name)
        if rule is Rule.READ:
            return func, (self.place.bring(args[0]), *args[1:]), kwargs
        if rule is Rule.TEXT:
            return lambda *a, **k: self.place.as_on_cpu(func(*a, **k)), args, kwargs
        if rule is Rule.LENGTHS and keeps_lengths_here(name, args):
            args = (self.send(args[0]), self._bring(args[1]), *self.each(args[2:], self.send))
            return func, args, kwargs
        if found == _THERE or rule is Rule.COPY:
            return self._guarded(func) if found == _THERE and name not in _CHEAP else func, args, kwargs
        if (
            name == "__set__"
            and not self.place.has(args[0])
            and getattr(getattr(func, "__self__", None), "__name__", "") == "data"
        ):
            return call  # the tensor itself goes where its new memory is
        if rule is Rule.WRITE or kwargs.get("out") is not None:
            return self._to_the_first(func, args, kwargs)
        if name in ELEMENTWISE and self._numbers_only(args):
            return call
        return self._guarded(func), self.each(args, self.send), self.each(kwargs, self.send)

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.place.has(tensor) or tensor.device.type != "cpu":
            return tensor
        copy = self.memo.get(tensor)
        if copy is None:
            copy = self.place.send(tensor)
            self.memo.put(tensor, copy)
        return copy

    def _bring(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.place.bring(tensor) if self.place.has(tensor) else tensor

    def _all_here(self, call: Call, found: int) -> Call:
        func, args, kwargs = call
        if found and (given := given_away(func, args)) is not None:
            self.memo.given_away(given)
        elif self.making and func in plain_factories() and "device" not in kwargs and kwargs.get("out") is None:

            def make(*args: Any, **kwargs: Any) -> Any:
                with self.place.made_there():
                    return func(*args, **kwargs)

            return make, args, kwargs
        return call

    def _to_the_first(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Call:
        """A write goes to where what is written lives; a parameter that its first writer finds here goes there."""
        out = kwargs.get("out")
        first = (args[0] if args else None) if out is None else out
        first = first[0] if isinstance(first, (list, tuple)) and first else first
        if not isinstance(first, _Tensor):
            return func, self.each(args, self.send), self.each(kwargs, self.send)
        if isinstance(first, torch.nn.Parameter) and out is None and not self.place.has(first):
            first.data = self.place.send(first.data)  # a model that follows another (an average of its weights, say)
        move = self.send if self.place.has(first) else self._bring
        if out is not None:
            return func, self.each(args, move), {**self.each(kwargs, move), "out": out}
        return func, (args[0], *self.each(args[1:], move)), self.each(kwargs, move)

    def _guarded(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """What the device cannot do (an operation that it has not, a tensor made on the way) is done here."""

        def either(*args: Any, **kwargs: Any) -> Any:
            try:
                return func(*args, **kwargs)
            except (RuntimeError, TypeError) as error:
                if not _wrong_place(error):
                    raise
                return func(*self.each(args, self._bring), **self.each(kwargs, self._bring))

        return either

    def _look(self, things: Any, depth: int) -> int:
        """Which of _HERE and _THERE are found among the tensors."""
        found = 0
        has = self.place.has
        for thing in things:
            if isinstance(thing, _Tensor):
                found |= _THERE if has(thing) else _HERE
            elif depth < _DEEPEST and isinstance(thing, (list, tuple)):
                found |= self._look(thing, depth + 1)
        return found

    def each(self, thing: Any, move: Callable[[torch.Tensor], torch.Tensor], depth: int = 0) -> Any:
        """The same with every tensor moved, in plain lists, tuples and dicts."""
        if isinstance(thing, _Tensor):
            return move(thing)
        if depth <= _DEEPEST and type(thing) in (list, tuple):
            return type(thing)([self.each(each, move, depth + 1) for each in thing])
        if depth <= _DEEPEST and type(thing) is dict:
            return {key: self.each(each, move, depth + 1) for key, each in thing.items()}
        return thing

    def _numbers_only(self, args: Any) -> bool:
        return all(not isinstance(each, _Tensor) or self.place.has(each) or not each.dim() for each in args)


_HERE, _THERE = 1, 2
_CHEAP = frozenset({"__get__", "size", "dim", "item", "detach", "backward", "view", "reshape", "numel", "__len__"})


def given_away(func: Callable[..., Any], args: Any) -> torch.Tensor | None:
    """The tensor whose memory can be written to from now on without its version telling of it, if there is one.

    By numpy's array of it, or by `tensor.data`, which has a version of its own.
    """
    name = getattr(func, "__name__", "")
    if name in ("numpy", "__array__"):
        given = args[0]
    elif name in ("__get__", "__set__") and getattr(getattr(func, "__self__", None), "__name__", "") == "data":
        given = args[-1]  # of `a.data = b` it is b's memory that both have then
    else:
        return None
    # Where a gradient flows back no copy is kept: the addresses of all weights that `.data` fills need not be known.
    return given if isinstance(given, _Tensor) and not given.requires_grad else None


def _wrong_place(error: BaseException) -> bool:
    """Whether the error tells of a device and not of the program; never of a full or a failing one."""
    if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error) or "CUDA error" in str(error):
        return False
    told = str(error)
    return isinstance(error, NotImplementedError) or "same device" in told or "'CUDA'" in told or "CPU tensor" in told
