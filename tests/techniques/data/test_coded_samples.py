"""Data sets that fit the budgets of memory and disk only as codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from overdrive.datacache import table_places  # noqa: E402
from overdrive.datacache.codes import CodedTable  # noqa: E402
from overdrive.datacache.store import Store  # noqa: E402
from overdrive.datacache.table import Table  # noqa: E402
from overdrive.techniques.data.device_resident.resident import DeviceTable  # noqa: E402
from overdrive.techniques.data.device_resident.rows import BatchRows  # noqa: E402
from tests.techniques.data import harness  # noqa: E402
from tests.techniques.data.harness import epochs  # noqa: E402

COUNT = 53
BYTES = COUNT * (4 * 3 * 16 * 16 + 8)
EACH_WAY = pytest.mark.parametrize("workers", [0, 2])
EACH_PLACE = pytest.mark.parametrize(("memory", "disk"), [(0.5, 0.0), (0.0, 0.5)], ids=["in memory", "on disk"])


class Pictures(Dataset):
    """`late`: a sample, none of those that are tried, which has a value more."""

    def __init__(self, late: int | None = None) -> None:
        self.pixels = np.random.default_rng(0).integers(0, 256, (COUNT, 3, 16, 16), dtype=np.uint8)
        self.late = late

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        picture = torch.from_numpy(self.pixels[index]).float().div(255).sub(0.45).div(0.22)
        if index == self.late:
            picture[0, 0, 0] = float("nan")
        return picture, index


class Run(harness.Run):
    def ends(self) -> None:
        """A loader may have been left out before it was kept."""
        self.table, self.dropped = None, self.left_out[0][1] if self.left_out else ""
        for kept in self.manager.kept:
            self.table, self.dropped = kept.table, kept.dropped or self.dropped


def room(monkeypatch: pytest.MonkeyPatch, memory: float, disk: float) -> None:
    """In bytes of the whole data set as it is; of memory half may be used."""
    monkeypatch.setattr(table_places, "available_memory", lambda: int(2 * memory * BYTES))
    monkeypatch.setattr(Store, "_allowed", lambda store: disk * BYTES)


def loader(workers: int, late: int | None = None) -> Any:
    return DataLoader(Pictures(late), 8, shuffle=True, num_workers=workers)


def both(workers: int, *others: str, late: int | None = None) -> Run:
    plain, kept, run = harness.both(
        lambda: loader(workers, late), lambda made: epochs(made, 3), Run("sample_cache", *others)
    )
    assert plain == kept
    return run


@EACH_WAY
@EACH_PLACE
def test_what_fits_only_as_codes_is_served(
    monkeypatch: pytest.MonkeyPatch, any_filling: str, workers: int, memory: float, disk: float
) -> None:
    room(monkeypatch, memory, disk)
    run = both(workers)
    assert not run.left_out and not run.dropped and type(run.table) is CodedTable and run.table.complete
    assert sum(held.nbytes for held in run.table.contents().values()) < 0.3 * BYTES  # with palettes, for 53 samples


def test_the_next_run_finds_them(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    room(monkeypatch, 0.0, 0.5)
    both(0)
    (first,) = folder.iterdir()
    run = both(0)
    assert type(run.table) is CodedTable and not run.table.writable and list(folder.iterdir()) == [first]


def test_what_fits_as_it_is_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for memory, disk in ((1.5, 0.0), (0.8, 1.5)):
        room(monkeypatch, memory, disk)
        assert type(both(0).table) is Table


def test_what_the_memory_has_no_room_for_comes_from_the_disk_as_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    room(monkeypatch, 0.1, 1.5)
    assert type(both(0).table) is CodedTable


@EACH_WAY
@EACH_PLACE
def test_one_value_too_many_and_samples_are_fetched_anew(
    monkeypatch: pytest.MonkeyPatch, folder: Path, any_filling: str, workers: int, memory: float, disk: float
) -> None:
    room(monkeypatch, memory, disk)
    run = both(workers, late=2)
    assert "more than the 256 values" in run.dropped
    assert not list(folder.glob("*/*.codes"))


def test_other_techniques_read_codes_too(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    room(monkeypatch, 0.0, 0.5)
    both(0)
    run = both(0, "prefetch")
    assert not run.left_out and type(run.table) is CodedTable
    assert (
        DeviceTable(run.table, torch.device("cpu"))
        .gather(0, BatchRows(np.array([3]), torch.device("cpu")))
        .equal(Pictures()[3][0][None])
    )
