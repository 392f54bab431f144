"""What tensors hold, copied, so that a call can be made again with what they held, whatever they hold by then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from overdrive.model_state.reach import Reach, tensors_of
from overdrive.seams.torch.internals import storage_id

_ALIGNED = 64  # bytes, as torch's allocator does; a product of what lies elsewhere may come out in other bits


class Contents:
    """Of the parameters and buffers of modules, and of other tensors that their calls can reach."""

    def __init__(self, reach: Reach) -> None:
        self._modules = reach.modules
        self._others = reach.tensors
        owned = {id(each): each for module in reach.modules for each in tensors_of(module)}
        self.tensors = [*owned.values(), *reach.tensors]
        with torch.no_grad():
            self.copies = [each.detach().clone() for each in self.tensors]
        self._flags = [each.requires_grad for each in self.tensors]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The modules have the copies in the place of theirs."""
        for tensor, copy, flag in zip(self.tensors, self.copies, self._flags, strict=True):
            copy.requires_grad_(flag)
            if isinstance(tensor, nn.Parameter):
                copy.__class__ = nn.Parameter  # a program may ask
        copies = {id(tensor): copy for tensor, copy in zip(self.tensors, self.copies, strict=True)}
        now = [each.data for each in self._others]
        with swapped(self._modules, copies):
            for each in self._others:  # it is not known who refers to it
                each.data = copies[id(each)].detach()
            try:
                yield
            finally:
                for each, data in zip(self._others, now, strict=True):
                    each.data = data


def fault_of_copies(reach: Reach) -> str:
    """Why copies of these tensors would not do in their place, in words; empty where they would."""
    tensors = {id(each): each for module in reach.modules for each in tensors_of(module)}
    tensors.update({id(each): each for each in reach.tensors})
    for each in tensors.values():
        if type(each) not in (torch.Tensor, nn.Parameter, nn.Buffer) or each.layout is not torch.strided:
            return f"a {type(each).__name__} of a kind of its own"
        if each.is_inference() or each.data_ptr() % _ALIGNED:
            return "a tensor that begins at an odd place"
    if len({storage_id(each) for each in tensors.values()}) < len(tensors):
        return "tensors that share their memory"
    return ""


@contextmanager
def swapped(modules: Sequence[nn.Module], others: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Within it, these modules have other parameters and buffers, by the id of those in whose place they stand.

    `torch.func.functional_call` passes over the weights of an LSTM.
    """
    before: list[tuple[dict[str, Any], str, Any]] = []
    lists: list[tuple[dict[str, Any], Any, Any]] = []
    try:
        for module in modules:
            for holder in (module._parameters, module._buffers):
                for name, tensor in holder.items():
                    if id(tensor) in others:
                        before.append((holder, name, tensor))
                        holder[name] = others[id(tensor)]  # type: ignore[assignment]
            if isinstance(module, nn.RNNBase):
                # It has a list of its weights, and finds by weak references that it is out of date.
                lists.append((vars(module), vars(module)["_flat_weights"], vars(module)["_flat_weight_refs"]))
                module._flat_weights = [
                    None if each is None else others.get(id(each), each) for each in module._flat_weights
                ]
        yield
    finally:
        for space, weights, references in lists:
            space["_flat_weights"], space["_flat_weight_refs"] = weights, references
        for holder, name, tensor in before:
            holder[name] = tensor
