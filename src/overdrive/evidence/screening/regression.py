"""Robust regression with effects that differ from process to process.

y = X (theta + u_p) + e: the effects theta, what they are off by in process p (normal, each with a spread of its own),
and noise with heavy tails. It is solved as a mixed model (Henderson's equations) in turns with Huber's
pseudo-observations (k = 1.345; "Robust Statistics", 7.6). Variances are Schall's estimates (Biometrika 78, 1991; about
REML); the spread of an effect is shrunk to that of all, and that to 2 %, each with 4 degrees of freedom. With one
spread for all, the 95 % intervals cover 90 % where most candidates do nothing in any process and some vary by 4 %. A
wide normal prior on theta lets it be asked with fewer pairs than effects.

Errors are those of the model, not a sandwich: rows are drawn independently of the noise, and the two halves of a pair
share what one candidate does to it. In benchmarks/results/screening.json ("estimators") the 95 % intervals of
sandwich errors cover as often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

HUBER = 1.345  # standard deviations beyond which a pair's weight goes down; 95 % efficient where noise is normal
SPREAD = 0.02  # between processes, of an effect on log seconds, before anything is known ...
SPREAD_FREEDOM = 4.0  # ... which counts as much as so many degrees of freedom
WIDE = 0.5  # standard deviation of the prior of an effect: a factor of 1.65 either way
_FREE = 10.0  # that of the other columns
_NOISE = 0.14  # of a difference of two blocks of 10 % each, where nobody knows and nothing tells
_NOISE_FREEDOM = 4.0
_ENOUGH = 8.0  # degrees of freedom from which on the residuals alone tell the noise
_NORMAL_MAD = 1.4826  # a normal standard deviation in median absolute deviations
_ROUNDS = 25


@dataclass(frozen=True, eq=False)
class Fit:
    """What the rows say. The likelihood of theta is normal with these: `information` @ theta = `score` at its top."""

    mean: Array  # (columns,)
    covariance: Array  # (columns, columns), with the spread between processes in it
    information: Array  # (columns, columns): the likelihood alone, without the prior
    score: Array  # (columns,)
    freedom: Array  # (columns,): degrees of freedom of Student's t for each
    noise: float  # standard deviation of an undisturbed row
    spread: float  # of an effect between processes, one standard deviation, over all effects


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows to be explained."""

    design: Array  # (rows, columns)
    values: Array  # (rows,)
    process: NDArray[np.integer[Any]]  # (rows,): from 0
    # (effects,): whether an effect varies between processes. The effects are the first columns; others (order) have
    # nearly no prior.
    varies: NDArray[np.bool_]
    noise: float | None = None  # of a row, where it is known from elsewhere


def fit(problem: Problem, robust: bool = True) -> Fit:
    """Theta, and how well it is known. `robust`: Huber's weights, else least squares."""
    solver = _Mixed(problem)
    noise, spreads = problem.noise or _NOISE, np.full(int(problem.varies.sum()), SPREAD)
    values = problem.values
    solved = solver.solve(values, noise, spreads)
    for _ in range(_ROUNDS):
        scale = solver.scale(solved, noise) if robust else np.inf
        clipped = np.clip(solved.residuals, -HUBER * scale, HUBER * scale)
        kept = max(0.5, float(np.mean(np.abs(solved.residuals) < HUBER * scale))) if len(clipped) else 1.0
        values = solved.fitted + clipped / kept
        before = noise, spreads
        noise = solver.noise(clipped / kept, solved)
        spreads = _spreads(solved)
        solved = solver.solve(values, noise, spreads)
        if abs(noise - before[0]) < 1e-3 * noise and np.allclose(spreads, before[1], rtol=0, atol=2e-4):
            break
    return solver.fit(solved, values, noise, spreads)


def huberised(residuals: Array) -> Array:
    """Residuals drawn in to 1.345 robust standard deviations."""
    scale = _NORMAL_MAD * float(np.median(np.abs(residuals)))
    return np.clip(residuals, -HUBER * scale, HUBER * scale) if scale > 1e-12 else residuals


def profiled(fit: Fit, effects: int) -> tuple[Array, Array]:
    """Information and score of the effects, with the other columns (order) at their best."""
    others = fit.information[effects:, effects:] + 1e-9 * np.eye(len(fit.mean) - effects)
    mixed = fit.information[:effects, effects:] @ np.linalg.inv(others)
    return (
        fit.information[:effects, :effects] - mixed @ fit.information[effects:, :effects],
        fit.score[:effects] - mixed @ fit.score[effects:],
    )


