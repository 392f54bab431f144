"""What is left of a data set's transforms after its head, done on whole batches as far as it can be."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from overdrive.datacache.layout import Unfit
from overdrive.samples.batchwise.pictures import to_image, to_tensor
from overdrive.samples.batchwise.steps import Drawn, Sizes, Step

if TYPE_CHECKING:
    import torch

_EVERY_BIT = -(2**63)  # from here without an end: `random_` then takes 64 bits of the generator as they are


class Tail:
    """The program's own transforms that are done image by image (where there are any), then steps on whole batches.

    Attributes:
        own: these transforms.
        leaf: which tensor of a batch it is for.
        mode: of the pictures that the head gave; None for tensors.
        in_bulk: the numbers for all images of a batch are taken from the generator at once (they then cost nothing;
            drawn one by one 15 µs an image); `serving` finds out whether they are the same.
    """

    def __init__(self, steps: Sequence[Step], own: Sequence[Any] = ()) -> None:
        self.steps = tuple(steps)
        self.own = tuple(own)
        self.leaf: int | None = None
        self.mode: str | None = None
        self.in_bulk = not self.own
        self._random = [step for step in self.steps if step.random]
        self._sizes: Sizes | None = None  # that the steps are fit for

    def fit(self, sizes: Sizes) -> None:
        """Get ready for heads of these sizes.

        Raises:
            Unfit: see `Step.fit`.
        """
        if len(sizes) != 3 or prod(sizes) == 0:
            raise Unfit("its transforms are not given images")
        if not self.own:  # what they make of an image is seen when they have
            self._fit_steps(sizes)

    def _fit_steps(self, sizes: Sizes) -> None:
        if sizes == self._sizes:
            return
        self._sizes = sizes
        for step in self.steps:
            sizes = step.fit(sizes)

    def __call__(self, heads: torch.Tensor) -> torch.Tensor:
        """The images, from what the head gave, which is ours to change."""
        if not self.own:
            return self.apply(heads, self.draw(len(heads)))
        import torch

        images: list[torch.Tensor] = []
        drawn: list[list[Any]] = [[] for _ in self._random]
        for head in heads:
            image = to_image(head, self.mode)
            for transform in self.own:
                image = transform(image)
            images.append(to_tensor(image))
            self._fit_steps(tuple(images[-1].shape))
            for step, its in zip(self._random, drawn, strict=True):
                its.append(step.draw())
        return self.apply(torch.stack(images), drawn)

    def draw(self, count: int) -> list[Drawn]:
        """What so many images need, image by image, step by step, from torch's own generator."""
        words = [step.words for step in self._random]
        drawn: list[list[Any]] = [[] for _ in self._random]
        each = sum(number or 0 for number in words)
        at_once = 0
        if self.in_bulk and None not in words:
            at_once = count - (count * each) % 2  # two numbers are taken at a time; an odd last image comes by hand
        bulk = self._bulk(at_once, each) if at_once else None
        for _ in range(count - at_once):
            for step, its in zip(self._random, drawn, strict=True):
                its.append(step.draw())
        if bulk is None:
            return list(drawn)
        return [
            np.concatenate([np.asarray(first), np.asarray(rest)]) if len(rest) else first
            for first, rest in zip(bulk, drawn, strict=True)
        ]

    def _bulk(self, count: int, each: int) -> list[Drawn]:
        import torch

        pairs = torch.empty(count * each // 2, dtype=torch.int64).random_(_EVERY_BIT, None).numpy().view(np.uint64)
        # The first of two numbers is the upper half.
        halves = np.stack([pairs >> np.uint64(32), pairs & np.uint64(0xFFFFFFFF)], axis=1)
        words = halves.astype(np.uint32).reshape(count, each)
        found: list[Drawn] = []
        first = 0
        for step in self._random:
            found.append(step.read(words[:, first : first + (step.words or 0)]))
            first += step.words or 0
        return found

    def apply(self, batch: torch.Tensor, drawn: Sequence[Drawn]) -> torch.Tensor:
        """All steps, in their order, on a batch that is ours to change."""
        left = iter(drawn)
        for step in self.steps:
            batch = step.apply(batch, next(left) if step.random else ())
        return batch
