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


# Where its model is called; by itself it goes on, and it does not where it is told to leave that.
CALL_FAILS = TRAIN.replace(
    'print("in a call", len(given[0])))',
    """in_call(given))
failed = []
def in_call(given):
    if step == 12 and not failed and "WELL" not in os.environ:
        failed.append(1)
        raise ValueError("in the model")
    print("in a call", len(given[0]))""",
).replace(
    "        loss = torch.nn.functional.cross_entropy(model(inputs), targets)\n",
    """        try:
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        except ValueError:
            if "FAILS" in os.environ:
                raise
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
""",
)


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_an_error_of_the_model_that_the_program_goes_on_from_costs_no_snapshot(tmp_path: Path) -> None:
    whole = survive(tmp_path, "whole", CALL_FAILS)
    assert whole.returncode == 0 and "step 12, ValueError: in the model" in whole.stderr, whole.stderr
    first = survive(tmp_path, "killed", CALL_FAILS, dies=17)
    last = survive(tmp_path, "killed", CALL_FAILS)
    assert last.returncode == 0 and "gone on after step" in last.stderr, first.stderr + last.stderr
    assert first.stdout + last.stdout == whole.stdout
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_a_run_that_its_model_ends_with_an_error_goes_on_from_its_last_snapshot(tmp_path: Path) -> None:
    whole = survive(tmp_path, "whole", CALL_FAILS, variables={"WELL": "1"})
    first = survive(tmp_path, "failed", CALL_FAILS, variables={"FAILS": "1"})
    assert first.returncode == 1 and "ValueError: in the model" in first.stderr, first.stderr
    last = survive(tmp_path, "failed", CALL_FAILS, variables={"WELL": "1"})
    assert last.returncode == 0 and "gone on after step" in last.stderr, first.stderr + last.stderr
    assert first.stdout + last.stdout == whole.stdout
    assert files_of(tmp_path / "failed") == files_of(tmp_path / "whole")


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
