"""Random transforms of one image at a time, done on whole batches with the very numbers that the program draws.

A step knows two things of a transform: which numbers it takes from torch's generator for one image, in which order,
and what it does to a batch of images once these are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from overdrive.datacache.layout import Unfit
from overdrive.samples.batchwise.pictures import turn_hues

if TYPE_CHECKING:
    import torch

Words = NDArray[np.uint32]  # samples × numbers, as torch's generator gives them, 32 bits each
# What images need: a list for numbers drawn one by one, an array for those drawn at once.
Drawn = Sequence[Any] | NDArray[Any]
Sizes = tuple[int, ...]  # of one image: channels, height, width


class Step:
    """`random`: it draws for each image. `words`: how many numbers, each of one 32-bit word; None: by its own way."""

    random = True
    words: int | None = None

    def fit(self, sizes: Sizes) -> Sizes:
        """Get ready for images of these sizes; returns what becomes of them.

        Raises:
            Unfit: they cannot be done here.
        """
        return sizes

    def draw(self) -> Any:
        """What one image needs, drawn as the transform does it."""
        raise NotImplementedError

    def read(self, words: Words) -> Drawn:
        """The same for many images, from the numbers that the generator gave."""
        raise NotImplementedError

    def apply(self, batch: torch.Tensor, drawn: Drawn) -> torch.Tensor:
        """The batch (which is ours to change) after the transform."""
        raise NotImplementedError


class Sometimes(Step):
    """What is done to some of the images, drawn by chance. `act` is given these alone, as a batch."""

    words = 1

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor], chance: float) -> None:
        self._act = act
        self._chance = chance

    def draw(self) -> bool:
        import torch

        return bool(torch.rand(1) < self._chance)

    def read(self, words: Words) -> Drawn:
        # As `torch.rand` makes a float of 32 bits, which is then compared with a float.
        fractions: NDArray[np.float32] = (words[:, 0] & np.uint32(0xFFFFFF)).astype(np.float32) * np.float32(2.0**-24)
        chosen: NDArray[np.bool_] = fractions < np.float32(self._chance)
        return chosen

    def apply(self, batch: torch.Tensor, drawn: Drawn) -> torch.Tensor:
        import torch

        chosen = torch.from_numpy(np.flatnonzero(drawn))
        if len(chosen):
            batch[chosen] = self._act(batch[chosen])
        return batch


class Crop(Step):
    """A window of the padded image, at a random place. `padding`: left, top, right, bottom."""

    def __init__(self, size: tuple[int, int], padding: Sizes, fill: Sequence[float], mode: str) -> None:
        self._size = size
        self._padding = padding
        self._fill = fill
        self._mode = mode
        self._ranges = [0, 0]  # places to choose from, top and left; a transform draws nothing where there is one

    def fit(self, sizes: Sizes) -> Sizes:
        channels, height, width = sizes
        left, top, right, bottom = self._padding
        self._ranges = [height + top + bottom - self._size[0] + 1, width + left + right - self._size[1] + 1]
        if min(self._ranges) < 1:
            raise Unfit("its images are smaller than what is to be cut out of them")
        if 1 in self._ranges and self._ranges != [1, 1]:
            raise Unfit("its images are cut in one direction only")  # the two versions draw other numbers then
        if len(self._fill) not in (1, channels):
            raise Unfit("its padding has another number of colours than its images")
        self.words = 0 if self._ranges == [1, 1] else 2
        return channels, *self._size

    def draw(self) -> tuple[int, int]:
        import torch

        if not self.words:
            return 0, 0
        top, left = (int(torch.randint(0, places, (1,)).item()) for places in self._ranges)
        return top, left

    def read(self, words: Words) -> Drawn:
        if not self.words:
            return np.zeros((len(words), 2), dtype=np.int64)
        places: NDArray[np.int64] = words.astype(np.int64) % np.array(self._ranges)
        return places

    def apply(self, batch: torch.Tensor, drawn: Drawn) -> torch.Tensor:
        import torch

        images = self._padded(batch.numpy())
        height, width = self._size
        cut = np.empty((*images.shape[:2], height, width), dtype=images.dtype)
        # One copy a sample (3 µs) beats an index for every pixel from 40 × 40 on, and is as fast below.
        for number, (top, left) in enumerate(np.asarray(drawn).tolist()):
            cut[number] = images[number, :, top : top + height, left : left + width]
        return torch.from_numpy(cut)

    def _padded(self, images: NDArray[Any]) -> NDArray[Any]:
        left, top, right, bottom = self._padding
        if not any(self._padding):
            return images
        around = ((0, 0), (0, 0), (top, bottom), (left, right))
        if self._mode != "constant":
            return np.pad(images, around, mode=self._mode)  # type: ignore[call-overload,no-any-return]
        count, channels, height, width = images.shape
        padded = np.empty((count, channels, height + top + bottom, width + left + right), dtype=images.dtype)
        padded[:] = np.array(self._fill).astype(images.dtype).reshape(-1, 1, 1)
        padded[:, :, top : top + height, left : left + width] = images
        return padded


class Erase(Step):
    """A rectangle of the image overwritten. Its places are drawn until one fits, so by the transform's own way."""

    def __init__(self, transform: Any, value: list[float] | None) -> None:
        self._transform = transform
        self._value = value
        self._sizes: Sizes = ()

    def fit(self, sizes: Sizes) -> Sizes:
        if self._value is not None and len(self._value) not in (1, sizes[0]):
            raise Unfit("what it overwrites images with has another number of colours")
        self._sizes = sizes
        return sizes

    def draw(self) -> Any:
        import torch

        if not torch.rand(1) < self._transform.p:
            return None
        blank = torch.empty(self._sizes)
        top, left, height, width, value = type(self._transform).get_params(
            blank, scale=self._transform.scale, ratio=self._transform.ratio, value=self._value
        )
        return None if value is blank else (top, left, height, width, value)

    def apply(self, batch: torch.Tensor, drawn: Drawn) -> torch.Tensor:
        for image, place in zip(batch, drawn, strict=True):
            if place is not None:
                top, left, height, width, value = place
                image[:, top : top + height, left : left + width] = value
        return batch


