"""Calls a model whose parameters are, for the length of the call, copies of themselves in another type.

What the program sees stays as it is: parameters, gradients, checkpoints and the optimizer's state are in the
program's own type, because each copy is made within the graph of the gradients. Copies are made anew for each
call: a program may write into `parameter.data`, of which nothing tells.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

from overdrive.seams.torch.hooks import accumulation_hooks, gradient_hooks
from overdrive.seams.torch.internals import writes_to
from overdrive.seams.torch.kept_by_calls import KeptByCalls

Buffers = weakref.WeakKeyDictionary[Any, set[str]]  # names of buffers, by module


def cast(thing: Any, old: torch.dtype, new: torch.dtype) -> Any:
    """All tensors of type `old` in a structure as `new`, within the graph of their gradients.

    Also in data classes, and in classes that a program made of dicts and named tuples, which are copied for it. In
    other objects they stay as they are: a cache of keys and values is the model's own.
    """
    return tree_map(partial(_cast, {}, old, new), thing)


def _cast(made: dict[int, Any], old: torch.dtype, new: torch.dtype, leaf: Any) -> Any:
    """`made`: what was, by what it was made of: what is there twice is there twice again."""
    if isinstance(leaf, torch.Tensor):
        return made.setdefault(id(leaf), leaf.to(new)) if leaf.dtype == old else leaf
    within = partial(tree_map, partial(_cast, made, old, new))
    if isinstance(leaf, tuple) and hasattr(leaf, "_fields"):
        return tuple.__new__(type(leaf), map(within, leaf))
    is_dict = isinstance(leaf, dict)
    if not is_dict and (isinstance(leaf, type) or not dataclasses.is_dataclass(leaf)):
        return leaf
    copied = copy.copy(leaf)
    for name, value in list(getattr(leaf, "__dict__", {}).items()):
        copied.__dict__[name] = within(value)
    for name in () if is_dict else [each.name for each in dataclasses.fields(leaf) if hasattr(leaf, each.name)]:
        object.__setattr__(copied, name, within(getattr(leaf, name)))
    for key, value in leaf.items() if is_dict else ():
        dict.__setitem__(copied, key, within(value))
    return copied


def copies_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """By one kernel for all of a kind, outside of the graph of their gradients: `torch._foreach_clone`, which PyTorch
    2.11 lacks."""
    made = [torch.empty_like(each) for each in tensors]
    with torch.no_grad():
        if made:
            torch._foreach_copy_(made, list(tensors))
    return made


class InAnotherType:
    """What a call is given, with its tensors of type `old` as `new`: copies, to which the model must not write."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], old: torch.dtype, new: torch.dtype) -> None:
        made: dict[int, Any] = {}
        into = partial(tree_map, partial(_cast, made, old, new))
        self.args, self.kwargs = into(args), into(kwargs)
        self._copies = [(each, writes_to(each)) for each in made.values()]

    def fault(self) -> str:
        """Why the call must be made on what it was given, in words; empty where it need not."""
        written = any(writes_to(each) != count for each, count in self._copies)
        return "the model writes to what it is given" if written else ""


