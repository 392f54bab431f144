"""What is computed from what, within a call: which tensors can only be the same, whoever of several computes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from overdrive.seams.torch.internals import schema_of, storage_id
from overdrive.seams.torch.reads import SHAPE_ONLY, is_for_a_seed, looks_at_values

UNKNOWN, SAME, MARKED = 0, 1, 2
Chain = list[tuple[str, list[Any]]]  # operations, each by its name, with what it was given


class Following(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The same are those that are said to be, and what is computed from such alone, without a draw: constants, too.

    Args:
        own: ids of the memory of what is the same, and of which reads do not count.
        same: further tensors.

    Attributes:
        reads: of each operation that looked at values (`SHAPE_ONLY` apart), whether these are the same.
        chain: the operations on what comes from marked tensors alone, with all else that they were given.
    """

    def __init__(self, own: Collection[int], same: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reads: list[bool] = []
        self.chain: Chain = []
        self._own = own
        self._kinds = dict.fromkeys(own, SAME)
        self._kept: list[torch.Tensor] = []  # or another would get its memory, and its name
        for each in same:
            self._name(each, SAME)

    def mark(self, tensor: torch.Tensor) -> None:
        self._name(tensor, MARKED)

    def kind(self, tensor: torch.Tensor) -> int:
        return self._kinds.get(storage_id(tensor), UNKNOWN)

    def _name(self, tensor: torch.Tensor, kind: int) -> None:
        place = storage_id(tensor)
        if kind == UNKNOWN:
            self._kinds.pop(place, None)
        elif self._kinds.get(place) != kind:
            self._kinds[place] = kind
            self._kept.append(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs))
        tensors = [each for each in given if isinstance(each, torch.Tensor)]
        kinds = [self.kind(each) for each in tensors]
        kind = UNKNOWN if UNKNOWN in kinds else max(kinds, default=SAME)
        if kind == MARKED:
            self.chain.append((str(func), [self._beside(each) for each in given]))
        if looks_at_values(func) and not self._is_no_matter(func, tensors):
            self.reads.append(kind != UNKNOWN)
        if str(func) == "aten.lift_fresh.default":  # of `torch.tensor`, which makes it of Python's numbers
            kind = SAME
        if torch.Tag.nondeterministic_seeded in func.tags:
            kind = UNKNOWN
        made = func(*args, **kwargs)
        for each in (*tree_leaves(made), *_written(func, args, kwargs)):
            if isinstance(each, torch.Tensor):
                self._name(each, kind)
        return made

    def _is_no_matter(self, func: Any, tensors: list[torch.Tensor]) -> bool:
        own = bool(tensors) and storage_id(tensors[0]) in self._own
        return own or any(word in str(func) for word in SHAPE_ONLY) or is_for_a_seed()

    def _beside(self, given: Any) -> Any:
        """What an operation was given; of what comes from marked tensors it is known by what came before."""
        if not isinstance(given, torch.Tensor):
            return given
        return "marked" if self.kind(given) == MARKED else given.detach().clone()


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """The tensors that it writes to."""
    if not schema_of(func).is_mutable:
        return []
    found: list[Any] = []
    for place, argument in enumerate(schema_of(func).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tree_leaves(args[place] if place < len(args) else kwargs.get(argument.name))
    return found
