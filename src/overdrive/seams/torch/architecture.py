"""Depth and width of a model, changed as its optimizer is made: fewer or more of equal blocks, other hidden sizes.

What comes of it is another network, trained from its own beginning: nothing about it is proved, and a search compares
what it learns. New weights are drawn from those that the program itself drew for that tensor, so that they have the
scale of its own initialisation.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from overdrive.core.hyperparameters import DEPTH, WIDTH, ValuePlace
from overdrive.core.settings import Value
from overdrive.seams.torch.internals import is_batch_norm
from overdrive.seams.torch.modules import first_parameter, own_parameters

_NAMED = 3  # layers of one size, or with one setting, that are told by name
_LONGEST_BLOCK = 8  # modules in a row that are repeated together: convolution, normalisation, activation, ...
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
Layer = Any  # a linear layer or a convolution


def of_models(models: Iterable[nn.Module], optimizer: Any, values: Mapping[str, Value]) -> list[ValuePlace]:
    """The places as the program has them; those in `values` are set, in the optimizer too.

    Raises:
        ValueError: a value that the model cannot have.
    """
    roots = list(dict.fromkeys(models))
    places: dict[str, ValuePlace] = {}
    for model in roots:
        for stack in _stacks(model):
            places[stack.place.key] = stack.place
            if (wanted := values.get(stack.place.key)) is not None:
                stack.deepen(int(wanted), optimizer)
    hidden: defaultdict[int, list[_Hidden]] = defaultdict(list)
    for model in roots:
        for each in _hidden_layers(model):
            hidden[each.size].append(replace(each, name=f"{type(model).__name__}.{each.name}".rstrip(".")))
    for size, layers in hidden.items():
        place = ValuePlace(WIDTH, "width", size, of=named([each.name for each in layers]))
        places[place.key] = place
        if (wanted := values.get(place.key)) is not None:
            for each in layers:
                each.widen(int(wanted))
    return list(places.values())


@dataclass
class _Stack:
    """Equal blocks, one after the other, in a Sequential or a ModuleList."""

    holder: Any
    start: int
    period: int  # modules of a block
    count: int
    place: ValuePlace

    def deepen(self, count: int, optimizer: Any) -> None:
        if count < 1:
            raise ValueError("a model has one block or more")
        end = self.start + self.period * self.count
        if count < self.count:
            first = self.start + self.period * count
            _forget(optimizer, [each for block in self.holder[first:end] for each in block.parameters()])
            del self.holder[first:end]
            return
        last = list(self.holder[end - self.period : end])
        for number in range(count - self.count):
            for offset, module in enumerate(last):
                made = _drawn_anew(module, seed=number)
                _remember(optimizer, module, made)
                self.holder.insert(end + number * self.period + offset, made)


def _stacks(model: nn.Module) -> Iterator[_Stack]:
    for path, holder in model.named_modules():
        if not isinstance(holder, (nn.Sequential, nn.ModuleList)):
            continue
        start, period, count = _repeated([_signature(each) for each in holder])
        if count > 1:
            name = f"{type(model).__name__}.{path}".rstrip(".")
            yield _Stack(holder, start, period, count, ValuePlace(DEPTH, name, count))


def _signature(module: nn.Module | None) -> tuple[Any, ...]:
    """What two equal blocks have in common; their weights' values are not looked at."""
    if module is None:  # the place of a layer that this model does without: no block has it
        return object(), ()
    return repr(module), tuple((name, each.shape) for name, each in module.named_parameters())


