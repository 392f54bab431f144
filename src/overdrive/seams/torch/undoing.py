"""Model calls that can be undone and made again: what they change is kept from before them.

Kept before each call are the random states, in 2 us, and what calls of this model were seen to write to: buffers, each
copied anew where autograd's count tells that it was written to, and attributes of those modules that set some on
themselves. What that is, is found out by looking at everything in a model's first call of each mode and now and then
later.

Not undone is what is written elsewhere (globals, files), and what a model writes to for the first time in the very
call that fails, but for buffers: a copy of each is there from the last look.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import replace
from operator import is_
from typing import Any

import torch

from overdrive.core.rng import Glimpse, States
from overdrive.seams.keras.layers_on_torch import kept_by_layers, modules_of
from overdrive.seams.torch.internals import has_running_means
from overdrive.seams.written import Written

_LOOKS_EVERY = 256  # calls of a model
_MOST_BYTES = 1 << 20  # of buffers that are copied before each call: 0.1 ms
_MOST_ITEMS = 256  # of a dict or set that is copied
_OF_ALL_MODULES = frozenset(vars(torch.nn.Module()))
_ABSENT = object()


class Undoable:
    """What the calls of one model write to, as far as they were seen; or those of all modules of a class that hold
    nothing: a program may make its loss anew in each step."""

    def __init__(self) -> None:
        self._calls = 0
        self._modes: set[tuple[bool, bool]] = set()
        self.tables: list[tuple[Any, str]] = []  # of each buffer: its module's table, and its name there
        self.buffers: list[Any] = []  # what stood there when it was copied
        self.versions: list[int] = []  # of that
        self.copies: list[Any] = []  # None of those that are too large to be copied again and again
        self.uncounted: set[int] = set()  # those that are written to unseen: running means, and by way of `data`
        self._places: list[tuple[int, str]] = []  # of each buffer: its module's id, and its name there
        self._uncounted_places: set[tuple[int, str]] = set()  # they are where they are, whatever comes before them
        self.writers: list[weakref.ref[torch.nn.Module]] = []  # modules that set attributes, or fill lists of theirs
        self.changes_arguments = False
        self.draws = False  # random numbers, from another generator than PyTorch's
        self._small = False  # all buffers together: they are copied at once
        self.written = Written()

    def before(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Moment:
        """All that a call may change, which is about to be made."""
        mode = model.training, torch.is_grad_enabled()
        self._calls += 1
        thorough = mode not in self._modes or not self._calls % _LOOKS_EVERY
        if thorough:
            self._modes.add(mode)
            self._find_buffers(model)
        self._copy_buffers(thorough)
        return Moment(self, model, args, kwargs, thorough)

    def _find_buffers(self, model: torch.nn.Module) -> None:
        self.tables.clear()
        self._places.clear()
        for module in model.modules():
            # TorchScript's own table makes new objects each time it is asked.
            scripted = isinstance(module, torch.jit.ScriptModule)
            table = dict(module.named_buffers(recurse=False)) if scripted else module._buffers
            found = [(table, name) for name, each in table.items() if _can_be_copied(each)]
            places = [(id(module), name) for _, name in found]
            if has_running_means(module):  # which it may begin to write to late
                self._uncounted_places.update(each for each in places if each[1].startswith("running_"))
            self.tables += found
            self._places += places
        found = [(table, name) for table, name in kept_by_layers(model) if _can_be_copied(table[name])]
        self.tables += found
        self._places += [(id(table), name) for table, name in found]
        self.buffers = [None] * len(self.tables)
        self.versions = [-1] * len(self.tables)
        self.copies = [None] * len(self.tables)
        self.uncounted = {n for n, place in enumerate(self._places) if place in self._uncounted_places}

    def _copy_buffers(self, thorough: bool) -> None:
        """Of those that were written to since they were copied last."""
        now = [table[name] for table, name in self.tables]
        versions = [each._version for each in now]
        held = all(map(is_, now, self.buffers))
        if held and versions == self.versions and not self.uncounted:
            return
        if held and self._small:
            torch._foreach_copy_(self.copies, now)
        else:
            self._copy_some(now, versions, thorough)
        self.buffers, self.versions = now, versions

    def _copy_some(self, now: list[Any], versions: list[int], thorough: bool) -> None:
        known = enumerate(zip(now, versions, self.buffers, self.versions, strict=True))
        due = [
            place
            for place, (each, version, before, counted) in known
            if version != counted or each is not before or place in self.uncounted
        ]
        copied = thorough or sum(now[place].nbytes for place in due) <= _MOST_BYTES
        for place in due:
            self.copies[place] = now[place].clone() if copied else None
        self._small = sum(each.nbytes for each in now) <= _MOST_BYTES and all(each is not None for each in self.copies)

    def written_unseen(self, place: int) -> None:
        self._uncounted_places.add(self._places[place])
        self.uncounted.add(place)


class Moment:
    """What there was before a call. One of `over` and `undo` is to follow it."""

    def __init__(
        self, calls: Undoable, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], thorough: bool
    ) -> None:
        self._calls = calls
        self._thorough = thorough
        if thorough or holds_nothing(model):
            modules = modules_of(model)
        else:
            modules = [each for ref in calls.writers if (each := ref()) is not None]
        self._attributes = [(each, vars(each).copy(), _containers(each)) for each in modules]
        given = [each for each in (*args, *kwargs.values()) if type(each) is torch.Tensor]
        copied = thorough or calls.changes_arguments
        self._given = [(each, _version(each), each.detach().clone() if copied else None) for each in given]
        self._chance = States.now() if thorough or calls.draws else Glimpse()
        calls.written.begin()

    def over(self) -> None:
        """The call is to stand."""
        self._calls.written.over()
        if self._thorough:
            self._learn()

    def undo(self) -> list[str]:
        """Put all back; what is written until `over` is taken for what was written already.

        Returns: what could not be put back, in words.
        """
        self._calls.written.expect_again()
        left = [*self._put_back_buffers(), *self._put_back_arguments()]
        for module, attributes, containers in self._attributes:
            for name in vars(module).keys() - attributes.keys():
                del vars(module)[name]
            vars(module).update(attributes)
            for container, items in containers:
                _refill(container, items)
        self._chance.restore()
        return left

    def _put_back_buffers(self) -> list[str]:
        calls, left = self._calls, []
        for place, (table, name) in enumerate(calls.tables):
            before, copy = calls.buffers[place], calls.copies[place]
            table[name] = before
            counted = not self._thorough and place not in calls.uncounted
            if counted and before._version == calls.versions[place]:
                continue
            if copy is None or copy.shape != before.shape:
                left.append(f"the buffer {name}")
                continue
            # Through `data`, so that it does not count as a write: a graph of the program's may hold this buffer.
            before.data.copy_(copy)
            calls.versions[place] = before._version
        return left

    def _put_back_arguments(self) -> list[str]:
        left = []
        for tensor, version, copy in self._given:
            if _version(tensor) == version:
                continue
            if copy is None:
                left.append("an argument")
            else:
                tensor.data.copy_(copy)
        return left

    def _learn(self) -> None:
        """Compare with what there is now, to know what to keep before the next calls."""
        calls = self._calls
        known = {id(each) for ref in calls.writers if (each := ref()) is not None}
        for module, attributes, containers in self._attributes:
            if id(module) not in known and _wrote(module, attributes, containers):
                calls.writers.append(weakref.ref(module))
        for place, before in enumerate(calls.buffers):
            if before._version == calls.versions[place] and not torch.equal(before, calls.copies[place]):
                calls.written_unseen(place)
        before, now = self._chance, States.now()
        assert isinstance(before, States)
        calls.draws |= not now.same(replace(before, torch=now.torch, cuda=now.cuda))
        calls.changes_arguments |= any(_version(each) != version for each, version, _ in self._given)


def holds_nothing(module: torch.nn.Module) -> bool:
    """Neither modules nor tensors; a place for one (`CrossEntropyLoss` has one for weights) may be empty."""
    if module._modules or module._parameters:
        return False
    return not module._buffers or all(each is None for each in module._buffers.values())


def _can_be_copied(buffer: Any) -> bool:
    return (
        type(buffer) in (torch.Tensor, torch.nn.Parameter)
        and buffer.layout is torch.strided
        and not buffer.is_meta
        and not buffer.is_inference()
        and not buffer.requires_grad
    )


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _containers(module: torch.nn.Module) -> list[tuple[Any, Any]]:
    """Lists and the like that the program has put on a module, and what is in them."""
    found: list[tuple[Any, Any]] = []
    for name, value in vars(module).items():
        kind = type(value)
        if kind is list and name not in _OF_ALL_MODULES:
            found.append((value, len(value)))  # not a copy: it may grow with each step
        elif kind in (dict, set, deque) and name not in _OF_ALL_MODULES and len(value) <= _MOST_ITEMS:
            found.append((value, value.copy()))
    return found


def _refill(container: Any, items: Any) -> None:
    if isinstance(container, list):
        del container[items:]
    else:
        container.clear()
        (container.extend if isinstance(container, deque) else container.update)(items)


def _wrote(module: torch.nn.Module, attributes: dict[str, Any], containers: list[tuple[Any, Any]]) -> bool:
    now = vars(module)
    if now.keys() != attributes.keys() or any(now[name] is not value for name, value in attributes.items()):
        return True
    for container, items in containers:
        if len(container) != (items if isinstance(container, list) else len(items)):
            return True
        if isinstance(container, dict) and any(
            container.get(key, _ABSENT) is not value for key, value in items.items()
        ):
            return True
        if isinstance(container, deque) and not all(map(is_, container, items)):  # full, it keeps its length
            return True
    return False
