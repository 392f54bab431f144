"""When a snapshot is kept: after steps of its optimizer, or of others where that makes none."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from overdrive.survive import snapshot
from overdrive.survive.ending import Ending
from overdrive.survive.interval import SnapshotInterval
from overdrive.survive.recording import Recording
from overdrive.survive.taking import MOST_IN_HASTE, MOST_OTHERS, Snapshots
from tests.survive.killed import survive

pytest.importorskip("torch")


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a program holds that holds nothing; snapshots of it are not written."""
    monkeypatch.setattr(snapshot, "write", lambda *_: None)
    monkeypatch.setattr(snapshot, "keep", lambda *_: None)
    return SimpleNamespace(tensors=(), header={}, blocks=[])


@pytest.mark.fault(10)
def test_where_the_end_was_announced_a_snapshot_is_kept_a_step_later(tmp_path: Path, empty: Any) -> None:
    snapshots, one, other = Snapshots(tmp_path), object(), object()
    assert snapshots.hasten() == 0
    snapshots.take(empty, one, {"step": 3}, empty)
    for optimizer in (other, one, other):
        snapshots.stepped(optimizer)
    assert snapshots.under_way
    assert snapshots.hasten() == 3  # the one under way will do
    snapshots.stepped(one)
    assert snapshots.kept == 3
    snapshots.take(empty, one, {"step": 8}, empty, hasty=True)
    snapshots.stepped(other)
    assert snapshots.kept == 3
    snapshots.stepped(one)
    assert snapshots.kept == 8 and not snapshots.under_way


@pytest.mark.fault(10)
def test_a_snapshot_of_an_optimizer_that_never_steps_again_is_kept(tmp_path: Path, empty: Any) -> None:
    """A program makes one for each task or fold; while one was waited for, no signal was answered."""
    snapshots, one = Snapshots(tmp_path), object()
    for hastens, most in ((False, MOST_OTHERS), (True, MOST_IN_HASTE)):
        snapshots.take(empty, one, {"step": most}, empty)
        if hastens:
            snapshots.hasten()
        for number in range(most):
            assert snapshots.under_way, number
            snapshots.stepped(object())
        assert snapshots.kept == most and not snapshots.under_way


class _Ended(Exception):
    pass


@pytest.mark.fault(10)
@pytest.mark.parametrize("asked", [signal.SIGTERM, 0])
def test_where_no_snapshot_can_be_taken_that_is_said_and_the_end_is_answered(asked: int, tmp_path: Path) -> None:
    """A graph is made once, say, and sent back through at each step: every snapshot was let go."""
    said: list[str] = []

    def end(sentence: str) -> NoReturn:
        said.append(sentence)
        raise _Ended

    ending, one = Ending(None), object()
    run: Any = SimpleNamespace(folder=SimpleNamespace(path=tmp_path), ending=ending, steps=400, why_not="", end=end)
    run.say, run.agreed = said.append, lambda wanted: wanted
    recording = Recording(run, SnapshotInterval(0.0))
    recording.snapshots.crossed.add(id(one))
    ending.asked_by = asked
    try:
        for _ in range(3 * MOST_OTHERS):
            recording.stepped(one)
    except _Ended:
        assert asked and said == ["it begins from its start again"]
    else:
        assert not asked and len(said) == 1 and said[0].startswith("no snapshot can be taken")


THREAD = """
import os, queue, signal, threading, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
samples = torch.utils.data.TensorDataset(torch.randn(64, 4))
loader = torch.utils.data.DataLoader(samples, batch_size=8, shuffle=True)
def produce(into):
    for _ in range(4):
        for batch in loader:
            into.put(batch)
    into.put(None)
taken = queue.Queue(2)
threading.Thread(target=produce, args=(taken,), daemon=True).start()
step = 0
while (batch := taken.get()) is not None:
    loss = model(batch[0]).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    step += 1
    if step == int(os.environ["DIES"]):
        os.kill(os.getpid(), int(os.environ["BY"]))
print(step)
"""


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_a_thread_that_fetches_samples_is_told_and_the_run_begins_from_its_start(tmp_path: Path) -> None:
    """Its sampler draws from the generator of all, which stands elsewhere while the run is made again."""
    first = survive(tmp_path, "killed", THREAD, dies=20)
    assert "it computes in a thread of its own" in first.stderr, first.stderr
    second = survive(tmp_path, "killed", THREAD)
    assert second.returncode == 0 and second.stdout == "32\n" and "gone on after" not in second.stderr, second.stderr


TASKS = """
import os, signal, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
for step in range(1, 500):
    if step % 2:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(step, loss.item())
    if step == int(os.environ["DIES"]):
        os.kill(os.getpid(), int(os.environ["BY"]))
"""


@pytest.mark.survive
@pytest.mark.fault("killed", 10)
def test_a_program_with_an_optimizer_for_each_task_goes_on(tmp_path: Path) -> None:
    whole = survive(tmp_path, "whole", TASKS)
    assert whole.returncode == 0, whole.stderr
    first = survive(tmp_path, "killed", TASKS, dies=300)
    second = survive(tmp_path, "killed", TASKS, dies=400, by=signal.SIGTERM)
    assert "gone on after step" in second.stderr and second.returncode == 143, second.stderr
    third = survive(tmp_path, "killed", TASKS)
    assert "gone on after step" in third.stderr and "from its start" not in third.stderr
    assert first.stdout + second.stdout + third.stdout == whole.stdout
