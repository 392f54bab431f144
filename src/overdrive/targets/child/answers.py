"""What the model answers to recorded inputs, as the program has it and in fp64: an artefact is proved by these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.engines.runtime import Array
from overdrive.targets.child.dimensions import Arrays
from overdrive.targets.child.subject import Model
from overdrive.targets.order import calls_in

_MOST = 24  # recorded calls
_FEWEST = 6  # where there are fewer different ones, disturbed copies of them make up for it
_DISTURBANCE = 2.0**-8


def write(
    model: Model,
    recorded: list[Arrays],
    others: list[Arrays],
    folder: Path,
    proved: Sequence[Mapping[str, Any]],
) -> int:
    """A file for each call: inputs, the program's answers, those in fp64; returns how many are the program's.

    Args:
        proved: of each input, the values that the runner takes.
    """
    recorded = _different(recorded)[:_MOST]
    chance = np.random.default_rng(0)
    kinds = [*(("recorded", each) for each in recorded), *(("of another size", each) for each in others)]
    if any(each.dtype.kind == "f" for each in recorded[0]):
        while len(kinds) < _FEWEST:
            given = recorded[len(kinds) % len(recorded)]
            kinds.append(("disturbed", [_disturbed(*each, chance) for each in zip(given, proved, strict=True)]))
    for number, (kind, given) in enumerate(kinds, start=1):
        sides = {"input": given, "own": model.answers(given), "exact": model.exact(given)}
        arrays = {f"{side} {place}": each for side, found in sides.items() for place, each in enumerate(found)}
        np.savez(calls_in(folder) / f"{number:03d} {kind}.npz", **arrays)  # type: ignore[arg-type]
    return len(recorded)


def _different(calls: list[Arrays]) -> list[Arrays]:
    """Without those that are the same in every bit: a program may evaluate on the same data again and again."""
    seen: dict[Any, Arrays] = {}
    for given in calls:
        seen.setdefault(tuple((each.shape, each.tobytes()) for each in given), given)
    return list(seen.values())


def _disturbed(array: Array, proved: Mapping[str, Any], chance: np.random.Generator) -> Array:
    if array.dtype.kind != "f":
        return array
    factors = 1 + _DISTURBANCE * np.asarray(chance.standard_normal(array.shape))
    made: Array = np.asarray(array * factors.astype(array.dtype))
    low, high = proved.get("min"), proved.get("max")
    return made if low is high is None else np.asarray(np.clip(made, low, high), array.dtype)
