"""Batches that are on the GPU when the program asks for them, on the stand-in for one: what waits, and what races."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from overdrive.datacache.offers import Copier
from overdrive.datacache.table import Table
from overdrive.techniques.data.device_resident import rows as resident_rows
from overdrive.techniques.data.prefetch import gathering
from overdrive.worker.session import Session
from tests.fakes.cuda import fake_cuda
from tests.fakes.gpu import DEVICE, FakeGpu

COUNT, BATCH = 41, 8


class Points(Dataset):
    def __init__(self) -> None:
        self.points = np.arange(4 * COUNT, dtype=np.float32).reshape(COUNT, 4)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.points[index]), index % 3


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OVERDRIVE_PREFILL", "1")
    with fake_cuda() as gpu:
        yield gpu
        assert not gpu.order.found


def train(techniques: list[Any], gpu: FakeGpu, **how: Any) -> tuple[list[list[float]], list[int], Any]:
    """Batches as the GPU had them, and how often each epoch waited for it."""
    torch.manual_seed(0)
    seen, waited = [], []
    with Session(techniques) as session:
        model = nn.Linear(4, 3).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        loader = DataLoader(Points(), BATCH, **how)
        for _ in range(3):
            gpu.synced.clear()
            kept = []
            for x, y in loader:
                there, labels = x.to("cuda"), y.cuda()
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(there), labels).backward()
                optimizer.step()
                kept += [there.clone(), labels.clone()]
            waited.append(len(gpu.synced))
            seen.append([float(each.double().sum()) for each in kept])
    return seen, waited, session


@pytest.mark.parametrize("how", [{"shuffle": True}, {"shuffle": False}, {"shuffle": True, "drop_last": True}])
def test_an_epoch_on_the_gpu_waits_for_nothing(gpu: FakeGpu, how: dict[str, Any]) -> None:
    plain, blocking, _ = train([], gpu, **how)
    assert min(blocking) >= 2 * (COUNT // BATCH)  # the program's own copies block
    seen, waited, session = train([("device_resident", {})], gpu, **how)
    assert seen == plain and not session.seams.left_out
    assert waited[1:] == [0, 0]


def test_an_epochs_rows_are_sent_at_once(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    sent = resident_rows.sent
    monkeypatch.setattr(resident_rows, "sent", lambda rows, device: (sizes.append(len(rows)), sent(rows, device))[1])
    train([("device_resident", {})], gpu, shuffle=True)
    rest = COUNT - BATCH - COUNT % BATCH  # all but the first batch and the last, which is drawn at its own time
    assert sizes[-3:] == [BATCH, rest, COUNT % BATCH] or sizes[-3:] == [rest, BATCH, COUNT % BATCH]


def test_the_batch_in_main_memory_is_gathered_by_a_thread_where_prefetch_is_there(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may read it; it is gathered all the same, beside the program's own work and not in its way."""
    monkeypatch.setattr(gathering, "LEAST_SECONDS", 0.0)  # of a large batch
    monkeypatch.setattr(gathering, "_PATIENCE", 60.0)
    by: list[int] = []
    gather = Table.gather
    monkeypatch.setattr(Table, "gather", lambda *of, **how: (by.append(threading.get_ident()), gather(*of, **how))[1])
    plain, *_ = train([], gpu, shuffle=True)
    seen, waited, session = train([("device_resident", {}), ("prefetch", {})], gpu, shuffle=True)
    assert seen == plain and not session.seams.left_out and waited[1:] == [0, 0]
    early = -(-COUNT // BATCH) - 2  # of an epoch: its first index and its last are drawn at their own time
    assert sum(each != threading.get_ident() for each in by) >= 2 * early


def test_what_is_copied_early_may_be_overwritten_at_once(gpu: FakeGpu) -> None:
    batch = torch.ones(4).pin_memory()
    there = Copier(DEVICE).start(batch)()
    batch.fill_(2)  # as after the program's own copy, which blocks
    assert there.sum().item() == 4


@pytest.mark.parametrize("how", [{}, {"pin_memory": True}])
def test_batches_copied_by_a_thread_arrive_in_order(gpu: FakeGpu, how: dict[str, Any]) -> None:
    plain, *_ = train([], gpu, shuffle=True, **how)
    seen, _, session = train([("sample_cache", {}), ("prefetch", {})], gpu, shuffle=True, **how)
    assert seen == plain and "prefetch" not in session.seams.left_out


def test_a_prefetcher_with_a_stream_of_its_own_does_not_read_rows_before_they_are_there(gpu: FakeGpu) -> None:
    """As in Apex: a batch is fetched on one stream and copied on another; its labels here on a third."""
    with Session([("device_resident", {})]) as session:
        model = nn.Linear(4, 3).cuda()
        torch.optim.SGD(model.parameters(), lr=1e-3)
        streams: Any = [torch.cuda.Stream(), torch.cuda.Stream()]  # type: ignore[no-untyped-call]
        for _ in range(3):
            for batch in DataLoader(Points(), BATCH):
                for stream, tensor in zip(streams, batch, strict=True):
                    with torch.cuda.stream(stream):
                        there = tensor.cuda(non_blocking=True)
                    torch.cuda.current_stream().wait_stream(stream)
                    there.record_stream(torch.cuda.current_stream())
                    assert torch.equal(there.cpu(), tensor)
    assert not session.seams.left_out
