"""What runs produce besides their loss, compared pair by pair under the same seeds.

Three kinds: outputs of evaluations (how sure, which classes, which predictions), the numbers that the program prints,
and buffers and parameters at the end. Each becomes one number a run. A candidate is refused where one of them is shown
to be off by more than a quarter of the standard deviation that seeds give to it in the original (or 1 %, if more),

    t = (|mean of the paired differences| - max(0.25 s, 1 %)) / (their standard error),

corrected for as many as are looked at (Holm, 1979) at p < 0.005, and is not called equivalent at p < 0.05 (where there
is another look to come 0.2, and 0.7 with fewer than ten pairs). What sums up many (the mean over all weights, over all
buffers, over all predictions) has half of p to itself. Sizes are compared by their logarithms.

Weights tell most. A learning rate 10 % off moves the late loss by nothing that 16 runs can see, and the way that the
weights have gone by two standard deviations. Only matrices are asked: a bias in front of a batch normalisation, or of
an attention's keys, has no gradient but what rounding makes, and moves with that.

Where both arms have the same losses bit for bit, evaluations and buffers must be the same, too, up to lower precision:
0.5 %.

What some runs lack, or have as nan, is looked at in evidence/lacking.py, and here compared in the pairs that have it. A
printed number that is the same under all seeds (a count, a setting, a learning rate) has to stay what it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from overdrive.core import printed
from overdrive.core.products import Evaluation, Products
from overdrive.evidence import lacking, student
from overdrive.evidence.convergence import Array
from overdrive.evidence.registration import ArmRun

PRINTED = "printed "  # begins the name of a printed number
_EXCUSED = 0.25  # standard deviations over seeds
_LEAST = 0.01  # off by less is not looked at
_REFUSED_P = 0.005
# Not called equivalent: at the last look, and at an earlier one, after which more is seen.
DOUBT_P, EARLY_DOUBT_P = 0.05, 0.2
# ... and where the pairs are few. At 0.2 noise of 30 % on every gradient of the zoo's CNN passed in 4 of 40 orders of
# its seeds after five or seven pairs, and in none where ten come first; at 0.7 in none, and what is harmless passes as
# often and as soon.
FIRST_DOUBT_P, _FEW = 0.7, 10
_SAME_TRAINING = 0.005
_MOST_CLASSES = 16  # that are looked at one by one
_FEWEST = 4  # pairs
_TINY = 1e-30
_SAME_CONSTANT = 16 * 2.0**-23  # relative: 16 units of fp32's last place
_MOST_TOLD = 12
_ALL = ", all"  # ends the name of what sums up many


@dataclass(frozen=True)
class Difference:
    """One quantity, in its own unit (a logarithm, where it is a size)."""

    name: str
    mean: float  # of the paired differences
    spread: float  # over the original's seeds
    p: float  # of so large a difference, if it truly were no larger than what is excused; corrected for all (Holm)

    @property
    def told(self) -> str:
        if self.spread <= _TINY:
            return f"{self.name} is off by {self.mean:.3g}, and the same under all seeds (p = {self.p:.2g})"
        return (
            f"{self.name} is {abs(self.mean) / self.spread:.2g} standard deviations over seeds off (p = {self.p:.2g})"
        )


@dataclass(frozen=True)
class Looked:
    """`differences`: the largest first. `lacked`: names that the candidate lacks, of what speaks against it."""

    faults: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    count: int = 0  # quantities looked at
    lacked: tuple[str, ...] = ()
    incomparable: int = 0  # quantities that too few runs of the program itself have
    unsteady: int = 0  # printed numbers that were left out: the program does not print them twice alike

    @property
    def told(self) -> str:
        """How much was looked at and what was not, as the end of a sentence."""
        told = f", {self.count} other results compared" if self.count else ""
        if self.incomparable:
            told += f", {self.incomparable} not comparable, as too few runs of both have them"
        if self.unsteady:
            numbers, they = ("number", "it") if self.unsteady == 1 else ("numbers", "them")
            told += f", {self.unsteady} printed {numbers} not comparable, as the program itself does not repeat {they}"
        return told


def numbers_of(products: Products | None, output: str) -> dict[str, float]:
    """One number for each quantity of a run, by name.

    Args:
        output: what the program printed.
    """
    found: dict[str, float] = {}
    if products is not None:
        late = products.evaluations[len(products.evaluations) // 2 :]
        if late:
            found |= _mean([_of_evaluation(each) for each in late], "late evaluations")
        if products.held is not None:
            found |= _mean([_of_evaluation(products.held)], "evaluation of the first batches")
        found |= {name: math.log(max(abs(value), _TINY)) for name, value in products.state.items()}
    for name, values in printed.series(output).items():
        found[f"{PRINTED}{name}, last"] = values[-1]
        if len(values) > 1:
            found[f"{PRINTED}{name}, mean"] = sum(values) / len(values)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def predictions_of(products: Products | None) -> dict[str, list[int]]:
    """The classes that a run's evaluations came to, by what was evaluated, where it is the same under every seed."""
    return {"last evaluation": list(products.predictions)} if products is not None and products.predictions else {}


def doubt_p(pairs: int, last: bool) -> float:
    """Below which p, with so many pairs, a candidate is not called equivalent. `last`: there is no look to come."""
    return DOUBT_P if last else FIRST_DOUBT_P if pairs < _FEW else EARLY_DOUBT_P