class Jitter(Step):
    """Brightness, contrast, saturation and hue of pictures in a random order, in Pillow's own arithmetic.

    The first three are mixtures of the picture with another: black, its mean gray, or itself in gray.
    """

    def __init__(self, ranges: Sequence[tuple[float, float] | None]) -> None:
        self._ranges = ranges

    def fit(self, sizes: Sizes) -> Sizes:
        if sizes[0] not in (1, 3):
            raise Unfit("its pictures are neither gray nor of three colours")
        return sizes

    def draw(self) -> tuple[list[int], list[float | None]]:
        import torch

        order = torch.randperm(4).tolist()
        return order, [
            None if bounds is None else float(torch.empty(1).uniform_(*bounds).item()) for bounds in self._ranges
        ]

    def apply(self, batch: torch.Tensor, drawn: Drawn) -> torch.Tensor:
        images = batch.numpy()
        for turn in range(4):
            for which, bounds in enumerate(self._ranges):
                chosen = [number for number, (order, _) in enumerate(drawn) if order[turn] == which]
                if chosen and bounds is not None:
                    factors = [drawn[number][1][which] for number in chosen]
                    images[chosen] = _OTHERWISE[which](images[chosen], factors)
        return batch


def _mixed_with(other: Callable[[NDArray[np.uint8]], NDArray[Any]]) -> Any:
    """Pillow's `blend`: in floats of 32 bits, what is behind the point cut off."""

    def mixed(images: NDArray[np.uint8], factors: Sequence[float]) -> NDArray[np.uint8]:
        start = other(images).astype(np.float32)
        weights = np.array(factors, dtype=np.float32).reshape(-1, 1, 1, 1)
        return ((images.astype(np.float32) - start) * weights + start).clip(0, 255).astype(np.uint8)

    return mixed


def _other_hue(images: NDArray[np.uint8], factors: Sequence[float]) -> NDArray[np.uint8]:
    if images.shape[1] == 1:
        return images
    shifts = (np.array(factors) * 255).astype(np.int32).astype(np.uint8)
    turned: NDArray[np.uint8] = turn_hues(images, shifts)
    return turned


def _black(images: NDArray[np.uint8]) -> NDArray[Any]:
    return np.zeros((len(images), 1, 1, 1), dtype=np.uint8)


def _mean_gray(images: NDArray[np.uint8]) -> NDArray[Any]:
    means: NDArray[np.float64] = _gray(images).mean(axis=(1, 2, 3), keepdims=True, dtype=np.float64)
    return np.floor(means + 0.5)


def _gray(images: NDArray[np.uint8]) -> NDArray[Any]:
    """As Pillow converts to mode L."""
    if images.shape[1] == 1:
        return images
    red, green, blue = (images[:, colour : colour + 1].astype(np.uint32) for colour in range(3))
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


_OTHERWISE = (_mixed_with(_black), _mixed_with(_mean_gray), _mixed_with(_gray), _other_hue)


def without_colours(batch: torch.Tensor) -> torch.Tensor:
    """Pictures in gray, with as many channels as before."""
    import torch

    return torch.from_numpy(_gray(batch.numpy()).astype(np.uint8)) if batch.dtype is torch.uint8 else batch


class Plain(Step):
    """Draws nothing: the transform, or a function, that does the same to a batch as to each of its images."""

    random = False
    words = 0

    def __init__(self, act: Any) -> None:
        self._act = act

    def apply(self, batch: torch.Tensor, drawn: Drawn) -> torch.Tensor:
        return self._act(batch)  # type: ignore[no-any-return]
