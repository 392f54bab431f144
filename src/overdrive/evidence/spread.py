"""Whether a candidate's results spread more than the original's, and whether its worst run is worse.

Of pairs, sums and differences are uncorrelated where both arms spread alike (Pitman 1939, Morgan 1939): their
correlation tests the ratio of variances whatever the arms have in common. It is asked against a ratio of 1, once at
p < 0.01 (a doubt) and once at p < 0.001 (a refusal).

Simulated with 16 runs (2,000 trials): three times the seeds' spread raises a doubt in 96 % (r = 0) to 100 % (r = 0.9),
twice in 59, 71 and 99 % (r = 0, 0.5, 0.9), equal spread in 1 %. A worst run of the same program is out of bounds in 2 %
where the arms agree in nothing.
"""

from __future__ import annotations

import math

import numpy as np

from overdrive.evidence import student
from overdrive.evidence.convergence import Array

REFUSED_P, DOUBT_P = 0.001, 0.01
_FEWEST = 4
_FAR = 2.0  # standard deviations over seeds by which the worst of the runs may be worse


def wider_p(original: Array, candidate: Array) -> float:
    """One-sided p of so much wider a spread among the candidate's results; 1 for too few pairs or equal ones."""
    if len(original) < _FEWEST:
        return 1.0
    sums, differences = candidate + original, candidate - original
    with np.errstate(over="ignore", invalid="ignore"):
        product = float(sums.std() * differences.std())
        if not 0 < product < math.inf:
            return 1.0
        r = float(((sums - sums.mean()) * (differences - differences.mean())).mean()) / product
    freedom = len(original) - 2
    r = min(max(r, -1 + 1e-12), 1 - 1e-12)
    t = r * math.sqrt(freedom / (1 - r * r))
    tail = (1 - student.within(abs(t), freedom)) / 2
    return tail if t > 0 else 1 - tail


def worst_is_worse(original: Array, candidate: Array, margin: float, worse: int) -> bool:
    """Whether the candidate's worst run is worse than the original's worst by more than the margin allows.

    Two arms of the same program differ in their worst by chance: never less than 2 standard deviations over seeds are
    excused. `worse`: 1 where more is worse; 0 where it is not known which end is, and both are looked at.
    """
    if len(original) < _FEWEST:
        return False
    excused = max(margin, _FAR * float(original.std(ddof=1)))
    high = float(candidate.max() - original.max()) > excused
    low = float(original.min() - candidate.min()) > excused
    return high if worse else high or low
