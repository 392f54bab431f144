"""The zoo's runs inside this process come to the same as real trials do. (About a minute on one core.)"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from overdrive.contract import Contract
from overdrive.facts import Facts
from overdrive.ledger import Ledger
from overdrive.trials.bench import Bench
from overdrive.trials.host import House
from overdrive.trials.order import Order
from overdrive.tuning.proof import Prover
from overdrive.tuning.resume import Memory
from tests.conftest import ROOT
from tests.zoo.harness import MODULES, InProcess

EXACT, ROUNDING = Contract.EXACT, Contract.ROUNDING
CASES = {
    "images": [("convolution_by_matrix_product", ROUNDING)],
    "rows": [("state_stale", EXACT)],
}


@pytest.mark.parametrize("name", CASES)
def test_real_trials_come_to_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # where a trial finds tests.zoo
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    inside = InProcess(name, tmp_path)
    expected = [inside.judged(technique, level) for technique, level in CASES[name]]
    torch.set_num_threads(threads)
    gc.unfreeze()
    with House(also=MODULES) as house:
        plain = inside.plain
        prover = Prover(Bench(house), Memory(Ledger(), plain.program, "zoo"), Facts())
        for (technique, level), check in zip(CASES[name], expected, strict=True):
            new = Order(plain.program, ((technique, {}),))
            found = prover.exact(plain, new) if level is EXACT else prover.rounding(plain, new)
            assert (found.level, found.sentence) == (check.level, check.sentence)
