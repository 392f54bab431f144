"""What two runs left behind, compared: one that was killed and gone on with, and one that was not."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class End:
    """What a run left behind."""

    code: int
    printed: bytes
    weights: str | None
    files: dict[str, bytes]


@dataclass(frozen=True)
class Comparison:
    """`same`: by what was compared; `differ`: the files that are not the same; `never`: what two uninterrupted runs
    differ in, too, and what was therefore not compared."""

    same: dict[str, bool]
    files: int
    differ: list[str]
    never: tuple[str, ...] = ()

    @property
    def alike(self) -> bool:
        return all(self.same.values())

    def ended_otherwise(self) -> Comparison:
        """Where neither run ended as the program does without `--survive`."""
        return replace(self, same={**self.same, "exit code": False})

    def but_for(self, uninterrupted: Comparison) -> Comparison:
        """Given the comparison of two uninterrupted runs. Their files are told by names without the numbers in them:
        those of TensorBoard's events have the time and the process."""
        passing = set(map(_without_numbers, uninterrupted.differ))
        differ = [name for name in self.differ if _without_numbers(name) not in passing]
        others = [what for what, same in uninterrupted.same.items() if not same and what != "files"]
        same = {what: same or what in others for what, same in self.same.items()} | {"files": not differ}
        return Comparison(same, self.files, differ, (*others, *uninterrupted.differ))


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "0", name)


def compared(one: End, other: End) -> Comparison:
    names = sorted(one.files.keys() | other.files.keys())
    differ = [name for name in names if one.files.get(name) != other.files.get(name)]
    same = {
        "exit code": one.code == other.code,
        "standard output": one.printed == other.printed,
        "weights": one.weights == other.weights,
        "files": not differ,
    }
    return Comparison(same, len(names), differ)
