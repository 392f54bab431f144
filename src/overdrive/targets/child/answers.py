"""What the model answers to recorded inputs, as the program has it and in fp64: an artefact is proved by these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from overdrive.model_state.quiet import quiet
from overdrive.targets.child.flat import FlatModel
from overdrive.targets.order import calls_in
from overdrive.worker.torch.fp64 import computing_in_double, widen

_MOST = 24  # recorded calls
_FEWEST = 6  # where there are fewer different ones, disturbed copies of them make up for it
_DISTURBANCE = 2.0**-8

Tensors = list[torch.Tensor]


def write(
    flat: FlatModel,
    recorded: list[Tensors],
    others: list[Tensors],
    folder: Path,
    proved: Sequence[Mapping[str, Any]],
) -> int:
    """A file for each call: inputs, the program's answers, those in fp64; returns how many are the program's.

    Args:
        proved: of each input, the values that the runner takes.
    """
    recorded = _different(recorded)[:_MOST]
    chance = torch.Generator().manual_seed(0)
    kinds = [*(("recorded", each) for each in recorded), *(("of another size", each) for each in others)]
    if any(each.is_floating_point() for each in recorded[0]):
        while len(kinds) < _FEWEST:
            given = recorded[len(kinds) % len(recorded)]
            kinds.append(("disturbed", [_disturbed(*each, chance) for each in zip(given, proved, strict=True)]))
    for number, (kind, given) in enumerate(kinds, start=1):
        with torch.no_grad(), quiet():
            own = flat(*(each.clone() for each in given))
            with computing_in_double(flat):
                exact = flat(*map(widen, given))
        arrays = {f"input {place}": each.numpy() for place, each in enumerate(given)}
        arrays |= {f"own {place}": each.numpy() for place, each in enumerate(own)}
        arrays |= {f"exact {place}": each.numpy() for place, each in enumerate(exact)}
        np.savez(calls_in(folder) / f"{number:03d} {kind}.npz", **arrays)  # type: ignore[arg-type]
    return len(recorded)


def _different(calls: list[Tensors]) -> list[Tensors]:
    """Without those that are the same in every bit: a program may evaluate on the same data again and again."""
    seen: dict[Any, Tensors] = {}
    for given in calls:
        seen.setdefault(tuple((tuple(each.shape), each.numpy().tobytes()) for each in given), given)
    return list(seen.values())


def _disturbed(tensor: torch.Tensor, proved: Mapping[str, Any], chance: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    made = tensor * (1 + _DISTURBANCE * torch.randn(tensor.shape, generator=chance).to(tensor.dtype))
    low, high = proved.get("min"), proved.get("max")
    return made if low is high is None else made.clamp(low, high)
