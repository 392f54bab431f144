"""Which labels make the plan: the one that is expected to gain most, for what techniques and proofs cost.

A plan is worth its expected gain on log speed, each technique's share taken times the chance that its proof does not
fail, less 0.5 % a technique. Among the plans that are no more than one posterior standard deviation (of the difference)
worse than the best, the one of the stricter contract is taken, and of these the one with fewer techniques.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from overdrive.core.contract import Contract
from overdrive.evidence.screening.beliefs import COST, Beliefs, beliefs
from overdrive.evidence.screening.effects import Effects
from overdrive.evidence.screening.factors import Factor
from overdrive.evidence.screening.matrices import Array
from overdrive.evidence.screening.prior import USUAL, Prior

Plan = frozenset[str]

# Probability of being worth it that a label must have, in whatever company: with very few pairs one of two explains
# the times, and a mean says too much of either.
_LIKELY = 0.7
_EXHAUSTIVE = 4096  # plans of a group of labels that hang together, up to which all are looked at


@dataclass(frozen=True)
class Alternative:
    """What is known of a label beside its times."""

    label: str
    contract: Contract = Contract.EXACT
    proof_fails: float = 0.05  # probability
    prior: Prior = USUAL


def choose(
    effects: Effects,
    candidates: Iterable[Alternative],
    factors: Sequence[Factor],
    believed: Beliefs | None = None,
) -> tuple[str, ...]:
    """The plan to go on with, of the candidates, in the order of the factors: other labels stay off.

    Args:
        believed: the effects with their priors, where they are at hand.
    """
    by_label = {each.label: each for each in candidates if each.label in effects.labels}
    believed = believed or beliefs(effects, {label: each.prior for label, each in by_label.items()})
    search = _Search(effects, believed, by_label, _exclusive(factors))
    chosen = search.frugal(search.best(Contract.OPEN))
    return tuple(label for label in effects.labels if label in chosen)


class _Search:
    """Plans and what they are worth. A group is a set of labels that interact with or exclude each other."""

    def __init__(
        self,
        effects: Effects,
        believed: Beliefs,
        candidates: Mapping[str, Alternative],
        exclusive: Collection[frozenset[str]],
    ) -> None:
        self._effects = effects
        self._believed = believed
        self._candidates = candidates
        self._exclusive = exclusive
        # What two do together is shared by halves. (Taken as lost with either, one of two that do the same would be
        # an insurance of the other, and a plan would have both.)
        fails = {label: each.proof_fails for label, each in candidates.items()}
        holds = [1 - np.mean([fails.get(label, 0.0) for label in term]) for term in effects.terms]
        self._worth = believed.mean * np.array(holds)

    def best(self, loosest: Contract) -> Plan:
        """The plan worth most, of labels up to this contract."""
        allowed = {label for label, each in self._candidates.items() if loosest.allows(each.contract)}
        return frozenset().union(*(self._best_of(group & allowed) for group in self._groups(allowed)))

    def frugal(self, best: Plan) -> Plan:
        """The strictest and smallest plan that is hardly worse than the best."""
        chosen = best
        for contract in Contract:
            stricter = self.best(contract)
            if self._hardly_worse(stricter, best):
                chosen = stricter
                break
        for label in sorted(chosen, key=lambda each: self._certainty(chosen, each)):
            without = chosen - {label}
            if self._hardly_worse(without, best) or self._believed.best[label] < _LIKELY:
                chosen = without
        return chosen

    def _certainty(self, plan: Plan, label: str) -> float:
        weights = self._effects.of_plan(plan) - self._effects.of_plan(plan - {label})
        return float(weights @ self._believed.mean) / max(self._deviation(weights), 1e-9)

    def _hardly_worse(self, plan: Plan, best: Plan) -> bool:
        weights = self._effects.of_plan(best) - self._effects.of_plan(plan)
        return self._value(best) - self._value(plan) <= self._deviation(weights)

    def _deviation(self, weights: Array) -> float:
        return float(np.sqrt(max(0.0, float(weights @ self._believed.covariance @ weights))))

    def _value(self, plan: Plan) -> float:
        return float(self._effects.of_plan(plan) @ self._worth) - COST * len(plan)

    def _possible(self, plan: Plan) -> bool:
        return not any(pair <= plan for pair in self._exclusive)

    def _groups(self, labels: set[str]) -> list[set[str]]:
        groups: list[set[str]] = [{label} for label in labels]
        for pair in (*self._effects.interacting, *self._exclusive):
            touched = [group for group in groups if group & pair]
            groups = [group for group in groups if not group & pair] + ([set().union(*touched)] if touched else [])
        return groups

    def _best_of(self, group: set[str]) -> Plan:
        labels = sorted(group)
        if 2 ** len(labels) > _EXHAUSTIVE:
            return self._climbed(labels)
        plans = (
            frozenset(label for label, on in zip(labels, choice, strict=True) if on)
            for choice in product((False, True), repeat=len(labels))
        )
        return max(filter(self._possible, plans), key=self._value)

    def _climbed(self, labels: Sequence[str]) -> Plan:
        """A large group: add, take out or swap what brings most, until nothing brings any more."""
        plan: Plan = frozenset()
        while True:
            steps = [plan ^ {label} for label in labels]
            steps += [plan - {out} | {into} for out in plan for into in labels if into not in plan]
            steps += [plan | {one, two} for one in labels for two in labels if one < two]
            best = max(filter(self._possible, steps), key=self._value, default=plan)
            if self._value(best) <= self._value(plan) + 1e-12:
                return plan
            plan = best


def _exclusive(factors: Sequence[Factor]) -> list[frozenset[str]]:
    """The pairs of labels that must not be in one plan: levels of one factor."""
    return [
        frozenset((one, other)) for factor in factors for one in factor.levels for other in factor.levels if one < other
    ]
