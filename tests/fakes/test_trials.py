"""Real trials of a program on the stand-in for a GPU: its facts, its peak, and the proofs of what acts on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.ledger import Ledger
from overdrive.core.program import Program
from overdrive.core.settings import Chosen
from overdrive.core.trial_spec import TrialSpec
from overdrive.proof.prover import Prover
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial
from overdrive.trials.untimed import UntimedRunner
from tests.warm_trials import warm_trials

PROGRAM = Program(str(Path(__file__).parent / "program.py"), (), False)
PLAIN = TrialSpec(PROGRAM)


@pytest.fixture(scope="module")
def prover() -> Iterator[Prover]:
    with TrialPool(isolate=False, launcher=warm_trials()) as pool:
        yield Prover(UntimedRunner(pool), TuneCheckpoint(Ledger(), PROGRAM, "gpu"), Facts())


def test_a_trial_knows_the_gpu() -> None:
    with TrialPool(isolate=False, launcher=warm_trials()) as pool:
        trial = Trial(pool, PLAIN)
        try:
            trial.first_step()
            block = trial.run(4, profile=True)
            facts = trial.facts()
        finally:
            trial.stop()
    assert facts.device == "cuda" and block.peak_memory > 10_000


@pytest.mark.parametrize(
    ("techniques", "level"),
    [
        ((("device_resident", {}), ("deferred_scalars", {})), Contract.EXACT),
        ((("sample_cache", {}), ("prefetch", {}), ("offload", {"least_mib": 0})), Contract.EXACT),
        pytest.param(
            (("device_resident", {}), ("deferred_scalars", {}), ("cuda_graphs", {})),
            Contract.ROUNDING,
            marks=pytest.mark.long,
        ),
    ],
    ids=lambda each: each.name.lower() if isinstance(each, Contract) else "+".join(name for name, _ in each),
)
def test_what_acts_on_a_gpu_is_proved(prover: Prover, techniques: tuple[Chosen, ...], level: Contract) -> None:
    prove = prover.exact if level is Contract.EXACT else prover.rounding
    check = prove(PLAIN, TrialSpec(PROGRAM, techniques))
    assert check.level is level, check.sentence
