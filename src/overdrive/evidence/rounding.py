"""Level `rounding`: how many bits a candidate loses of the original's own distance to fp64, from the same states.

Per tensor (gradient, update, state of the optimizer, buffer, result of an evaluation; and all initial values) and
state, the error e is the root mean square of the difference from the fp64 reference, and

    r = log2((e_candidate + 2u |reference|) / (e_original + 2u |reference|)),    u = 2**-24

is what the candidate loses there, in bits. Six rules refuse it:

- bits lost: the median of r over the states of some tensor lies above 6. Legal kernels lose up to five (oneDNN's
  convolutions against PyTorch's own, channels_last with batch normalisation), TF32 or bf16 in a single layer twelve or
  more. An original that computes in 16 bits itself may lose log2(3).
- some states: r lies 5 bits above its median in more states than below it, binomial(1/2) at p < 0.001 (so of fewer than
  ten states this tells nothing, and the sentence says that). An activation that is all but a tie falls to the other
  side in the original as often as in the candidate, and one such flip is worth ten bits.
- one state: an error that no flip explains, a tenth of the tensor's size.
- bias: the error along the reference itself, <found - reference, reference> / <reference, reference>, has the same sign
  in every state: a t test, at p < 0.001 over all tensors together. Rounding has no direction; a learning rate that is
  off has.
- one loss: in any state it is further off, as a share of itself, by more than a bit beyond what is allowed than the
  original's is in its worst state. A flip leaves the loss as it is, within rounding: at a tie both sides are as large.
  So what is wrong in few steps alone shows there (of the last batches of epochs, say).
- one answer (of a program that only calls its model): r lies more than 5 bits beyond what is allowed in any call.
  What flips in a forward pass alone moves an answer by no more than rounding, but where the model itself chooses (a
  label, an expert): that such a choice falls otherwise is no rounding for who asked.

A model with millions of activations has some near a tie in every step. A kernel that sums less carefully by three
bits then sends one of them to the other side in most states, where the original, being more careful, does not: all
gradients behind it are off by ten bits. So whom these rules refuse is held against the original *disturbed*, whose
parameters are off by one part in 2**17: it may be no more than one bit further from fp64 than that.

Simulated and measured in docs/measuring.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from overdrive.core.interval import Interval
from overdrive.core.proof_record import RoundingRecord, StateError, TensorError
from overdrive.core.units import unit_of
from overdrive.evidence import student
from overdrive.evidence.replayed import (
    FEWEST_STATES,
    UNUSABLE,
    TensorRow,
    is_main,
    largest_of,
    or_disturbed,
    relative_error,
    share_of,
)

_UNIT = 2.0**-24
_UNITS = 2 * _UNIT  # of the reference's size: what an error may always be
_CARELESS = 64 * _UNIT  # ... and where the reference itself is in fp32
MOST_BITS = 6.0
_DISTURBED = "parameters off by one part in 130,000"
_MOST_BITS_BEYOND = 1.0  # that a candidate may lose against the disturbed original
_MOST_BITS_LOW = math.log2(3)  # where the original itself computes in less than fp32
_LOW = 1e-4  # relative error of an original that computes in 16 bits (bf16: 4e-3, tf32: 5e-4; fp32: 1e-7)
_FAR = 5.0  # bits beyond the median, from which on a state counts as one with a flip
_FAR_OF_LOSS = 1.0  # bits beyond what is allowed
_FEW_STATES_P = 1e-3
_BIAS_P = 1e-3  # over all tensors
_LEAST_BIAS = 64 * _UNIT  # a direction this weak is what the order of a long sum may give
_OF_OWN_ERROR = 1 / 64  # ... and where the original's own errors are larger: this share of them
# In one state, as a share of the size: more than a flip can do. Adam may turn the sign of an element's whole step,
# and of a small tensor that is all of its update, but hardly in two states.
_WILD, _WILD_OF_FEW = 0.1, 0.3
_WILD_TIMES = 1000.0  # ... and so many times the original's own (where the true gradient is all but zero)
_SMALL = 500  # elements
_TRIM = 0.25
_RESAMPLES = 1000


@dataclass(frozen=True)
class Rounding:
    """The outcome. `holds`: None where nothing could be said."""

    holds: bool | None
    sentence: str
    record: RoundingRecord


def judge(
    original: Sequence[TensorRow],
    candidate: Sequence[TensorRow],
    careful: bool = False,
    disturbed: Sequence[TensorRow] = (),
) -> Rounding:
    """Compare two candidates of one reference run.

    Args:
        careful: the reference is in fp32, so only sizes are compared.
        disturbed: the original once more, with its parameters off by one part in 2**17 (`worker.replay.DISTURBANCE`).
    """
    low = not careful and (relative_error(original) or 0.0) > _LOW
    allowed = _MOST_BITS_LOW if low else _MOST_BITS_BEYOND if disturbed else MOST_BITS
    steps = sorted({row.step for row in original} & {row.step for row in candidate})
    if len(steps) < FEWEST_STATES:
        return Rounding(None, f"only {len(steps)} states could be compared", RoundingRecord())
    base = _by_place(or_disturbed(original, disturbed) if disturbed else original, steps)
    mine = _by_place(candidate, steps)
    largest = largest_of(original)
    tensors: dict[tuple[str, str], list[_Pair]] = {}
    for place, row in base.items():
        other = mine.get(place)
        if other is None or row.error is None:  # the original itself is not finite where the reference is
            continue
        if other.error is None:
            what = f"{row.kind} of {row.tensor} in {row.when}"
            return _outright(False, f"{what} is missing or not finite, or in other places", steps)
        tensors.setdefault(row.key, []).append(_Pair.of(row, other, largest[row.step, row.kind], careful))
    known = {row.key for row in original}
    if absent := sorted(key for key in {place[1:] for place in base.keys() ^ mine.keys()} if key in known):
        return _outright(False, f"there is no {absent[0][0]} of {absent[0][1]}", steps)
    if not any(is_main(each.original) and each.original.count for pairs in tensors.values() for each in pairs):
        return _outright(None, "no gradient, no update and no output is finite where the reference is", steps)
    own = f"the original with {_DISTURBED}" if disturbed else "the original itself"
    faults = [fault for pairs in tensors.values() for fault in _faults(pairs, allowed, own)]
    faults += [] if careful else _biased(tensors)
    worst = sorted(tensors.values(), key=_bits, reverse=True)
    bits = max(0.0, _bits(worst[0])) if worst else 0.0
    logs = _by_step(tensors)
    calls = any(row.kind == "output" for row in original)
    record = RoundingRecord(
        states=len(steps),
        steps=tuple(steps),
        calls=calls,
        reference="fp32, careful" if careful else "fp64",
        tensors=len({name for kind, name in tensors if kind in ("gradient", "update", "buffer", "output")}),
        bits=bits,
        allowed_bits=allowed,
        disturbed=bool(disturbed),
        ratio=_ratio(list(logs.values())),
        outside=len({fault.pair.original.key for fault in faults}),
        worst=tuple(_error(pairs, allowed) for pairs in worst[:12]),
        by_step=tuple(StateError(step, _exp(value)) for step, value in logs.items()),
    )
    extent = _extent(record, len({row.key for row in base.values()} - tensors.keys()))
    if faults:
        fault = max(faults, key=lambda each: each.rank)
        return Rounding(False, f"in {extent}, {fault.sentence}", record)
    return Rounding(True, f"{extent}: {_held(record)}", record)


def _extent(record: RoundingRecord, left: int) -> str:
    """What was compared, in words; `left`: what could not be."""
    tensors = f"{record.tensors} {'tensor' if record.tensors == 1 else 'tensors'}"
    more = f" ({left} more cannot be compared: not finite in the original itself)" if left else ""
    return f"{record.states} replayed {unit_of(record.calls)}s, {tensors}{more}"


def _by_place(rows: Sequence[TensorRow], steps: Sequence[int]) -> dict[tuple[int, str, str], TensorRow]:
    """Those of these steps: others were of other batches."""
    return {(row.step, *row.key): row for row in rows if row.step in steps}


def _held(record: RoundingRecord) -> str:
    states = record.states or 0
    # Of a call each answer counts by itself. What is far off in some states only, the sign test tells.
    few = not record.calls and _at_least(states, states) >= _FEW_STATES_P
    untold = "; fewer than ten states do not tell what is far off in some of them only" if few else ""
    return _how_near(record) + untold


def _how_near(record: RoundingRecord) -> str:
    bits = record.bits or 0.0
    if not record.in_fp64:
        return "within fp32 rounding of a careful fp32 reference (fp64 was not possible)"
    if record.disturbed:
        return f"no further from fp64 than the original with {_DISTURBED}"
    if bits <= 1:
        return "as near to fp64 as the original"
    return f"rounding, {bits:.1f} bits lost of the original's own distance to fp64 (up to {MOST_BITS:.0f} are rounding)"


@dataclass(frozen=True)
class _Pair:
    """A tensor in one state, of both."""

    original: TensorRow
    found: TensorRow
    bits: float  # that the candidate loses

    @classmethod
    def of(cls, original: TensorRow, found: TensorRow, largest: float, careful: bool) -> _Pair:
        """`largest`: a tensor's size in this state; where the reference is exactly zero, it tells what is small."""
        floor = (_CARELESS if careful else _UNITS) * (original.size or largest) + 1e-300
        assert original.error is not None and found.error is not None
        return cls(original, found, math.log2((found.error + floor) / (original.error + floor)))

    @property
    def is_wild(self) -> bool:
        """More than a flip can do."""
        own, error = self.original, self.found.error or 0.0
        few = own.kind == "update" or own.count < _SMALL
        return error > max((_WILD_OF_FEW if few else _WILD) * own.size, _WILD_TIMES * (own.error or 0.0), 1e-300)