class Copies:
    """`keep`: modules whose own parameters and buffers stay as they are.

    In 16 bits so do buffers once the model has written to them: what is added to a count or a mean would be lost there.

    Attributes:
        written: why no more calls must be made so, nor this one stand: a model has written into what is only a copy.
    """

    def __init__(self, old: torch.dtype, new: torch.dtype, keep: Callable[[Any], bool] = lambda module: False) -> None:
        self.written = ""
        self._old = old
        self._new = new
        self._keep = keep
        self._compared: weakref.WeakSet[Any] = weakref.WeakSet()
        self._written_buffers: Buffers = weakref.WeakKeyDictionary()
        self._kept = KeptByCalls(old, new, back_in=True)
        self._here = threading.local()  # what is exchanged now, in this thread

    def call(self, model: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model's result in the program's own type."""
        exchange = _Exchange(model, self._old, self._new, self._keep, self._written_buffers)
        given = InAnotherType(args, kwargs, self._old, self._new)
        compare = model not in self._compared  # once: a write into `weight.data` leaves no other trace
        self._compared.add(model)
        self._kept.apart = exchange.ids
        with self._kept.given_back(model), self._in_place(exchange, compare):
            result = call(*given.args, **given.kwargs)
        self.written = exchange.fault(compare) or given.fault()
        return cast(result, self._new, self._old)

    def again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, which has the copies that are in place now where it is called later: by a checkpoint."""
        exchange = getattr(self._here, "exchange", None)
        if exchange is None:
            return function

        def with_copies(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._here, "exchange", None) is exchange:
                return function(*args, **kwargs)
            with self._in_place(exchange):
                return function(*args, **kwargs)

        return with_copies

    @contextmanager
    def _in_place(self, exchange: _Exchange, compare: bool = False) -> Iterator[None]:
        before = getattr(self._here, "exchange", None)
        self._here.exchange = exchange
        try:
            with exchange.in_place(compare):
                yield
        finally:
            self._here.exchange = before


class _Exchange:
    """The copies of one call's parameters; buffers are copied whenever it is put in place."""

    def __init__(
        self, model: Any, old: torch.dtype, new: torch.dtype, keep: Callable[[Any], bool], exact: Buffers
    ) -> None:
        """`exact`: names of buffers that stay as they are, by module; in 16 bits, those written to are added."""
        self._old = old
        self._new = new
        self._exact = exact
        self._holders = [module for module in model.modules() if not keep(module)]
        kept = {id(each) for module in model.modules() if keep(module) for each in module._parameters.values()}
        parameters = self._distinct(each for module in self._holders for each in module._parameters.values())
        self._parameters = [each for each in parameters if id(each) not in kept]  # tied to one that must stay
        copies = self._copied(self._parameters)
        self._copies = {id(each): copy for each, copy in zip(self._parameters, copies, strict=True)}
        self._versions = {id(each): self._copies[id(each)]._version for each in self._parameters}
        self.ids = {id(each) for each in copies}

    @contextmanager
    def in_place(self, compare: bool = False) -> Iterator[None]:
        """`compare`: look at what those hold, too, that may be written to without a count."""
        exact = {id(each) for module in self._holders for each in self._exact_ones(module)} if self._exact else set()
        found = (each for module in self._holders for each in module._buffers.values() if id(each) not in exact)
        buffers = self._distinct(found)
        values = {id(each): each.to(self._new) for each in buffers}
        counts = {id(each): values[id(each)]._version for each in buffers}
        uncounted = {
            id(each)
            for module in self._holders
            for each in module._buffers.values()
            if module.training and _may_be_a_running_mean(each)
        }
        places = [
            (table, name, each, new)
            for module in self._holders
            for table, found in ((module._parameters, self._copies), (module._buffers, values))
            for name, each in table.items()
            if each is not None and (new := found.get(id(each))) is not None
        ]
        try:
            for table, name, _, new in places:
                table[name] = new
            yield
        finally:
            for table, name, each, new in places:
                if table[name] is new:
                    table[name] = each
                elif table[name] is not None:  # the model has put another buffer in its place
                    table[name] = cast(table[name], self._new, self._old)
            with torch.no_grad():
                for each in buffers:
                    self._write_back(each, values[id(each)], counts[id(each)], id(each) in uncounted, compare)

    def _write_back(self, buffer: Any, made: Any, count: int, uncounted: bool, compare: bool) -> None:
        counted, narrow = made._version != count, self._new.itemsize == 2
        if counted and not narrow:
            buffer.copy_(made)
        elif counted or uncounted:
            before = buffer.to(self._new)
            if counted or (compare and narrow and not torch.equal(made, before)):
                self._keep_exact(buffer)
            # Nothing is read back: what is as it was keeps all of its digits.
            (buffer if counted else buffer.data).copy_(torch.where(made == before, buffer, made.to(self._old)))

    def _exact_ones(self, module: Any) -> list[Any]:
        return [module._buffers.get(name) for name in self._exact.get(module, ())]

    def _keep_exact(self, buffer: Any) -> None:
        for module in self._holders:
            for name, each in module._buffers.items():
                if each is buffer:
                    self._exact.setdefault(module, set()).add(name)

    def fault(self, compare: bool) -> str:
        """Why the call must be made on the weights themselves. `compare`: also by what they hold."""
        for each in self._parameters:
            copy = self._copies[id(each)]
            if copy._version != self._versions[id(each)] or (compare and not torch.equal(copy, each.to(self._new))):
                return "the model changes its weights while it is called"
        return ""

    def _distinct(self, tensors: Iterable[Any]) -> list[torch.Tensor]:
        return list({id(each): each for each in tensors if each is not None and each.dtype == self._old}.values())

    def _copied(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """Apart: those that need no gradient, of which none must be made; and those whose hooks would be called, with
        no gradient, where a call does not use them."""
        together = [
            each for each in parameters if each.requires_grad and not (gradient_hooks(each) or accumulation_hooks(each))
        ]
        cast_ones = iter(_Cast.apply(self._new, *together) if together else ())  # type: ignore[no-untyped-call]
        known = {id(each): next(cast_ones) for each in together}
        return [known[id(each)] if id(each) in known else each.to(self._new) for each in parameters]


def _may_be_a_running_mean(buffer: Any) -> bool:
    """Batch normalisation writes to its own without counting it, also where `F.batch_norm` is called with those of a
    module of the program's. They have one dimension, and each number its own memory."""
    return buffer is not None and buffer.dim() == 1 and buffer.stride() != (0,)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    if before == dtype:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _Cast(torch.autograd.Function):
    """All copies at once: one launch for many small parameters."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)  # a parameter that was not used has no gradient, rather than zeros
        ctx.dtype = tensors[0].dtype
        copies = [torch.empty_like(each, dtype=dtype) for each in tensors]
        torch._foreach_copy_(copies, list(tensors))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return (None, *(None if each is None else each.to(ctx.dtype) for each in gradients))
