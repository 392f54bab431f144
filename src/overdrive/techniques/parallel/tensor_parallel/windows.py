"""Views of a gathered whole: what a program writes to one (`weight.data[0].zero_()`) goes back into the parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from overdrive.seams.torch.internals import is_view, storage_id

_NO_WRITES = {"__init__", "__int__", "__index__", "__invert__", "__iter__"}


class Window(torch.Tensor):
    """
    Attributes:
        plain: the view.
        whole: what it is a view of.
        held: this rank's part of that.
        own: gives this rank's part of a whole.
    """

    plain: torch.Tensor
    whole: torch.Tensor
    held: torch.Tensor
    own: Callable[[torch.Tensor], torch.Tensor]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        first = next(iter((*args, *kwargs.values())), None)  # functions of `nn.init` ask with names alone
        written = kwargs.get("out") if "out" in kwargs else first if _writes(name) else None
        targets = [each for each in pytree.tree_leaves(written) if isinstance(each, Window)]
        for each in targets:
            if not torch.equal(each.own(each.whole.detach()), each.held.detach()):
                raise RuntimeError(f"`{name}` cannot write to a layer's weight by a view of what it was")
        args, kwargs = pytree.tree_map_only(Window, lambda each: each.plain, (args, kwargs))
        made = function(*args, **kwargs)
        for each in targets:
            each.held.copy_(each.own(each.whole))
        if not isinstance(first, Window):
            return made
        return first if made is first.plain else windows_in(made, first.whole, first.held, first.own)


def _writes(name: str) -> bool:
    if name.endswith("__"):
        return name == "__set__" or name == "__setitem__" or (name.startswith("__i") and name not in _NO_WRITES)
    return name.endswith("_") and name not in ("requires_grad_", "retain_grad_")


def windows_in(made: Any, whole: torch.Tensor, held: torch.Tensor, own: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`made`, in which views of the whole are windows."""

    def window(each: torch.Tensor) -> torch.Tensor:
        if type(each) is not torch.Tensor or not is_view(each) or storage_id(each) != storage_id(whole):
            return each
        shown = each.as_subclass(Window)
        shown.plain, shown.whole, shown.held, shown.own = each, whole, held, own
        return shown

    return pytree.tree_map_only(torch.Tensor, window, made)