@dataclass(frozen=True)
class _Fault:
    pair: _Pair
    sentence: str

    @property
    def rank(self) -> float:
        return self.pair.bits


def _faults(pairs: Sequence[_Pair], allowed: float, against: str) -> list[_Fault]:
    """What refuses a candidate in one tensor."""
    own = pairs[0].original
    if own.kind == "loss":
        return _faults_of_loss(pairs, allowed, against)
    name = f"the {own.kind} of {own.tensor}"
    bits, farthest = _bits(pairs), max(pairs, key=lambda each: each.bits)
    if bits > allowed:
        return [_Fault(farthest, f"{name} is {bits:.1f} bits further from fp64 than {against}, which is no rounding")]
    if own.kind == "output" and farthest.bits > allowed + _FAR:
        when = f"{name} is {farthest.bits:.1f} bits further from fp64 than {against} in {farthest.original.when}"
        return [_Fault(farthest, f"{when}, which is no rounding")]
    wild = [each for each in pairs if each.is_wild and each.bits > _FAR]
    if len(wild) > (own.kind == "update" and own.count < _SMALL):
        at = max(wild, key=lambda each: each.bits)
        return [_Fault(at, f"{name} is {share_of(at.found)} from the fp64 reference in {at.original.when}")]
    worse = sum(each.bits > max(bits, 0.0) + _FAR for each in pairs)
    better = sum(each.bits < min(bits, 0.0) - _FAR for each in pairs)
    if _at_least(worse, worse + better) < _FEW_STATES_P:
        return [
            _Fault(
                farthest, f"{name} is far from fp64 in {worse} of {len(pairs)} states, that of {against} in {better}"
            )
        ]
    return []


