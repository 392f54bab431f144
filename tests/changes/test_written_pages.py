"""The kernel's account of writes to memory. Skipped where there is none, saying so."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import numpy as np
import pytest

from overdrive.changes.written_pages import Pages, any_written

SIZE = 8 << 20


def of(array: Any) -> Pages | None:
    return Pages.of(array.ctypes.data, array.nbytes)


@pytest.fixture
def array() -> Any:
    made = np.ones(SIZE, np.uint8)
    if of(made) is None:
        pytest.skip("this kernel keeps no account of writes (Linux 6.7 does)")
    return made


def test_a_write_of_any_kind_is_noted(array: Any) -> None:
    pages = of(array)
    assert pages is not None and not pages.written()
    assert array[5_000_000] == 1 and not pages.written()  # a read
    array[5_000_000] = 1  # what was there already
    assert pages.written() and pages.written()
    pages.forget()
    assert not pages.written()
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 10)
        file.seek(0)
        file.readinto(memoryview(array)[4_000_000:4_000_010])  # by the kernel itself
    assert pages.written()


def test_who_looks_at_a_part_takes_nothing_from_who_looks_at_all(array: Any) -> None:
    whole, part = of(array), of(array[SIZE // 2 :])
    assert whole is not None and part is not None
    array[-5000] = 2
    part.forget()
    assert whole.written() and not part.written()
    whole.forget()
    array[-5000] = 3
    again = of(array)
    assert again is not None and not again.written()
    assert whole.written() and part.written()


def test_what_others_can_write_to_has_no_account(array: Any) -> None:
    shared = np.frombuffer(mmap.mmap(-1, SIZE), np.uint8)
    assert of(shared) is None
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(SIZE)
        for mode in ("r", "r+", "c"):
            assert of(np.memmap(file.name, np.uint8, mode)) is None
    assert of(array[10:20]) is None  # no whole page


def test_in_a_forked_process_all_counts_as_written(array: Any) -> None:
    pages = of(array)
    assert pages is not None and not pages.written()
    child = os.fork()
    if child == 0:
        os._exit(0 if pages.written() and of(np.ones(SIZE, np.uint8)) is not None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not pages.written()


def test_of_several_asked_in_one_go_one_is_enough(array: Any) -> None:
    other = np.ones(SIZE, np.uint8)
    pieces = [of(array[: SIZE // 2]), of(array[SIZE // 2 :]), of(other)]
    assert not any_written([]) and not any_written(pieces) and not any_written(pieces)
    other[-5000] = 1
    assert any_written(pieces) and any_written(pieces[2:]) and not any_written(pieces[:2])
    for each in pieces:
        each.forget()
    array[5000] = 1
    assert pieces[0].written()  # who has asked alone takes nothing from who asks for all
    assert any_written(pieces) and not any_written(pieces[1:])


def test_a_fork_which_has_no_account_says_so_of_several(array: Any) -> None:
    pieces = [of(array)]
    assert not any_written(pieces)
    child = os.fork()
    if child == 0:
        os._exit(0 if any_written(pieces) else 1)
    assert os.waitpid(child, 0)[1] == 0
