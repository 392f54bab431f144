"""Gradients while a run is made again: zeros, the same ones again where nobody has the last."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overdrive.survive.journal import Journal
from tests.survive.killed import survive

torch = pytest.importorskip("torch")


class Steps:
    """Of a model whose weight and bias have gradients."""

    def __init__(self, path: Path) -> None:
        from overdrive.survive.gradients import Gradients

        self.model = torch.nn.Linear(30, 20)
        self._optimizers = [torch.optim.SGD(self.model.parameters(), 0.1)]
        self._journal, self._gradients = Journal(path), Gradients()
        self._journal.to_come.append(["leaves", [[0, "11"], [1, "1"]]])  # of another one that is gone by now, too

    def begin(self) -> None:
        self._optimizers[0].zero_grad()

    def backward(self) -> Any:
        """The weight's gradient."""
        self._gradients.make(list(enumerate(self._optimizers)), self._journal)
        return self.model.weight.grad


KEPT: dict[str, Callable[[Any], Any]] = {
    "itself": lambda gradient: gradient,
    "a part": lambda gradient: gradient[3],
    "what it was detached to": lambda gradient: gradient.detach(),
    "a graph": lambda gradient: (gradient * torch.ones(20, 30, requires_grad=True)).sum(),
    "an array": lambda gradient: gradient.numpy(),
}


def test_zeros_that_nobody_has_are_taken_again(tmp_path: Path) -> None:
    steps = Steps(tmp_path / "journal")
    first = steps.backward().data_ptr()
    for _ in range(3):
        steps.begin()
        assert steps.model.weight.grad is None
        assert steps.backward().data_ptr() == first and not steps.model.bias.grad.any()
        torch.nn.utils.clip_grad_norm_(steps.model.parameters(), 1.0)
        steps.model.weight.grad.fill_(7.0)
        steps.begin()
        assert steps.backward().data_ptr() == first and not steps.model.weight.grad.any()


@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
def test_what_a_program_keeps_of_a_gradient_is_its_own(keep: Callable[[Any], Any], tmp_path: Path) -> None:
    steps = Steps(tmp_path / "journal")
    first = steps.backward().data_ptr()
    kept = keep(steps.model.weight.grad)
    steps.begin()
    again = steps.backward()
    assert again.data_ptr() != first and not again.any()
    del kept
    steps.begin()
    steps.model.double()
    assert steps.backward().dtype == torch.float64


def test_of_optimizers_of_which_one_is_made_for_each_task_the_last_is_told(tmp_path: Path) -> None:
    """However many there were, and whether they are still there."""
    from overdrive.survive.gradients import Gradients

    gradients, journal = Gradients(), Journal(tmp_path / "journal")
    first, tasks = torch.nn.Linear(2, 2), [torch.nn.Linear(2, 2) for _ in range(9)]
    numbered = [(n, torch.optim.SGD(each.parameters(), 0.1)) for n, each in enumerate([first, *tasks])]
    first(torch.ones(2)).sum().backward()
    for last, each in enumerate(tasks, 1):
        each(torch.ones(2)).sum().backward()
        gradients.note([numbered[0], *numbered[last - 1 : last + 1]], journal)
    journal.read(*journal.flush())
    entries = [each[1] for each in journal.to_come]
    assert entries == [[[0, "11"], [1, "11"]], *([[last, "11"]] for last in range(2, 10))]
    assert [number for number, _ in gradients.told()] == [0, 8, 9]


# Gradients are gathered over two steps, so that those in a snapshot count. The program asks one for its rows.
SPARSE = """
import os, signal
import torch
torch.manual_seed(3)
table, model = torch.nn.EmbeddingBag(50, 8, mode="sum", sparse=True), torch.nn.Linear(8, 2)
optimizers = [torch.optim.SparseAdam(table.parameters(), lr=0.01), torch.optim.SGD(model.parameters(), lr=0.1)]
for step in range(1, 31):
    i = torch.randint(0, 50, (6, 4))
    loss = torch.nn.functional.cross_entropy(model(table(i)), i.sum(1) % 2)
    loss.backward()
    table.weight.grad = table.weight.grad.coalesce()
    for each in optimizers:
        each.step()
        if step % 2:
            each.zero_grad()
    print(step, f"{loss:.9f}")
    if step == int(os.environ.get("DIES", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
torch.save([table.state_dict(), model.state_dict()], "end.pt")
"""


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_sparse_gradients_of_an_embedding_are_kept(tmp_path: Path) -> None:
    whole = survive(tmp_path, "whole", SPARSE)
    killed = survive(tmp_path, "killed", SPARSE, dies=21)
    assert killed.returncode == -signal.SIGKILL
    again = survive(tmp_path, "killed", SPARSE)
    assert "gone on after step" in again.stderr, again.stderr
    assert again.returncode == 0 and killed.stdout + again.stdout == whole.stdout
    assert (tmp_path / "killed" / "end.pt").read_bytes() == (tmp_path / "whole" / "end.pt").read_bytes()
