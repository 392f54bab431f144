"""Of a program that trains with Keras 2 no step is seen: its user is told why, at its first step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.trials.trial import Trial, TrialOver
from tests.conftest import Run
from tests.warm_trials import WarmPool

KERAS_2 = """
import types

class Optimizer:
    def apply_gradients(self, grads_and_vars, name=None):
        return 3

class Legacy(Optimizer):
    def apply_gradients(self, grads_and_vars, name=None):
        return 4

optimizers = types.SimpleNamespace(Optimizer=Optimizer, legacy=types.SimpleNamespace(Optimizer=Legacy))
"""
TRAINS = """
import tf_keras

assert tf_keras.optimizers.Optimizer().apply_gradients([], name="step") == 3
assert tf_keras.optimizers.legacy.Optimizer().apply_gradients([]) == 4
print("trained")
"""


@pytest.fixture
def program(script: Callable[[str], Path]) -> Path:
    path = script(TRAINS)
    (path.parent / "tf_keras.py").write_text(KERAS_2)
    return path


def test_a_run_names_it(program: Path, warm_run: Run) -> None:
    found = warm_run(program.name, cwd=program.parent)
    assert found.returncode == 0 and "trained" in found.stdout
    assert "no training step was seen in this program: it trains with Keras 2 (tf_keras)" in found.stderr


def test_a_trial_ends_at_its_first_step(program: Path) -> None:
    """A tune waited for a step until its budget was used up."""
    with WarmPool() as pool:
        trial = Trial(pool, TrialSpec(Program(str(program))))
        with pytest.raises(TrialOver) as over:
            trial.first_step()
        trial.stop()
    assert over.value.exit_reason.kind == "unwatched"
    assert over.value.exit_reason.detail.startswith("The program trains with Keras 2 (tf_keras), which Overdrive does")
