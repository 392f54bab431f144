"""Stored tables: whole or not there, checked when opened, and within their share of the disk."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from overdrive.core.places import samples_folder  # noqa: E402
from overdrive.datacache import in_use as in_use_module  # noqa: E402
from overdrive.datacache import partial_table as partial_module  # noqa: E402
from overdrive.datacache import store as store_module  # noqa: E402
from overdrive.datacache.partial_table import PartialTable  # noqa: E402
from overdrive.datacache.ragged import FiledTable, RaggedTable  # noqa: E402
from overdrive.datacache.store import Store, StoreUnavailable  # noqa: E402
from overdrive.datacache.table import Table, same_bits  # noqa: E402
from overdrive.forks.layout import Layout, Leaf, Unfit, layout_of  # noqa: E402

COUNT = 10
DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64]


def batch_of(count: int) -> Any:
    torch.manual_seed(0)
    images = (torch.rand(count, 4, 5, 3) * 100).permute(0, 3, 1, 2)  # channels last
    return {
        "image": images,
        "all": [(torch.rand(count, 2) * 9).to(dtype) for dtype in DTYPES],
        "label": (torch.arange(count), torch.tensor([float("nan")] * count)),
    }


def partial_of(store: Store, key: str = "key") -> PartialTable:
    partial = store.partial(key, layout_of(batch_of(COUNT)), COUNT)
    assert partial is not None
    assert partial.table.write(np.arange(COUNT), batch_of(COUNT))
    return partial


def die(partial: PartialTable) -> None:
    """As if it were another process's, which is killed."""
    os.close(partial._lock)
    partial_module._taking_part[partial.place] -= 1


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "samples")


def test_what_is_stored_comes_back_in_every_bit(store: Store) -> None:
    assert partial_of(store).finish([], 1.0)
    table = store.open("key")
    assert table is not None and table.complete
    assert same_bits(table.gather(np.arange(COUNT)), batch_of(COUNT), table.layout)
    picked = table.gather(np.array([7, 7, 2]))
    assert torch.equal(picked["image"], batch_of(COUNT)["image"][[7, 7, 2]])
    assert picked["image"].is_contiguous(memory_format=torch.channels_last)
    assert type(picked["label"]) is tuple and type(picked["all"]) is list


def test_it_is_the_users_own(store: Store) -> None:
    assert partial_of(store).finish([], 1.0)
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert (store.folder / "key").stat().st_mode & 0o777 == 0o700