@dataclass(frozen=True, eq=False)
class _Solved:
    mean: Array
    covariance: Array  # of theta
    deviations: Array  # (processes, varying): u
    fitted: Array
    residuals: Array  # of the values as measured
    used: float  # degrees of freedom that the fit has used up
    deviating: Array  # (varying,): ... and those of u alone


class _Mixed:
    """Henderson's equations of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.processes = int(problem.process.max()) + 1 if len(problem.process) else 0
        columns = problem.design.shape[1]
        self.effects = len(problem.varies)
        varying = problem.design[:, : self.effects][:, problem.varies]
        parts = [varying * (problem.process == process)[:, None] for process in range(self.processes)]
        self.wide: Array = np.hstack([problem.design, *parts])
        self.cross: Array = self.wide.T @ self.wide
        self.columns = columns
        self.varying = varying.shape[1]
        self.prior = np.concatenate([np.full(self.effects, WIDE**-2), np.full(columns - self.effects, _FREE**-2)])

    def solve(self, values: Array, noise: float, spreads: Array) -> _Solved:
        penalty = np.concatenate([self.prior, np.tile(np.maximum(spreads, 1e-4) ** -2, self.processes)])
        inverse = np.linalg.inv(self.cross / noise**2 + np.diag(penalty))
        solution = inverse @ (self.wide.T @ values) / noise**2
        fitted = self.wide @ solution
        uncertain = (np.diag(inverse) * penalty)[self.columns :].reshape(self.processes, self.varying)
        return _Solved(
            solution[: self.columns],
            inverse[: self.columns, : self.columns],
            solution[self.columns :].reshape(self.processes, self.varying),
            fitted,
            self.problem.values - fitted,
            float(np.sum(inverse * self.cross) / noise**2),
            np.maximum(self.processes - uncertain.sum(axis=0), 0.0),
        )

    def scale(self, solved: _Solved, noise: float) -> float:
        """Of the residuals, robustly; of few, what was known before."""
        rows = len(self.problem.values)
        if rows - solved.used < _ENOUGH:
            return 2 * noise
        middle = float(np.median(np.abs(solved.residuals)))
        return max(_NORMAL_MAD * middle * float(np.sqrt(rows / (rows - solved.used))), 1e-9)

    def noise(self, clipped: Array, solved: _Solved) -> float:
        left = max(0.0, len(clipped) - solved.used)
        known = self.problem.noise is not None
        weight = _NOISE_FREEDOM if known or left < _ENOUGH else 0.0
        before = self.problem.noise if self.problem.noise is not None else _NOISE
        variance = (float(clipped @ clipped) + weight * before**2) / max(left + weight, 1e-9)
        return max(float(np.sqrt(variance)), 1e-6)

    def fit(self, solved: _Solved, values: Array, noise: float, spreads: Array) -> Fit:
        information = np.zeros((self.columns, self.columns))
        score = np.zeros(self.columns)
        between, deviating = np.zeros(self.columns), np.zeros(self.columns)
        varying = np.flatnonzero(self.problem.varies)
        between[varying], deviating[varying] = spreads**2, solved.deviating
        for process in range(self.processes):
            rows = self.problem.process == process
            design = self.problem.design[rows]
            weight = np.linalg.inv(noise**2 * np.eye(self.columns) + (design.T @ design) * between)
            information += weight @ (design.T @ design)
            score += weight @ (design.T @ values[rows])
        information = (information + information.T) / 2
        left = max(1.0, len(values) - solved.used)
        known = self.problem.noise is not None
        left += _NOISE_FREEDOM if known or left < _ENOUGH else 0.0
        variance = np.diag(solved.covariance)
        of_noise = np.diag(np.linalg.inv(self.cross[: self.columns, : self.columns] / noise**2 + np.diag(self.prior)))
        share = np.clip(of_noise / variance, 0.0, 1.0)
        freedom = 1 / (share**2 / left + (1 - share) ** 2 / (deviating + SPREAD_FREEDOM))
        return Fit(solved.mean, solved.covariance, information, score, freedom, noise, _pooled(solved))


def _pooled(solved: _Solved) -> float:
    """The spread of effects between processes, all together; shrunk to what is usual."""
    squares = float(np.sum(solved.deviations**2)) + SPREAD_FREEDOM * SPREAD**2
    return float(np.sqrt(squares / (float(np.sum(solved.deviating)) + SPREAD_FREEDOM)))


def _spreads(solved: _Solved) -> Array:
    """Of each effect, shrunk to that of all: what does nothing does so everywhere, what does much varies more."""
    squares = np.sum(solved.deviations**2, axis=0) + SPREAD_FREEDOM * _pooled(solved) ** 2
    spreads: Array = np.sqrt(squares / (solved.deviating + SPREAD_FREEDOM))
    return spreads
