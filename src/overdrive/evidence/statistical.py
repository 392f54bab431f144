"""The third level of sameness: the candidate's result lies within the noise of the seed.

Fixed before the candidate's first run: the metric, the horizon, the seeds, the looks, the margin. Then
both arms run under many seeds, the same for both (common random numbers), and two one-sided paired t tests
(TOST) follow: equivalent where both reject a difference as large as the margin. With two looks each has half of
alpha, 2.5 %. Where few seeds gave the margin, it may be too wide by chance; the difference must then also lie
within the share of it that is certain at the same level (0.69 of it for 10 seeds).

Four findings refuse a candidate for good:
- the interval of the difference lies wholly beyond the margin;
- more of its runs fail (not finite), by Fisher's exact test at p < 0.01;
- it reaches the original's loss in more than 10 % more or fewer steps, at p < 0.001;
- its loss curve leaves the envelope of seeds: p < 0.001, and the interval at the worst place lies wholly
  beyond the envelope, which is as many standard deviations over seeds wide as the margin is.
The last two are strict because they are asked of every candidate at every look, on top of the margin;
with fewer than 7 runs an arm no permutation is rare enough for either.

Simulated, 10 and 16 runs an arm as looks, normal seeds of standard deviation s, 300 to 600 trials each; r is
the correlation of the two arms' results, seed by seed:

    true difference                   0        0.75 s   1.5 s    3 s
    passes, margin 1.5 s, r = 0       96 %     56 %     5 %      0 %
    ... estimated, 10 seeds           88 %     53 %     5 %      0 %
    passes, margin 1.5 s, r = 0.9     100 %    100 %    5 %      0 %
    ... estimated, 10 seeds           100 %    86 %     5 %      0 %
    refused, estimated, r = 0         0 %      1 %      10 %     94 %
    ... and with loss curves          0 %      2 %      23 %
    refused, estimated, r = 0.9       0 %      1 %      33 %     100 %

Where the program itself fails in 2 to 50 % of its runs, counting failures refuses at most 0.6 % more. So a
candidate within half the margin is refused in less than 5 % of cases, all looks and rules together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from overdrive.core.interval import Interval
from overdrive.evidence import convergence, student
from overdrive.evidence.convergence import Band, Pace

_SPREADS = 1.5  # TOST then has a power of 0.9 with 10 runs an arm (measurement note, B4)
# Seeds that make no difference leave the roundings of fp32: 1e-5 is some 170 of them, 6e-8 each.
_RELATIVE_FLOOR, _ABSOLUTE_FLOOR = 1e-5, 1e-9
_FAILURES_P, _SUSPECT_FAILURES_P = 0.01, 0.05  # refused; not called equivalent


@dataclass(frozen=True)
class Registration:
    """What is fixed and written down before the candidate's first run."""

    metric: str  # "training loss" or the user's name
    horizon: int  # steps of each run; 0 is the whole program
    whole: bool  # the horizon is the program's own length; otherwise every verdict is a proxy
    seeds: tuple[int, ...]  # of the runs, in pairs: one of the original and one of the candidate under each
    looks: tuple[int, ...]  # numbers of runs per arm after which it may be judged
    margin: float  # in the metric's unit
    margin_rule: str  # where the margin came from, as a sentence
    margin_runs: int = 0  # how many runs gave the margin; 0: the user gave it
    alpha: float = 0.05  # shared by the looks (Bonferroni)

    def __post_init__(self) -> None:
        if not self.looks or self.looks[0] < 2 or any(b <= a for a, b in zip(self.looks, self.looks[1:])):  # noqa: B905
            raise ValueError(f"the looks must rise from 2 runs or more, and are {self.looks}")
        if len(self.seeds) < self.looks[-1]:
            raise ValueError(f"the last look needs {self.looks[-1]} seeds, and {len(self.seeds)} are given")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("two runs of an arm would share a seed")
        if not 0 < self.margin < math.inf:
            raise ValueError(f"the margin must be above 0 and finite, and is {self.margin}")
        if not 0 < self.alpha < 0.5:
            raise ValueError(f"alpha must lie between 0 and 0.5, and is {self.alpha}")

    @property
    def certain(self) -> float:
        """The share of the margin that the true one exceeds with `1 - alpha / looks`: 0.69 where 10 seeds gave it."""
        if self.margin_runs < 2:
            return 1.0
        # The quantile of chi-square over its degrees of freedom, by Wilson and Hilferty (1931).
        part = 2 / (9 * (self.margin_runs - 1))
        quantile = NormalDist().inv_cdf(1 - self.alpha / len(self.looks))
        return float((1 - part + quantile * math.sqrt(part)) ** -1.5)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "seeds": list(self.seeds), "looks": list(self.looks)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Registration:
        return cls(**{**data, "seeds": tuple(data["seeds"]), "looks": tuple(data["looks"])})


