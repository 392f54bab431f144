"""The third level of sameness: the candidate's result lies within the noise of the seed.

Fixed before the candidate's first run: the metric, the horizon, the seeds, the looks, and the rule of the margin, which
at each look is told by as many runs of the original as the look has. Then both arms run under many seeds, the same for
both (common random numbers), and two one-sided paired t tests (TOST) follow: equivalent where both reject a difference
as large as the margin. Where seeds gave the margin, it is itself an estimate, and both uncertainties count together
(MOVER, Zou and Donner 2008): with m the margin, d the mean difference, h the half width of its interval and c the share
of the margin that is certain at the same level, equivalent means

    m > |d|    and    (m - |d|)^2 > (m - c m)^2 + h^2.

With a margin that is known (c = 1) this is TOST; with pairs that agree perfectly (h = 0), |d| < c m. To ask for both of
these one by one, as we did, lets 8 to 10 % pass at the margin where the arms correlate by .3 to .7.

Refused for good:
- the interval of the difference lies wholly beyond the margin, or beyond the strict one (evidence/margin.py) at
  p < 0.005 on one side;
- more of its runs fail (not finite), by Fisher's exact test at p < 0.01;
- it reaches the original's loss in more than 10 % more or fewer steps, at p < 0.001;
- its loss curve leaves the envelope of seeds: p < 0.001, and the interval at the worst place lies wholly
  beyond the envelope, which is as many standard deviations over seeds wide as the margin is;
- something else that it produces lies elsewhere (`evidence.products`);
- its results spread more than the original's, at p < 0.001 (evidence/spread.py).
The curves' are strict because they are asked of every candidate at every look, on top of the margin;
with fewer than 7 runs an arm no permutation is rare enough for either. Not called equivalent, but not refused: one of
its runs failed and none of the original's; its results spread more at p < 0.01; its worst run is worse than the
original's worst by more than the margin; before the last look, its speed or its curve differs at p < 0.05.

Simulated, 5, 7, 10 and 16 runs an arm as looks, normal seeds of standard deviation s, a margin of 1.5 s, 40,000 trials
each (by all rules 1,500); r is the correlation of the two arms' results, seed by seed:

    r                                 0       0.3     0.5     0.7     0.9     0.98    1
    passes, difference 1.5 s          3.7 %   4.0 %   4.4 %   4.5 %   4.7 %   4.6 %   4.7 %
    passes, difference 0.75 s         50 %    60 %    69 %    79 %    92 %    96 %    97 %
    passes, no difference             94 %    98 %    99 %    100 %   100 %   100 %   100 %
    ... and by all rules              91 %    96 %    98 %    99 %    100 %           100 %
    runs an arm, no difference        13.8    12.1    10.6    8.6     6.1     5.1     5.0

With seeds as skewed as a lognormal of sigma 0.5, 10 to 12 % pass at the margin. Five runs cannot exclude that 45 % of
runs fail, ten that 26 % do, nor sixteen that 17 % do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from overdrive.core.interval import Interval
from overdrive.core.json_data import finite, from_json
from overdrive.core.proof_record import StatisticalRecord
from overdrive.evidence import convergence, products, spread, student
from overdrive.evidence.convergence import Band, LossPace
from overdrive.evidence.margin import PROGRESS_SHARE, runs_needed
from overdrive.evidence.products import Looked
from overdrive.evidence.registration import SPREADS, ArmRun, Registration

_REFUSED_P = 0.005  # one-sided: what is harmless on a program of much noise must not be refused for its luck
_FAILURES_P, _SUSPECT_FAILURES_P = 0.01, 0.05  # refused; not called equivalent


@dataclass(frozen=True)
class Outcome:
    """What a look established. Numbers that could not be had are NaN or infinite here, and None in its record."""

    equivalent: bool | None  # None: not established either way
    sentence: str
    difference: float  # candidate's mean less the original's, of the runs that converged
    interval: tuple[float, float]  # of the difference, at confidence 1 - 2 alpha / looks
    margin: float
    smallest_margin: float  # that would have passed
    runs: tuple[int, int]  # judged, of the original and of the candidate
    not_converged: tuple[int, int]
    steps_to_target: LossPace | None
    band: Band | None
    strict: float = 0.0  # beyond which it is refused
    wider_p: float = 1.0  # of so much more spread than the original's
    products: Looked = field(default_factory=Looked)  # what else the runs produced

    @property
    def against(self) -> list[str]:
        """Other results that speak against it, by name."""
        differ = [each.name for each in self.products.differences if each.p < products.EARLY_DOUBT_P]
        return [*self.products.lacked, *differ]

    def record(
        self, registration: Registration, original: Sequence[ArmRun] = (), candidate: Sequence[ArmRun] = ()
    ) -> StatisticalRecord:
        """What is kept of it, with what was fixed beforehand and all runs of both arms."""
        arms = {"original": original, "candidate": candidate}
        found = {
            **asdict(self),
            **asdict(registration),
            **{name: [each.value for each in arm] for name, arm in arms.items()},
            "seeds": {name: [each.seed for each in arm] for name, arm in arms.items()},
        }
        if self.band is not None:
            found["band"]["left"] = self.band.fault is not None
        return from_json(StatisticalRecord, finite(found))


def judge(
    registration: Registration, original: Sequence[ArmRun], candidate: Sequence[ArmRun], unsteady: int = 0
) -> Outcome:
    """Judge both arms at the largest look that they have reached; before the first, nothing is established.

    Runs count in the order of the registered seeds, and those after the look do not count. What is compared are
    the seeds under which both converged. Raises ValueError for a seed that is not registered, or comes twice.

    Args:
        unsteady: printed numbers that the runs have no longer, since the program itself does not repeat them.
    """
    one = _in_order(original, registration.seeds, "original")
    other = _in_order(candidate, registration.seeds, "candidate")
    reached = [look for look in registration.looks if look <= min(len(one), len(other))]
    if reached:
        one, other = one[: reached[-1]], other[: reached[-1]]
    runs = len(one), len(other)
    failed = (sum(not run.converged for run in one), sum(not run.converged for run in other))
    alpha = registration.alpha_at(min(runs))
    arms = _both_converged(one, other)
    values = [np.array([run.value for run in arm]) for arm in arms]
    interval = student.paired(values[0], values[1], alpha)
    curves = [[run.losses for run in arm] for arm in arms]
    if not all(curves[0]) or not all(curves[1]):
        curves = [[], []]
    pace = convergence.pace(curves[0], curves[1])
    band = convergence.band(curves[0], curves[1], _spreads(registration.margin, values[0]), alpha)
    last = min(runs) >= registration.looks[-1]
    looked = replace(products.look(*arms, products.doubt_p(min(runs), last)), unsteady=unsteady)
    seen = _Seen(registration, interval, runs, failed, values, pace, band, looked, last)
    faults, doubts = seen.faults(), seen.doubts(alpha)
    if not reached:
        faults, doubts = [], [f"{runs[0]} and {runs[1]} runs, and the first look is at {registration.looks[0]}"]
    equivalent = False if faults else None if doubts else True
    return Outcome(
        equivalent=equivalent,
        sentence=_sentence(registration, equivalent, seen, alpha, faults or doubts),
        difference=interval.estimate,
        interval=(interval.low, interval.high),
        margin=registration.margin,
        smallest_margin=_smallest(registration, interval, alpha),
        runs=runs,
        not_converged=failed,
        steps_to_target=pace,
        band=band,
        strict=registration.strict or registration.margin,
        wider_p=seen.wider_p,
        products=seen.looked,
    )


@dataclass(frozen=True)
class _Seen:
    """All that a look is decided by."""

    registration: Registration
    interval: Interval
    runs: tuple[int, int]
    failed: tuple[int, int]
    values: Sequence[convergence.Array]  # of the pairs that converged, by arm
    pace: LossPace | None
    band: Band | None
    looked: Looked
    last: bool  # there is no look to come

    @property
    def failures_p(self) -> float:
        return convergence.fisher((self.failed[0], self.runs[0]), (self.failed[1], self.runs[1]))

    @property
    def wider_p(self) -> float:
        return spread.wider_p(*self.values)

    def faults(self) -> list[str]:
        """What refuses the candidate for good."""
        strict = self.registration.strict or self.registration.margin
        faults = []
        if self.failures_p < _FAILURES_P:
            failed = f"{self.failed[1]} of its runs failed and {self.failed[0]} of the original's"
            faults.append(f"{failed} (p = {self.failures_p:.2g})")
        sure = student.paired(self.values[0], self.values[1], _REFUSED_P)
        if _beyond(self.interval, self.registration.margin):
            faults.append("the difference lies beyond the margin")
        elif _beyond(sure, strict):
            faults.append(f"the difference lies beyond ±{strict:.3g}, {PROGRESS_SHARE:.0%} of its progress")
        if self.wider_p < spread.REFUSED_P:
            faults.append(f"its results spread more than the original's (p = {self.wider_p:.2g})")
        faults += [each.fault for each in (self.pace, self.band) if each is not None and each.fault]
        return faults + list(self.looked.faults)

    def doubts(self, alpha: float) -> list[str]:
        """What keeps the candidate from being called equivalent, for now."""
        registration, failed = self.registration, self.failed
        doubts = []
        if self.runs[0] and failed[0] == self.runs[0]:
            doubts.append(f"all {self.runs[0]} runs of the original itself failed")
        elif (failed[1] and not failed[0]) or self.failures_p < _SUSPECT_FAILURES_P:
            doubts.append(f"{failed[1]} of its runs failed and {failed[0]} of the original's")
        if not _farthest(self.interval) < registration.margin:
            doubts.append("the difference may reach the margin")
        elif not _within(registration, self.interval, alpha):
            doubts.append(
                f"the difference may reach the margin, which is known from {registration.margin_runs} seeds only"
            )
        if self.wider_p < spread.DOUBT_P:
            doubts.append(f"its results may spread more than the original's (p = {self.wider_p:.2g})")
        if spread.worst_is_worse(self.values[0], self.values[1], registration.margin, registration.worse):
            doubts.append("its worst run is worse than the original's worst by more than the margin")
        if not self.last:
            doubts += [each.doubt for each in (self.pace, self.band) if each is not None and each.doubt]
        return doubts + list(self.looked.doubts)


def _in_order(runs: Sequence[ArmRun], seeds: tuple[int, ...], arm: str) -> list[ArmRun]:
    by_seed = {run.seed: run for run in runs}
    if len(by_seed) < len(runs):
        raise ValueError(f"two runs of the {arm} have the same seed")
    if strange := sorted(set(by_seed) - set(seeds)):
        raise ValueError(f"seed {strange[0]} is not among those registered for the {arm}")
    return [by_seed[seed] for seed in seeds if seed in by_seed]


def _both_converged(original: Sequence[ArmRun], candidate: Sequence[ArmRun]) -> tuple[list[ArmRun], list[ArmRun]]:
    """The runs of both arms under the same seeds, in the same order."""
    of_candidate = {run.seed: run for run in candidate if run.converged}
    shared = [run for run in original if run.converged and run.seed in of_candidate]
    return shared, [of_candidate[run.seed] for run in shared]


def _spreads(margin: float, values: convergence.Array) -> float:
    """How many standard deviations over seeds the margin is: a tolerance for the metric holds for the curve too."""
    own = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return max(SPREADS, margin / own) if own else math.inf


def _within(registration: Registration, interval: Interval, alpha: float) -> bool:
    """Whether the difference lies within the margin, as uncertain as both are (see above)."""
    least = (1 - registration.certain(alpha)) * registration.margin
    half, left = interval.high - interval.estimate, registration.margin - abs(interval.estimate)
    return left > 0 and left**2 > least**2 + half**2


def _smallest(registration: Registration, interval: Interval, alpha: float) -> float:
    """The smallest margin that would pass, as well known as the registered one."""
    half, off = interval.high - interval.estimate, abs(interval.estimate)
    known = 1 - (1 - registration.certain(alpha)) ** 2
    if not math.isfinite(half) or known <= 0:
        return math.inf
    return (off + math.sqrt(max(0.0, off**2 - known * (off**2 - half**2)))) / known


def _farthest(interval: Interval) -> float:
    return max(abs(interval.low), abs(interval.high))


def _beyond(interval: Interval, margin: float) -> bool:
    return interval.low > margin or interval.high < -margin


def _sentence(
    registration: Registration, equivalent: bool | None, seen: _Seen, alpha: float, reasons: Sequence[str]
) -> str:
    verdict = {True: "equivalent", False: "not equivalent", None: "not established"}[equivalent]
    because = f": {'; '.join(reasons)}" if reasons else ""
    steps = f" over {registration.horizon} steps" if registration.horizon else ""
    interval, runs = seen.interval, seen.runs
    difference, smallest = "cannot be compared", "no margin would pass"
    if math.isfinite(_farthest(interval)):
        difference = f"differs by {interval.estimate:+.3g} ({interval.low:+.3g} to {interval.high:+.3g})"
        smallest = f"the smallest that would pass ±{_smallest(registration, interval, alpha):.3g}"
    strict = registration.strict
    if equivalent and 0 < strict < registration.margin and _farthest(interval) < strict:
        because = f" within ±{strict:.3g}, {PROGRESS_SHARE:.0%} of its progress"
    proxy = "" if registration.whole else "; a proxy, not a proof"
    return (
        f"{verdict}{because}; {registration.metric}{steps} {difference}, margin ±{registration.margin:.3g}, {smallest},"
        f" {runs[0]} and {runs[1]} runs{_needed(registration, equivalent, seen)}{seen.looked.told}{proxy}"
    )


def _needed(registration: Registration, equivalent: bool | None, seen: _Seen) -> str:
    """How many runs would tell, where these did not and the difference is all that is in doubt."""
    if equivalent is not None or len(seen.values[0]) < 2 or _farthest(seen.interval) < registration.margin:
        return ""
    deviation = float((seen.values[1] - seen.values[0]).std(ddof=1))
    needed = runs_needed(registration.margin, deviation) if math.isfinite(deviation) else 0
    return f" (about {needed} would tell, if there is no difference)" if needed > seen.runs[0] else ""
