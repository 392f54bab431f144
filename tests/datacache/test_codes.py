"""Tables of codes: every bit comes back, in a quarter of the room, and what has too many values is refused."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from overdrive.datacache import palettes as palettes_module  # noqa: E402
from overdrive.datacache.codes import CodedTable, bytes_as_codes, worth_coding  # noqa: E402
from overdrive.datacache.store import Store  # noqa: E402
from overdrive.datacache.table import Table, same_bits  # noqa: E402
from overdrive.forks.layout import Layout, Unfit, layout_of  # noqa: E402

COUNT = 12
ROWS = np.arange(COUNT)
STRANGE = [
    0x00000000,
    0x80000000,
    0x7FC00000,
    0x7FC00001,
    0xFFC00000,
    0x7F800001,
    0x7F800000,
    0xFF800000,
    0x1,
    0x80000001,
]


def pictures(count: int = COUNT, size: int = 20) -> Any:
    """Three channels, each normalised in its own way: 768 values."""
    whole = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, 3, size, size), dtype=np.uint8))
    return whole.float().div(255).sub(torch.tensor([0.4, 0.5, 0.6])[:, None, None]).div(0.22)


def strange() -> Any:
    """Zeros of both signs, NaNs of several kinds, infinities, the smallest numbers."""
    bits = np.random.default_rng(1).choice(np.array(STRANGE, dtype=np.uint32), (COUNT, 600))
    return torch.from_numpy(bits.view(np.float32))


def masks() -> Any:
    return torch.from_numpy(np.random.default_rng(2).integers(-3, 100, (COUNT, 20, 20)))


def batch_of(first: int = 0, end: int = COUNT) -> Any:
    whole = {"picture": pictures(), "strange": strange(), "mask": masks(), "label": torch.arange(COUNT)}
    return {name: tensor[first:end] for name, tensor in whole.items()}


LAYOUT: Layout = layout_of(batch_of())
CODED = (0, 1, 2)


def filled(layout: Layout, batch: Any) -> Table:
    table = Table.in_memory(layout, COUNT)
    assert table.write(ROWS, batch)
    return table


def test_what_has_few_values_is_worth_coding() -> None:
    assert worth_coding(filled(LAYOUT, batch_of())) == CODED


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: torch.rand(COUNT, 3, 20, 20), id="many values"),
        pytest.param(lambda: pictures().contiguous(memory_format=torch.channels_last), id="channels last"),
        pytest.param(lambda: pictures().half(), id="two bytes a number"),
        pytest.param(lambda: pictures(size=4), id="small"),
    ],
)
def test_other_samples_are_not(other: Any) -> None:
    batch = [other()]
    assert worth_coding(filled(layout_of(batch), batch)) == ()


def test_every_bit_comes_back_as_from_a_plain_table_in_a_quarter_of_the_room() -> None:
    coded, plain = CodedTable.with_codes(LAYOUT, COUNT, CODED), filled(LAYOUT, batch_of())
    for first in range(0, COUNT, 5):  # palettes grow
        assert coded.write(ROWS[first : first + 5], batch_of(first, first + 5))
    assert coded.complete
    for rows in (ROWS, ROWS[::-1], np.array([3, 3, 0, 11])):
        assert same_bits(coded.gather(rows), plain.gather(rows), LAYOUT)
    for number in range(len(LAYOUT.leaves)):
        assert np.array_equal(coded.part(number, 4, 99), plain.part(number, 4, 99))
    one = layout_of([pictures()])
    assert 0.25 < bytes_as_codes(one, 10_000, (0,)) / (one.bytes * 10_000) < 0.2503


def test_values_that_come_later_are_kept_up_to_the_last_code() -> None:
    few = torch.arange(2.0).repeat(COUNT, 300)
    layout = layout_of([few])
    table = CodedTable.with_codes(layout, COUNT, (0,))
    assert table.write(ROWS, [few])
    all_codes = (torch.arange(600) % 256).float()[None]
    assert table.write(ROWS[:1], [all_codes]) and same_bits(table.gather(ROWS[:1]), [all_codes], layout)
    assert same_bits(table.gather(ROWS[1:]), [few[1:]], layout)
    one_more = all_codes.clone()
    one_more[0, 7] = -0.0  # another value than 0.0
    with pytest.raises(Unfit, match="more than the 256 values"):
        table.write(ROWS[1:2], [one_more])
    assert same_bits(table.gather(ROWS[:1]), [all_codes], layout)


def _write_some(table: Table, first: int) -> None:
    for row in range(first, COUNT, 3):
        assert table.write(ROWS[row : row + 1], batch_of(row, row + 1))
    os._exit(0)


def test_forked_processes_share_the_palettes() -> None:
    table = CodedTable.with_codes(LAYOUT, COUNT, CODED)
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_write_some, args=(table, first)) for first in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    table.count_present()
    assert table.complete and same_bits(table.gather(ROWS), batch_of(), LAYOUT)


def test_a_palette_that_somebody_holds_for_long_is_no_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(palettes_module, "_PATIENCE", 0.01)
    table = CodedTable.with_codes(LAYOUT, COUNT, CODED)
    with table._palettes[0]._threads, pytest.raises(Unfit, match="could not be had"):
        table.write(ROWS, batch_of())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "samples")


def test_stored_codes_come_back_and_others_join(store: Store) -> None:
    one = store.partial("key", LAYOUT, COUNT, coded=CODED)
    assert one is not None
    joined = Store(store.folder).join("key")
    assert joined is not None and joined.table.coded == CODED
    assert one.table.write(ROWS[:5], batch_of(0, 5)) and joined.table.write(ROWS[5:], batch_of(5))
    one.table.count_present()
    assert same_bits(one.table.gather(ROWS), batch_of(), LAYOUT)
    assert not one.finish([], 1.0) and joined.finish([], 1.0)
    table = store.open("key")
    assert table is not None and table.coded == CODED and table.complete and not table.writable
    assert same_bits(table.gather(ROWS), batch_of(), LAYOUT)
    assert table.write(ROWS[:1], batch_of(3, 4)) and same_bits(table.gather(ROWS), batch_of(), LAYOUT)


def _stored(store: Store) -> Path:
    partial = store.partial("key", LAYOUT, COUNT, coded=CODED)
    assert partial is not None and partial.table.write(ROWS, batch_of()) and partial.finish([], 1.0)
    return store.folder / "key"


def test_a_damaged_palette_is_noticed(store: Store) -> None:
    place = _stored(store)
    data = bytearray((place / "1.palette").read_bytes())
    data[9] ^= 1
    (place / "1.palette").write_bytes(data)
    assert store.open("key") is None and not place.exists()


@pytest.mark.parametrize("coded", [[0], [3], [7], [1, 0, 2], [0, 0], "0", [0.0], None, 5])
def test_a_manifest_that_names_other_leaves_is_refused(store: Store, coded: Any) -> None:
    place = _stored(store)
    manifest = json.loads((place / "manifest.json").read_text())
    del manifest["sum"]
    (place / "manifest.json").write_text(json.dumps({**manifest, "coded": coded}))
    assert store.open("key") is None


def test_a_table_from_before_there_were_codes_is_read(store: Store) -> None:
    partial = store.partial("key", LAYOUT, COUNT)
    assert partial is not None and partial.table.write(ROWS, batch_of()) and partial.finish([], 1.0)
    path = store.folder / "key" / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest.pop("coded") == [] and manifest.pop("sum")
    path.write_text(json.dumps(manifest))
    table = store.open("key")
    assert table is not None and type(table) is Table and same_bits(table.gather(ROWS), batch_of(), LAYOUT)
