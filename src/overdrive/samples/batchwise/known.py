"""Which transforms are known as which step: by the exact name of their class, as far as their attributes ask for that.

That the result is the same in every bit is not taken from the name but tried (see `chain`).
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from overdrive.samples.batchwise.steps import Crop, Erase, Jitter, Plain, Sizes, Sometimes, Step, without_colours

if TYPE_CHECKING:
    import torch


def _fractions(batch: torch.Tensor) -> torch.Tensor:
    """What ToTensor does to the pixels of a picture."""
    import torch

    return batch.to(torch.get_default_dtype()).div_(255) if batch.dtype is torch.uint8 else batch


def _as_it_is(batch: torch.Tensor) -> torch.Tensor:
    return batch


def _flip(dimension: int) -> Any:
    return lambda transform: Sometimes(lambda batch: batch.flip(dimension), float(transform.p))


def _grayscale(transform: Any) -> Step:
    return Sometimes(without_colours, float(transform.p))


def _crop(padding: Any) -> Any:
    """`padding`: the transform's own, as left, top, right, bottom."""

    def make(transform: Any) -> Step | None:
        fill = transform.fill if isinstance(transform.fill, (list, tuple)) else [transform.fill]
        known = transform.padding_mode in ("constant", "edge", "reflect", "symmetric")
        height, width = transform.size
        around = padding(transform.padding)
        if not known or around is None or not all(type(each) in (int, float) for each in fill):
            return None
        return Crop((int(height), int(width)), around, fill, transform.padding_mode)

    return make


def _around(padding: Any) -> Sizes | None:
    """Padding of version 1: one number, or left and top, or all four."""
    sides = [0] if padding is None else [padding] if isinstance(padding, int) else list(padding)
    if len(sides) not in (1, 2, 4) or not all(type(side) is int and side >= 0 for side in sides):
        return None
    return tuple((sides * 4)[:4])


def _around_v2(padding: Any) -> Sizes | None:
    """Version 2 keeps left, right, top, bottom."""
    if padding is None:
        return (0, 0, 0, 0)
    left, right, top, bottom = padding
    return _around((left, top, right, bottom))


def _erase(transform: Any) -> Step | None:
    value = transform.value
    if isinstance(value, (int, float)):
        return Erase(transform, [float(value)])
    if isinstance(value, (list, tuple)):
        return Erase(transform, [float(each) for each in value])
    return Erase(transform, None) if value == "random" else None


def _jitter(transform: Any) -> Step:
    return Jitter((transform.brightness, transform.contrast, transform.saturation, transform.hue))


def _plain(transform: Any) -> Step:
    return Plain(transform)


def _normalize(transform: Any) -> Step:
    ours = copy.copy(transform)
    ours.inplace = True  # the batch is not the program's yet, and fresh memory costs more than the arithmetic
    return Plain(ours)


_MAKERS: dict[str, Any] = {
    "torchvision.transforms.transforms.RandomHorizontalFlip": _flip(-1),
    "torchvision.transforms.transforms.RandomVerticalFlip": _flip(-2),
    "torchvision.transforms.transforms.RandomCrop": _crop(_around),
    "torchvision.transforms.transforms.RandomErasing": _erase,
    "torchvision.transforms.transforms.ColorJitter": _jitter,
    "torchvision.transforms.transforms.RandomGrayscale": _grayscale,
    "torchvision.transforms.transforms.Normalize": _normalize,
    "torchvision.transforms.transforms.ConvertImageDtype": _plain,
    "torchvision.transforms.transforms.ToTensor": lambda _: Plain(_fractions),
    "torchvision.transforms.transforms.PILToTensor": lambda _: Plain(_as_it_is),
    "torchvision.transforms.v2._geometry.RandomHorizontalFlip": _flip(-1),
    "torchvision.transforms.v2._geometry.RandomVerticalFlip": _flip(-2),
    "torchvision.transforms.v2._geometry.RandomCrop": _crop(_around_v2),
    "torchvision.transforms.v2._color.ColorJitter": _jitter,
    "torchvision.transforms.v2._color.RandomGrayscale": _grayscale,
    "torchvision.transforms.v2._misc.Normalize": _normalize,
    "torchvision.transforms.v2._misc.ToDtype": _plain,
    "torchvision.transforms.v2._deprecated.ToTensor": lambda _: Plain(_fractions),
    "torchvision.transforms.v2._type_conversion.ToImage": lambda _: Plain(_as_it_is),
    "torchvision.transforms.v2._type_conversion.PILToTensor": lambda _: Plain(_as_it_is),
    "torchvision.transforms.v2._type_conversion.ToPureTensor": lambda _: Plain(_as_it_is),
}

# Those of torchvision that draw although their names do not begin with "Random".
_RANDOM = {
    *("AugMix", "AutoAugment", "ColorJitter", "ElasticTransform", "GaussianBlur", "GaussianNoise"),
    *("RandAugment", "ScaleJitter", "TrivialAugmentWide"),
}


def draws(transform: Any) -> bool:
    """Whether it is known to draw random numbers."""
    step = step_of(transform)
    if step is not None:
        return step.random
    kind = type(transform)
    ours = kind.__module__.split(".")[:2] == ["torchvision", "transforms"]
    return ours and (kind.__name__.startswith("Random") or kind.__name__ in _RANDOM)


def step_of(transform: Any) -> Step | None:
    """What is known of this transform; None where it is none of those above, or asks for more than they do."""
    kind = type(transform)
    make = _MAKERS.get(f"{kind.__module__}.{kind.__qualname__}")
    try:
        return make(transform) if make is not None else None
    except (AttributeError, TypeError, ValueError):  # another version of it, with other attributes
        return None
