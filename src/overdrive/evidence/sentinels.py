"""Whether a step of a run and the same step without the plan's techniques, made from the same state, go together.

A step is told by elements of its gradients, updates and buffers. There is no fp64 here: a sentinel looks for what has
turned wrong, not for what loses some bits, which the proof has looked for.

`rounding`. What is no more than 64 units of the last place off everywhere is rounding. Else the step is made again,
without the techniques, with its parameters disturbed at random by one part in 2**17, seven times. That is more than
legal kernels do, and a network with ties flips with these as it does with those. So the run is one of eight that differ
from the plain step, and not the worst of them more often than in one of eight cases (how far each is off is compared
tensor by tensor, against the median of the eight). Each time that it is the worst by three bits, evidence against it is
multiplied by 4.5, and each other time by 0.5 (not below 1): the mean factor is at most 1. From 1,000 on it is told, so
that it takes a thousand sentinels on average to tell it of a plan that does not deserve it, in the worst case. An error
that no flip explains, five bits beyond all disturbed ones and a tenth of the tensor's size, is told at once.

`statistical`. By how much a step's loss, the sizes of its gradients and updates, and their parts along the plain ones
are off, as running means. Told where a t test at p < 1e-4 on the last 4, 8, 16 or 32 sentinels says that a mean lies
beyond a tenth (of a loss: a twentieth); and at once where one is not finite and that of the plain step is. What is not
finite in the plain step says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from overdrive.evidence import student

Values: TypeAlias = Mapping[str, np.ndarray[Any, Any]]  # by "the gradient of NAME", "the update of NAME" ...

DISTURBED = 7
_UNIT = 2.0**-24
_PLAINLY = 64 * _UNIT
_SMALL_TENSOR = 2.0**-7  # of the largest of its kind: what is smaller may be nothing but rounding itself
_WORST_BY = 3.0  # bits
_WORSE, _ELSE = 4.5, 0.5  # factors: 4.5 / 8 + 0.5 * 7 / 8 = 1
_TELLS_FROM = 1000.0
_FAR = 5.0  # bits
_WILD, _WILD_OF_FEW, _FEW = 0.1, 0.3, 500
_MARGINS = {"the loss": 0.05}
_MARGIN = 0.1
_LOOKS = (4, 8, 16, 32)
_P = 1e-4


def is_plainly_rounding(mine: Values, plain: Values) -> bool:
    """Where something is not finite in the plain step, it does not count."""
    sizes = _sizes(plain)
    return mine.keys() == plain.keys() and all(
        _rms(mine[name] - plain[name]) <= _PLAINLY * size for name, size in sizes.items()
    )


@dataclass(frozen=True)
class Distance:
    """How far a step is off, against disturbed ones. `name`: of the tensor that is off the most."""

    name: str
    worst: bool  # it is the farthest of all, by some bits
    wild: bool  # no flip explains it


def distance(mine: Values, plain: Values, disturbed: Sequence[Values]) -> Distance:
    sizes = _sizes(plain)
    if missing := sorted(mine.keys() ^ plain.keys()):
        return Distance(missing[0], True, True)
    names = list(sizes)
    off = np.array([[_off(each[name], plain[name], sizes[name]) for name in names] for each in (mine, *disturbed)])
    beyond = off - np.median(off, axis=0)
    farthest = beyond.max(axis=1)
    place = int(beyond[0].argmax())
    over_all = off[0] - off[1:].max(axis=0)
    wild = [n for n, name in enumerate(names) if over_all[n] > _FAR and _is_wild(mine[name], plain[name], sizes[name])]
    if wild:
        place = max(wild, key=lambda n: float(over_all[n]))
    return Distance(names[place], bool(farthest[0] > farthest[1:].max() + _WORST_BY), bool(wild))


def _is_wild(mine: np.ndarray[Any, Any], plain: np.ndarray[Any, Any], size: float) -> bool:
    few = mine.size < _FEW
    error = _rms(mine - plain)
    return not math.isfinite(error) or error > (_WILD_OF_FEW if few else _WILD) * size


def _off(values: np.ndarray[Any, Any], plain: np.ndarray[Any, Any], size: float) -> float:
    """In bits; of what is not finite where the plain step is, far more than any."""
    error = _rms(values - plain)
    return math.log2(error + 2 * _UNIT * size + 1e-300) if math.isfinite(error) else 1024.0


def _sizes(plain: Values) -> dict[str, float]:
    """Root mean square of each, or of what is small beside the others of its kind, a share of the largest."""
    own = {name: _rms(values) for name, values in plain.items()}
    own = {name: size for name, size in own.items() if math.isfinite(size)}
    largest: dict[str, float] = {}
    for name, size in own.items():
        largest[_kind(name)] = max(largest.get(_kind(name), 0.0), size)
    return {name: max(size, _SMALL_TENSOR * largest[_kind(name)]) for name, size in own.items()}


def _kind(name: str) -> str:
    return name.split(" of ", 1)[0]


def _rms(values: np.ndarray[Any, Any]) -> float:
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.einsum("i,i", wide, wide) / max(1, wide.size)))


@dataclass
class Doubt:
    """Evidence against a plan of the level `rounding`, over the sentinels of a run."""

    evidence: float = 1.0

    def take(self, found: Distance | None) -> bool:
        """One more; None: plainly rounding. Whether that is enough to tell."""
        worse = found is not None and found.worst
        self.evidence = max(self.evidence, 1.0) * (_WORSE if worse else _ELSE)
        return self.evidence >= _TELLS_FROM or bool(found and found.wild)


@dataclass
class StepSums:
    """Running sums of what a proof of the level `statistical` looks at, as far as one step has it."""

    _seen: dict[str, list[float]] = field(default_factory=dict)

    def take(self, mine: Values, plain: Values, losses: tuple[float, float], same_chance: bool) -> str | None:
        """One more sentinel. What is off beyond its margin, and by how much; "" where nothing is, None where nothing is
        finite in the plain step: it says nothing.

        Args:
            losses: mine and the plain one.
            same_chance: the same random numbers were drawn: else no direction can be compared.
        """
        found = _quantities(mine, plain, losses, same_chance)
        if not found:
            return None
        for name, value in found.items():
            if not math.isfinite(value):
                return f"{name} is not finite"
        for name, value in found.items():
            self._seen[name] = [*self._seen.get(name, ()), value][-_LOOKS[-1] :]
        return next((told for name in self._seen if (told := self._beyond(name))), "")

    def _beyond(self, name: str) -> str:
        margin, seen = _MARGINS.get(name, _MARGIN), np.array(self._seen[name])
        for count in _LOOKS:
            if len(seen) < count:
                break
            last = seen[-count:]
            interval = student.paired(np.zeros(count), last, _P)
            if interval.low > margin or interval.high < -margin:
                return f"{name} is {interval.estimate:+.0%} off on average of {count}"
        return ""


def _quantities(mine: Values, plain: Values, losses: tuple[float, float], same_chance: bool) -> dict[str, float]:
    """By how much each is off, as a share; of those that are finite in the plain step."""
    found: dict[str, float] = {}
    if math.isfinite(losses[1]):
        found["the loss"] = (losses[0] - losses[1]) / max(abs(losses[1]), 1e-30)
    for kind in ("the gradient", "the update"):
        names = [name for name in plain if _kind(name) == kind and name in mine]
        if not names:
            continue
        p = np.concatenate([mine[name] for name in names]).astype(np.float64)
        c = np.concatenate([plain[name] for name in names]).astype(np.float64)
        own, size = _rms(p), _rms(c)
        if not math.isfinite(size) or (not size and math.isfinite(own)):
            continue
        found[f"the size of {kind}"] = own / size - 1 if size else math.inf
        if same_chance and math.isfinite(own):
            found[f"{kind} along its own direction"] = float(np.einsum("i,i", p - c, c)) / (size * size * c.size)
    return found
