"""Level `rounding`: a candidate is no further from fp64 than the original, step by step from the same states.

Per tensor (gradient, update, state of the optimizer, buffer, result of an evaluation; and all initial values) and
state, the error e is the root mean square of the difference from the fp64 reference. The thresholds are those of
PyTorch's own compiler tests (torch/_dynamo/utils.py, `same`): e_candidate <= m * e_original + units of the last
place, m = 2 in fp32, 3 where the original computes in less, 8 for tensors of fewer than 500 numbers. Over all
gradients, updates and states, the geometric mean of e_candidate / e_original must not lie above 1.25.

A legal reordering may flip a ReLU or a maximum that is all but a tie: one state then shows an error a
thousand times larger, in the original as in the candidate. So a tensor may exceed its threshold in a quarter of
the states, by no more than a flip can do, and the mean over states is a trimmed one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from overdrive.core.interval import Interval

_FACTOR = 2.0
_FACTOR_LOW = 3.0  # where the original itself computes in less than fp32
_FACTOR_SMALL = 8.0  # ... and for tensors of fewer elements than this, whose error is mostly luck
_SMALL = 500
_UNITS = 4 * 2.0**-24  # of the reference's size: what an error may always be, four units of fp32's last place
_CARELESS = 64 * 2.0**-24  # ... and where the reference itself is in fp32
_LOW = 1e-4  # relative error of an original that computes in 16 bits (bf16: 4e-3, tf32: 5e-4; fp32: 1e-7)
_MEAN = 1.25
_FLIPS = 0.25  # share of the states in which a tensor may exceed its threshold ...
_FLIP = 1e-2  # ... by a relative error of at most this,
_FLIP_TIMES = 1000.0  # ... or this many times the original's own (where the true gradient is all but zero)
_FLIP_OF_UPDATE = 0.3  # Adam may turn the sign of an element's whole step: in one of 500 that is 9 % of the update,
_FEWEST_WILD = {False: 1, True: 2}  # ... and in a small tensor it is all of it, but hardly in two states
_UNUSABLE = 0.05  # relative error of the original at which fp64 has computed something else
_TRIM = 0.25
_FEWEST_STATES = 3
_RESAMPLES = 1000


@dataclass(frozen=True)
class Row:
    """One tensor in one state: how far it came out from the reference."""

    step: int
    kind: str  # gradient, update, state (of the optimizer), buffer, evaluation, or initial value
    tensor: str
    error: float | None  # root mean square; None where there is no such tensor, or it is not finite
    size: float  # root mean square of the reference
    count: int

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.tensor


@dataclass(frozen=True)
class Rounding:
    """The outcome. `holds`: None where nothing could be said."""

    holds: bool | None
    sentence: str
    evidence: Mapping[str, Any]


def rows_of(replay: Mapping[str, Any]) -> list[Row]:
    """What a candidate reported, without the states in which its batch was not the reference run's."""
    other = set(replay.get("other_inputs", ()))
    return [
        Row(row["step"], row["kind"], row["tensor"], row["error"], row["size"] or 0.0, row["count"])
        for row in replay.get("rows", ())
        if row["step"] not in other
    ]


def relative_error(rows: Iterable[Row]) -> float | None:
    """How far a gradient lies from fp64, as a share of its size: the median over tensors and states."""
    errors = [row.error / row.size for row in rows if row.kind == "gradient" and row.error is not None and row.size > 0]
    return float(np.median(errors)) if errors else None


def usable(original: Sequence[Row]) -> str | None:
    """Why the fp64 steps are no reference for this program, or None where they are one."""
    states = {row.step for row in original}
    if len(states) < _FEWEST_STATES:
        return f"only {len(states)} states could be compared"
    errors = [row.error / row.size for row in original if row.error is not None and row.size > 0 and _is_main(row)]
    if not errors:
        return "no gradient could be compared"
    if float(np.median(errors)) > _UNUSABLE:
        return "fp64 computed something else (it drew other random numbers, perhaps)"
    return None


def judge(original: Sequence[Row], candidate: Sequence[Row], careful: bool = False) -> Rounding:
    """Compare two candidates of one reference run. `careful`: the reference is in fp32, so only sizes are compared."""
    base = {(row.step, *row.key): row for row in original}
    mine = {(row.step, *row.key): row for row in candidate}
    missing = sorted({key[1:] for key in base.keys() ^ mine.keys()})
    steps = sorted({row.step for row in original} & {row.step for row in candidate})
    if len(steps) < _FEWEST_STATES:
        return Rounding(None, f"only {len(steps)} states could be compared", {})
    low = not careful and _relative(original) > _LOW
    exceeded: dict[tuple[str, str], list[_Excess]] = {}
    logs: dict[int, list[float]] = {step: [] for step in steps}
    for key, row in base.items():
        other = mine.get(key)
        if other is None or key[0] not in logs:
            continue
        if row.error is None:
            continue  # the original itself is not finite here
        if other.error is None:
            return _fails(f"{row.kind} of {row.tensor} in step {row.step} is missing or not finite", steps)
        allowed = _allowed(row, low, careful)
        exceeded.setdefault(row.key, []).append(_Excess(other.error / max(allowed, 1e-300), other, row))
        if _is_main(row):
            floor = 2.0**-26 * row.size + 1e-300
            logs[row.step].append(math.log((other.error + floor) / (row.error + floor)))
    if missing and (absent := [key for key in missing if key in {row.key for row in original}]):
        return _fails(f"there is no {absent[0][0]} of {absent[0][1]}", steps)
    by_step = {step: float(np.mean(values)) for step, values in logs.items() if values}
    ratio = _ratio(list(by_step.values()))
    outside = [excess for key in exceeded if (excess := _worst_if_outside(exceeded[key], len(steps), low, careful))]
    tensors = len({tensor for kind, tensor in exceeded if kind in ("gradient", "update", "buffer")})
    evidence = {
        "states": len(steps),
        "steps": steps,
        "reference": "fp32, careful" if careful else "fp64",
        "tensors": tensors,
        "ratio": vars(ratio).copy(),
        "outside": len(outside),
        "worst": _worst(exceeded, low, careful),
        "by_step": [{"step": step, "ratio": math.exp(value)} for step, value in by_step.items()],
    }
    holds, sentence = _verdict(f"{len(steps)} replayed steps, {tensors} tensors", outside, ratio, careful)
    return Rounding(holds, sentence, evidence)


