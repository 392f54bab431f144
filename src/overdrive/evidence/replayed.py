"""What a state replay measured: a row for each tensor in each state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

UNUSABLE = 0.05  # relative error of the original at which fp64 has computed something else
FEWEST_STATES = 3


@dataclass(frozen=True)
class TensorRow:
    """One tensor in one state: how far it came out from the reference."""

    step: int
    # gradient, update, state (of the optimizer), buffer, evaluation, loss, initial value; output (of a call)
    kind: str
    tensor: str
    # Root mean square, over the places where the reference is finite. None where there is no such tensor, or it is not
    # finite in other places than the reference.
    error: float | None
    size: float  # root mean square of the reference, over the same places
    count: int  # of these places
    along: float = 0.0  # the error along the reference, as a share of it

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.tensor

    @property
    def when(self) -> str:
        return f"{'call' if self.kind == 'output' else 'step'} {self.step}"


def rows_of(replay: Mapping[str, Any]) -> list[TensorRow]:
    """What a candidate reported, without the states in which its batch was not the reference run's."""
    other = set(replay.get("other_inputs", ()))
    return [
        TensorRow(
            row["step"],
            row["kind"],
            row["tensor"],
            row["error"],
            row["size"] or 0.0,
            row["count"],
            row.get("along") or 0.0,
        )
        for row in replay.get("rows", ())
        if row["step"] not in other
    ]


def relative_error(rows: Iterable[TensorRow]) -> float | None:
    """How far a gradient, or an output, lies from fp64, as a share of its size: the median over tensors and states."""
    told = [row for row in rows if row.kind in ("gradient", "output") and row.error is not None]
    errors = [row.error / row.size for row in told if row.error is not None and row.size > 0]
    return float(np.median(errors)) if errors else None


def usable(original: Sequence[TensorRow], careful: bool = False) -> str | None:
    """Why the fp64 (or `careful`) steps are no reference for this program, or None where they are one."""
    states = {row.step for row in original}
    # Of a program that makes many steps in a call, few may be reached, and `RoundingProof` chooses others then.
    if len(states) < FEWEST_STATES and not careful:
        return f"only {len(states)} states could be compared"
    errors = [row.error / row.size for row in original if row.error is not None and row.size > 0 and is_main(row)]
    if not errors:
        return "no gradient and no output could be compared"
    if float(np.median(errors)) > UNUSABLE:
        what = "a careful step" if careful else "fp64"
        return f"{what} computed something else (it drew other random numbers, perhaps)"
    return None


def or_disturbed(original: Sequence[TensorRow], disturbed: Sequence[TensorRow]) -> list[TensorRow]:
    """The original's rows, with the larger of both errors."""
    errors = {(row.step, *row.key): row.error or 0.0 for row in disturbed}
    return [
        row if row.error is None else replace(row, error=max(row.error, errors.get((row.step, *row.key), 0.0)))
        for row in original
    ]


def largest_of(rows: Sequence[TensorRow]) -> dict[tuple[int, str], float]:
    sizes: dict[tuple[int, str], float] = {}
    for row in rows:
        sizes[row.step, row.kind] = max(sizes.get((row.step, row.kind), 0.0), row.size)
    return sizes


def is_main(row: TensorRow) -> bool:
    return row.kind in ("gradient", "update", "output")


def share_of(row: TensorRow) -> str:
    return f"{(row.error or 0.0) / row.size:.2g} of its size" if row.size > 0 else f"{row.error:.2g}"


def measured(found: Any, expected: Any) -> dict[str, Any]:
    """What a row says of two flat arrays of one size, by its names.

    Of masked logits the infinities have to be the same, in the same places, and are no part of an error: it was no
    number, so that nothing at all was compared.
    """
    finite, same = np.isfinite(expected), True
    if not finite.all():
        same = np.array_equal(found[~finite], expected[~finite], equal_nan=True)
        found, expected = found[finite], expected[finite]
    return {
        "error": rms(found, expected) if same else None,
        "size": rms(expected) or 0.0,
        "count": expected.size,
        "along": along(found, expected),
    }


def along(found: Any, expected: Any) -> float:
    """The error along what was expected, as a share of that; 0 where it is not finite, or nothing is expected."""
    with np.errstate(all="ignore"):
        one, other = np.einsum("i,i", found - expected, expected), np.einsum("i,i", expected, expected)
        share = float(one / other) if expected.size else 0.0
    return share if np.isfinite(share) else 0.0


def rms(values: Any, origin: Any = 0.0) -> float | None:
    """Root mean square of the distance; None where it is not finite."""
    with np.errstate(all="ignore"):
        found = float(np.sqrt(np.mean(np.square(values - origin)))) if values.size else 0.0
    return found if np.isfinite(found) else None
