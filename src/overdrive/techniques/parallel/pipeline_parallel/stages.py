"""A model's call in which this rank computes one stage, and knows of the others what shapes they make.

Every rank runs all of the model's code. Each function that is called belongs to a stage: that of the weights that it
takes, and without weights that of the function before. The stage's rank computes it. On the others it is called on
tensors of the device "meta", which have shapes and no data: so all ranks go the same way through the code, and know
without a word who needs what from whom. What stages do not hang on (masks, places), every rank computes by itself.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from overdrive.model_state.division.chance import Chance
from overdrive.model_state.sharded.kept import TOLD_METHODS
from overdrive.seams.torch.internals import unseen_by_modes
from overdrive.techniques.parallel.pipeline_parallel.placed import Placed, without_data
from overdrive.techniques.parallel.pipeline_parallel.transfers import Links, Received, Sent, packed, received

_TOLD = TOLD_METHODS | {"stride", "is_contiguous", "storage_offset", "type", "is_pinned", "__repr__", "__format__"}
_MADE = frozenset(("T", "mT", "H", "mH", "real", "imag", "data", "grad"))  # attributes that are tensors
_VALUES = frozenset(
    (
        *("__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__", "__array__", "__reversed__"),
        *("item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "data_ptr", "untyped_storage", "storage"),
    )
)
_WRITES = frozenset(
    (
        *("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__"),
        *("__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"),
    )
)
_KEY = "overdrive_stage"  # in a tensor's own attributes

_of_thread = threading.local()
_calls = itertools.count()


class Unstaged(Exception):
    """The call cannot be made in stages; the message is the reason, for people."""


class Stages(TorchFunctionMode):
    """One call of a model.

    Args:
        owners: by a weight's id, its stage, and whether functions that take it belong there; of others it is sent.
        chance: what draws rows of the whole batch's random numbers.
        anchor: see `transfers`; on the device of the model.
        written: ids of buffers that calls write to.

    Attributes:
        tokens: see `transfers`.
        given: ids of the arguments.
        wrote: by a buffer's id, the stage that wrote to it.
    """

    def __init__(
        self,
        links: Links,
        owners: Mapping[int, tuple[int, bool]],
        chance: Chance,
        anchor: torch.Tensor,
        written: Collection[int] = (),
    ) -> None:
        super().__init__()
        self._written = written
        self.wrote: dict[int, int] = {}
        self._links, self._owners, self._chance, self.anchor = links, owners, chance, anchor
        self._rank = links.rank
        self._weights: dict[int, Placed] = {}
        self._number, self._inside = next(_calls), 0
        self.current = 0
        self.tokens: list[torch.Tensor] = []
        self.given: set[int] = set()

    def __enter__(self) -> Any:
        _of_thread.stages = self
        self.current = 0
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        _of_thread.stages = None
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._inside += 1
        try:
            return self._act(function, getattr(function, "__name__", ""), args, kwargs or {})
        finally:
            self._inside -= 1

    def placed(self, tensor: torch.Tensor) -> Placed | None:
        """None where every rank has it."""
        key = id(tensor)
        if key in self._owners:
            if key not in self._weights:
                stage = self._owners[key][0]
                self._weights[key] = Placed(self._number, stage, stage == self._rank)
            return self._weights[key]
        placed: Placed | None = vars(tensor).get(_KEY)
        return placed if placed is not None and placed.call == self._number else None

    def value(self, tensor: torch.Tensor, placed: Placed | None) -> torch.Tensor:
        """On a rank that has it."""
        if placed is None or placed.own:
            return tensor
        assert placed.copy is not None
        return placed.copy

    def shape(self, tensor: torch.Tensor, placed: Placed | None) -> torch.Tensor:
        """One of the same kind without data."""
        if tensor.is_meta:
            return tensor
        if placed is None:
            return without_data(tensor)
        if placed.shape is None:
            placed.shape = without_data(tensor)
        return placed.shape

    # -- functions --------------------------------------------------------------------------------

    def _act(self, function: Any, name: str, args: Any, kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        known = [self.placed(each) if isinstance(each, torch.Tensor) else None for each in leaves]
        if not any(known) and not (torch.is_grad_enabled() and any(map(_has_gradient, leaves))):
            return function(*args, **kwargs)
        if name in _TOLD or (name == "__get__" and function.__self__.__name__ not in _MADE):
            return self._told(function, name, leaves, known, spec)
        if name in _VALUES:
            raise Unstaged(f"its code looks at values that its layers make (`{name}`)")
        stage = self._stage(leaves, known)
        for leaf, placed in _both(leaves, known):
            if id(leaf) in self._written:
                self.wrote[id(leaf)] = stage
            if placed is not None and placed.stage != stage and stage not in placed.sent:
                self._pass(leaf, placed, stage)
        if stage == self._rank:
            given = [
                self.value(leaf, p) if isinstance(leaf, torch.Tensor) else leaf for leaf, p in _both(leaves, known)
            ]
        else:
            given = [self._shape_of(leaf, placed, name) for leaf, placed in _both(leaves, known)]
        own_args, own_kwargs = pytree.tree_unflatten(given, spec)
        if stage != self._rank and "device" in own_kwargs:
            own_kwargs["device"] = "meta"
        made = function(*own_args, **own_kwargs)
        if name in _WRITES or (name.endswith("_") and not name.endswith("__")):
            self._moved(leaves[0], given[0], stage)
        return self._marked(made, leaves, given, stage)

    def _stage(self, leaves: Sequence[Any], known: Sequence[Placed | None]) -> int:
        for leaf, placed in _both(leaves, known):
            if placed is None and id(leaf) not in self.given and torch.is_grad_enabled() and _has_gradient(leaf):
                raise Unstaged("it uses what has a gradient, and is no argument or weight that its first call used")
            owner = self._owners.get(id(leaf))
            if owner is not None and owner[1]:
                self.current = owner[0]
        return self.current

    def _pass(self, tensor: torch.Tensor, placed: Placed, stage: int) -> None:
        """Have its value there, too."""
        placed.sent.add(stage)
        number = self._links.number()
        recorded = torch.is_grad_enabled() and self.shape(tensor, placed).requires_grad
        if self._rank == placed.stage:
            value = self.value(tensor, placed)
            if recorded:
                self.tokens.append(Sent.apply(value, self.anchor, self._links, stage, number))  # type: ignore[no-untyped-call]
            else:
                self._links.send(packed(value), stage, number)
        elif self._rank == stage:
            like = self.shape(tensor, placed)
            if recorded:
                placed.copy, token = Received.apply(self.anchor, self._links, placed.stage, number, like)  # type: ignore[no-untyped-call]
                self.tokens.append(token)
            else:
                placed.copy = received(self._links, placed.stage, number, like, self.anchor.device)

    def _shape_of(self, leaf: Any, placed: Placed | None, name: str) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self.shape(leaf, placed)
        if isinstance(leaf, torch.device) or (name == "to" and leaf == str(self.anchor.device)):
            return torch.device("meta")
        return leaf

    def _told(self, function: Any, name: str, leaves: Any, known: Any, spec: Any) -> Any:
        """What the tensor itself says, or what has its shape."""
        if name == "__get__" and function.__self__.__name__ in ("device", "is_cpu", "is_meta", "is_cuda"):
            return function(self.anchor)
        given = [
            (leaf if placed.own else self.shape(leaf, placed)) if placed is not None else leaf
            for leaf, placed in _both(leaves, known)
        ]
        args, kwargs = pytree.tree_unflatten(given, spec)
        return function(*args, **kwargs)

    # -- results ----------------------------------------------------------------------------------

    def _marked(self, made: Any, leaves: Sequence[Any], given: Sequence[Any], stage: int) -> Any:
        if isinstance(made, torch.Tensor):
            return self._mark(made, leaves, given, stage)
        if isinstance(made, (tuple, list)) and not isinstance(made, torch.Size):
            return pytree.tree_map_only(torch.Tensor, lambda each: self._mark(each, leaves, given, stage), made)
        return made

    def _mark(self, made: torch.Tensor, leaves: Sequence[Any], given: Sequence[Any], stage: int) -> torch.Tensor:
        for leaf, other in zip(leaves, given, strict=True):
            if made is other:
                self._moved(leaf, other, stage)
                whole: torch.Tensor = leaf
                return whole
        vars(made)[_KEY] = Placed(self._number, stage, stage == self._rank)
        return made

    def _moved(self, tensor: Any, given: Any, stage: int) -> None:
        """It is written to in this stage, or handed through."""
        if not isinstance(tensor, torch.Tensor):
            return
        placed, here = self.placed(tensor), stage == self._rank
        if placed is None:
            vars(tensor)[_KEY] = placed = Placed(self._number, stage, here)
            placed.shape = None if here else given
        elif placed.stage != stage:
            placed.move(stage, False, given if here else None)
        elif id(tensor) not in self._owners:
            placed.sent.clear()  # other stages have what it was

    # -- chance -----------------------------------------------------------------------------------

    def drawn(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """An answer to the seam *random drawn*: where this rank has no data the generator goes on as if it had."""
        if self._inside:
            return self._draw(name, call, args, kwargs)

        def whole(*own: Any, **named: Any) -> Any:
            made = self._draw(name, call, own, named)
            return call(*own, **named) if made is None else made

        with unseen_by_modes():
            self._inside += 1
            try:
                return self._act(whole, name, args, kwargs)
            finally:
                self._inside -= 1

    def _draw(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        tensors = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        if not any(each.is_meta for each in tensors):
            return self._chance.answer(name, call, args, kwargs)
        stood = pytree.tree_map_only(torch.Tensor, self._stand_in, (args, kwargs))
        with torch.no_grad():
            if self._chance.answer(name, call, *stood) is None:
                call(*stood[0], **stood[1])
        return call(*args, **kwargs)

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_meta:
            return tensor
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=self.anchor.device)


def running() -> Stages | None:
    """The call that this thread makes in stages."""
    return getattr(_of_thread, "stages", None)


def of_a_stage(thing: Any) -> bool:
    """Whether it is a tensor that a stage has made, in whatever call: other ranks have no more than its shape."""
    return isinstance(thing, torch.Tensor) and _KEY in vars(thing)


def _both(leaves: Sequence[Any], known: Sequence[Placed | None]) -> Any:
    return zip(leaves, known, strict=True)


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad
