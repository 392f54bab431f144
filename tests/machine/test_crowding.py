"""How much cores slow each other down: of this machine, and where that cannot be told."""

from __future__ import annotations

import os
import threading
import time

import pytest

from overdrive.machine import crowding
from overdrive.machine.crowding import Crowding

bound = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="threads of two cores are needed"
)


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("overdrive: core")]


@bound
def test_a_look_at_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowding, "_LATEST", 0.0)
    cores, before = os.sched_getaffinity(0), len(threads())
    looked = Crowding()
    found = [looked.look() for _ in range(5)]
    assert all(each is not None and each > 0.2 for each in found)
    assert os.sched_getaffinity(0) == cores and len(threads()) == before + min(len(cores), 16)
    looked.close()
    until = time.monotonic() + 10
    while len(threads()) > before and time.monotonic() < until:
        time.sleep(0.01)
    assert len(threads()) == before and looked.look() is None


@bound
def test_it_is_told_against_what_is_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowding, "_LATEST", 0.0)
    readings = iter([1.1] * 10 + [1.87])
    monkeypatch.setattr(Crowding, "_slowed", lambda self: next(readings))
    looked = Crowding()
    assert [looked.look() for _ in range(10)] == [1.0] * 10 and looked.look() == pytest.approx(1.7)
    looked.close()


@bound
def test_a_look_holds_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowding, "_LATEST", 60.0)
    readings = iter([1.1])
    monkeypatch.setattr(Crowding, "_slowed", lambda self: next(readings))
    looked = Crowding()
    assert looked.look() == looked.look() == 1.0
    looked.close()


@pytest.mark.parametrize("cores", [{0}, set(range(64)), set()])
def test_nothing_is_told_of_one_core_and_of_many(cores: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores, raising=False)
    assert Crowding().look() is None


@bound
def test_a_core_that_may_not_be_used_ends_the_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    looked = Crowding()
    assert looked.look() is None and looked.look() is None
    looked.close()
