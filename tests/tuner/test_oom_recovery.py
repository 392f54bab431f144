"""A real program that runs out of a real limit of memory, and what it then runs with. (Half a minute on one core)"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from overdrive.core.contract import Contract
from overdrive.core.ledger import Ledger
from overdrive.core.objective import TIME
from overdrive.core.program import Program
from overdrive.core.records import Block, ExitReason, TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.tuner import oom_recovery as oom_recovery
from overdrive.tuner.duel_runner import DuelRunner, Progress
from overdrive.tuner.findings import Findings
from tests.warm_trials import WarmPool

# Its activations take 400 MB, and the system gives it 360 MB more than it has taken to begin with.
WIDE = """
import re, resource
import torch
from torch import nn

torch.manual_seed(0)
phases = nn.ParameterList(nn.Parameter(torch.randn(1024)) for _ in range(24))
optimizer = torch.optim.SGD(phases, lr=0.01)


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.phases = phases

    def forward(self, x):
        for phase in self.phases:
            x = torch.tanh(x * phase)
        return x


model = Waves()
for warm in range(2):  # the pools of threads and of the allocator are there then
    torch.nn.functional.mse_loss(model(torch.randn(64, 1024)), torch.zeros(64, 1024)).backward()
taken = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (taken + (360 << 20),) * 2)
for step in range(100):
    x = torch.randn(BATCH, 1024)
    loss = torch.nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def found(script: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Findings:
    monkeypatch.setattr(oom_recovery, "_STEPS", 4)
    program = Program(str(script(WIDE.replace("BATCH", "4096"))))
    return Findings(program, Contract.ROUNDING, TIME, frozenset({"micro_batch"}))


@pytest.mark.fault(6)
def test_a_batch_that_does_not_fit_is_split_until_it_does(found: Findings) -> None:
    with WarmPool() as pool:
        checkpoint = TuneCheckpoint(Ledger(), found.program, "here")
        runs = oom_recovery.OomRecovery(found, DuelRunner(pool, checkpoint, Progress()), time.monotonic() + 240).run()
    assert runs, found.rejected
    assert found.needed() and [each.name for each in found.adopted] == ["micro_batch"]
    assert any("By itself the program runs out of memory" in note and "micro_batch" in note for note in found.notes)


def test_an_attempt_whose_steps_are_slow_ends_with_its_time(found: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has half of the time that is left; 20 steps of a minute each went on for as long as they took."""
    asked: list[float] = []

    class Slow:
        left_out: ClassVar[dict[str, str]] = {}

        def __init__(self, pool: object, spec: TrialSpec) -> None: ...

        def first_step(self, until: float = math.inf) -> Block:
            return Block(1, 1, 1.0, 1.0)

        def run(self, steps: int, until: float = math.inf) -> Block:
            asked.append(until)
            raise TrialOver(ExitReason("late", "it came no further than step 3 within the budget"))

        def stop(self) -> None: ...

    monkeypatch.setattr(oom_recovery, "Trial", Slow)
    duels: Any = SimpleNamespace(pool=None, progress=Progress())
    ends = time.monotonic() + 240
    assert not oom_recovery.OomRecovery(found, duels, ends).run()
    assert asked and max(asked) < ends
