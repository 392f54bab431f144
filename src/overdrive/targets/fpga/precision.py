"""How many bits each layer gets: those before the point from observed ranges, those after it by a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from overdrive.engines.runtime import Array
from overdrive.evidence.binomial import at_least, at_most
from overdrive.targets.fpga.fixed import Fixed, integer_bits
from overdrive.targets.fpga.front_end import Layers

WIDEST = 18  # bits after the point, at first
_NARROWEST = 1
_SPARE = 1  # bits before the point, for inputs beyond what was observed

Far = Callable[[Array], bool]  # whether these answers are too far from the model's own


def passing(margin: float, samples: int) -> float:
    """The share of other classes at which a test of so many samples establishes the margin 19 times of 20."""
    most = 0
    while at_most(most + 1, samples) <= margin:
        most += 1
    return at_least(most + 1, samples)


def other_classes(answers: Array, wanted: Array) -> float:
    """The share of rows, of answers (rows, classes), that have another class or are to be expected to.

    Of some hundred rows none may have one by luck. Each row's lead, between the two best classes, is held against how
    far the differences of these two are off over all rows.
    """
    found = float((answers.argmax(1) != wanted.argmax(1)).mean())
    order = np.argsort(-wanted, axis=1, kind="stable")[:, :2]
    best, second = np.take_along_axis(wanted.astype(np.float64), order, axis=1).T
    lead = best - second
    one, other = np.take_along_axis(answers.astype(np.float64), order, axis=1).T
    spread = float(np.sqrt(np.square(one - other - lead).mean()))
    apart = lead[lead > 0]
    if not spread or not len(apart):
        return found
    beyond = (math.erfc(each / (spread * math.sqrt(2))) for each in apart)
    return max(found, sum(beyond) / len(apart) / 2)


def search(layers: Layers, inputs: Array, too_far: Far) -> dict[str, Fixed] | None:
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