def _faults_of_loss(pairs: Sequence[_Pair], allowed: float, against: str) -> list[_Fault]:
    """Where losses lie far apart, a share is one of the usual loss: of one that is a difference, little may be left."""
    usual = float(np.median([each.original.size for each in pairs])) or 1e-300
    sizes = [max(each.original.size, usual) for each in pairs]
    worst = max((each.original.error or 0.0) / size for each, size in zip(pairs, sizes, strict=True))
    shares = [(each.found.error or 0.0) / size for each, size in zip(pairs, sizes, strict=True)]
    bits = math.log2((max(shares) + _UNITS) / (worst + _UNITS))
    if bits <= allowed + _FAR_OF_LOSS:
        return []
    at = pairs[shares.index(max(shares))]
    said = f"the loss is {share_of(at.found)} from the fp64 reference in {at.original.when}"
    return [_Fault(at, f"{said}, {bits:.1f} bits further than {against} in any, which is no rounding")]


def _biased(tensors: Mapping[tuple[str, str], Sequence[_Pair]]) -> list[_Fault]:
    """Tensors whose error has a direction of its own, that the original's has not."""
    candidates = [pairs for pairs in tensors.values() if is_main(pairs[0].original) and _has_direction(pairs)]
    found = []
    for pairs in candidates:
        original, candidate = np.array([(each.original.along, each.found.along) for each in pairs]).T
        own = float(np.median([(each.original.error or 0.0) / each.original.size for each in pairs]))
        least = max(_LEAST_BIAS, _OF_OWN_ERROR * own)
        interval = student.paired(original, candidate, _BIAS_P / 2 / len(candidates))
        if min(abs(interval.low), abs(interval.high)) > least and interval.low * interval.high > 0:
            row, farthest = pairs[0].original, max(pairs, key=lambda each: each.bits)
            off = f"the {row.kind} of {row.tensor} is {interval.estimate:+.2g} of itself off"
            found.append(_Fault(farthest, f"{off} in the same direction in all states, which is no rounding"))
    return found


def _has_direction(pairs: Sequence[_Pair]) -> bool:
    """Whether it is more than rounding itself, in states enough for a test."""
    shares = [(each.original.error or 0.0) / each.original.size for each in pairs if each.original.size > 0]
    return len(pairs) >= FEWEST_STATES and len(shares) == len(pairs) and float(np.median(shares)) < UNUSABLE


def _bits(pairs: Sequence[_Pair]) -> float:
    return float(np.median([each.bits for each in pairs]))


def _at_least(count: int, of: int) -> float:
    """The chance of so many heads or more in so many throws."""
    return sum(math.comb(of, k) for k in range(count, of + 1)) / 2.0**of if of else 1.0


def _outright(holds: bool | None, sentence: str, steps: Sequence[int]) -> Rounding:
    return Rounding(holds, sentence, RoundingRecord(states=len(steps), steps=tuple(steps)))


def _error(pairs: Sequence[_Pair], allowed: float) -> TensorError:
    """Of one tensor, by its median over states."""
    own = pairs[0].original
    return TensorError(own.tensor, own.kind, 2.0 ** min(_bits(pairs), 30.0), 2.0**allowed)


def _by_step(tensors: Mapping[tuple[str, str], Sequence[_Pair]]) -> dict[int, float]:
    """The mean over gradients and updates of the logarithm of candidate's error over original's, by state."""
    logs: dict[int, list[float]] = {}
    for pairs in tensors.values():
        for each in pairs:
            if is_main(each.original):
                logs.setdefault(each.original.step, []).append(each.bits * math.log(2))
    return {step: float(np.mean(values)) for step, values in sorted(logs.items())}


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
