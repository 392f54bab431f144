"""The modules within a model that engines answer for where none can answer for the whole: the BERT of an encoder of
sentences, which writes to the dict that it is given; the backbone of a detector, whose way depends on its data."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from overdrive.seams.torch.modules import modules_in, own_parameters
from overdrive.seams.torch.submodules import Named, within

_MOST = 8  # at a time
_LEAST_SHARE = 1 / 16  # of the model's parameters: what is looked at before a call costs some 50 us
_LEAST_PARTS = 2  # modules with parameters: for a single layer PyTorch has as good a kernel as any engine
_UNCALLED = 2  # calls of the model in which one is waited for, which may be a list of modules


class Submodules:
    """Of one model. Those that are refused, or not called, give their place to what they hold."""

    def __init__(self, model: torch.nn.Module, follow: Callable[[torch.nn.Module], object]) -> None:
        """`follow`: has calls of a module's `forward` by itself told. It is a change of its class: all at once, before
        any of them is looked at."""
        self._least = _LEAST_SHARE * _size(model)
        self._named: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._uncalled: dict[int, int] = {}  # calls of the model in which these did not come
        for each in torch.nn.Module.modules(model):
            if self._is_worth_it(each):
                follow(each)
        self._take_in(model)

    @property
    def named(self) -> Named:
        return self._named

    def call(self, whole: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The model's call, in which those that are named are told of."""
        if not self._named:
            return whole(*args, **kwargs)
        waited_for = list(self._uncalled)
        before, _thread.under_way = _thread.under_way, self
        try:
            with within(dict(self._named)):
                result = whole(*args, **kwargs)
        finally:
            _thread.under_way = before
        for place in waited_for:
            self._did_not_come(place)
        return result

    def _did_not_come(self, place: int) -> None:
        calls, module = self._uncalled.get(place), self._named.get(place)
        if calls is None or module is None:  # it came, or another thread's call has replaced it
            return
        self._uncalled[place] = calls + 1
        if calls + 1 >= _UNCALLED and (found := module()) is not None:
            self.replace(found)

    def came(self, module: torch.nn.Module) -> None:
        self._uncalled.pop(id(module), None)

    def replace(self, module: torch.nn.Module) -> None:
        """By what it holds, from the next call on: no engine answers for it."""
        self.came(module)
        if self._named.pop(id(module), None) is not None:
            self._take_in(module)

    def _take_in(self, module: torch.nn.Module) -> None:
        for child in modules_in(module).values():
            if len(self._named) < _MOST and child is not None and self._is_worth_it(child):
                self._named[id(child)] = weakref.ref(child)
                self._uncalled[id(child)] = 0

    def _is_worth_it(self, module: torch.nn.Module) -> bool:
        if isinstance(module, torch.jit.ScriptModule) or _size(module) < self._least:
            return False
        return sum(bool(own_parameters(each)) for each in torch.nn.Module.modules(module)) >= _LEAST_PARTS


class _Thread(threading.local):
    under_way: Submodules | None = None


_thread = _Thread()


def under_way() -> Submodules | None:
    """Those of the model whose call this thread makes."""
    return _thread.under_way


def _size(module: torch.nn.Module) -> int:
    return sum(each.numel() for _, each in torch.nn.Module.named_parameters(module))
