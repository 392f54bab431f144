"""What many arrays held, looked at together: each byte counts, whether the kernel keeps account of it or not."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overdrive.changes import array_content
from overdrive.changes.array_content import Contents
from overdrive.changes.written_pages import faults_so_far

LARGE = 200_003  # bytes: whole pages, and ends that are none


@pytest.mark.parametrize("account", ["kernel", "no account of faults", "no account"])
@pytest.mark.parametrize("looks", [1, 2, 50])
@pytest.mark.parametrize("place", [0, 1, LARGE // 2, LARGE - 2, LARGE - 1])
@pytest.mark.parametrize("which", range(3))
def test_any_byte_of_any_of_them(
    which: int, place: int, looks: int, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if account != "kernel":
        monkeypatch.setattr(array_content, "faults_so_far", lambda: None)
    if account == "no account":
        monkeypatch.setattr(array_content.Pages, "of", lambda *_: None)
        monkeypatch.setattr(array_content.Pages, "around", lambda *_: None)
    memory = np.zeros(LARGE + 9, np.uint8)
    arrays: list[Any] = [np.zeros(7, np.uint8), memory[5 : 5 + LARGE], np.zeros(30_000, np.uint8)]
    contents = Contents(arrays)
    assert not any(contents.changed() for _ in range(looks))
    arrays[which][place % len(arrays[which])] = 1
    assert contents.changed() and contents.changed()


def test_of_none_nothing_changes() -> None:
    assert not Contents([]).changed() and not Contents([np.zeros(0, np.uint8)]).changed()


def _beside(memory: Any) -> None:
    memory[100] += 1


def _faults_elsewhere(memory: Any) -> None:
    np.frombuffer(mmap.mmap(-1, 4 * mmap.PAGESIZE), np.uint8)[:] = 1


@pytest.mark.parametrize("often", [1, 2, 10, 100])
@pytest.mark.parametrize("other", [_beside, _faults_elsewhere, lambda memory: None], ids=["beside", "faults", "none"])
def test_what_is_written_beside_them_is_no_change_and_hides_none(other: Callable[[Any], None], often: int) -> None:
    memory = np.zeros(64 * mmap.PAGESIZE, np.uint8)
    arrays = [memory[:50], memory[30_000:30_100]]
    contents = Contents(arrays)
    for _ in range(often):
        other(memory)
        assert not contents.changed()
    arrays[0][7] = 1
    assert contents.changed()
    arrays[0][7] = 0
    arrays[1][7] = 1
    assert contents.changed()


def test_a_write_of_another_thread_and_one_in_a_fork() -> None:
    arrays = [np.zeros(30_000, np.uint8), np.zeros(LARGE, np.uint8)]
    contents = [Contents([each]) for each in arrays]
    assert not any(each.changed() for _ in range(5) for each in contents)
    child = os.fork()
    if child == 0:
        arrays[0][9] = 1
        os._exit(0 if contents[0].changed() and contents[0].changed() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not any(each.changed() for _ in range(5) for each in contents)
    for each in arrays:
        thread = threading.Thread(target=each.__setitem__, args=(9, 1))
        thread.start()
        thread.join()
    assert all(each.changed() for each in contents)


def test_faults_tell_where_the_kernel_keeps_account_of_writes() -> None:
    made = np.ones(8 << 20, np.uint8)
    pages = array_content.Pages.of(made.ctypes.data, made.nbytes)
    if pages is None:
        pytest.skip("this kernel keeps no account of writes (Linux 6.7 does)")
    before = faults_so_far()
    assert before is not None
    made[5_000_000] = 2
    after = faults_so_far()
    assert after is not None and after[0] == before[0] and after[1] > before[1] and pages.written()


CHANGES: dict[str, Callable[[Any, Path], object]] = {
    "by this process": lambda array, file: array.__setitem__(150_000, 1),
    "to its last byte": lambda array, file: array.__setitem__(-1, 1),
    "to the file": lambda array, file: file.open("r+b").write(b"abc"),
    "to the file's end": lambda array, file: os.truncate(file, LARGE - 1),
    "another in its place": lambda array, file: file.rename(file.with_suffix(".old")),
}


@pytest.mark.parametrize("looks", [0, 3])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_private_mapping_of_a_file_is_not_read_to_tell(
    change: Callable[[Any, Path], object], looks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if faults_so_far() is None:
        pytest.skip("this kernel keeps no account of writes (Linux 6.7 does)")
    monkeypatch.setattr(array_content, "ArrayContent", None)  # which would hash it
    file = tmp_path / "the weights"
    file.write_bytes(bytes(LARGE))
    array = np.memmap(file, np.uint8, "c")
    contents = Contents([array])
    assert array.sum() == 0
    assert not any(contents.changed() for _ in range(looks))
    change(array, file)
    assert contents.changed()


def test_a_file_that_is_another_by_now_is_read(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(LARGE))
    array = np.memmap(file, np.uint8, "c")
    file.unlink()
    file.write_bytes(bytes(LARGE))
    contents = Contents([array])
    assert not contents.changed() and not contents.changed()
    array[150_000] = 1
    assert contents.changed()
