"""Modules of which each rank has parts of the weights.

The parts lie in the program's own parameters. Who asks the module for a weight, as its own code does, is given a
`Part`, which looks whole. A `state_dict` and a pickled module have the whole weights.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from overdrive.seams.torch.modules import TellsOfLoading, another, parameters_in
from overdrive.techniques.parallel.tensor_parallel.cuts import Cut
from overdrive.techniques.parallel.tensor_parallel.parts import Part, weight_of
from overdrive.techniques.parallel.tensor_parallel.shards import shards


class Divided(TellsOfLoading):
    """
    Attributes:
        plain: the class that the module had.
        divided_as: by attribute, the name of the weight in its model, and how it is divided; None: not decided yet.
    """

    plain: type[nn.Module]
    divided_as: dict[str, tuple[str, Cut | None]]

    def __getattr__(self, name: str) -> Any:
        found: Any = super().__getattr__(name)
        known = vars(self)["divided_as"].get(name)
        if known is None or found is None or isinstance(found, Part):
            return found
        full, cut = known
        return weight_of(full, found if cut is None else shards().weight(found, cut), cut)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        found, prefix = super().state_dict(*args, **kwargs), kwargs.get("prefix", "")
        for name, (_, cut) in self.divided_as.items():
            if (key := prefix + name) in found and cut is not None:
                found[key] = shards().gather(found[key].detach(), cut)
        return found

    def about_to_load(self, state: dict[str, Any], prefix: str) -> None:
        for name, (_, cut) in self.divided_as.items():
            given = state.get(prefix + name)
            if (
                isinstance(given, torch.Tensor)
                and cut is not None
                and given.shape[cut.dim : cut.dim + 1] == (cut.size,)
            ):
                state[prefix + name] = part_of(given, cut)

    def __deepcopy__(self, memo: Any) -> Divided:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__ = copy.deepcopy(self.__dict__, memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled, it is a module of its own class with whole weights."""
        own = parameters_in(self)
        wholes = {name: _whole(own[name], cut) for name, (_, cut) in self.divided_as.items() if cut is not None}
        # Later protocols insist on the class that is pickled.
        return another(self, self.plain, wholes, "divided_as").__reduce_ex__(1)


_wholes: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # being pickled, by the parameter's id


def _whole(parameter: Any, cut: Cut) -> Any:
    """The same object for modules that share a weight, which they then share where it is loaded."""
    now = shards().gather(parameter.detach(), cut)
    made = _wholes.get(id(parameter))
    if made is None or not torch.equal(made, now):
        made = _wholes[id(parameter)] = nn.Parameter(now, parameter.requires_grad)
    return made


@functools.cache
def _over(plain: Any) -> type[Divided]:
    """A class of the same name, which is printed."""
    return type(plain.__name__, (Divided, plain), {"plain": plain, "__module__": plain.__module__})


def shown(model: nn.Module, cuts: Mapping[str, Cut | None]) -> None:
    """Have the modules give these weights as parts.

    Args:
        cuts: by a weight's name in the model; a weight of several modules has the name that comes first.
    """
    names = {id(each): name for name, each in model.named_parameters() if name in cuts}
    for module in model.modules():
        own = {name: names[id(each)] for name, each in parameters_in(module).items() if id(each) in names}
        if own:
            vars(module)["divided_as"] = {name: (full, cuts[full]) for name, full in own.items()}
            kind: Any = type(module)
            module.__class__ = _over(kind)


def plain_again(model: nn.Module) -> None:
    """Undo `shown`."""
    for module in model.modules():
        if isinstance(module, Divided):
            kind: Any = module.plain
            module.__class__ = kind
            del vars(module)["divided_as"]


def divide(model: nn.Module, cuts: Mapping[str, Cut]) -> dict[torch.Tensor, Cut]:
    """Leave this rank its part of each weight, for good: parameters stay the same objects, of other shapes.

    Returns:
        Those that are divided, and how.
    """
    shown(model, cuts)
    found: dict[torch.Tensor, Cut] = {each: cuts[name] for name, each in model.named_parameters() if name in cuts}
    for parameter, cut in found.items():
        parameter.data = part_of(parameter.data, cut)
    return found


def part_of(whole: torch.Tensor, cut: Cut) -> torch.Tensor:
    """This rank's, as a copy: the whole can be freed."""
    return cut.part(whole, shards().rank, shards().size).clone(memory_format=torch.contiguous_format)
