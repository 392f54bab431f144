"""Stand-ins for torchvision's transforms, under its names: the same attributes, the same draws, the same pixels.

torchvision has no wheel for the PyTorch of the tests. `test_vectorised_transforms.py` runs on the real ones too where
they can be imported.
"""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

NAME = "torchvision.transforms.transforms"


class Compose:
    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    def __call__(self, image: Any) -> Any:
        pixels = torch.from_numpy(np.array(image, np.uint8, copy=True))
        pixels = pixels.view(image.size[1], image.size[0], len(image.getbands()))
        return pixels.permute(2, 0, 1).contiguous().to(torch.get_default_dtype()).div(255)


class Normalize:
    def __init__(self, mean: Any, std: Any, inplace: bool = False) -> None:
        self.mean, self.std, self.inplace = mean, std, inplace

    def __call__(self, image: Any) -> Any:
        mean = torch.as_tensor(self.mean, dtype=image.dtype).view(-1, 1, 1)
        std = torch.as_tensor(self.std, dtype=image.dtype).view(-1, 1, 1)
        return (image if self.inplace else image.clone()).sub_(mean).div_(std)


class RandomCrop:
    def __init__(self, size: int, padding: Any = None, fill: Any = 0, padding_mode: str = "constant") -> None:
        self.size = (size, size)
        self.padding, self.fill, self.padding_mode = padding, fill, padding_mode
        self.pad_if_needed = False

    def __call__(self, image: Any) -> Any:
        if self.padding is not None:
            image = self.pad(image)
        picture = isinstance(image, Image.Image)
        width, height = image.size if picture else (image.shape[-1], image.shape[-2])
        rows, columns = self.size
        if (height, width) == self.size:
            return image
        top = torch.randint(0, height - rows + 1, size=(1,)).item()
        left = torch.randint(0, width - columns + 1, size=(1,)).item()
        if picture:
            return image.crop((left, top, left + columns, top + rows))
        return image[..., top : top + rows, left : left + columns]

    def pad(self, image: Any) -> Any:
        sides = self.padding
        if isinstance(image, Image.Image) and self.padding_mode == "constant":
            fill = self.fill if isinstance(self.fill, tuple) else (self.fill,) * len(image.getbands())
            return ImageOps.expand(image, sides, fill if len(fill) > 1 else fill[0])
        left, top, right, bottom = (sides,) * 4 if isinstance(sides, int) else (sides * 2)[:4]
        if not isinstance(image, Image.Image):
            return torch.nn.functional.pad(image, (left, right, top, bottom), value=float(self.fill))
        return Image.fromarray(np.pad(np.asarray(image), ((top, bottom), (left, right), (0, 0)), self.padding_mode))


class RandomHorizontalFlip:
    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, image: Any) -> Any:
        if torch.rand(1) < self.p:
            picture = isinstance(image, Image.Image)
            return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if picture else image.flip(-1)
        return image


class RandomVerticalFlip:
    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, image: Any) -> Any:
        if torch.rand(1) < self.p:
            picture = isinstance(image, Image.Image)
            return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM) if picture else image.flip(-2)
        return image


class RandomErasing:
    def __init__(self, p: float = 0.5, value: Any = 0) -> None:
        self.p, self.scale, self.ratio, self.value, self.inplace = p, (0.02, 0.33), (0.3, 3.3), value, False

    @staticmethod
    def get_params(img: Any, scale: Any, ratio: Any, value: Any = None) -> Any:
        channels, height, width = img.shape
        logs = torch.log(torch.tensor(ratio))
        for _ in range(10):
            area = height * width * torch.empty(1).uniform_(*scale).item()
            aspect = torch.exp(torch.empty(1).uniform_(logs[0], logs[1])).item()
            h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if h < height and w < width:
                new = torch.empty([channels, h, w]).normal_() if value is None else torch.tensor(value)[:, None, None]
                top = torch.randint(0, height - h + 1, size=(1,)).item()
                return top, torch.randint(0, width - w + 1, size=(1,)).item(), h, w, new
        return 0, 0, height, width, img

    def __call__(self, image: Any) -> Any:
        if torch.rand(1) < self.p:
            value = None if self.value == "random" else [float(self.value)]
            top, left, h, w, new = self.get_params(image, self.scale, self.ratio, value)
            image = image.clone()
            image[..., top : top + h, left : left + w] = new
        return image


class RandomGrayscale:
    def __init__(self, p: float = 0.1) -> None:
        self.p = p

    def __call__(self, image: Any) -> Any:
        return image.convert("L").convert(image.mode) if torch.rand(1) < self.p else image


class RandomResizedCrop:
    def __init__(self, size: int) -> None:
        self.size = (size, size)

    def __call__(self, image: Any) -> Any:
        side = torch.randint(6, min(image.size), size=(1,)).item()
        left, top = (torch.randint(0, edge - side + 1, size=(1,)).item() for edge in image.size)
        return image.crop((left, top, left + side, top + side)).resize(self.size, Image.Resampling.BILINEAR)


class RandomRotation:
    def __init__(self, degrees: float) -> None:
        self.degrees = degrees

    def __call__(self, image: Any) -> Any:
        return image.rotate(float(torch.empty(1).uniform_(-self.degrees, self.degrees).item()))


class ColorJitter:
    def __init__(self, brightness: float = 0, contrast: float = 0, saturation: float = 0, hue: float = 0) -> None:
        self.brightness, self.contrast, self.saturation = map(self.bounds, (brightness, contrast, saturation))
        self.hue = (-hue, hue) if hue else None

    @staticmethod
    def bounds(value: float) -> tuple[float, float] | None:
        return (max(0.0, 1 - value), 1 + value) if value else None

    def __call__(self, image: Any) -> Any:
        order = torch.randperm(4)
        bounds = (self.brightness, self.contrast, self.saturation, self.hue)
        factors = [None if each is None else float(torch.empty(1).uniform_(*each)) for each in bounds]
        kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
        for number in order:
            if factors[number] is None:
                continue
            image = kinds[number](image).enhance(factors[number]) if number < 3 else self.turn(image, factors[number])
        return image

    @staticmethod
    def turn(image: Any, factor: float) -> Any:
        if image.mode == "L":
            return image
        hue, saturation, value = image.convert("HSV").split()
        turned = np.array(hue, dtype=np.uint8)
        turned += np.int32(factor * 255).astype(np.uint8)
        return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert(image.mode)


def install(modules: dict[str, ModuleType]) -> ModuleType:
    """Put this file under torchvision's name into `modules`, and its classes too."""
    here = sys.modules[__name__]
    for thing in vars(here).values():
        if isinstance(thing, type) and thing.__module__ in (__name__, NAME):
            thing.__module__ = NAME
    modules[NAME] = here
    return here
