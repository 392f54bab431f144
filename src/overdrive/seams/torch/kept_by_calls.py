"""What a model keeps of its calls on its modules (a hidden state, attention to be looked at) where these compute in
another type than the program's: given back in the program's own, as results are.

Which modules keep something is looked for in a model's first call of each mode, and in every 256th.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from overdrive.seams.torch.modules import buffers_in

_LOOKS_EVERY = 256  # calls of a model
_KINDS = (torch.Tensor, tuple, list, dict)  # of values that are looked into
_FIXED = (torch.Tensor, tuple)  # those that a call does not add to
_MOST_LEAVES = 256


class KeptByCalls:
    """
    Attributes:
        apart: ids of tensors that are no values of the model's.
    """

    def __init__(self, own: torch.dtype, other: torch.dtype, back_in: bool = False) -> None:
        """
        Args:
            own: the program's type.
            other: that of the call.
            back_in: whether the next call of the model has them in its type again.
        """
        self.apart: Container[int] = ()
        self._own, self._other, self._back_in = own, other, back_in
        self._models: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()

    @contextmanager
    def given_back(self, model: torch.nn.Module) -> Iterator[None]:
        """Around a call; not where it fails, which is undone."""
        known = self._models.setdefault(model, _Known())
        narrowed = [each for place in known.places for each in self._narrowed(place)] if self._back_in else []
        before = [
            (module, table, table.copy())
            for module in known.looked_at(model)
            for table in (vars(module), buffers_in(module))
        ]
        try:
            yield
        finally:
            for table, name, own, other in narrowed:
                if table.get(name) is other:
                    table[name] = own
        for module, table, values in before:
            names = [name for name, value in table.items() if value is not values.get(name) and self._holds(value)]
            for name in names:
                table[name] = self._cast(table[name], self._other, self._own)
                known.keep(module, name)

    def _narrowed(self, place: tuple[weakref.ref[torch.nn.Module], str]) -> Iterable[tuple[Any, str, Any, Any]]:
        """Put in the call's type: where, as it was, and as it is now."""
        module, name = place[0](), place[1]
        for table in () if module is None else (vars(module), buffers_in(module)):
            value = table.get(name)
            if isinstance(value, _FIXED):
                table[name] = self._cast(value, self._own, self._other)
                yield table, name, value, table[name]

    def _holds(self, value: Any) -> bool:
        if not isinstance(value, _KINDS) or isinstance(value, torch.nn.Parameter):
            return False
        leaves = tree_leaves(value)
        return len(leaves) <= _MOST_LEAVES and any(
            isinstance(each, torch.Tensor) and each.dtype == self._other and id(each) not in self.apart
            for each in leaves
        )

    def _cast(self, value: Any, old: torch.dtype, new: torch.dtype) -> Any:
        def leaf(each: Any) -> Any:
            fits = isinstance(each, torch.Tensor) and each.dtype == old and id(each) not in self.apart
            return each.to(new) if fits else each

        return tree_map(leaf, value)


class _Known:
    """Of one model."""

    def __init__(self) -> None:
        self.places: list[tuple[weakref.ref[torch.nn.Module], str]] = []
        self.keepers: list[weakref.ref[torch.nn.Module]] = []
        self._calls = 0
        self._modes: set[bool] = set()

    def looked_at(self, model: torch.nn.Module) -> list[torch.nn.Module]:
        """In the call that is about to be made."""
        self._calls += 1
        due = model.training not in self._modes or not self._calls % _LOOKS_EVERY
        self._modes.add(model.training)
        if not due:
            return [each for ref in self.keepers if (each := ref()) is not None]
        # TorchScript's own table makes new objects each time it is asked.
        return [each for each in model.modules() if not isinstance(each, torch.jit.ScriptModule)]

    def keep(self, module: torch.nn.Module, name: str) -> None:
        if not any(ref() is module and known == name for ref, known in self.places):
            self.places.append((weakref.ref(module), name))
        if not any(ref() is module for ref in self.keepers):
            self.keepers.append(weakref.ref(module))
