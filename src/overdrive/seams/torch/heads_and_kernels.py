"""Heads of attention and kernel sizes of convolutions, changed as the optimizer is made, where all shapes around stay.

Another number of heads divides the same weights otherwise. A kernel grows or shrinks by its border, and the padding
with it, so that it gives as many pixels as before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from overdrive.core.hyperparameters import HEADS, KERNEL, ValuePlace
from overdrive.core.settings import Value
from overdrive.seams.torch.architecture import CONVOLUTIONS, drawn, named

_COUNTS = ("num_heads", "n_heads", "n_head", "nhead", "heads", "num_attention_heads")
_SIZES = ("head_dim", "head_size", "dim_head", "d_head", "attention_head_size")
_SCALES = ("scale", "scaling")
_LEAST_KERNEL = 3  # of one pixel there is no border


def of_models(models: Iterable[nn.Module], values: Mapping[str, Value]) -> list[ValuePlace]:
    """The places as the program has them, those of one value together; those in `values` are set.

    Raises:
        ValueError: a value that the model cannot have.
    """
    groups: defaultdict[tuple[str, int], list[tuple[str, _Heads | _Kernel]]] = defaultdict(list)
    for model in dict.fromkeys(models):
        for name, part in _parts(model):
            groups[part.kind, part.value].append((name, part))
    places = []
    for (kind, value), parts in groups.items():
        allowed = set.intersection(*(part.allowed() for _, part in parts))
        if len(allowed) < 2:
            continue
        of = named([name for name, _ in parts])
        place = ValuePlace(kind, kind, value, of=of, choices=tuple(str(each) for each in sorted(allowed)))
        places.append(place)
        if (wanted := values.get(place.key)) is None:
            continue
        if int(wanted) not in set.intersection(*(part.possible(int(wanted)) for _, part in parts)):
            raise ValueError(f"the model cannot have {kind} {wanted}")
        for _, part in parts:
            part.set(int(wanted))
    return places


@dataclass
class _Heads:
    module: Any
    count: str  # the attributes
    size: str
    channels: int
    kind: str = HEADS

    @property
    def value(self) -> int:
        return int(getattr(self.module, self.count))

    def allowed(self) -> set[int]:
        return {each for each in (self.value // 2, self.value, 2 * self.value) if self.possible(each)}

    def possible(self, count: int) -> set[int]:
        return {count} if count > 0 and self.channels % count == 0 else set()

    def set(self, count: int) -> None:
        old, new = self.channels // self.value, self.channels // count
        setattr(self.module, self.count, count)
        if self.size:
            setattr(self.module, self.size, new)
        for name in _SCALES:
            if isinstance(scale := getattr(self.module, name, None), float) and abs(scale - old**-0.5) < 1e-6:
                setattr(self.module, name, new**-0.5)


@dataclass
class _Kernel:
    module: Any
    kind: str = KERNEL

    @property
    def value(self) -> int:
        return int(self.module.kernel_size[0])

    def allowed(self) -> set[int]:
        return {each for each in (self.value - 2, self.value, self.value + 2) if self.possible(each)}

    def possible(self, size: int) -> set[int]:
        return {size} if size > 0 and (size - self.value) % 2 == 0 and min(self._padding(size)) >= 0 else set()

    def _padding(self, size: int) -> tuple[int, ...]:
        border = (size - self.value) // 2
        return tuple(
            padding + border * dilation
            for padding, dilation in zip(self.module.padding, self.module.dilation, strict=True)
        )

    def set(self, size: int) -> None:
        module, old = self.module, self.value
        module.padding = self._padding(size)
        module.kernel_size = (size,) * len(module.kernel_size)
        weight = module.weight
        for dimension in range(2, weight.dim()):
            weight.data = _bordered(weight.data, dimension, size)
        weight.data *= (old / size) ** ((weight.dim() - 2) / 2)  # sums of more numbers stay as large


def _parts(model: nn.Module) -> Iterator[tuple[str, _Heads | _Kernel]]:
    for name, module in model.named_modules():
        if type(module) in CONVOLUTIONS:
            if _can_change(module):
                yield name, _Kernel(module)
        elif heads := _heads_of(module):
            yield name, heads


def _can_change(module: Any) -> bool:
    """Of one size in all directions, with weights of its own and zeros around."""
    plain = not isinstance(module.padding, str) and module.padding_mode == "zeros" and module.weight.requires_grad
    return plain and len(set(module.kernel_size)) == 1 and module.kernel_size[0] >= _LEAST_KERNEL


def _heads_of(module: Any) -> _Heads | None:
    count = next((name for name in _COUNTS if _is_count(getattr(module, name, None))), "")
    if not count or any(_is_count(getattr(child, count, None)) for child in module.children()):
        return None  # or a holder of those that attend
    size = next((name for name in _SIZES if _is_count(getattr(module, name, None))), "")
    if size:
        return _Heads(module, count, size, getattr(module, count) * getattr(module, size))
    taken = [child.in_features for child in module.children() if isinstance(child, nn.Linear)]
    return _Heads(module, count, "", min(taken)) if taken else None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _bordered(tensor: Any, dimension: int, size: int) -> Any:
    """The middle of what it has along a dimension, or a border that is drawn."""
    old = tensor.shape[dimension]
    if size <= old:
        return tensor.narrow(dimension, (old - size) // 2, size).clone()
    before, after = drawn(tensor, dimension, size).split((size - old) // 2, dimension)
    return torch.cat([before, tensor, after], dimension)
