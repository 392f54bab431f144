"""What is fixed before a candidate's first run, and what a run of either arm came to. Plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from overdrive.evidence.student import chi_square_high

# The first looks cost little of alpha: they are for candidates that agree with the original seed by seed, which need
# no more. Looks share their runs, and so err together more often than not: what they may err by sums to 0.066, and the
# chance that any does is 0.05 (evidence/statistical.py has it simulated).
LOOKS = (5, 7, 10, 16)
SPENT = (0.004, 0.006, 0.012, 0.044)
SPREADS = 1.5  # of the margin: power is 0.9 at no difference with 16 runs an arm that agree in nothing


@dataclass(frozen=True)
class Registration:
    """What is fixed and written down before the candidate's first run."""

    metric: str  # "training loss" or the user's name
    horizon: int  # steps of each run; 0 is the whole program
    whole: bool  # the horizon is the program's own length; otherwise every verdict is a proxy
    seeds: tuple[int, ...]  # of the runs, in pairs: one of the original and one of the candidate under each
    looks: tuple[int, ...]  # numbers of runs per arm after which it may be judged
    margin: float  # in the metric's unit; of the original's runs at the look under way
    margin_rule: str  # where the margin comes from, as a sentence
    margin_runs: int = 0  # how many runs gave the margin; 0: it is no estimate
    alpha: float = 0.05  # shared by the looks (Bonferroni), where `spent` does not say otherwise
    spread: float = 0.0  # standard deviation over these runs, where the margin comes from it
    noise: float = 0.0  # ... and the part of it that is the batches', not the model's
    spent: tuple[float, ...] = ()  # alpha of each look
    strict: float = 0.0  # what is shown to be further off is refused; 0: the margin
    worse: int = 0  # 1: more of the metric is worse, as of a loss; 0: not known

    def __post_init__(self) -> None:
        if not self.looks or self.looks[0] < 2 or any(b <= a for a, b in zip(self.looks, self.looks[1:])):  # noqa: B905
            raise ValueError(f"the looks must rise from 2 runs or more, and are {self.looks}")
        if len(self.seeds) < self.looks[-1]:
            raise ValueError(f"the last look needs {self.looks[-1]} seeds, and {len(self.seeds)} are given")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("two runs of an arm would share a seed")
        if not 0 < self.margin < math.inf:
            raise ValueError(f"the margin must be above 0 and finite, and is {self.margin}")
        if not all(0 < each < 0.5 for each in (self.alpha, *self.spent)):
            raise ValueError(f"alpha must lie between 0 and 0.5, and is {self.spent or self.alpha}")
        if self.spent and len(self.spent) != len(self.looks):
            raise ValueError(f"{len(self.looks)} looks cannot spend {len(self.spent)} alphas")

    def alpha_at(self, look: int) -> float:
        """One-sided, of the look at so many runs; before the first, that of the first."""
        place = max(0, sum(each <= look for each in self.looks) - 1)
        return self.spent[place] if self.spent else self.alpha / len(self.looks)

    def certain(self, alpha: float) -> float:
        """The share of the margin that the true one exceeds with probability `1 - alpha`; 1 where it is no estimate.

        A variance over n seeds is known up to a chi-square with n - 1 degrees of freedom; the batches' part of it is
        told by every step of every run, and taken as known.
        """
        if self.margin_runs < 2:
            return 1.0
        freedom = self.margin_runs - 1
        if not self.spread:  # written down by an earlier version
            return math.sqrt(freedom / chi_square_high(alpha, freedom))
        least = self.spread * math.sqrt(freedom / chi_square_high(alpha, freedom))
        return min(1.0, SPREADS * of_model(least, self.noise) / self.margin)


def of_model(spread: float, noise: float) -> float:
    """The model's part of a spread over seeds, without the batches' noise: half of it at the least."""
    return max(math.sqrt(max(0.0, spread**2 - noise**2)), spread / 2)


@dataclass(frozen=True)
class ArmRun:
    """One run of one arm."""

    seed: int
    value: float  # the metric; NaN where it is not finite or never appeared
    losses: tuple[float, ...] = ()  # one a step; may be empty
    first: float | None = None  # the metric where it appeared first, if it did so several times
    numbers: Mapping[str, float] = field(default_factory=dict)  # what it produced besides, by name
    predictions: Mapping[str, Sequence[int]] = field(default_factory=dict)  # classes, by what was looked at
    left_out: Mapping[str, str] = field(default_factory=dict)  # techniques that did not act in it, with the reason

    @property
    def converged(self) -> bool:
        """The metric and every loss are finite."""
        return math.isfinite(self.value) and all(map(math.isfinite, self.losses))
