"""What a duel and the screening say together."""

from __future__ import annotations

import math

from overdrive.core.interval import Interval
from overdrive.evidence.speed import combined, product
from overdrive.trials.duel import Duel
from overdrive.tuner.findings import Findings


def gain_with_screening(found: Findings, duel: Duel) -> Interval | None:
    """The gain by a duel and the screening of its techniques together; None where one of them was not measured
    there, where they say nothing or contradict each other, or where it was measured against others whose place it
    takes."""
    if any(chosen not in duel.new.techniques for chosen in duel.old.techniques):
        return None
    # Beside what the duel had: of public MNIST RNN `autocast` gained 1.2x beside a technique that did not join, and
    # 0.95x without it; its duel said 1.01x, and it was adopted.
    on, known = list(duel.old.techniques), list[Interval]()
    for chosen in (each for each in duel.new.techniques if each not in duel.old.techniques):
        if (measured := found.screened.beside(chosen, on)) is None:
            return None
        known.append(measured)
        on.append(chosen)
    if not known:
        return None
    both = one, other = product(known), found.of_any(duel.kept())
    # They are of one thing: the public RL loop's `waiting`, 2.20x [2.05, 2.37] and 1.01x [0.98, 1.03], was adopted.
    if not max(one.low, other.low) <= min(one.high, other.high):
        return None
    return combined(both) if all(0 < each.low < each.high < math.inf for each in both) else None
