"""Which blocks of a model to call again in the backward pass, and how they are called then."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from overdrive.core.rng import States
from overdrive.techniques.memory.activation_checkpointing.measure import Keys, Measured

_SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)  # of all that is kept: the largest block that is not taken apart
_LEAST_SAVED = 0.05  # of the peak; calling blocks again for less is time lost


@dataclass(frozen=True)
class Block:
    """A module, or those children of a Sequential from `start` to `stop`."""

    module: torch.nn.Module
    inside: Keys  # what it alone keeps
    start: int = 0
    stop: int = 0

    def modules(self) -> list[torch.nn.Module]:
        return list(self.module.children())[self.start : self.stop] if self.stop else [self.module]


@dataclass(frozen=True)
class Choice:
    blocks: list[Block]
    peak: int  # bytes, estimated
    again: int  # bytes that are made again


def choose(model: torch.nn.Module, measured: Measured, budget: float) -> Choice | None:
    """The blocks with the least to make again so that no more than `budget` of all bytes is in memory at a time.

    Where none reach that, those that come nearest. None where it is not worth while.
    """
    total = measured.total
    choices = [_of_size(model, measured, budget * total, share * total) for share in _SHARES]
    choices = [each for each in choices if each.peak <= (1 - _LEAST_SAVED) * total]
    within = [each for each in choices if each.peak <= budget * total]
    if within:
        return min(within, key=lambda each: each.again)
    return min(choices, key=lambda each: each.peak, default=None)


def _of_size(model: torch.nn.Module, measured: Measured, room: float, largest: float) -> Choice:
    blocks = sorted(_blocks(model, measured, largest, top=True), key=lambda block: -measured.bytes(block.inside))
    total, gone, most = measured.total, 0, 0
    chosen: list[Block] = []
    for block in blocks:
        if chosen and total - gone + most <= room:
            break
        size = measured.bytes(block.inside)
        chosen.append(block)
        gone, most = gone + size, max(most, size)
    return Choice(chosen, total - gone + most, gone)


def _blocks(module: torch.nn.Module, measured: Measured, largest: float, top: bool = False) -> Iterator[Block]:
    kept = measured.modules.get(module)
    if kept is not None and not top and kept.safe and not kept.written and "forward" not in vars(module):
        inside = kept.saved - kept.given - kept.returned
        if 0 < measured.bytes(inside) <= largest:
            yield Block(module, inside)
            return
    children = list(module.children())
    found = [block for child in children for block in _blocks(child, measured, largest)]
    if not found and type(module) is torch.nn.Sequential and kept is not None and "forward" not in vars(module):
        found = _runs(module, measured)
    yield from found


def _runs(module: torch.nn.Module, measured: Measured) -> list[Block]:
    """A flat Sequential in as many runs as each has children."""
    children = list(module.children())
    if len(set(children)) < len(children) or not all(each in measured.modules for each in children):
        return []
    length = math.ceil(math.sqrt(len(children)))
    found = []
    for start in range(0, len(children), length):
        run = [measured.modules[each] for each in children[start : start + length]]
        inside: Keys = set().union(*(each.saved for each in run)) - run[0].given - run[-1].returned
        written: Keys = set().union(*(each.written for each in run))
        if all(each.safe for each in run) and not written & run[0].given and measured.bytes(inside):
            found.append(Block(module, inside, start, start + len(run)))
    return found


class Again:
    """The chosen blocks, each with the function that stands in for its forward while the model is called."""

    def __init__(self, blocks: Sequence[Block], written: Sequence[torch.Tensor]) -> None:
        runs: dict[torch.nn.Module, list[tuple[int, int, list[Any]]]] = {}
        self._stand_ins: list[tuple[Any, Callable[..., Any]]] = []  # a weak reference to the module
        ids = {id(buffer) for buffer in written}
        for block in blocks:
            own = [buffer for each in block.modules() for buffer in each.buffers() if id(buffer) in ids]
            if block.stop:
                runs.setdefault(block.module, []).append((block.start, block.stop, own))
            else:
                self._add(block.module, _forward_again(weakref.ref(block.module), own))
        for module, places in runs.items():
            self._add(module, _runs_again(weakref.ref(module), sorted(places, key=lambda place: place[0])))

    def _add(self, module: torch.nn.Module, stand_in: Callable[..., Any]) -> None:
        self._stand_ins.append((weakref.ref(module), stand_in))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Only for the length of a call: a model that is copied or saved between calls shows nothing of it."""
        placed = []
        try:
            for reference, stand_in in self._stand_ins:
                module = reference()
                if module is not None and "forward" not in vars(module):
                    vars(module)["forward"] = stand_in
                    placed.append(module)
            yield
        finally:
            for module in placed:
                vars(module).pop("forward", None)


def _forward_again(reference: Any, written: list[torch.Tensor]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        module = reference()
        return _call_again(functools.partial(type(module).forward, module), written, *args, **kwargs)

    return forward


def _runs_again(reference: Any, places: list[tuple[int, int, list[torch.Tensor]]]) -> Callable[..., Any]:
    def forward(value: Any) -> Any:
        children = list(reference().children())
        done = 0
        for start, stop, written in places:
            for child in children[done:start]:
                value = child(value)
            value = _call_again(functools.partial(_one_after_another, children[start:stop]), written, value)
            done = stop
        for child in children[done:]:
            value = child(value)
        return value

    return forward


def _one_after_another(children: list[torch.nn.Module], value: Any) -> Any:
    for child in children:
        value = child(value)
    return value


def _call_again(function: Callable[..., Any], written: list[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    contexts = nullcontext(), _State(written)
    return checkpoint(function, *args, use_reentrant=False, context_fn=lambda: contexts, **kwargs)


class _State:
    """What `torch.utils.checkpoint` leaves to us: the buffers that a call writes to, and chance outside of torch.

    A context for the second call, which may be made more than once (`retain_graph`).
    """

    def __init__(self, written: list[torch.Tensor]) -> None:
        self._written = written
        self._then = self._now()
        self._before_again: Any = None

    def __enter__(self) -> None:
        self._before_again = self._now()
        self._put(self._then)

    def __exit__(self, *_: object) -> None:
        self._put(self._before_again)

    def _now(self) -> Any:
        return States.now(with_cuda=False), [buffer.detach().clone() for buffer in self._written]

    def _put(self, state: Any) -> None:
        states, buffers = state
        states.restore()
        for buffer, value in zip(self._written, buffers, strict=True):
            buffer.data.copy_(value)  # through `data`: it does not count as a write, since nothing is written anew
