"""When a write is under way, and what becomes of a rank that is to end then."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.ranks import writes
from overdrive.ranks.writes import Writes


def monitor() -> Any:
    return SimpleNamespace(number=3, waiting=False, at_next_wait=None)


@pytest.fixture
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_write_lasts_until_the_file_is_closed_or_ranks_exchange_something(tmp_path: Path, handler: None) -> None:
    found, told = Writes(), monitor()
    assert not found.under_way
    with found.making(told) as made:
        assert found.under_way  # as within `torch.save`
        file = (tmp_path / "a").open("w")
        made.append(file)
    assert found.under_way
    with found.making(told) as made:
        made.append((tmp_path / "b").open("w"))
    made[0].close()
    assert found.under_way
    told.waiting = True
    assert not found.under_way
    told.waiting, told.number = False, 4
    assert not found.under_way  # a log, which is open all the time
    with found.making(told) as made:
        made.append(None)
    assert not found.under_way
    file.close()


def test_a_signal_is_heard_at_once_but_within_a_write(tmp_path: Path, handler: None) -> None:
    found, told = Writes(), monitor()
    with found.making(told):
        assert signal.getsignal(signal.SIGTERM) == found._asked
    with ThreadPoolExecutor(1) as pool:
        pool.submit(told.at_next_wait).result()  # of a program for Horovod: no error, nor may it be set there
    told.at_next_wait()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(("seconds", "longest", "written"), [(1.0, 20.0, "whole"), (20.0, 0.5, "")])
def test_a_process_that_is_to_end_first_ends_its_write_if_that_does_not_take_too_long(
    seconds: float, longest: float, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "LONGEST", longest)
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            found = Writes()
            with found.making(monitor()) as made:
                made.append((tmp_path / "a").open("w"))
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(seconds)
            made[0].write("whole")
            made[0].close()
            time.sleep(20)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert (tmp_path / "a").read_text() == written
