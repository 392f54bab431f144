"""From measured blocks to effects: main effects from the differences of fold-over pairs, interactions from the sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from overdrive.evidence.screening import interactions, regression
from overdrive.evidence.screening.effects import Effects
from overdrive.evidence.screening.factors import Factor, Observation
from overdrive.evidence.screening.matrices import Pairs, Term, paired
from overdrive.evidence.screening.regression import Problem

# The sum of the squared t of the placebos, by their number, that chance exceeds in 1 % (chi-squared).
_CHI_SQUARED = {1: 6.63, 2: 9.21, 3: 11.34, 4: 13.28, 5: 15.09, 6: 16.81}


def estimate(blocks: Iterable[Observation], factors: Sequence[Factor], noise: float | None = None) -> Effects:
    """Main effects, and the interactions that show.

    Args:
        blocks: all that were measured, disturbed ones included.
        factors: those of the design, in its order.
        noise: standard deviation of one block's log time, where it is known (from the control): with fewer pairs than
            effects nothing else tells it.

    Raises:
        ValueError: no block at all, or as `paired`.
    """
    blocks = list(blocks)
    if not blocks:
        raise ValueError("effects need at least one block")
    pairs = paired(blocks, factors)
    of_pair = None if noise is None else noise * math.sqrt(2)
    placebos = [label for factor in factors if factor.placebo for label in factor.levels]
    terms: tuple[Term, ...] = tuple((label,) for label in pairs.labels)
    fit = regression.fit(_differences(pairs, terms, placebos, of_pair))
    sums = interactions.sums(pairs, tuple(factors))
    together = interactions.found(sums)
    if together:
        terms = (*terms, *together)
        fit = regression.fit(_both(pairs, terms, placebos, sums, fit.noise))
    of_terms = len(terms)
    effects = Effects(
        terms,
        fit.mean[:of_terms],
        fit.covariance[:of_terms, :of_terms],
        *regression.profiled(fit, of_terms),
        fit.freedom[:of_terms],
        pairs=len(pairs),
        dropped=len({block.pair for block in blocks}) - len(pairs),
        pairs_by_process=tuple(np.bincount(pairs.process).tolist()),
        noise=fit.noise / math.sqrt(2),
        spread=fit.spread,
        seen=pairs.seen(),
    )
    return _widened(effects, placebos)


def _differences(pairs: Pairs, terms: Sequence[Term], placebos: Sequence[str], noise: float | None) -> Problem:
    """The differences, explained by the terms; a constant is what the first half has against the second.

    Placebos do nothing in any process: with them among what varies, its spread would come out too small.
    """
    columns = [pairs.differences_of(term) for term in terms]
    varies = np.array([term[0] not in placebos for term in terms])
    return Problem(np.column_stack([*columns, np.ones(len(pairs))]), pairs.differences, pairs.process, varies, noise)


def _both(
    pairs: Pairs, terms: tuple[Term, ...], placebos: Sequence[str], sums: interactions.PairSums, noise: float
) -> Problem:
    """Differences and sums in one: these tell the effect of a label alone from what it adds beside another."""
    differences = _differences(pairs, terms, placebos, noise)
    together = tuple(term for term in terms if len(term) == 2)
    columns, values = sums.columns_of(together), sums.detrended(together)
    by_themselves = regression.fit(Problem(columns, values, pairs.process, np.full(len(together), True)))
    scale = noise / by_themselves.noise
    wide = np.zeros((len(pairs), differences.design.shape[1]))
    wide[:, len(terms) - len(together) : len(terms)] = columns
    return replace(
        differences,
        design=np.vstack([differences.design, scale * wide]),
        values=np.concatenate([differences.values, scale * values]),
        process=np.concatenate([pairs.process, pairs.process]),
    )


def _widened(effects: Effects, placebos: Sequence[str]) -> Effects:
    """The effects with wider errors, where placebos, which do nothing, moved more than chance explains."""
    if not placebos:
        return effects
    places = [effects.terms.index((label,)) for label in placebos]
    squares = float(np.sum(effects.mean[places] ** 2 / np.diag(effects.covariance)[places]))
    if squares <= _CHI_SQUARED[min(len(places), max(_CHI_SQUARED))]:
        return effects
    wider = math.sqrt(squares / len(places))
    return replace(
        effects,
        covariance=effects.covariance * wider**2,
        information=effects.information / wider**2,
        score=effects.score / wider**2,
        placebo=wider,
    )
