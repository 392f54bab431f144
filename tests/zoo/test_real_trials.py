"""The zoo's runs inside this process come to the same as real trials do. (About a minute on one core.)"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.ledger import Ledger
from overdrive.core.trial_spec import TrialSpec
from overdrive.proof.prover import Prover
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.trials.pool import TrialPool
from overdrive.trials.untimed import UntimedRunner
from tests.conftest import ROOT, long_but
from tests.zoo.harness import MODULES, InProcess

EXACT, ROUNDING = Contract.EXACT, Contract.ROUNDING
CASES = {
    "images": [("convolution_by_matrix_product", ROUNDING)],
    "rows": [("state_stale", EXACT)],
}


@pytest.mark.parametrize("name", long_but(["rows"], CASES))
def test_real_trials_come_to_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # where a trial finds tests.zoo
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    inside = InProcess(name, tmp_path)
    expected = [inside.judged(technique, level) for technique, level in CASES[name]]
    torch.set_num_threads(threads)
    with TrialPool(also=MODULES) as pool:
        plain = inside.plain
        prover = Prover(UntimedRunner(pool), TuneCheckpoint(Ledger(), plain.program, "zoo"), Facts())
        for (technique, level), check in zip(CASES[name], expected, strict=True):
            new = TrialSpec(plain.program, ((technique, {}),))
            found = prover.exact(plain, new) if level is EXACT else prover.rounding(plain, new)
            assert (found.level, found.sentence) == (check.level, check.sentence)
