"""The technique `device_resident`, without a GPU: what it would gather there, and when it offers it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from overdrive.core.facts import Facts, LoaderFacts  # noqa: E402
from overdrive.datacache.offers import Offers, Trained  # noqa: E402
from overdrive.forks.layout import Unfit  # noqa: E402
from overdrive.techniques.catalogue import catalogue  # noqa: E402
from overdrive.techniques.data.device_resident import resident  # noqa: E402
from overdrive.techniques.data.device_resident.resident import DeviceTable, Residence  # noqa: E402
from overdrive.worker.session import Session  # noqa: E402

COUNT = 41
META = torch.device("meta")
CPU = torch.device("cpu")


class Images(Dataset):
    """Channels last in memory, as images come."""

    def __init__(self) -> None:
        self.pixels = np.random.default_rng(0).integers(0, 255, (COUNT, 6, 5, 3), dtype=np.uint8)
        self.level = 0

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.pixels[index]).permute(2, 0, 1).float() + self.level, index, index % 2 == 0


@pytest.fixture(autouse=True)
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device "meta" whose memory lies on the CPU: what was gathered can be told from a copy, and looked at."""
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(Trained, "device", property(lambda trained: META))
    plain = Residence.__init__

    def made(self: Residence, share: float, offers: Offers, **how: Any) -> None:
        plain(self, share, offers, lambda table, device: DeviceTable(table, CPU), lambda device: 1 << 30, **how)

    monkeypatch.setattr(Residence, "__init__", made)
    gc.collect()


def same(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other))


def moves(loader: Any, epochs: int = 3) -> list[tuple[Any, Any]]:
    return [(tensor, tensor.to("meta")) for _ in range(epochs) for batch in loader for tensor in batch]


@pytest.mark.parametrize("also", [[], [("sample_cache", {})], [("prefetch", {})]])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_move_finds_the_same_bits(also: list[Any], at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if at_once:
        monkeypatch.setenv("OVERDRIVE_PREFILL", "1")
    torch.manual_seed(0)
    plain = [tensor for tensor, _ in moves(DataLoader(Images(), 8, shuffle=True))]
    torch.manual_seed(0)
    with Session([("device_resident", {}), *also]) as session:
        moved = moves(DataLoader(Images(), 8, shuffle=True))
    assert not set(session.seams.left_out) - {"prefetch"}
    assert all(same(ours, theirs) for (ours, _), theirs in zip(moved, plain, strict=True))
    found = [(tensor, copy) for tensor, copy in moved if copy.device == CPU]
    assert len(found) == len(moved) // 3 * (3 if at_once else 2)
    assert all(same(copy, tensor) and copy is not tensor for tensor, copy in found)


def test_batches_that_are_more_than_kept_samples_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put together by the program: the GPU has the samples alone."""
    monkeypatch.setenv("OVERDRIVE_PREFILL", "1")

    def reversed_batch(samples: list[Any]) -> Any:
        return torch.stack([image for image, _, _ in samples][::-1])

    with Session([("sample_cache", {}), ("device_resident", {})]) as session:
        batches = list(DataLoader(Images(), 8, collate_fn=reversed_batch)) * 2
        assert all(batch.to("meta").device == META for batch in batches) and not session.seams.left_out


def test_what_was_written_to_or_changed_is_copied() -> None:
    with Session([("device_resident", {})]):
        data = Images()
        loader = DataLoader(data, 8)
        moves(loader, 1)
        images = next(iter(loader))[0]
        assert images.to("meta").device == CPU and images.to("meta").device == META
        images = next(iter(loader))[0].add_(1)
        assert images.to("meta").device == META
        data.level = 1
        assert all(copy.device == META for _, copy in moves(loader, 2))


def test_it_leaves_no_trace() -> None:
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

    loader = DataLoader(Images(), 8)
    with Session([("device_resident", {})]):
        moves(loader, 1)
        iterator = iter(loader)
        images = next(iterator)[0]
    assert type(iterator) is _SingleProcessDataLoaderIter and "overdrive_heard" not in vars(iterator)
    assert images.to("meta").device == META
    assert len(list(iterator)) == len(loader) - 1


@pytest.mark.parametrize("also", [[], [("sample_cache", {})]])
def test_switched_off_nothing_is_offered_and_the_program_fetches_for_itself(
    also: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERDRIVE_PREFILL", "1")
    fetched: list[int] = []
    real = Images.__getitem__
    torch.manual_seed(0)
    plain = [tensor for tensor, _ in moves(DataLoader(Images(), 4, shuffle=True), 4)]
    torch.manual_seed(0)
    with Session([("device_resident", {}), *also]) as session:
        handles = list(session.handles.values())
        loader = DataLoader(Images(), 4, shuffle=True)
        moved: list[Any] = []
        at: list[tuple[bool, bool]] = []
        for _ in range(4):
            for batch in loader:
                active = handles[0].active
                for tensor in batch:
                    moved.append(tensor)
                    copy = tensor.to("meta")
                    at.append((active, copy.device == CPU))
                    assert copy.device == META or same(copy, tensor)
                if len(moved) % 12 == 0:  # after each fourth batch
                    for handle in handles:
                        (handle.off if handle.active else handle.on)()
        assert all(here == active for active, here in at) and len(set(at)) == 2
        for handle in handles:
            handle.off()
        monkeypatch.setattr(Images, "__getitem__", lambda self, index: (fetched.append(index), real(self, index))[1])
        list(loader)
    assert sorted(fetched) == list(range(COUNT)) and not session.seams.left_out
    assert all(same(ours, theirs) for ours, theirs in zip(moved, plain, strict=True))


def test_too_large_a_table_stays_where_it_is() -> None:
    with Session([("device_resident", {"memory_share": 0.01})]) as session:
        found: Any = session.handles["device_resident"]
        found.residence = Residence(0.01, found.offers)
        found.residence._free_memory = lambda device: 1 << 10
        assert all(copy.device == META for _, copy in moves(DataLoader(Images(), 8)))
    assert not session.seams.left_out
    assert "the GPU has" in found.residence.reasons[0]


def test_a_table_that_arrives_otherwise_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = resident._sent
    monkeypatch.setattr(resident, "_sent", lambda *of: sent(*of) * 0)
    with Session([("device_resident", {})]) as session:
        assert all(copy.device == META for _, copy in moves(DataLoader(Images(), 8)))
    found: Any = session.handles["device_resident"]
    assert "as they were sent" in found.residence.reasons[0]
    assert issubclass(Unfit, Exception)


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with Session([("device_resident", {})]) as session:
        assert len(list(DataLoader(Images(), 8))) == 6
    assert "no GPU" in session.seams.left_out["device_resident"]
    technique = catalogue()["device_resident"]
    assert technique.applies(Facts(loaders=(LoaderFacts(8, 0, True, 10, 0.1),))) == "the program runs on the CPU"
    assert technique.applies(Facts(device="cuda", loaders=(LoaderFacts(8, 0, True, 10, 0.1),))) is None
