"""Which of the numbers that a program prints it prints again under the same seed: the others are the machine's."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from overdrive.evidence.products import PRINTED
from overdrive.evidence.registration import ArmRun

# Of the standard deviation over seeds, by which a number of the program's may be another when run again; and where the
# losses are the same in every bit. Noise comes as near by luck in 1 of 18 runs, and in 1 of 1,800.
_STEADY, _STEADIER = 0.1, 0.001

Twice = Sequence[tuple[ArmRun, ArmRun]]  # runs of the original under the same seeds


def unsteady(original: Sequence[ArmRun], twice: Twice) -> set[str]:
    """The names of printed numbers that are none of the program's."""
    printed = {name for run in original for name in run.numbers if name.startswith(PRINTED)}
    return {name for name in printed if not _is_steady(name, original, twice)}


def without(run: ArmRun, names: AbstractSet[str]) -> ArmRun:
    return replace(run, numbers={name: value for name, value in run.numbers.items() if name not in names})


def _is_steady(name: str, original: Sequence[ArmRun], twice: Twice) -> bool:
    """Whether second runs under the same seeds came to the same number, by the scale of other seeds.

    Where neither of a seed's runs has it, the other seeds tell; where no seed's has it, it is not steady.
    """
    values = [run.numbers[name] for run in original if name in run.numbers]
    pairs = [pair for pair in twice if any(name in run.numbers for run in pair)]
    if len(values) < 2 or not pairs or not all(name in run.numbers for pair in pairs for run in pair):
        return False
    spread = statistics.stdev(values)
    return all(
        abs(again.numbers[name] - run.numbers[name])
        <= (_STEADIER if run.losses and run.losses == again.losses else _STEADY) * spread
        for run, again in pairs
    )
