"""What tensors hold, copied, so that a call can be made again with what they held, whatever they hold by then."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from overdrive.model_state.reach import Reach
from overdrive.seams.torch.internals import storage_id, storage_owners, version_of
from overdrive.seams.torch.modules import swapped, tensors_in

_SMALL = 4 << 10  # bytes
_ALONE = 2  # owners of a tensor's memory: it, and the handle to ask with
_ALIGNED = 64  # bytes, as torch's allocator does; a product of what lies elsewhere may come out in other bits


class Contents:
    """Of the parameters and buffers of modules, and of other tensors that their calls can reach, as a call begins.

    Large parameters are copied only when they are about to be written to unseen (see `seams.torch.raw_access`), or at
    the call's end where no operation has saved them: what is saved nobody may write to, or PyTorch will not go back.
    """

    def __init__(self, reach: Reach) -> None:
        self._modules = reach.modules
        self._others = reach.tensors
        owned = {id(each): each for module in reach.modules for each in tensors_in(module)}
        self.tensors = [*owned.values(), *reach.tensors]
        self._flags = [each.requires_grad for each in self.tensors]
        self._copies: dict[int, torch.Tensor] = {}
        self._large: dict[int, tuple[torch.Tensor, int]] = {}  # those that are not copied, with their versions
        for each in self.tensors:
            if is_copied_at_once(each) or storage_owners(each.untyped_storage()) not in (None, _ALONE):
                self._copy(each)
            else:
                self._large[id(each)] = each, version_of(each)
                _large.setdefault(id(each), weakref.WeakSet()).add(self)
        if self._large:
            weakref.finalize(self, _forget, tuple(self._large))

    @property
    def standing_in(self) -> list[torch.Tensor]:
        """What is in the place of each tensor when the call is made again."""
        return [self._copies.get(id(each), each) for each in self.tensors]

    def call_ends(self, saved: set[int]) -> None:
        """`saved`: the memories of which something was saved."""
        for each, _ in tuple(self._large.values()):
            if storage_id(each) not in saved:
                self._copy(each)

    def uncopied(self) -> list[tuple[torch.Tensor, int]]:
        """Tensors with the versions that they had."""
        return list(self._large.values())

    def written_unseen(self, tensor: torch.Tensor) -> None:
        """It may be, from now on."""
        if id(tensor) in self._large:
            self._copy(tensor)

    def _copy(self, tensor: torch.Tensor) -> None:
        with torch.no_grad():
            self._copies[id(tensor)] = tensor.detach().clone()
        self._large.pop(id(tensor), None)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The modules have the copies in the place of theirs."""
        for tensor, flag in zip(self.tensors, self._flags, strict=True):
            copy = self._copies.get(id(tensor))
            if copy is not None:
                copy.requires_grad_(flag)
                if isinstance(tensor, nn.Parameter):
                    copy.__class__ = nn.Parameter  # a program may ask
        now = [each.data for each in self._others]
        with swapped(self._modules, self._copies):
            for each in self._others:  # it is not known who refers to it
                each.data = self._copies[id(each)].detach()
            try:
                yield
            finally:
                for each, data in zip(self._others, now, strict=True):
                    each.data = data


def is_copied_at_once(tensor: torch.Tensor) -> bool:
    return tensor.nbytes <= _SMALL or not isinstance(tensor, nn.Parameter)


def about_to_be_written(tensor: torch.Tensor) -> None:
    """Somebody takes hold of its memory in a way that PyTorch does not count."""
    for contents in tuple(_large.get(id(tensor), ())):
        contents.written_unseen(tensor)


def _forget(keys: tuple[int, ...]) -> None:
    for key in keys:
        if not _large.get(key, True):
            del _large[key]


_large: dict[int, weakref.WeakSet[Contents]] = {}  # by tensors' ids: whose content hangs on them


def fault_of_copies(reach: Reach) -> str:
    """Why copies of these tensors would not do in their place, in words; empty where they would."""
    tensors = {id(each): each for module in reach.modules for each in tensors_in(module)}
    tensors.update({id(each): each for each in reach.tensors})
    for each in tensors.values():
        if type(each) not in (torch.Tensor, nn.Parameter, nn.Buffer) or each.layout is not torch.strided:
            return f"a {type(each).__name__} of a kind of its own"
        if each.is_inference() or each.data_ptr() % _ALIGNED:
            return "a tensor that begins at an odd place"
    if len({storage_id(each) for each in tensors.values()}) < len(tensors):
        return "tensors that share their memory"
    return ""