def _verdict(extent: str, outside: Sequence[_Excess], ratio: Interval, careful: bool) -> tuple[bool, str]:
    """Whether it holds, and why, as a sentence. `extent`: what was compared."""
    if outside:
        worst = max(outside, key=lambda excess: excess.times)
        return False, (
            f"in {extent}, the {worst.row.kind} of {worst.row.tensor} is {_error_text(worst)} from the "
            f"{'careful' if careful else 'fp64'} reference, more than rounding explains"
        )
    if careful:
        return True, f"{extent}: within fp32 rounding of a careful fp32 reference (fp64 was not possible)"
    if ratio.low > _MEAN:
        return False, f"in {extent}, its error against fp64 is {ratio.estimate:.3g} times the original's own"
    return True, (
        f"{extent}: its error against fp64 is {ratio.estimate:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] times "
        "the original's own"
    )


@dataclass(frozen=True)
class _Excess:
    times: float  # the allowed error
    row: Row  # the candidate's
    original: Row


def _fails(sentence: str, steps: Sequence[int]) -> Rounding:
    return Rounding(False, sentence, {"states": len(steps), "steps": list(steps)})


def _is_main(row: Row) -> bool:
    return row.kind in ("gradient", "update")


def _relative(rows: Iterable[Row]) -> float:
    return relative_error(rows) or 0.0


def _allowed(original: Row, low: bool, careful: bool) -> float:
    assert original.error is not None
    factor = _FACTOR_SMALL if original.count < _SMALL else _FACTOR_LOW if low else _FACTOR
    return factor * original.error + (_CARELESS if careful else _UNITS) * original.size


def _worst_if_outside(excesses: Sequence[_Excess], states: int, low: bool, careful: bool) -> _Excess | None:
    beyond = [each for each in excesses if each.times > 1]
    wild = [each for each in beyond if _is_wild(each)]
    if len(wild) >= _FEWEST_WILD[_is_small_update(excesses[0].original)]:
        return max(wild, key=lambda each: each.times)
    if len(beyond) <= _FLIPS * states:
        return None
    # Adam divides a gradient by its size, so that one that is all rounding moves a parameter by a whole step in
    # either direction: such errors are few and large, and only their sum over states can be compared.
    own = replace(excesses[0].original, error=_pooled(each.original.error for each in excesses))
    own = replace(own, size=_pooled(each.original.size for each in excesses))
    if _pooled(each.row.error for each in excesses) <= _allowed(own, low, careful):
        return None
    return max(beyond, key=lambda each: each.times)


def _is_wild(excess: _Excess) -> bool:
    """More than a flip can do."""
    own = excess.original
    share = _FLIP_OF_UPDATE if own.kind == "update" else _FLIP
    return (excess.row.error or 0.0) > max(share * own.size, _FLIP_TIMES * (own.error or 0.0))


def _is_small_update(row: Row) -> bool:
    return row.kind == "update" and row.count < _SMALL


def _pooled(values: Iterable[float | None]) -> float:
    return math.sqrt(float(np.mean([(value or 0.0) ** 2 for value in values])))


def _worst(exceeded: Mapping[tuple[str, str], Sequence[_Excess]], low: bool, careful: bool) -> list[dict[str, Any]]:
    """The dozen tensors that came closest to their threshold, or went beyond; by their median over states."""
    rows: list[dict[str, Any]] = []
    for (kind, tensor), excesses in exceeded.items():
        pairs = [(each.row.error or 0.0, each.original) for each in excesses]
        ratio = float(np.median([error / max(own.error or 0.0, 1e-300) for error, own in pairs]))
        allowed = float(np.median([_allowed(own, low, careful) / max(own.error or 0.0, 1e-300) for _, own in pairs]))
        rows.append({"tensor": tensor, "kind": kind, "ratio": min(ratio, 1e9), "allowed": min(allowed, 1e9)})
    rows.sort(key=lambda each: -each["ratio"] / max(each["allowed"], 1e-300))
    return rows[:12]


def _error_text(excess: _Excess) -> str:
    size = excess.original.size
    return f"{(excess.row.error or 0.0) / size:.2g} of its size" if size > 0 else f"{excess.row.error:.2g}"


def _ratio(logs: Sequence[float]) -> Interval:
    """Geometric mean over states, trimmed; 95 % bootstrap interval over states."""
    values = np.array(logs) if logs else np.zeros(1)
    rng = np.random.default_rng(0)
    drawn = np.sort(values[rng.integers(0, len(values), (_RESAMPLES, len(values)))], axis=1)
    cut = int(_TRIM * len(values))
    means = drawn[:, cut : len(values) - cut].mean(axis=1)
    centre = float(np.sort(values)[cut : len(values) - cut].mean())
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(_exp(float(low)), _exp(centre), _exp(float(high)))


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))
