"""How many bits each layer gets: those before the point from observed ranges, those after it by a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from overdrive.evidence.binomial import at_least, at_most
from overdrive.targets.fpga.graph import Fixed, Layers, integer_bits

WIDEST = 18  # bits after the point, at first
_NARROWEST = 1
_SPARE = 1  # bits before the point, for inputs beyond what was observed

Far = Callable[[torch.Tensor], bool]  # whether these answers are too far from the model's own


def passing(margin: float, samples: int) -> float:
    """The share of other classes at which a test of so many samples establishes the margin 19 times of 20."""
    most = 0
    while at_most(most + 1, samples) <= margin:
        most += 1
    return at_least(most + 1, samples)


def other_classes(answers: torch.Tensor, wanted: torch.Tensor) -> float:
    """The share of rows, of answers (rows, classes), that have another class or are to be expected to.

    Of some hundred rows none may have one by luck. Each row's lead, between the two best classes, is held against how
    far the differences of these two are off over all rows.
    """
    found = float((answers.argmax(1) != wanted.argmax(1)).double().mean())
    best = wanted.double().topk(2, dim=1)
    lead = best.values[:, 0] - best.values[:, 1]
    pair = answers.double().gather(1, best.indices)
    spread = (pair[:, 0] - pair[:, 1] - lead).square().mean().sqrt()
    apart = lead[lead > 0]
    if not float(spread) or not len(apart):
        return found
    return max(found, float(torch.special.erfc(apart / (spread * math.sqrt(2))).mean() / 2))


def search(layers: Layers, inputs: torch.Tensor, too_far: Far) -> dict[str, Fixed] | None:
    """Types by layer; None where even the widest are too far off.

    First one number of bits after the point for all layers, then each layer by itself, the last first: what stands at
    the end is looked at through the fewest others.
    """
    largest = layers.ranges(inputs)
    before = {name: integer_bits(size) + _SPARE for name, size in largest.items() if name in layers.names}

    def types(fraction: Mapping[str, int]) -> dict[str, Fixed]:
        return {name: Fixed(before[name], fraction[name]) for name in before}

    def holds(fraction: Mapping[str, int]) -> bool:
        return not too_far(layers.answers(inputs, types(fraction)))

    if not holds(dict.fromkeys(before, WIDEST)):
        return None
    common = WIDEST
    while common > _NARROWEST and holds(dict.fromkeys(before, common - 1)):
        common -= 1
    fraction = dict.fromkeys(before, common)
    for name in reversed(list(before)):
        while fraction[name] > _NARROWEST and holds({**fraction, name: fraction[name] - 1}):
            fraction[name] -= 1
    return types(fraction)


def wider(types: Mapping[str, Fixed]) -> dict[str, Fixed]:
    """One bit more after every point."""
    return {name: Fixed(each.integer, each.fraction + 1) for name, each in types.items()}