@pytest.mark.fault("others")
def test_refuses_a_folder_that_others_may_write_to(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(StoreUnavailable, match="others may write"):
        Store(shared)


@pytest.mark.fault("others")
def test_refuses_a_folder_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(StoreUnavailable, match="belongs to another user"):
        Store(tmp_path / "samples")


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("OVERDRIVE_CACHE", raising=False)
    assert samples_folder() == Path("/x/overdrive/samples")
    monkeypatch.setenv("OVERDRIVE_CACHE", "/y")
    assert samples_folder() == Path("/y")


@pytest.mark.fault(12, 24)
def test_every_flipped_bit_and_missing_byte_is_noticed(store: Store) -> None:
    partial_of(store).finish([], 1.0)
    whole = {file.name: file.read_bytes() for file in (store.folder / "key").iterdir()}
    for name, data in whole.items():
        for damaged in (data[:-1], data[:5] + bytes([data[5] ^ 1]) + data[6:], b""):
            (store.folder / "key" / name).write_bytes(damaged)
            assert store.open("key") is None, name
            assert not (store.folder / "key").exists()
            (store.folder / "key").mkdir()
            for each, content in whole.items():
                (store.folder / "key" / each).write_bytes(content)
    assert store.open("key") is not None


@pytest.mark.parametrize(
    "change",
    [
        {"format": 99},
        {"count": -1},
        {"count": 10**15},
        {"layout": {"structure": 5, "leaves": []}},
        {"layout": {"structure": 0, "leaves": [{"dtype": "load", "sizes": [2], "order": [0, 1]}]}},
        {"layout": []},
        {"files": []},
        {"depends": 3},
    ],
)
@pytest.mark.fault(24)
def test_a_strange_manifest_is_refused(store: Store, change: dict[str, Any]) -> None:
    partial_of(store).finish([], 1.0)
    manifest = store.folder / "key" / "manifest.json"
    told = json.loads(manifest.read_text())
    del told["sum"]  # of which there was none before, and nothing but it would be looked at
    manifest.write_text(json.dumps({**told, **change}))
    assert store.open("key") is None


@pytest.mark.parametrize(
    "change", [('"leaves"', '"leavez"'), ('"fill_seconds": 1', '"fill_seconds": 2'), ('"sum"', '"sun"')]
)
@pytest.mark.fault(24)
def test_a_manifest_that_says_something_else_is_refused(store: Store, change: tuple[str, str]) -> None:
    """Names of a batch's leaves stand in it alone."""
    partial_of(store).finish([], 1.0)
    manifest = store.folder / "key" / "manifest.json"
    text = manifest.read_text()
    assert change[0] in text
    manifest.write_text(text.replace(*change))
    assert store.open("key") is None


def test_files_that_samples_were_read_from_must_be_as_they_were(store: Store, tmp_path: Path) -> None:
    data = tmp_path / "data.bin"
    data.write_bytes(b"1")
    os.utime(data, (1e9, 1e9))
    assert partial_of(store).finish([str(data)], 1.0)
    assert store.open("key") is not None
    os.utime(data, (1e9, 1e9 + 1))
    assert store.open("key") is None


def test_a_file_that_changed_meanwhile_is_not_trusted(store: Store, tmp_path: Path) -> None:
    partial = partial_of(store)
    (tmp_path / "data.bin").write_bytes(b"1")
    assert not partial.finish([str(tmp_path / "data.bin")], 1.0)
    assert list(store.folder.iterdir()) == []


def test_one_begins_and_others_join(store: Store) -> None:
    layout = layout_of(batch_of(COUNT))
    one = store.partial("key", layout, COUNT)
    assert one is not None
    other = Store(store.folder)
    assert other.partial("key", layout, COUNT) is None and other.busy("key")
    assert not one.shared
    joined = other.join("key")
    assert joined is not None and joined.joined and one.shared
    table = joined.table
    assert table.missing == COUNT and table.writable
    assert one.table.write(np.arange(2), _first(2)) and table.write(np.arange(4), _first(4))
    assert one.table.absent(np.arange(COUNT)).tolist() == list(range(4, COUNT))
    assert table.absent(np.arange(COUNT)).tolist() == list(range(4, COUNT))
    assert same_bits(table.gather(np.arange(4)), _first(4), layout)
    assert one.table.write(np.arange(COUNT), batch_of(COUNT))
    assert not one.finish([], 1.0)  # the other one may still write
    assert other.open("key") is None and other.busy("key")
    assert joined.finish([], 1.0)
    table.count_present()
    assert table.complete and same_bits(table.gather(np.arange(COUNT)), batch_of(COUNT), layout)
    assert [each.name for each in store.folder.iterdir()] == ["key"]
    names = [each.name for each in (store.folder / "key").iterdir() if not each.name.startswith("used-")]
    assert sorted(names)[-1] == "manifest.json"
    assert other.join("key") is None and other.open("key") is not None


def _first(count: int) -> Any:
    def cut(thing: Any) -> Any:
        if isinstance(thing, dict):
            return {key: cut(value) for key, value in thing.items()}
        if isinstance(thing, (list, tuple)):
            return type(thing)(map(cut, thing))
        return thing[:count]

    return cut(batch_of(COUNT))


def test_another_machines_processes_do_not_join(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder on a file server, say: what is mapped there is not the same on two machines at the same time."""
    partial = partial_of(store)
    monkeypatch.setattr(partial_module, "this_machine", lambda: "another")
    assert store.busy("key") and store.join("key") is None and not partial.shared
    monkeypatch.undo()
    joined = store.join("key")
    assert joined is not None
    joined.abandon()
    partial.abandon()


def test_what_one_of_several_has_written_must_be_vouched_for(store: Store) -> None:
    """It dies, or its data set has changed: the others have their table, and nobody else gets it."""
    partial = partial_of(store)
    for harm in (die, PartialTable.abandon):
        joined = Store(store.folder).join("key")
        assert joined is not None
        harm(joined)
    assert not partial.finish([], 1.0)
    assert same_bits(partial.table.gather(np.arange(COUNT)), batch_of(COUNT), partial.table.layout)
    assert list(store.folder.iterdir()) == []


def test_files_that_the_others_read_count_too(store: Store, tmp_path: Path) -> None:
    data = tmp_path / "data.bin"
    data.write_bytes(b"1")
    os.utime(data, (1e9, 1e9))
    partial = partial_of(store)
    joined = Store(store.folder).join("key")
    assert joined is not None and not joined.finish([str(data)], 1.0) and partial.finish([], 1.0)
    assert store.open("key") is not None
    os.utime(data, (1e9, 1e9 + 1))
    assert store.open("key") is None


@pytest.mark.fault(9)
def test_what_a_dead_process_was_filling_is_taken_over(store: Store) -> None:
    die(partial_of(store))
    assert store.join("key") is None
    assert partial_of(store).finish([], 1.0)
    assert store.open("key") is not None


def _left(store: Store, tmp_path: Path) -> Path:
    """A file that four rows were read from: they are written, and vouched for."""
    data = tmp_path / "data.bin"
    data.write_bytes(b"1")
    os.utime(data, (1e9, 1e9))
    partial = store.partial("key", layout_of(batch_of(COUNT)), COUNT)
    assert partial is not None and partial.table.write(np.arange(4), _first(4))
    assert not partial.finish([str(data)], 1.0)
    return data


def test_what_was_left_unfinished_is_gone_on_with(store: Store, tmp_path: Path) -> None:
    data = _left(store, tmp_path)
    later = Store(store.folder)
    assert later.open("key") is None and not later.busy("key") and later.join("key") is None
    taken = later.take_over("key")
    assert taken is not None and not taken.joined and taken.table.missing == COUNT - 4
    assert same_bits(taken.table.gather(np.arange(4)), _first(4), taken.table.layout)
    assert later.busy("key") and store.take_over("key") is None  # by one at a time
    assert taken.table.write(np.arange(COUNT), batch_of(COUNT)) and taken.finish([], 1.0)
    assert later.open("key") is not None and later.take_over("key") is None
    os.utime(data, (1e9, 1e9 + 1))  # which the first of them read
    assert later.open("key") is None


def _killed(store: Store) -> None:
    taken = store.take_over("key")
    assert taken is not None
    die(taken)


HARMS: dict[str, Any] = {
    "a file was changed": lambda store, data, patch: data.write_bytes(b"2"),
    "a file is gone": lambda store, data, patch: data.unlink(),
    "killed": lambda store, data, patch: _killed(store),
    "another machine": lambda store, data, patch: patch.setattr(partial_module, "this_machine", lambda: "another"),
    "a day ago": lambda store, data, patch: patch.setattr(partial_module, "_LEFT_SECONDS", -1.0),
    "damaged": lambda store, data, patch: next(store.folder.glob("*/layout.json")).write_text("{"),
    "of another length": lambda store, data, patch: os.truncate(next(store.folder.glob("*/0.raw")), 7),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_what_was_left_and_cannot_be_trusted_is_begun_anew(
    harm: Any, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _left(store, tmp_path)
    harm(store, data, monkeypatch)
    assert store.take_over("key") is None
    assert partial_of(Store(store.folder)).finish([], 1.0) and store.open("key") is not None


def test_only_partials_of_the_dead_are_removed(store: Store) -> None:
    alive = partial_of(store)
    code = (
        "import os, sys; from pathlib import Path; from overdrive.datacache.store import Store;"
        "from overdrive.forks.layout import Leaf, Layout;"
        "Store(Path(sys.argv[1])).partial('k', Layout(0, (Leaf('uint8', (5,), (0, 1)),)), 3); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code, str(store.folder)], check=False)
    assert len(list(store.folder.iterdir())) == 2
    Store(store.folder)
    assert list(store.folder.iterdir()) == [alive.place]
    assert alive.finish([], 1.0)


def test_the_longest_unused_go_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, key in enumerate(("a", "b", "c")):
        partial_of(store, key).finish([], 1.0)
        os.utime(store.folder / key, (number, number))
    assert store.open("a") is not None  # used now
    size = store_module.size_of(store.folder / "a")
    monkeypatch.setattr(Store, "_allowed", lambda self: 3.5 * size)
    assert partial_of(store, "d").finish([], 1.0)
    assert sorted(each.name for each in store.folder.iterdir()) == ["a", "c", "d"]
    monkeypatch.setattr(Store, "_allowed", lambda self: 10.0)
    assert store.partial("e", layout_of(batch_of(COUNT)), COUNT) is None
    assert len(list(store.folder.iterdir())) == 3


def test_where_a_process_does_not_meet_its_own_locks_it_takes_nothing_over_from_itself(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on file servers, of which it must not even ask for a lock that it holds."""
    partial = partial_of(store)
    for module in (store_module, partial_module):
        monkeypatch.setattr(module, "locked", lambda path: contextlib.nullcontext())
    assert store.take_over("key") is None and partial.place.exists()
    monkeypatch.undo()
    assert partial.finish([], 1.0) and store.open("key") is not None


def test_what_was_left_goes_for_what_needs_the_room(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _left(store, tmp_path)
    assert partial_of(store, "a").finish([], 1.0)
    assert sorted(each.name for each in store.folder.iterdir()) == ["a", "partial-key"]
    size = store_module.size_of(store.folder / "a")
    taken = store.take_over("key")
    monkeypatch.setattr(Store, "_allowed", lambda self: 1.5 * size)
    assert partial_of(store, "b").finish([], 1.0)  # "a" goes: somebody is going on with the other
    assert taken is not None and not taken.finish([], 1.0)
    assert partial_of(store, "c").finish([], 1.0)
    assert [each.name for each in store.folder.iterdir()] == ["c"]


def _on_another(patch: pytest.MonkeyPatch, act: Any) -> Any:
    """`act` on another machine that has this folder mounted, and that meets no locks of this one."""
    with patch.context() as other:
        for module in (in_use_module, partial_module):
            other.setattr(module, "this_machine", lambda: "another")
        return act()


def _used_at(place: Path, when: float) -> None:
    for each in place.glob("used-*"):
        os.utime(each, (when, when))


def _stored_and_used_elsewhere(store: Store, patch: pytest.MonkeyPatch) -> Table:
    assert partial_of(store).finish([], 1.0)
    gc.collect()
    table: Table | None = _on_another(patch, lambda: Store(store.folder).open("key"))
    assert table is not None
    return table


def test_a_table_that_another_machine_has_mapped_is_moved_away_and_deleted_when_that_has_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file server its next page would be gone, which ends that machine's program with SIGBUS."""
    table = _stored_and_used_elsewhere(store, monkeypatch)
    store.remove("key")
    assert store.open("key") is None
    (moved,) = store.folder.iterdir()
    os.utime(moved, (1, 1))
    Store(store.folder)
    assert (moved / "0.raw").exists()
    table.in_use._next = 0.0  # type: ignore[union-attr]
    _used_at(moved, 1)
    assert same_bits(table.gather(np.arange(COUNT)), batch_of(COUNT), table.layout)  # which says that it is used
    os.utime(moved, (1, 1))
    Store(store.folder)
    assert (moved / "0.raw").exists()
    _used_at(moved, 1)  # as if it had been killed long ago
    os.utime(moved, (1, 1))
    Store(store.folder)
    assert not list(store.folder.iterdir())


def test_a_table_that_was_let_go_on_another_machine_is_deleted_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _stored_and_used_elsewhere(store, monkeypatch)
    assert in_use_module.used_elsewhere(store.folder / "key")
    del table
    gc.collect()
    assert not in_use_module.used_elsewhere(store.folder / "key")
    store.remove("key")
    assert not list(store.folder.iterdir())


def test_what_another_machine_uses_does_not_go_for_what_needs_the_room(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _stored_and_used_elsewhere(store, monkeypatch)
    size = store_module.size_of(store.folder / "key")
    monkeypatch.setattr(Store, "_allowed", lambda self: 1.5 * size)
    assert store.partial("new", layout_of(batch_of(COUNT)), COUNT) is None
    _used_at(store.folder / "key", 1)
    assert partial_of(store, "new").finish([], 1.0) and table.complete
    assert [each.name for each in store.folder.iterdir()] == ["new"]


def test_what_another_machine_is_filling_stays_there_though_its_lock_is_not_met_here(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = _on_another(monkeypatch, lambda: partial_of(store))
    die(filled)  # its lock is free, as far as this machine can tell
    Store(store.folder)
    assert filled.place.exists()
    assert not store.busy("key")
    mine = partial_of(store)
    (moved,) = [each for each in store.folder.iterdir() if each != mine.place]
    assert (moved / "0.raw").exists() and same_bits(filled.table.gather(np.arange(2)), _first(2), filled.table.layout)
    assert mine.finish([], 1.0) and store.open("key") is not None


def test_a_table_takes_in_what_fits_only() -> None:
    layout = layout_of(batch_of(COUNT))
    table = Table.in_memory(layout, COUNT)
    assert not table.write(np.arange(2), batch_of(3))
    other = batch_of(2)
    other["all"][0] = other["all"][0].int()
    assert not table.write(np.arange(2), other)
    special = batch_of(2)
    special["image"].requires_grad_()  # of which only the elements would be kept
    assert not table.write(np.arange(2), special)
    assert table.missing == COUNT
    assert table.write(np.array([3, 4]), batch_of(2)) and table.missing == COUNT - 2
    assert table.absent(np.array([5, 3, 1, 5])).tolist() == [5, 1]
    assert table.rows([0, 9]) is not None
    for indices in ([10], [-1], [True], (1, 2), [1.0], [np.int64(1)], []):
        assert table.rows(indices) is None


def test_layouts_survive_json() -> None:
    layout = layout_of(batch_of(COUNT))
    assert Layout.from_json(json.loads(json.dumps(layout.to_json()))) == layout


@pytest.mark.parametrize(
    "batch",
    [
        "text",
        [1],
        [],
        torch.tensor(1),
        torch.zeros(2, 3).t(),
        torch.zeros(2, 2).to_sparse(),
        torch.zeros(2, 2, requires_grad=True),
        torch.nn.Parameter(torch.zeros(2)),
        {3.5: torch.zeros(2)},
        [torch.zeros(2, 2)] * 2,
        torch.zeros(0, 2),
    ],
)
def test_batches_that_cannot_be_stacked_are_refused(batch: Any) -> None:
    with pytest.raises(Unfit):
        layout_of(batch)


# Rows of different lengths

ROOM = 100


def row_of(number: int) -> Any:
    """Its first byte says how many others there are."""
    return np.array([3 * number, *[number] * 3 * number], dtype=np.uint8)


def filled(row: Any) -> int:
    return 1 + int(row[0])


def ragged_partial(store: Store) -> PartialTable:
    partial = store.partial("key", Layout(0, (Leaf("uint8", (ROOM,), (0, 1)),)), COUNT, COUNT * ROOM, filled)
    assert partial is not None and isinstance(partial.table, FiledTable)
    return partial


def padded(numbers: list[int]) -> Any:
    batch = torch.zeros((len(numbers), ROOM), dtype=torch.uint8)
    for place, number in zip(batch.numpy(), numbers, strict=True):
        place[: len(row_of(number))] = row_of(number)
    return batch


def test_rows_of_different_lengths_come_back(store: Store) -> None:
    partial = ragged_partial(store)
    order = [3, 1, 9, 0, 2, 8, 7, 6, 5, 4]
    assert partial.table.write(np.array(order[:6]), padded(order[:6])) and partial.table.missing == 4
    for number in order[6:]:
        partial.table.put(number, row_of(number))
        assert partial.table.row(number).tolist() == row_of(number).tolist()  # before all are there
    partial.table.count_present()
    assert partial.finish([], 1.0)
    assert (store.folder / "key" / "rows.raw").stat().st_size == sum(range(0, 30, 3)) + COUNT
    table = store.open("key")
    assert table is not None and table.complete and not table.writable
    for each in (table, partial.table):
        assert [each.row(number).tolist() for number in order] == [row_of(number).tolist() for number in order]
        assert torch.equal(each.gather(np.array([7, 0, 7])), padded([7, 0, 7]))


def test_every_flipped_bit_and_missing_byte_among_ragged_rows_is_noticed(store: Store) -> None:
    partial = ragged_partial(store)
    assert partial.table.write(np.arange(COUNT), padded(list(range(COUNT)))) and partial.finish([], 1.0)
    place = store.folder / "key"
    whole = {file.name: file.read_bytes() for file in place.iterdir() if not file.name.startswith("used-")}
    assert sorted(whole) == ["index.raw", "manifest.json", "rows.raw"]
    for name, data in whole.items():
        for damaged in (data[:-1], data[:5] + bytes([data[5] ^ 1]) + data[6:], b""):
            (place / name).write_bytes(damaged)
            assert store.open("key") is None and not place.exists(), name
            place.mkdir()
            for each, content in whole.items():
                (place / each).write_bytes(content)
    assert store.open("key") is not None


@pytest.mark.parametrize("entry", [(-1, 4), (0, 0), (0, ROOM + 1), (140, 40)])
@pytest.mark.fault(24)
def test_an_index_that_points_elsewhere_is_refused(store: Store, entry: tuple[int, int]) -> None:
    """Even with the sum that belongs to it."""
    partial = ragged_partial(store)
    assert partial.table.write(np.arange(COUNT), padded(list(range(COUNT))))
    assert isinstance(partial.table, FiledTable)
    partial.table._index[4] = entry
    assert partial.finish([], 1.0)
    assert store.open("key") is None


def test_forked_processes_append_rows_and_others_read_along(store: Store) -> None:
    partial = ragged_partial(store)
    partial.table.put(0, row_of(0))
    children = []
    for first in (1, 2, 3):
        child = os.fork()
        if not child:
            for number in range(first, COUNT - 1, 3):
                partial.table.put(number, row_of(number))
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert Store(store.folder).join("key") is None  # as rows of one length
    joined = Store(store.folder).join("key", filled)
    assert joined is not None
    along = joined.table
    assert along.missing == 1
    along.put(3, row_of(4))  # is there already
    along.put(9, row_of(9))
    along.count_present()
    assert along.complete and not joined.finish([], 1.0)
    assert [along.row(number).tolist() for number in range(COUNT)] == [row_of(k).tolist() for k in range(COUNT)]
    partial.table.count_present()
    assert partial.table.complete and partial.finish([], 1.0) and store.open("key") is not None


def test_threads_append_rows_too(store: Store) -> None:
    partial = ragged_partial(store)

    def put(first: int) -> None:
        for number in range(first, COUNT, 5):
            partial.table.put(number, row_of(number))

    threads = [threading.Thread(target=put, args=(first,)) for first in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [partial.table.row(number).tolist() for number in range(COUNT)] == [row_of(k).tolist() for k in range(COUNT)]
    partial.abandon()


@pytest.mark.parametrize("how", ["error", "half", "limit"])
def test_a_disk_that_is_full_leaves_ragged_rows_out(store: Store, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    partial = ragged_partial(store)
    real = os.write

    def full(file: int, data: bytes) -> int:
        if how == "error":
            raise OSError(28, "No space left on device")
        return real(file, data[: len(data) // 2])

    partial.table.put(1, row_of(1))
    with monkeypatch.context() as patch:
        if how == "limit":
            patch.setattr(partial.table, "_limit", 5)
        else:
            patch.setattr(os, "write", full)
        partial.table.put(2, row_of(2))
    partial.table.put(3, row_of(3))
    assert np.flatnonzero(partial.table.present).tolist() == [1, 3]
    assert [partial.table.row(number).tolist() for number in (1, 3)] == [row_of(1).tolist(), row_of(3).tolist()]
    partial.abandon()
    assert partial.table.row(3).tolist() == row_of(3).tolist() and list(store.folder.iterdir()) == []


def test_ragged_rows_in_memory() -> None:
    table = RaggedTable.with_room(Layout(0, (Leaf("uint8", (ROOM,), (0, 1)),)), COUNT, filled)
    assert table.write(np.array([4, 2]), padded([4, 2])) and table.missing == COUNT - 2
    assert table.row(4)[: len(row_of(4))].tolist() == row_of(4).tolist()
    assert not table.write(np.array([1]), torch.zeros(1, ROOM - 1, dtype=torch.uint8))
