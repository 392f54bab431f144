"""Runs that fail while they are made again, for want of something: their snapshots stay."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from overdrive.survive.failures import Failures, may_be_outage, what_then
from overdrive.survive.folder import FROM_START, RunFolder
from tests.survive.killed import files_of, survive
from tests.survive.test_survive import TRAIN

pytest.importorskip("torch")

# In its set-up: what a program asks of the machine and of a network; and while the snapshot is put back.
FAILS = TRAIN.replace(
    "model.register_forward_hook",
    """if "FAILS" in os.environ:
    raise RuntimeError(os.environ["FAILS"])
if "FULL" in os.environ:
    import overdrive.survive.replay as replay
    replay.Replay.put_back = lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
model.register_forward_hook""",
    1,
)


@pytest.mark.survive
@pytest.mark.fault("killed", 13)
def test_an_outage_while_it_is_made_again_costs_no_snapshot(tmp_path: Path) -> None:
    """The same want of memory comes twice: a GPU may be full for long."""
    whole = survive(tmp_path, "whole", FAILS)
    assert whole.returncode == 0, whole.stderr
    first = survive(tmp_path, "killed", FAILS, dies=17)
    full = "CUDA out of memory. Tried to allocate 2.00 GiB"
    for wanting in ({"FAILS": full}, {"FAILS": full}, {"FAILS": "no connection"}, {"FULL": "1"}):
        kept = files_of(tmp_path / "killed")
        got = survive(tmp_path, "killed", FAILS, variables=wanting)
        assert got.returncode == 1 and got.stdout == "" and "its snapshots are kept" in got.stderr, got.stderr
        assert "Traceback" in got.stderr and wanting.get("FAILS", "No space left") in got.stderr, got.stderr
        assert "from its start:" not in got.stderr and files_of(tmp_path / "killed") == kept
    last = survive(tmp_path, "killed", FAILS)
    assert last.returncode == 0 and "gone on after step" in last.stderr, last.stderr
    assert first.stdout + last.stdout == whole.stdout
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_the_same_failure_twice_in_a_row_sends_the_run_to_its_start(tmp_path: Path) -> None:
    first = survive(tmp_path, "killed", FAILS, dies=17)
    second = survive(tmp_path, "killed", FAILS, variables={"FAILS": "no such layer"})
    assert second.returncode == 1 and FROM_START not in RunFolder.notes_in(tmp_path / "killed-run"), first.stderr
    third = survive(tmp_path, "killed", FAILS, variables={"FAILS": "no such layer"})
    assert third.returncode == 1 and "the run begins from its start: it failed twice" in third.stderr, third.stderr
    assert "no such layer" in RunFolder.notes_in(tmp_path / "killed-run")[FROM_START]


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


def test_a_failure_is_the_same_by_its_type_place_and_message(tmp_path: Path) -> None:
    said = "no <Layer at 0x7f{}>"
    assert not Failures(tmp_path, 0).comes_again(raised(ValueError(said.format("1a"))))
    assert not Failures(tmp_path, 1).comes_again(raised(ValueError(said.format("1a"))))  # each rank has its own
    assert Failures(tmp_path, 0).comes_again(raised(ValueError(said.format("2b"))))
    assert not Failures(tmp_path, 0).comes_again(raised(ValueError("another")))
    assert not Failures(tmp_path, 0).comes_again(ValueError("another"))  # elsewhere
    assert Failures(tmp_path, 0).comes_again(ValueError("another"))
    Failures(tmp_path, 0).forget()
    assert not Failures(tmp_path, 0).comes_again(ValueError("another"))


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("CUDA error: device is busy"), OSError(errno.ENOSPC, "No space left")]
)
def test_want_of_memory_or_of_a_disk_is_never_the_runs(error: Exception, tmp_path: Path) -> None:
    for _ in range(3):
        assert may_be_outage(error) and not Failures(tmp_path, 0).comes_again(error)
    assert "--fresh" in what_then(error) and not list(tmp_path.iterdir())


def test_what_may_be_a_difference(tmp_path: Path) -> None:
    assert may_be_outage(FileNotFoundError()) and "--fresh" not in what_then(FileNotFoundError())
    assert not may_be_outage(ValueError("3 tensors at the snapshot, 4 now"))
