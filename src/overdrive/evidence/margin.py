"""The margin of a statistical proof: how far a result may be off before it is another one.

    margin = 1.5 max(s_model, s_seeds / 2),    s_model^2 = s_seeds^2 - s_batches^2
    strict = min(margin, 2 % of the progress)

- s_seeds: standard deviation of the metric over runs of the original under several seeds.
- s_batches: the part of it that the batches of the late steps make, which both arms see alike under one seed and
  which says nothing of the model. It is told by how much the loss jumps from step to step (half the mean square of
  successive differences, von Neumann 1941, which a falling loss does not disturb), over the number of steps averaged.
  A metric that is printed or returned is of the same data under every seed, and has none. Ten seeds tell a variance
  within a factor of two, so that a model's part below a quarter of it cannot be told from zero: that much is its least.
- progress: how far the metric has come since the start, from the mean of the first twentieth of the steps (the very
  first loss may be an accident of the initial weights), or from the first time that it was printed.

A candidate passes where it is shown to lie within the margin, and is refused where it is shown to lie beyond the
strict one. That the strict margin alone does not decide is for want of runs: to show that a difference of zero lies
within 2 % of the progress takes 22 (s / margin)^2 runs where the arms agree in nothing, some hundreds for a noisy
program. Decision 017 has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from overdrive.core.metric import TAIL
from overdrive.evidence.convergence import BINS
from overdrive.evidence.registration import LOOKS, SPENT, SPREADS, ArmRun, of_model

PROGRESS_SHARE = 0.02
_UNITS = 16 * 2.0**-23  # of fp32's last place, relative: what the order of a sum may change
_ABSOLUTE_FLOOR = 1e-9
_LEAST_PROGRESS = 3.0  # in s_seeds: less is no progress to take a share of
_MOST_RUNS = 10_000
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Margin:
    """In the metric's unit. `strict`, `runs`, `spread`, `noise`: as in `Registration`."""

    value: float
    strict: float
    rule: str
    runs: int = 0
    spread: float = 0.0
    noise: float = 0.0


def margin_from(original: Sequence[ArmRun], tolerance: float | None = None, is_loss: bool = True) -> Margin:
    """The margin that these runs of the original tell, or the one that the user states.

    Args:
        tolerance: stated by the user, in the metric's unit; it is the margin, whatever seeds do.
        is_loss: the metric is the training loss, so that its progress and its batches' noise are in the losses.

    Raises:
        ValueError: fewer than two runs converged, or the tolerance is not above 0.
    """
    if tolerance is not None and not 0 < tolerance < math.inf:
        raise ValueError(f"the tolerance must be above 0 and finite, and is {tolerance}")
    runs = [run for run in original if run.converged]
    if len(runs) < 2:
        raise ValueError(f"a margin needs two runs of the original that converge, and {len(runs)} did")
    values = np.array([run.value for run in runs])
    spread = float(values.std(ddof=1))
    if tolerance is not None:
        return Margin(tolerance, tolerance, f"asked for; {_cost(tolerance, spread)}")
    floor = max(_ABSOLUTE_FLOOR, _UNITS * abs(float(values.mean())))
    noise = batch_noise(runs) if is_loss else 0.0
    told = SPREADS * of_model(spread, noise)
    if told <= floor:
        return Margin(floor, floor, f"{len(runs)} seeds of the original hardly differ: 16 units of fp32's last place")
    made = progress(runs, is_loss)
    rule = f"{SPREADS:g} standard deviations of the model over {len(runs)} seeds of the original"
    if made is None or made <= _LEAST_PROGRESS * spread:
        return Margin(told, told, f"{rule}, which makes no progress to go by", len(runs), spread, noise)
    strict = max(floor, min(told, PROGRESS_SHARE * made))
    rule += f", {told / made:.1%} of its progress; refused where more than {strict:.3g} off"
    return Margin(told, strict, rule, len(runs), spread, noise)


def batch_noise(runs: Sequence[ArmRun]) -> float:
    """The standard deviation that the batches of the late steps give to a run's mean loss over them."""
    jumps, count = [], 0
    for run in runs:
        count = max(1, len(run.losses) // TAIL)
        tail = np.array(run.losses[-count:])
        if len(tail) > 1:
            jumps.append(float((np.diff(tail) ** 2).mean() / 2))
    return math.sqrt(float(np.mean(jumps)) / count) if jumps else 0.0


def progress(runs: Sequence[ArmRun], is_loss: bool = True) -> float | None:
    """How far the metric has come since the start, as a mean over runs; None where it is not known."""
    if is_loss:
        starts = [float(np.mean(run.losses[: max(1, len(run.losses) // BINS)])) for run in runs if run.losses]
        return float(np.mean(starts) - np.mean([run.value for run in runs])) if len(starts) == len(runs) else None
    firsts = [run.first for run in runs if run.first is not None]
    return abs(float(np.mean(firsts) - np.mean([run.value for run in runs]))) if len(firsts) == len(runs) else None


def runs_needed(margin: float, deviation: float) -> int:
    """Runs of each arm for which a true difference of 0 is called equivalent in 9 of 10 cases, at the last look.

    Args: `deviation`: standard deviation of the paired differences, in the unit of the margin.
    """
    alpha = SPENT[-1]  # one-sided
    reach = (_NORMAL.inv_cdf(1 - alpha) + _NORMAL.inv_cdf(0.95)) * deviation / margin  # 0.9, on both sides together
    student_s = _NORMAL.inv_cdf(1 - alpha) ** 2 / 2  # t instead of the normal quantile takes so many runs more
    return max(LOOKS[0], min(_MOST_RUNS, math.ceil(reach**2 + student_s)))


def _cost(margin: float, spread: float) -> str:
    """What a stated margin takes: from runs that agree seed by seed (correlation 0.9) to those that do not at all."""
    likely, most = (runs_needed(margin, math.sqrt(2 * (1 - r)) * spread) for r in (0.9, 0.0))
    takes = f"{likely}" if likely == most else f"{likely} to {most if most < _MOST_RUNS else 'endlessly many'}"
    return f"it takes {takes} runs of each (seeds alone spread by {spread:.2g}, one standard deviation)"
