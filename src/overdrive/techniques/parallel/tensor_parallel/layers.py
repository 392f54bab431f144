"""Linear layers of which each rank has a part: the first of a pair by its outputs, the second by its inputs.

What goes into the first and comes out of the second is the same on all ranks. A part of the weights lies in the
program's own parameters; a `state_dict` and a pickled module have the whole ones.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import nn
from torch.nn import functional as F


class Shards(Protocol):
    """Who has the parts."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def part(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's, of a parameter."""

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Over ranks, in its place."""

    def gather(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """All ranks' parts, one after the other."""


_parts: list[Shards] = []  # of this process: no module holds them, so that modules can be copied


def parts() -> Shards:
    return _parts[-1]


def divided_by(them: Shards) -> Callable[[], None]:
    """From here on; returns what ends it."""
    _parts.append(them)
    return lambda: _parts.remove(them)


class Entered(torch.autograd.Function):
    """What all ranks have, into their parts; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, whole: Any) -> Any:
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return Summed.apply(gradient)  # type: ignore[no-untyped-call]


class Summed(torch.autograd.Function):
    """The sum of all ranks' parts; all of them have its gradient."""

    @staticmethod
    def forward(ctx: Any, part: Any) -> Any:
        return parts().sum_(part.detach().clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return Entered.apply(gradient)  # type: ignore[no-untyped-call]


class _Divided(nn.Linear):
    """`in_features` and `out_features` are those of the whole."""

    dims: ClassVar[dict[str, int]]  # of each parameter that is divided, along which dimension

    def __deepcopy__(self, memo: Any) -> _Divided:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__ = copy.deepcopy(self.__dict__, memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled, it is a plain layer with whole weights."""
        plain = nn.Linear(1, 1, bias=self.bias is not None, device="meta")
        plain.in_features, plain.out_features, plain.training = self.in_features, self.out_features, self.training
        for name, parameter in self.named_parameters(recurse=False):
            whole = parts().gather(parameter, self.dims[name]) if name in self.dims else parameter.detach()
            setattr(plain, name, nn.Parameter(whole, parameter.requires_grad))
        return plain.__reduce_ex__(1)  # later protocols insist on the class that is pickled


class ColumnLinear(_Divided):
    """Has rows of the weight, which make a part of the outputs."""

    dims: ClassVar[dict[str, int]] = {"weight": 0, "bias": 0}

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        them = parts()
        bias = None if self.bias is None else them.part(self.bias, 0)
        return F.linear(Entered.apply(input), them.part(self.weight, 0), bias)  # type: ignore[no-untyped-call]


class RowLinear(_Divided):
    """Has columns of the weight, for a part of the inputs; the bias is whole, and added once."""

    dims: ClassVar[dict[str, int]] = {"weight": 1}

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        made = Summed.apply(F.linear(input, parts().part(self.weight, 1)))  # type: ignore[no-untyped-call]
        return made if self.bias is None else made + self.bias  # type: ignore[no-any-return]


def divide(pair: Sequence[nn.Module]) -> dict[torch.Tensor, int]:
    """Make this pair a divided one, in place: the parameters stay the same objects, of other shapes.

    Returns:
        Those that are divided, with their dimension.
    """
    found: dict[torch.Tensor, int] = {}
    for module, kind in zip(pair, (ColumnLinear, RowLinear), strict=True):
        module.__class__ = kind
        module.register_state_dict_post_hook(_gathered)  # type: ignore[no-untyped-call]
        module.register_load_state_dict_pre_hook(_taken_apart)  # type: ignore[no-untyped-call]
        for name, parameter in module.named_parameters(recurse=False):
            if name in kind.dims:
                found[parameter] = kind.dims[name]
                parameter.data = part_of(parameter.data, kind.dims[name], parts())
    return found


def part_of(whole: torch.Tensor, dim: int, them: Shards) -> torch.Tensor:
    """A copy: the whole can be freed."""
    return whole.tensor_split(them.size, dim)[them.rank].clone(memory_format=torch.contiguous_format)


def _gathered(module: Any, state: Any, prefix: str, metadata: Any) -> None:
    for name, dim in module.dims.items():
        if (key := prefix + name) in state:
            state[key] = parts().gather(state[key], dim)


def _taken_apart(module: Any, state: Any, prefix: str, *_: Any) -> None:
    for name, dim in module.dims.items():
        whole = module.out_features if dim == 0 else module.in_features
        if isinstance(given := state.get(prefix + name), torch.Tensor) and given.shape[dim : dim + 1] == (whole,):
            state[prefix + name] = part_of(given, dim, parts())
