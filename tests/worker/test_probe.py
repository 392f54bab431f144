"""What the probe takes for a program's samples, where no loader tells."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from overdrive.worker.torch.probe import Probe

_NO_STEPS: Any = SimpleNamespace(samples=0, clock=SimpleNamespace(steps=3), optimizers=[])


def samples(*called: tuple[torch.nn.Module, Any]) -> float:
    probe = Probe(hashed_steps=3)
    for module, given in called:
        probe._called(module, module, *given)
    return probe.facts(_NO_STEPS).samples_per_step


@pytest.mark.parametrize(("with_model", "seen"), [(True, 4), (False, 12)])
def test_a_model_s_batch_counts_and_a_loss_s_rows_only_where_there_is_no_model(with_model: bool, seen: int) -> None:
    sequence, loss = torch.nn.LSTM(5, 7, batch_first=True), torch.nn.CrossEntropyLoss()
    rows = (loss, (torch.zeros(4 * 3, 7), torch.zeros(4 * 3, dtype=torch.long)))
    model = (sequence, (torch.zeros(4, 3, 5),))
    assert samples(*((model, rows) if with_model else (rows,))) == seen


class _Compiled(torch.nn.Linear):
    forward = torch.compile(torch.nn.Linear.forward, backend="eager")


def _in_place(model: torch.nn.Module) -> torch.nn.Module:
    model.compile(backend="eager")
    return model


def _a_part(model: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.Sequential(_in_place(model))


def _its_forward(model: torch.nn.Module) -> torch.nn.Module:
    model.forward = torch.compile(model.forward, backend="eager")  # type: ignore[method-assign]
    return model


_WAYS: dict[str, Any] = {
    "a wrapper": lambda model: torch.compile(model, backend="eager"),
    "in place": _in_place,
    "a part in place": _a_part,
    "its forward": _its_forward,
    "the class's forward": lambda model: _Compiled(2, 2),
}


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("trains", [True, False])
def test_a_model_that_the_program_compiles_is_known_however_it_does_that(way: str, trains: bool) -> None:
    probe, plain = Probe(hashed_steps=3), torch.nn.Linear(2, 2)
    if trains:
        probe._made(None, [plain])  # before it is compiled
    model = _WAYS[way](plain)
    probe._called(model, lambda given: given, torch.zeros(4, 2))
    assert probe.facts(_NO_STEPS).own_compile


def test_a_compiled_loss_is_no_compiled_model_and_a_function_that_is_left_out_of_it_neither() -> None:
    probe, model, loss = Probe(hashed_steps=3), torch.nn.Linear(2, 2), torch.compile(torch.nn.MSELoss())
    model.forward = torch._dynamo.disable(model.forward)  # type: ignore[method-assign]
    for each in (model, loss):
        probe._called(each, lambda given: given, torch.zeros(4, 2))
    assert not probe.facts(_NO_STEPS).own_compile


_WITHOUT = """
import io, sys

class Hide:
    def find_spec(self, name, *rest):
        if name in sys.argv[1:]:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hide())

from overdrive.core.messages import Job
from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.worker.worker import Worker

worker = Worker(io.BytesIO(), io.BytesIO(), Job(TrialSpec(Program("train.py")), False, "", (), ""))
print(worker.instruments.probe.batch_hashes, "torch" in sys.modules)
"""


@pytest.mark.parametrize("hidden", [("torch",), ("torch", "keras", "tensorflow")])
def test_a_trial_needs_no_framework_that_is_not_installed(hidden: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT, *hidden], capture_output=True, text=True)
    assert done.stdout == "[] False\n", done.stderr