@dataclass(frozen=True)
class Run:
    """One run of one arm."""

    seed: int
    value: float  # the metric; NaN where it is not finite or never appeared
    losses: tuple[float, ...] = ()  # one a step; may be empty

    @property
    def converged(self) -> bool:
        """The metric and every loss are finite."""
        return math.isfinite(self.value) and all(map(math.isfinite, self.losses))


@dataclass(frozen=True)
class Outcome:
    """What a look established. Numbers that could not be had are NaN or infinite here, and None in `to_dict`."""

    equivalent: bool | None  # None: not established either way
    sentence: str
    difference: float  # candidate's mean less the original's, of the runs that converged
    interval: tuple[float, float]  # of the difference, at confidence 1 - 2 alpha / looks
    margin: float
    smallest_margin: float  # that would have passed
    runs: tuple[int, int]  # judged, of the original and of the candidate
    not_converged: tuple[int, int]
    steps_to_target: dict[str, Any] | None
    band: dict[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        return {name: _plain(value) for name, value in asdict(self).items()}


def margin_from(original: Sequence[Run], tolerance: float | None = None) -> tuple[float, str, int]:
    """The margin in the metric's unit, where it came from, and how many seeds gave it: 0 where the user gave it.

    Raises ValueError where fewer than two runs converged, and for a tolerance that is not above 0.
    """
    if tolerance is not None and not 0 < tolerance < math.inf:
        raise ValueError(f"the tolerance must be above 0 and finite, and is {tolerance}")
    values = np.array([run.value for run in original if run.converged])
    if len(values) < 2:
        raise ValueError(f"a margin needs two runs of the original that converge, and {len(values)} did")
    floor = max(_ABSOLUTE_FLOOR, _RELATIVE_FLOOR * abs(float(values.mean())))
    spread = float(values.std(ddof=1))
    margin = max(_SPREADS * spread, floor, tolerance or 0.0)
    if margin == tolerance:
        return margin, f"the tolerance asked for; seeds alone spread by {spread:.2g} (one standard deviation)", 0
    if margin == floor:
        return margin, f"{len(values)} seeds of the original hardly differ: {_RELATIVE_FLOOR:.3%} of their mean", 0
    return margin, f"{_SPREADS:g} standard deviations over {len(values)} seeds of the original", len(values)


def judge(registration: Registration, original: Sequence[Run], candidate: Sequence[Run]) -> Outcome:
    """Judge both arms at the largest look that they have reached; before the first, nothing is established.

    Runs count in the order of the registered seeds, and those after the look do not count. What is compared are
    the seeds under which both converged. Raises ValueError for a seed that is not registered, or comes twice.
    """
    one = _in_order(original, registration.seeds, "original")
    other = _in_order(candidate, registration.seeds, "candidate")
    reached = [look for look in registration.looks if look <= min(len(one), len(other))]
    if reached:
        one, other = one[: reached[-1]], other[: reached[-1]]
    runs = len(one), len(other)
    failed = (sum(not run.converged for run in one), sum(not run.converged for run in other))
    failures_p = convergence.fisher((failed[0], runs[0]), (failed[1], runs[1]))
    alpha = registration.alpha / len(registration.looks)
    arms = _both_converged(one, other)
    values = [np.array([run.value for run in arm]) for arm in arms]
    interval = student.paired(values[0], values[1], alpha)
    curves = [[run.losses for run in arm] for arm in arms]
    if not all(curves[0]) or not all(curves[1]):
        curves = [[], []]
    pace = convergence.pace(curves[0], curves[1])
    band = convergence.band(curves[0], curves[1], _spreads(registration.margin, values[0]), alpha)
    faults = _faults(registration.margin, interval, failed, failures_p, pace, band)
    doubts = _doubts(registration, interval, failed, failures_p, runs)
    if not reached:
        faults, doubts = [], [f"{runs[0]} and {runs[1]} runs, and the first look is at {registration.looks[0]}"]
    equivalent = False if faults else None if doubts else True
    return Outcome(
        equivalent=equivalent,
        sentence=_sentence(registration, equivalent, interval, runs, faults or doubts),
        difference=interval.estimate,
        interval=(interval.low, interval.high),
        margin=registration.margin,
        smallest_margin=_smallest(registration, interval),
        runs=runs,
        not_converged=failed,
        steps_to_target=None if pace is None else asdict(pace),
        band=None if band is None else {**asdict(band), "left": band.fault is not None},
    )


def _in_order(runs: Sequence[Run], seeds: tuple[int, ...], arm: str) -> list[Run]:
    by_seed = {run.seed: run for run in runs}
    if len(by_seed) < len(runs):
        raise ValueError(f"two runs of the {arm} have the same seed")
    if strange := sorted(set(by_seed) - set(seeds)):
        raise ValueError(f"seed {strange[0]} is not among those registered for the {arm}")
    return [by_seed[seed] for seed in seeds if seed in by_seed]


def _both_converged(original: Sequence[Run], candidate: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """The runs of both arms under the same seeds, in the same order."""
    of_candidate = {run.seed: run for run in candidate if run.converged}
    shared = [run for run in original if run.converged and run.seed in of_candidate]
    return shared, [of_candidate[run.seed] for run in shared]


def _spreads(margin: float, values: convergence.Array) -> float:
    """How many standard deviations over seeds the margin is: a tolerance for the metric holds for the curve too."""
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return max(_SPREADS, margin / spread) if spread else math.inf


def _faults(
    margin: float,
    interval: Interval,
    failed: tuple[int, int],
    failures_p: float,
    pace: Pace | None,
    band: Band | None,
) -> list[str]:
    """What refuses the candidate for good."""
    faults = []
    if failures_p < _FAILURES_P:
        faults.append(f"{failed[1]} of its runs failed and {failed[0]} of the original's (p = {failures_p:.2g})")
    if interval.low > margin or interval.high < -margin:
        faults.append("the difference lies beyond the margin")
    curves = [pace.fault if pace else None, band.fault if band else None]
    return faults + [fault for fault in curves if fault]


def _doubts(
    registration: Registration, interval: Interval, failed: tuple[int, int], failures_p: float, runs: tuple[int, int]
) -> list[str]:
    """What keeps the candidate from being called equivalent, for now."""
    doubts = []
    if runs[0] and failed[0] == runs[0]:
        doubts.append(f"all {runs[0]} runs of the original itself failed")
    elif (failed[1] and not failed[0]) or failures_p < _SUSPECT_FAILURES_P:
        doubts.append(f"{failed[1]} of its runs failed and {failed[0]} of the original's")
    if not _farthest(interval) < registration.margin:
        doubts.append("the difference may reach the margin")
    elif abs(interval.estimate) > registration.certain * registration.margin:
        doubts.append(f"the difference may reach the margin, which is known from {registration.margin_runs} seeds only")
    return doubts


def _smallest(registration: Registration, interval: Interval) -> float:
    """The smallest margin that would pass, as well known as the registered one."""
    return max(_farthest(interval), abs(interval.estimate) / registration.certain)


def _farthest(interval: Interval) -> float:
    return max(abs(interval.low), abs(interval.high))


def _sentence(
    registration: Registration,
    equivalent: bool | None,
    interval: Interval,
    runs: tuple[int, int],
    reasons: Sequence[str],
) -> str:
    verdict = {True: "equivalent", False: "not equivalent", None: "not established"}[equivalent]
    because = f": {'; '.join(reasons)}" if reasons else ""
    steps = f" over {registration.horizon} steps" if registration.horizon else ""
    difference, smallest = "cannot be compared", "no margin would pass"
    if math.isfinite(_farthest(interval)):
        difference = f"differs by {interval.estimate:+.3g} ({interval.low:+.3g} to {interval.high:+.3g})"
        smallest = f"the smallest that would pass ±{_smallest(registration, interval):.3g}"
    proxy = "" if registration.whole else "; a proxy, not a proof"
    return (
        f"{verdict}{because}; {registration.metric}{steps} {difference}, margin ±{registration.margin:.3g}, {smallest},"
        f" {runs[0]} and {runs[1]} runs{proxy}"
    )


def _plain(value: Any) -> Any:
    """A value as JSON holds it: lists for tuples, None for what is not finite."""
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
