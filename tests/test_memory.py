"""Memory: what trials tell of it, and what follows from what was asked for. Searches for it are in test_search.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from overdrive.core.contract import Contract
from overdrive.core.objective import Objective, ObjectiveError, bytes_in, saves, size
from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check
from overdrive.evidence.speed import Verdict
from overdrive.trials.duel import Duel, Side
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial
from overdrive.tuner.findings import Findings

HUNGRY = """
import torch
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100):
    spare = torch.zeros(MEGABYTES * 2**18)
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_trial_tells_the_most_memory_that_it_has_used(script: Callable[[str], Path]) -> None:
    peaks = []
    for megabytes in (1, 80):
        path = script(HUNGRY.replace("MEGABYTES", str(megabytes)))
        with TrialPool() as pool:
            trial = Trial(pool, TrialSpec(Program(str(path), (), False)))
            trial.first_step()
            peaks.append(trial.run(5).peak_memory)
            trial.stop()
    assert peaks[1] - peaks[0] > 60 * 2**20


@pytest.mark.parametrize(
    ("objective", "before", "after", "verdict"),
    [
        (Objective("time", 1000), 2000, 900, Verdict.SMALLER),  # slower, but within the limit, as was asked for
        (Objective("time", 1000), 2000, 1100, Verdict.INCONCLUSIVE),
        (Objective("time", 1000), 800, 900, Verdict.FASTER),
        (Objective("time", 1000), 800, 1100, Verdict.INCONCLUSIVE),
        (Objective("memory"), 2000, 1900, Verdict.SMALLER),
        (Objective("memory"), 2000, 1990, Verdict.INCONCLUSIVE),
        (Objective(), 2000, 9000, Verdict.FASTER),
    ],
)
def test_a_verdict_follows_what_was_asked_for(objective: Objective, before: int, after: int, verdict: Verdict) -> None:
    order = TrialSpec(Program("train.py", (), False))
    sides = {"old_side": Side(peak_memory=before), "new_side": Side(peak_memory=after)}
    found = Findings(order.program, Contract.EXACT, objective)
    found.confirmation = Duel(order, order, verdict=Verdict.FASTER, **sides)
    found.proof = Check(Contract.EXACT, "")
    assert found.verdict is Verdict.INCONCLUSIVE  # not yet confirmed by as many processes as it takes
    found.confirmed = True
    assert found.verdict is verdict
    found.proof = Check(None, "")
    assert found.verdict is Verdict.INCONCLUSIVE


def test_sizes_and_objectives_are_read_and_written() -> None:
    assert bytes_in("64MB") == 64 * 10**6 and bytes_in("1.5g") == 1_500_000_000 and bytes_in("4096") == 4096
    assert Objective.parse("time-under-memory=8GB") == Objective("time", 8 * 10**9)
    assert size(7_940_000_000) == "7.94 GB" and size(12) == "12 bytes"
    for wrong in ("", "speed", "time-under-memory", "time-under-memory=0", "time-under-memory=-1GB", "memory=3"):
        with pytest.raises(ObjectiveError):
            Objective.parse(wrong)


def test_a_saving_must_be_clear() -> None:
    assert saves(1000, 900) and not saves(1000, 985) and not saves(1000, 900, spread=60) and not saves(1000, 0)


def test_a_limit_that_cannot_be_compared_with_is_not_kept() -> None:
    assert not Objective("time", 100).allows(0) and Objective("time", 100).allows(100) and Objective().allows(0)
