"""What optimizers keep, without their tensors' numbers: told as JSON, and made of zeros in a run that is made again.

There no step is made, so that an optimizer would keep nothing; but a program may hold what `state_dict()` gave it. That
is the optimizer's own dicts and tensors, which later steps change or replace: so tensors have numbers, those that the
program loads before the next step, and what is made once stays the same thing. Numbers go on from process to process.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch.internals import storage_id
from overdrive.survive.refusals import CannotTake

if TYPE_CHECKING:
    from overdrive.survive.journal import Journal

_PLAIN = (bool, int, float, str, type(None))
Told = list[Any]
Kept = tuple[Told, Told]  # its state, and its groups


@dataclass
class _Seen:
    """Of an optimizer.

    Attributes:
        stepped: since the program asked for its state.
        asked: since its last step.
        table: its state, at its last step.
    """

    stepped: bool = False
    asked: bool = False
    table: Any = None


class OptimizerStates:
    """Of all optimizers of a run."""

    def __init__(self) -> None:
        self._seen: weakref.WeakKeyDictionary[Any, _Seen] = weakref.WeakKeyDictionary()
        self._last: weakref.WeakKeyDictionary[Any, Kept] = weakref.WeakKeyDictionary()
        self._numbers: Any = WeakIdKeyDictionary()
        self._tensors: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self._next = 0

    def _seen_of(self, optimizer: Any) -> _Seen:
        seen = self._seen.get(optimizer)
        if seen is None:
            seen = self._seen[optimizer] = _Seen()
        return seen

    def stepped(self, optimizer: Any) -> None:
        seen = self._seen_of(optimizer)
        seen.stepped, seen.asked, seen.table = True, False, vars(optimizer).get("state")

    def asked(self, optimizer: Any) -> bool:
        """The program asks for its state; whether a step was made since it did last."""
        seen = self._seen_of(optimizer)
        stepped, seen.stepped, seen.asked = seen.stepped, False, True
        return stepped

    def touched(self, optimizer: Any) -> bool:
        """Whether the program may have put other things into its state since its last step."""
        seen = self._seen_of(optimizer)
        return seen.asked or vars(optimizer).get("state") is not seen.table

    def note(self, kind: str, optimizer: Any, journal: Journal) -> None:
        """What it keeps, as an entry of this kind; none where that is what was told last, or nothing yet.

        Raises:
            CannotTake: it keeps what is no tensor and no usual container.
        """
        told, groups = self.told(optimizer)
        if not told and self._seen_of(optimizer).table is None:
            return
        before, groups_before = self._last.get(optimizer, (None, None))
        if (told, groups) != (before, groups_before):
            self._last[optimizer] = told, groups
            journal.add(kind, None if told == before else told, groups)

    def answer(self, kind: str, optimizer: Any, journal: Journal) -> None:
        """Have it keep what was noted here, if something was."""
        if journal.peek(kind):
            self.make(optimizer, *journal.next(kind, "")[1:])

    def told(self, optimizer: Any) -> Kept:
        """
        Raises:
            CannotTake: see `note`.
        """
        telling = _Telling(self, parameters_of(optimizer))
        return telling.entries(optimizer.state.items()), list(map(telling.group, optimizer.param_groups))

    def make(self, optimizer: Any, told: Told | None, groups: Told) -> None:
        """Have it keep what was told: what is there already as it is, tensors of zeros for the rest.

        `told`: None where the state is what it was told to be before.
        """
        making = _Making(self, parameters_of(optimizer))
        if told is not None:
            there = dict(optimizer.state)
            made = [(making.key(key), making.make(each, there.get(making.key(key)))) for key, each in told]
            optimizer.state.clear()  # in the order of then, and the same dict
            optimizer.state.update(made)
        for group, each in zip(optimizer.param_groups, groups, strict=False):  # of another number: shows in the heap
            making.group(group, each)

    def number_of(self, tensor: torch.Tensor) -> int:
        if tensor not in self._numbers:
            self.give(tensor, self._next)
        number: int = self._numbers[tensor]
        return number

    def has_number(self, tensor: torch.Tensor) -> bool:
        return tensor in self._numbers

    def of_number(self, number: int) -> torch.Tensor | None:
        return self._tensors.get(number)

    def give(self, tensor: torch.Tensor, number: int) -> None:
        self._numbers[tensor] = number
        self._tensors[number] = tensor
        self._next = max(self._next, number + 1)


class _Telling:
    def __init__(self, states: OptimizerStates, parameters: list[Any]) -> None:
        self._states = states
        self._parameters = {id(each): place for place, each in enumerate(parameters)}
        self._memories = {storage_id(each): -1 - place for place, each in enumerate(parameters)}

    def entries(self, items: Iterable[tuple[Any, Any]]) -> Told:
        return [[self._key(key), self._tell(value)] for key, value in list(items)]

    def group(self, group: dict[str, Any]) -> Told:
        """Its names in their order, with what a step may set: the count of its steps, say, or its estimate of a rate.
        All else is what the program gave."""
        return [[name, self._tell(each) if _set_by_steps(each) else None] for name, each in _named(group)]

    def _key(self, key: Any) -> Told:
        if id(key) in self._parameters:
            return ["parameter", self._parameters[id(key)]]
        if type(key) in _PLAIN:
            return ["plain", key]
        raise CannotTake(f"an optimizer keeps the state of a {type(key).__qualname__} that it does not train")

    def _tell(self, thing: Any) -> Told:
        if id(thing) in self._parameters:
            return ["parameter", self._parameters[id(thing)]]
        if isinstance(thing, torch.Tensor):
            return self._tensor(thing)
        if type(thing) in _PLAIN:
            return ["plain", thing]
        if type(thing) in (list, tuple):
            return [type(thing).__name__, [self._tell(each) for each in thing]]
        if isinstance(thing, dict):
            return ["dict", self.entries(thing.items())]
        raise CannotTake(f"an optimizer keeps a {type(thing).__qualname__}")

    def _tensor(self, tensor: torch.Tensor) -> Told:
        if tensor.layout is not torch.strided:
            raise CannotTake(f"a state of an optimizer is {tensor.layout}")
        memory = self._memories.setdefault(storage_id(tensor), len(self._memories))
        return ["tensor", self._states.number_of(tensor), memory, *_about(tensor)]


class _Making:
    def __init__(self, states: OptimizerStates, parameters: list[Any]) -> None:
        self._states, self._parameters = states, parameters
        self._memories = {-1 - place: each.untyped_storage() for place, each in enumerate(parameters)}

    def key(self, told: Told) -> Any:
        kind, key = told
        if kind == "parameter":
            return self._parameters[key]
        # One name is one object, as in the program: a checkpoint that it pickles is the same in every byte.
        return sys.intern(key) if isinstance(key, str) else key

    def group(self, group: dict[str, Any], told: Told) -> None:
        there = dict(group)
        own = {name: name for name in there}  # its own text, for the same reason as in `key`
        names = [own.get(name, sys.intern(name)) for name, _ in told]
        made = {name: self.make(each, there.get(name)) for name, (_, each) in zip(names, told, strict=True) if each}
        steps = {name for name, each in _named(there) if _set_by_steps(each)}
        known = {**{name: each for name, each in there.items() if name not in steps}, **made}
        group.clear()  # in the order of then
        group.update((name, known[name]) for name in [*names, *known] if name in known)

    def make(self, told: Told, there: Any) -> Any:
        """`there`: what is in its place."""
        kind = told[0]
        if kind == "tensor":
            return self._tensor(told, there)
        if kind == "dict":
            kept = there if isinstance(there, dict) else {}
            made = [(self.key(key), self.make(each, kept.get(self.key(key)))) for key, each in told[1]]
            kept.clear()
            kept.update(made)
            return kept
        if kind in ("list", "tuple"):
            before = there if type(there) in (list, tuple) else ()
            items = [self.make(each, before[n] if n < len(before) else None) for n, each in enumerate(told[1])]
            if kind == "tuple":
                return tuple(items)
            if type(there) is list:
                there[:] = items
                return there
            return items
        return self._parameters[told[1]] if kind == "parameter" else told[1]

    def _tensor(self, told: Told, there: Any) -> torch.Tensor:
        number, memory, *about = told[1:]
        found = self._states.of_number(number)
        if found is None and isinstance(there, torch.Tensor) and not self._states.has_number(there):
            found = there
        if found is None or _about(found) != about:
            found = self._new(memory, *about)
        self._states.give(found, number)
        self._memories.setdefault(memory, found.untyped_storage())
        return found

    def _new(
        self, memory: int, size: int, shape: Any, strides: Any, offset: int, dtype: str, device: str
    ) -> torch.Tensor:
        with torch.no_grad():
            if memory not in self._memories:
                self._memories[memory] = torch.zeros(size, dtype=torch.uint8, device=device).untyped_storage()
            tensor = torch.empty(0, dtype=getattr(torch, dtype), device=device)
            return tensor.set_(self._memories[memory], offset, shape, strides)


def _named(group: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, each) for name, each in group.items() if type(name) is str]


def _set_by_steps(value: Any) -> bool:
    strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return strided or type(value) in _PLAIN


def _about(tensor: torch.Tensor) -> list[Any]:
    place = [list(tensor.shape), list(tensor.stride()), int(tensor.storage_offset())]
    return [tensor.untyped_storage().nbytes(), *place, str(tensor.dtype).removeprefix("torch."), str(tensor.device)]