def _repeated(rows: Sequence[tuple[Any, ...]]) -> tuple[int, int, int]:
    """Start, length and count of the block that is repeated over most modules, and has weights; count 0 for none."""
    best, most = (0, 1, 0), 1
    for period in range(1, min(_LONGEST_BLOCK, len(rows) // 2) + 1):
        for start in range(len(rows) - 2 * period + 1):
            block = rows[start : start + period]
            if not any(parameters for _, parameters in block):
                continue
            count = 1
            while list(rows[start + count * period : start + (count + 1) * period]) == list(block):
                count += 1
            if count > 1 and count * period > most:
                best, most = (start, period, count), count * period
    return best


def _drawn_anew(module: nn.Module, seed: int) -> nn.Module:
    made = copy.deepcopy(module)
    for number, parameter in enumerate(made.parameters()):
        flat = parameter.data.flatten()
        drawn = torch.randperm(flat.numel(), generator=torch.Generator().manual_seed(1000 * seed + number))
        parameter.data = flat[drawn.to(flat.device)].view_as(parameter)
    return made


def _forget(optimizer: Any, parameters: Sequence[Any]) -> None:
    gone = {id(each) for each in parameters}
    for group in optimizer.param_groups:
        kept = [number for number, each in enumerate(group["params"]) if id(each) not in gone]
        for names in ("params", "param_names"):  # names, where it was made of named parameters
            if names in group:
                group[names] = [group[names][number] for number in kept]


def _remember(optimizer: Any, old: nn.Module, new: nn.Module) -> None:
    """What is new is trained as what it was copied from."""
    twins = {id(one): other for one, other in zip(old.parameters(), new.parameters(), strict=True)}
    for group in optimizer.param_groups:
        for number, each in enumerate(list(group["params"])):
            if id(each) in twins:
                group["params"].append(twins[id(each)])
                if "param_names" in group:
                    group["param_names"].append(f"{group['param_names'][number]} ({len(group['params'])})")


@dataclass
class _Hidden:
    """Layers that give `size` channels, to the one layer that takes them; norms of these channels lie between."""

    name: str
    first: list[Layer]
    second: Layer
    norms: list[nn.Module] = field(default_factory=list)

    @property
    def size(self) -> int:
        return _gives(self.first[0])

    def widen(self, size: int) -> None:
        if size < 1:
            raise ValueError("a layer has one channel or more")
        old = self.size
        each = _takes(self.second) // old  # numbers of one channel: of an image, all its pixels
        for layer in self.first:
            _resize(layer, ("weight", "bias"), 0, size)
            setattr(layer, "out_features" if isinstance(layer, nn.Linear) else "out_channels", size)
        for norm in self.norms:
            _resize(norm, ("weight", "bias", "running_mean", "running_var"), 0, size)
            if isinstance(norm, nn.LayerNorm):
                norm.normalized_shape = (size,)
            else:
                norm.num_features = size  # type: ignore[assignment]
        _resize(self.second, ("weight",), 1, size * each)
        self.second.weight.data *= (old / size) ** 0.5  # sums of more numbers stay as large
        setattr(self.second, "in_features" if isinstance(self.second, nn.Linear) else "in_channels", size * each)


def named(layers: Sequence[str]) -> str:
    more = len(layers) - _NAMED
    return ", ".join(layers[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _hidden_layers(model: nn.Module) -> Iterator[_Hidden]:
    """Of each module, its layers in the order in which it has them; what has weights of another kind ends a chain."""
    shared = Counter(id(each) for module in model.modules() for each in own_parameters(module))
    names = {id(module): name for name, module in model.named_modules()}
    seen: set[int] = set()
    for parent in model.modules():
        if id(parent) in seen:
            continue
        chain: list[nn.Module | None] = []
        for module in _flat(parent, seen):
            if first_parameter(module) is not None:
                chain.append(module if _plain(module, shared) else None)
        beside = () if isinstance(parent, nn.Sequential) else parent.children()
        sizes = Counter((_takes(each), _gives(each)) for each in beside if _is_layer(each))
        yield from _pairs(chain, sizes, names)


def _flat(parent: nn.Module, seen: set[int]) -> Iterator[nn.Module]:
    """Its children, and in place of a Sequential what that has."""
    for child in parent.children():
        if isinstance(child, nn.Sequential):
            seen.add(id(child))
            yield from _flat(child, seen)
        else:
            yield child


def _plain(module: nn.Module, shared: Mapping[int, int]) -> bool:
    if any(shared[id(each)] > 1 or not each.requires_grad for each in module.parameters()):
        return False
    if _is_norm(module):
        return True
    return type(module) is nn.Linear or (type(module) in CONVOLUTIONS and bool(module.groups == 1))


def _pairs(
    chain: Sequence[nn.Module | None], sizes: Mapping[tuple[int, int], int], names: Mapping[int, str]
) -> Iterator[_Hidden]:
    place = 0
    while place < len(chain):
        begin = place
        first: list[Layer] = [chain[begin]]
        if not _is_layer(first[0]) or _in_parallel(first[0], sizes):
            place += 1
            continue
        while _is_layer(after := _at(chain, begin + len(first))) and _twins(first[0], after):
            first.append(after)  # gate and value of a gated layer
        end = begin + len(first)
        norms: list[Any] = []
        while _is_norm(after := _at(chain, end)) and _channels(after) == _gives(first[0]):
            norms.append(after)
            end += 1
        if _is_layer(after) and _takes(after) % _gives(first[0]) == 0 and _fits(first[0], after):
            yield _Hidden(names[id(first[0])], first, after, norms)
        place = begin + len(first)


def _at(chain: Sequence[nn.Module | None], place: int) -> nn.Module | None:
    return chain[place] if place < len(chain) else None


def _is_norm(module: nn.Module | None) -> bool:
    return isinstance(module, nn.LayerNorm) or is_batch_norm(module)


def _is_layer(module: nn.Module | None) -> bool:
    return isinstance(module, (nn.Linear, *CONVOLUTIONS))


def _twins(one: Layer, other: Layer) -> bool:
    """Both take the same, and neither what the other gives."""
    sizes = _takes(one), _gives(one)
    return type(one) is type(other) and sizes == (_takes(other), _gives(other)) and sizes[0] != sizes[1]


def _in_parallel(layer: Layer, sizes: Mapping[tuple[int, int], int]) -> bool:
    """Queries, keys and values: three layers or more of one size that lie beside each other."""
    return _takes(layer) == _gives(layer) and sizes[_takes(layer), _gives(layer)] > 2


def _fits(first: Layer, second: Layer) -> bool:
    """A convolution takes channels; a linear layer after one all their pixels."""
    same = _takes(second) == _gives(first)
    return same or (isinstance(second, nn.Linear) and not isinstance(first, nn.Linear))


def _gives(layer: Layer) -> int:
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)


def _takes(layer: Layer) -> int:
    return int(layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels)


def _channels(norm: Any) -> int:
    if isinstance(norm, nn.LayerNorm):
        return int(norm.normalized_shape[0]) if len(norm.normalized_shape) == 1 else 0
    return int(norm.num_features)


def _resize(module: Any, names: Sequence[str], dimension: int, size: int) -> None:
    for name in names:
        tensor = getattr(module, name, None)
        if tensor is not None:
            tensor.data = _resized(tensor.data, dimension, size)


def _resized(tensor: Any, dimension: int, size: int) -> Any:
    """The first `size` of what it has along a dimension; what is missing is drawn."""
    if size <= tensor.shape[dimension]:
        return tensor.narrow(dimension, 0, size).clone()
    return torch.cat([tensor, drawn(tensor, dimension, size)], dimension)


def drawn(tensor: Any, dimension: int, size: int) -> Any:
    """What it lacks of so many along a dimension, drawn from all that it has."""
    shape = list(tensor.shape)
    shape[dimension] = size - shape[dimension]
    places = torch.randint(tensor.numel(), shape, generator=torch.Generator().manual_seed(size))
    return tensor.flatten()[places.to(tensor.device)]
