"""What is believed of each label's gain after the blocks: prior and effects put together.

A gain is the logarithm of a speedup: .05 is 5 % faster. Where the pairs outnumber the effects, each label has its
own normal likelihood, and the posterior is in closed form. With fewer pairs the effects cannot be told apart one by
one; then the mixture prior (most do nothing) decides which of them explain the times, by Gibbs sampling ("spike and
slab"; George and McCulloch, 1993): 12 pairs tell a doubling among 20 candidates that way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from overdrive.evidence import student
from overdrive.evidence.screening.effects import Effects
from overdrive.evidence.screening.matrices import Array
from overdrive.evidence.screening.prior import USUAL, Prior, PriorPart
from overdrive.evidence.screening.regression import WIDE

WORTH = 0.01  # a gain that is worth having
COST = 0.005  # what a technique in a plan costs: a smaller gain is none
_ENOUGH = 1.4  # pairs for each effect, from which on the closed form will do
_SWEEPS, _BURN_IN = 1500, 300
_NORMAL_975 = 1.959964
_MANY = 400  # degrees of freedom that are as good as more


@dataclass(frozen=True)
class Belief:
    """The posterior of one gain."""

    mean: float
    deviation: float  # standard
    worth: float  # probability that it is above WORTH
    above: float  # expectation of what it has above COST: lost where the label is left out
    below: float  # expectation of what it lacks to COST: lost where it is taken


@dataclass(frozen=True, eq=False)
class Beliefs:
    """Of each label with those that it interacts with off, and the moments of all terms."""

    by_label: Mapping[str, Belief]
    best: Mapping[str, float]  # for each label, the greatest probability of being worth it, whatever partners are on
    mean: Array  # (terms,): gains, in the order of the effects' terms
    covariance: Array  # (terms, terms)


def beliefs(effects: Effects, priors: Mapping[str, Prior] | None = None) -> Beliefs:
    """The posterior. Labels without a prior of their own have the usual one."""
    priors = priors or {}
    mean, covariance = -effects.mean, effects.covariance.copy()
    interacting = frozenset().union(*effects.interacting)
    drawn = {} if effects.pairs >= _ENOUGH * len(effects.terms) else _sampled(effects, priors)
    by_label: dict[str, Belief] = {}
    best: dict[str, float] = {}
    for index, term in enumerate(effects.terms):
        (label, *others) = term
        if others:
            continue
        if label in interacting:
            by_label[label] = normal(float(mean[index]), math.sqrt(covariance[index, index]))
            best[label] = _best(effects, label)
            continue
        belief = drawn.get(label) or _marginal(effects, index, priors.get(label, USUAL))
        by_label[label], best[label] = belief, belief.worth
        mean[index] = belief.mean
        covariance[index, :] = covariance[:, index] = 0.0
        covariance[index, index] = belief.deviation**2
    return Beliefs(by_label, best, mean, covariance)


def _marginal(effects: Effects, index: int, prior: Prior) -> Belief:
    """By Bayes' rule, part by part; few degrees of freedom count as a larger error."""
    # The likelihood of this effect, with the others at their best under the wide prior of `regression`.
    prior_there = (WIDE * effects.placebo) ** -2
    variance = 1 / max(1 / effects.covariance[index, index] - prior_there, 1e-9)
    gain = -effects.mean[index] * variance / effects.covariance[index, index]
    freedom = min(_MANY, max(1, int(effects.freedom[index])))
    variance *= (student.quantile(0.95, freedom) / _NORMAL_975) ** 2
    return _mixed([_updated(part, gain, variance) for part in prior.parts])


def _updated(part: PriorPart, gain: float, variance: float) -> tuple[float, float, float]:
    """Logarithm of the posterior weight (but for a constant), mean and standard deviation of a part."""
    total = part.spread**2 + variance
    shrunk = part.spread**2 / total
    log_weight = math.log(part.weight) - 0.5 * math.log(total) - 0.5 * (gain - part.centre) ** 2 / total
    return log_weight, part.centre + shrunk * (gain - part.centre), math.sqrt(shrunk * variance)


