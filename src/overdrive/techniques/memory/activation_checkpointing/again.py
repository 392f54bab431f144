"""How the chosen blocks are called while the model is."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from overdrive.seams.torch.modules import modules_in
from overdrive.seams.torch.tracing import traced
from overdrive.techniques.memory.activation_checkpointing.blocks import Recomputable, Repeatable
from overdrive.techniques.memory.activation_checkpointing.frames import Frame, can_be_given


class RecomputedBlocks:
    """The chosen blocks, each with the function that stands in for its forward while the model is called."""

    def __init__(self, blocks: Sequence[Recomputable], failed: Callable[[str], object]) -> None:
        """`failed` is told why a block could not be called again at once."""
        self._active = False
        self._parts: list[_Part] = []
        self._stand_ins: list[tuple[Any, Callable[..., Any]]] = []  # a weak reference to the module
        runs: dict[torch.nn.Module, list[tuple[int, int, _Part]]] = {}
        for block in blocks:
            part = _Part(block.repeatable, failed)
            self._parts.append(part)
            if block.stop:
                runs.setdefault(block.module, []).append((block.start, block.stop, part))
            else:
                self._add(block.module, functools.partial(_forward, part))
        for module, places in runs.items():
            places.sort(key=lambda place: place[0])
            self._add(module, functools.partial(_one_after_another, places, list(module.children())))

    @property
    def outdated(self) -> bool:
        """Whether a block was found to be another than when it was chosen."""
        return any(part.outdated for part in self._parts)

    def _add(self, module: torch.nn.Module, act: Callable[..., Any]) -> None:
        reference = weakref.ref(module)

        def forward(*args: Any, **kwargs: Any) -> Any:
            module: Any = reference()
            vars(module).pop("forward", None)  # in its own call it is as its author made it
            try:
                return act(module, *args, **kwargs)
            finally:
                if self._active:
                    vars(module)["forward"] = forward

        self._stand_ins.append((reference, forward))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Only for the length of a call: a model that is copied or saved between calls shows nothing of it."""
        placed = []
        self._active = True
        try:
            for reference, stand_in in self._stand_ins:
                module = reference()
                if module is not None and "forward" not in vars(module):
                    vars(module)["forward"] = stand_in
                    placed.append(module)
            yield
        finally:
            self._active = False
            for module in placed:
                vars(module).pop("forward", None)


class _Part:
    """What is called again at a time."""

    def __init__(self, repeatable: Repeatable, failed: Callable[[str], object]) -> None:
        self.repeatable = repeatable
        self._failed = failed
        self.outdated = False

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.outdated or not torch.is_grad_enabled() or traced() or not can_be_given(args, kwargs):
            return function(*args, **kwargs)
        if self.repeatable.changed():
            self.outdated = True
            return function(*args, **kwargs)
        return Frame(function, self.repeatable, self._failed, args, kwargs).call(args, kwargs)


def _forward(part: _Part, module: Any, *args: Any, **kwargs: Any) -> Any:
    return part.call(functools.partial(type(module).forward, module), args, kwargs)


def _one_after_another(
    places: list[tuple[int, int, _Part]], known: list[torch.nn.Module], module: Any, value: Any
) -> Any:
    """A Sequential's forward."""
    children = list(modules_in(module).values())
    if len(children) != len(known) or any(one is not other for one, other in zip(children, known, strict=True)):
        for _, _, part in places:
            part.outdated = True
        return _each(children, value)
    done = 0
    for start, stop, part in places:
        value = _each(children[done:start], value)
        value = part.call(functools.partial(_each, children[start:stop]), (value,), {})
        done = stop
    return _each(children[done:], value)


def _each(modules: list[torch.nn.Module], value: Any) -> Any:
    for module in modules:
        value = module(value)
    return value