def look(original: Sequence[ArmRun], candidate: Sequence[ArmRun], doubt_p: float = DOUBT_P) -> Looked:
    """Compare the arms; the runs are in pairs, in the same order."""
    count = min(len(original), len(candidate))
    if count < _FEWEST:
        return Looked()
    missing = lacking.look([run.numbers for run in original], [run.numbers for run in candidate])
    columns = _columns(original, candidate)
    raw = {name: _difference(name, *arms) for name, arms in columns.items()}
    found = _corrected([each for each in raw.values() if each is not None])
    faults = list(missing.faults)
    if [run.losses for run in original] == [run.losses for run in candidate] and original[0].losses:
        wrong = (name for name, arms in columns.items() if not name.startswith(PRINTED) and _apart(*arms))
        faults += [f"it trains the same bit for bit, and {name} is another" for name in wrong][:1]
    faults += [each.told for each in found if each.p < _REFUSED_P]
    doubts = [*missing.doubts, *(each.told for each in found if each.p < doubt_p)]
    known = {name for run in original for name in run.numbers}
    return Looked(
        faults=tuple(faults[:2]),
        doubts=tuple(doubts[:2]),
        differences=tuple(found[:_MOST_TOLD]),
        count=len(found),
        lacked=missing.names,
        incomparable=len(known - columns.keys() - set(missing.names)),
    )


def _of_evaluation(each: Evaluation) -> dict[str, float]:
    size = max(each.size, _TINY)
    numbers = {"size of outputs": math.log(size), "mean of outputs": each.level / size}
    if each.classes:
        numbers |= {"confidence": each.confidence, "entropy": each.entropy}
    if len(each.classes) <= _MOST_CLASSES:
        numbers |= {f"share of class {number}": share for number, share in enumerate(each.classes)}
    return numbers


def _mean(numbers: Sequence[dict[str, float]], of: str) -> dict[str, float]:
    names = set.intersection(*map(set, numbers))
    return {f"{name} ({of})": float(np.mean([each[name] for each in numbers])) for name in sorted(names)}


def _columns(original: Sequence[ArmRun], candidate: Sequence[ArmRun]) -> dict[str, tuple[Array, Array]]:
    """Of each quantity its values in both arms, in the pairs that have it; without those that too few have."""
    pairs = [(one.numbers, other.numbers) for one, other in zip(original, candidate, strict=False)]
    found = {}
    for name in sorted({name for run in original for name in run.numbers}):
        arms = [(one[name], other[name]) for one, other in pairs if name in one and name in other]
        if len(arms) >= _FEWEST:
            one, other = np.array(arms).T
            found[name] = one, other
    return found | _far_from_all(original, candidate)


def _far_from_all(original: Sequence[ArmRun], candidate: Sequence[ArmRun]) -> dict[str, tuple[Array, Array]]:
    """Each run's share of predictions that differ from those of the original's other seeds, on the same data.

    A candidate that agrees with its own pair in no prediction but comes from the same distribution is as far from the
    others as the original's own runs are.
    """
    found = {}
    for name in sorted(set.intersection(*(set(run.predictions) for run in (*original, *candidate)))):
        arms = [[np.array(run.predictions[name]) for run in arm] for arm in (original, candidate)]
        if len({len(each) for arm in arms for each in arm}) != 1 or not len(arms[0][0]):
            continue
        one, other = (np.stack(arm) for arm in arms)
        columns = []
        for arm in (one, other):
            apart = (arm[:, None, :] != one[None, :, :]).mean(axis=2)
            np.fill_diagonal(apart, 0.0)  # its own pair
            columns.append(apart.sum(axis=1) / (len(one) - 1))
        found[f"disagreement of predictions ({name}){_ALL}"] = (columns[0], columns[1])
    return found


def _difference(name: str, original: Array, candidate: Array) -> Difference | None:
    differences = candidate - original
    spread = float(original.std(ddof=1))
    mean = float(differences.mean())
    own = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    if name.startswith(PRINTED):
        if _constant(original) and _constant(candidate):
            same = abs(mean) <= _SAME_CONSTANT * abs(float(original.mean()))
            return None if same else Difference(name, mean, 0.0, 0.0)
        least = _LEAST * abs(float(original.mean()))
    else:
        least = _LEAST
    beyond = abs(mean) - max(_EXCUSED * spread, least)
    if beyond <= 0:
        return Difference(name, mean, spread, 1.0)
    p = 1 - student.within(beyond / own, len(differences) - 1) if own > 1e-12 * abs(mean) else 0.0
    return Difference(name, mean, spread, max(0.0, p))


def _constant(values: Array) -> bool:
    return bool(np.ptp(values) <= _SAME_CONSTANT * np.abs(values).max())


def _apart(original: Array, candidate: Array) -> bool:
    return bool(np.abs(candidate - original).max() > _SAME_TRAINING)


def _corrected(found: Sequence[Difference]) -> list[Difference]:
    """With p corrected for how many are looked at; the least p first. Half of it is for what sums up many."""
    families = [[each for each in found if (_ALL in each.name) is sums_up] for sums_up in (True, False)]
    share = sum(bool(family) for family in families)
    corrected = [replace(each, p=min(1.0, share * each.p)) for family in families for each in _holm(family)]
    return sorted(corrected, key=lambda each: (each.p, -abs(each.mean) / max(each.spread, _TINY)))


def _holm(found: Sequence[Difference]) -> list[Difference]:
    corrected, largest = [], 0.0
    for place, each in enumerate(sorted(found, key=lambda each: each.p)):
        largest = max(largest, min(1.0, each.p * (len(found) - place)))
        corrected.append(replace(each, p=largest))
    return corrected
