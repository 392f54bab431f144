"""A search that is killed goes on with the same command, and repeats no run that was over."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from overdrive.core.json_data import to_json
from overdrive.core.search_result import Tried
from overdrive.core.settings import Value
from overdrive.search.engine import Damaged
from overdrive.search.runs import OnProgress

pytest.importorskip("optuna")

from tests.search.simulated import Simulated, searched

KILLS = 20


def go_on(folder: Path, number: int) -> None:
    """The search of one process, which is killed as its first to fourth run begins, by chance; the last one is not."""
    program = Simulated(lambda values, chance: 90 + float(values["lr"]) + chance.gauss(0, 1), 0)
    inner, left = program.run, random.Random(number).randrange(4)

    def run(values: Mapping[str, Value], seed: int, seconds: float, watch: OnProgress | None) -> Tried:
        nonlocal left
        if number < KILLS and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        result = inner(values, seed, seconds, watch)
        with (folder / "made").open("a") as file:
            file.write(json.dumps([sorted(values.items()), seed]) + "\n")
        return result

    program.run = run  # type: ignore[method-assign]
    result = searched(program, folder / "journal", budget=60.0)
    (folder / "result").write_text(json.dumps(to_json(result)))


@pytest.mark.fault(9)
def test_killed_20_times_it_repeats_no_finished_run(tmp_path: Path) -> None:
    for number in range(KILLS + 1):
        process = multiprocessing.get_context("fork").Process(target=go_on, args=(tmp_path, number))
        process.start()
        process.join()
        assert process.exitcode == (-signal.SIGKILL if number < KILLS else 0), number
    made = (tmp_path / "made").read_text().splitlines()
    # Between its last line and the journal's a run may be lost, but here each dies as a run begins.
    assert len(made) == len(set(made))
    result = json.loads((tmp_path / "result").read_text())
    assert result["spent"] <= 60.0 and len(result["trials"]) >= 30
    assert len(result["comparison"]["seeds"]) == 10


@pytest.mark.fault(9, 14)
def test_a_line_of_the_journal_that_was_half_written_is_left_out(tmp_path: Path) -> None:
    """What comes next would stand behind it, and nothing could be read any more."""
    program = Simulated(lambda values, chance: 90 + float(values["lr"]), 0)
    searched(program, tmp_path / "journal", budget=20.0)
    text = (tmp_path / "journal").read_bytes()
    lines = text.splitlines(keepends=True)
    for cut in (1, len(lines[-1]) // 2, len(lines[-1]) - 1):
        (tmp_path / "journal").write_bytes(text[: -len(lines[-1]) + cut])
        for _ in range(2):
            result = searched(program, tmp_path / "journal", budget=22.0)
            assert result.comparison and result.spent <= 22.0


@pytest.mark.fault(14)
@pytest.mark.parametrize("change", [b"no line of ours\n", b"{}\n", b'{"op_code":99,"worker_id":"a"}\n'])
def test_a_damaged_journal_is_told_with_what_to_do(change: bytes, tmp_path: Path) -> None:
    program = Simulated(lambda values, chance: 90.0, 0)
    searched(program, tmp_path / "journal")
    lines = (tmp_path / "journal").read_bytes().splitlines(keepends=True)
    lines.insert(len(lines) // 2, change)
    (tmp_path / "journal").write_bytes(b"".join(lines))
    for _ in range(2):  # it is let go, too
        with pytest.raises(Damaged, match=r"is damaged: delete .*journal to begin it anew"):
            searched(program, tmp_path / "journal")


def test_an_error_of_optunas_is_no_damage_of_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is to delete hours of runs for it."""
    program = Simulated(lambda values, chance: 90.0, 0)
    searched(program, tmp_path / "journal")

    def changed(*_: object) -> None:
        raise TypeError("an unexpected keyword argument 'multivariate'")

    with monkeypatch.context() as patch:
        patch.setattr("overdrive.search.samplers.make", changed)
        with pytest.raises(TypeError, match="multivariate"):
            searched(program, tmp_path / "journal")
    assert searched(program, tmp_path / "journal").trials  # it was let go


@pytest.mark.fault(13)
def test_a_journal_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Simulated(lambda values, chance: 90.0, 0)
    inner = program.run

    def run(values: Mapping[str, Value], seed: int, seconds: float, watch: OnProgress | None) -> Tried:
        def full(handle: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        return inner(values, seed, seconds, watch)

    monkeypatch.setattr(program, "run", run)
    with pytest.raises(OSError, match="No space left on device") as raised:
        searched(program, tmp_path / "journal")
    assert raised.value.filename == str(tmp_path / "journal")