def _mixed(parts: list[tuple[float, float, float]]) -> Belief:
    """A mixture of normals as a belief: (logarithm of weight, mean, standard deviation) each."""
    top = max(weight for weight, _, _ in parts)
    weights = [math.exp(weight - top) for weight, _, _ in parts]
    weights = [weight / sum(weights) for weight in weights]
    each = [normal(centre, deviation) for _, centre, deviation in parts]
    mean = sum(w * one.mean for w, one in zip(weights, each, strict=True))
    square = sum(w * (one.mean**2 + one.deviation**2) for w, one in zip(weights, each, strict=True))
    worth, above, below = (
        sum(w * value for w, value in zip(weights, values, strict=True))
        for values in zip(*((one.worth, one.above, one.below) for one in each), strict=True)
    )
    return Belief(mean, math.sqrt(max(0.0, square - mean**2)), worth, above, below)


def normal(mean: float, deviation: float) -> Belief:
    """The belief in a gain that is normal with these."""
    above = _expected_above(mean - COST, deviation)
    return Belief(mean, deviation, _tail(mean - WORTH, deviation), above, above - (mean - COST))


def _best(effects: Effects, label: str) -> float:
    """Over what its partners may be: all combinations of up to four of them, the strongest."""
    partners = sorted({other for pair in effects.interacting if label in pair for other in pair} - {label})[:4]
    greatest = 0.0
    for mask in range(2 ** len(partners)):
        on = [partner for at, partner in enumerate(partners) if mask >> at & 1]
        weights = effects.of_plan([*on, label]) - effects.of_plan(on)
        greatest = max(greatest, normal(*effects.gain(weights)).worth)
    return greatest


def _expected_above(mean: float, deviation: float) -> float:
    """E max(0, x) for a normal x."""
    if deviation < 1e-9:
        return max(0.0, mean)
    z = mean / deviation
    return mean * _tail(mean, deviation) + deviation * math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


def _tail(mean: float, deviation: float) -> float:
    """P(x > 0) for a normal x."""
    return 0.5 * math.erfc(-mean / max(deviation, 1e-9) / math.sqrt(2))


def _sampled(effects: Effects, priors: Mapping[str, Prior]) -> dict[str, Belief]:
    """Beliefs of all labels together, by Gibbs sampling over what each of them is: nothing, little or much."""
    rng = np.random.default_rng(0)
    labels = effects.labels
    count = len(labels)
    information = effects.information[:count, :count]
    score = -effects.score[:count]  # of gains
    parts = [priors.get(label, USUAL).parts for label in labels]
    gains, kept = np.zeros(count), np.zeros((_SWEEPS, count))
    own = np.maximum(np.diag(information), 1e-12).tolist()
    for sweep in range(-_BURN_IN, _SWEEPS):
        uniform, normal = rng.random(count), rng.standard_normal(count)
        for index in range(count):
            pull = float(score[index] - information[index] @ gains) + own[index] * float(gains[index])
            updates = [_updated(part, pull / own[index], 1 / own[index]) for part in parts[index]]
            top = max(weight for weight, _, _ in updates)
            weights = [math.exp(weight - top) for weight, _, _ in updates]
            level, at = float(uniform[index]) * sum(weights), 0
            while at < len(weights) - 1 and level > weights[at]:
                level -= weights[at]
                at += 1
            gains[index] = updates[at][1] + updates[at][2] * float(normal[index])
        if sweep >= 0:
            kept[sweep] = gains
    return {label: _from(kept[:, index]) for index, label in enumerate(labels)}


def _from(draws: Array) -> Belief:
    over = draws - COST
    return Belief(
        float(draws.mean()),
        float(draws.std()),
        float((draws > WORTH).mean()),
        float(np.maximum(over, 0.0).mean()),
        float(np.maximum(-over, 0.0).mean()),
    )
