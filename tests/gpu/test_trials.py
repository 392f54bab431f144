"""Trials of a program on a GPU. Skipped, saying so, where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from overdrive.core.facts import Facts
from overdrive.core.records import Trace
from overdrive.trials.launchers.warm import WarmLauncher
from overdrive.trials.pool import TrialPool
from overdrive.trials.untimed import UntimedRunner
from tests.trials.test_warm import PROGRAM, program

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU (CUDA), and there is none here")


def test_a_forked_trial_is_bit_for_bit_a_fresh_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = PROGRAM.replace("model(x", "model(x.cuda()").replace(", y)", ", y.cuda())")
    source = source.replace("optimizer = ", "model.cuda()\noptimizer = ", 1)
    assert source.count("cuda") == 3
    spec = program(tmp_path, source, "--steps", "6")
    said: list[str] = []
    with TrialPool() as pool:
        pool.isolation = "overlay"
        launcher = pool.untimed_launcher(Facts(device="cuda"))
        assert isinstance(launcher, WarmLauncher)
        launcher._worth = 0
        fresh = UntimedRunner(pool).run(spec, 100, said)
        forked = [UntimedRunner(pool, lambda: launcher).run(spec, 100, said) for _ in range(2)]
    assert isinstance(fresh, Trace) and fresh.steps == 6 and said == ["done\n"] * 3, (fresh, said)
    assert forked == [fresh, fresh]
