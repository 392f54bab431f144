"""Batches gathered into pinned memory, and what copying costs. Skipped without a GPU, saying so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from overdrive.datacache.table import Table
from overdrive.worker.session import Session
from tests.datacache.test_cost import PARTS, Naps, facts_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU (CUDA), and there is none here")

COUNT = 4096


def loader(**how: Any) -> Any:
    torch.manual_seed(0)
    images = torch.randn(COUNT, 3, 32, 32)
    return DataLoader(TensorDataset(images, torch.arange(COUNT)), 256, shuffle=True, **how)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path))
    monkeypatch.setenv("OVERDRIVE_PREFILL", "1")


def copied(batches: Any) -> list[Any]:
    """On the GPU, by copies that are not waited for, after which the program lets go of each batch at once."""
    moved = []
    for images, labels in batches:
        assert images.is_pinned() and labels.is_pinned()
        moved.append((images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)))
        del images, labels
    torch.cuda.synchronize()
    return [(images.cpu(), labels.cpu()) for images, labels in moved]


def test_copies_under_way_are_not_written_over(kept: None) -> None:
    batches = loader(pin_memory=True)
    plain = [batch for _ in range(3) for batch in copied(batches)]
    batches = loader(pin_memory=True)
    with Session([("sample_cache", {})]) as session:
        ours = [batch for _ in range(3) for batch in copied(batches)]
        assert not session.seams.left_out
    assert len(plain) == len(ours) == 3 * COUNT // 256
    for one, other in zip(plain, ours, strict=True):
        assert all(map(torch.equal, one, other))


def test_a_batch_is_gathered_into_pinned_memory_and_not_copied_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERDRIVE_PREFILL", "1")
    made: list[int] = []
    real = Table.gather

    def noting(self: Table, *args: Any, **how: Any) -> Any:
        batch = real(self, *args, **how)
        made.append(batch[0].data_ptr())
        return batch

    with Session([("sample_cache", {})]) as session:
        batches = loader(pin_memory=True)
        next(iter(batches))
        assert not session.seams.left_out
        monkeypatch.setattr(Table, "gather", noting)
        for images, _ in batches:
            assert images.data_ptr() == made[-1]


@pytest.mark.parametrize("pins", [True, False])
def test_batches_gathered_ahead_arrive_as_they_are(pins: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path))
    monkeypatch.setenv("OVERDRIVE_PREFILL", "1")

    def go() -> list[Any]:
        model = torch.nn.Linear(1, 1).to("cuda")
        torch.optim.SGD(model.parameters(), 0.1)  # tells where the program trains
        moved = []
        batches = loader(pin_memory=pins)
        for _ in range(3):
            for images, labels in batches:
                images, labels = images.to("cuda", non_blocking=True), labels.cuda()
                moved.append((images * 2, labels))
                images.zero_()  # the program's own copy: nobody else's
        torch.cuda.synchronize()
        return [(images.cpu(), labels.cpu()) for images, labels in moved]

    plain = go()
    with Session([("sample_cache", {}), ("prefetch", {})]) as session:
        ours = go()
        assert not session.seams.left_out
        ahead: Any = session.handles["prefetch"].prefetcher  # type: ignore[attr-defined]
        assert ahead.taken > COUNT // 256 and ahead.offers.given > COUNT // 256
    for one, other in zip(plain, ours, strict=True):
        assert all(map(torch.equal, one, other))


def test_what_the_program_does_not_pin_is_not_pinned(kept: None) -> None:
    batches = loader()
    with Session([("sample_cache", {})]):
        assert not any(each.is_pinned() for _ in range(2) for batch in batches for each in batch)


@pytest.mark.parametrize("pinned", [False, True])
def test_copying_to_the_gpu_is_a_part(pinned: bool) -> None:
    (found,) = facts_of(DataLoader(Naps(), batch_size=8, pin_memory=pinned), device="cuda").loaders
    assert set(found.seconds_per_item) == PARTS | {"copy", "wait"} and found.seconds_per_item["copy"] > 0
