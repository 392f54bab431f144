"""Who proposes, by name: each finds what is there, and what it lacks is said in one sentence."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from overdrive.core.settings import Value
from overdrive.search import samplers
from overdrive.search.domain import Domain
from overdrive.search.goal import Goal
from overdrive.search.samplers import NoSampler, check_installed, check_suits

pytest.importorskip("optuna")

from tests.search.simulated import BEST, Simulated, searched

RANGE, CHOICES = Domain(0.1, 1.0), Domain(choices=(1, 2))


def learning_rate(values: Mapping[str, Value], chance: random.Random) -> float:
    """Best at 0.1, where it is better than with the default 0.01 by all that chance could do."""
    return 93 - 9 * (math.log10(float(values["lr"])) + 1) ** 2 + chance.gauss(0, 0.1)


@pytest.mark.parametrize("name", samplers.SAMPLERS)
def test_each_finds_a_better_configuration_and_goes_on_with_its_runs(name: str, tmp_path: Path) -> None:
    if name == samplers.CMA_ES:
        pytest.importorskip("cmaes")
    program = Simulated(learning_rate, 1)
    first = searched(program, tmp_path / "journal", 30.0, sampler=name)
    assert first.verdict == "better" and float(first.chosen["lr"]) > 0.02
    made = len(program.made)
    again = searched(program, tmp_path / "journal", 36.0, sampler=name)
    assert again.trials[: len(first.trials)] == first.trials and len(program.made) > made


def test_gaussian_processes_learn_of_runs_and_never_bring_torch_here(tmp_path: Path) -> None:
    """Their last proposals lie nearer to the best than those that were drawn at random before."""
    code = f"""
import sys
from pathlib import Path
from tests.search.test_samplers import *
result = searched(Simulated(learning_rate, 1), Path({str(tmp_path / "journal")!r}), 40.0, sampler="gp")
off = [abs(math.log10(float(run.values["lr"])) + 1) for run in result.trials]
assert sum(off[-6:]) < 0.5 * sum(off[1:7]), off
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_gaussian_processes_set_a_metric_against_a_cost(tmp_path: Path) -> None:
    from tests.search.test_against import Priced, needs_12, width

    program = Priced(needs_12, width, 1)
    result = searched(program, tmp_path / "journal", 50.0, goal=Goal(True, against="parameters"), sampler="gp")
    assert result.chosen["width"] == 16


def test_what_a_sampler_lacks_is_said_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed("tpe")
    monkeypatch.setattr(samplers, "find_spec", lambda name: None)
    check_installed("random")
    with pytest.raises(NoSampler, match=r"--sampler cma-es needs cmaes, .*pip install cmaes` brings it"):
        check_installed("cma-es")
    with pytest.raises(NoSampler, match=r"needs torch and scipy, .*pip install torch scipy`"):
        check_installed("gp")


def test_what_cma_es_cannot_search_is_said_before_a_run_is_made(tmp_path: Path) -> None:
    check_suits("cma-es", {"lr": RANGE, "momentum": RANGE, "batch-size": CHOICES}, False)
    check_suits("gp", {"lr": RANGE}, True)
    with pytest.raises(NoSampler, match=r"two ranges of numbers or more, as with --vary batch-size=LOW\.\.HIGH"):
        check_suits("cma-es", {"lr": RANGE, "batch-size": CHOICES}, False)
    with pytest.raises(NoSampler, match="--against asks for two"):
        searched(Simulated(learning_rate, 1), tmp_path / "journal", goal=Goal(True, against="time"), sampler="cma-es")


def test_a_proposer_that_ends_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(samplers.sys, "executable", "/bin/true")
    with pytest.raises(NoSampler, match=r"their process ended.*--sampler tpe` goes on with the same runs"):
        searched(Simulated(learning_rate, 1), tmp_path / "journal", 40.0, goal=BEST, sampler="gp")
