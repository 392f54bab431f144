"""Forked processes of ours that find a lock taken for ever are given up; those that are only slow are not."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

pytest.importorskip("torch")

from overdrive.forks import forked, forked_process, standstill
from overdrive.forks.forked import Beside, Tick, in_child, in_children
from overdrive.forks.layout import ForkFailed
from overdrive.worker.sentinels import processes
from overdrive.worker.sentinels.processes import Copy, ForkServer, Repetition

STOOD_STILL = "waits for a lock that nobody gives back"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standstill, "INTERVAL", 0.05)
    monkeypatch.setattr(standstill, "LOOKS", 6)
    monkeypatch.setattr(standstill, "_found", 0)


@pytest.fixture
def taken() -> Iterator[threading.Lock]:
    """A lock that another thread holds."""
    lock, has_it, over = threading.Lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            has_it.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    has_it.wait()
    yield lock
    over.set()
    thread.join()


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    before = psutil.Process().children()  # of other tests: servers that fork, say
    yield
    assert set(psutil.Process().children()) <= set(before)


def test_one_that_waits_for_a_threads_lock_is_given_up(taken: threading.Lock) -> None:
    with pytest.raises(ForkFailed, match=STOOD_STILL):
        in_child(lambda tick: taken.acquire())


def test_one_of_several_that_stands_still_is_noticed_beside_one_that_works(taken: threading.Lock) -> None:
    def works(tick: Tick) -> None:
        while True:
            time.sleep(0.005)
            tick(1)

    with pytest.raises(ForkFailed, match=STOOD_STILL):
        in_children([works, lambda tick: taken.acquire()])


def test_one_that_is_only_slow_comes_to_its_end(taken: threading.Lock) -> None:
    def work(tick: Tick) -> str:
        for _ in range(60):
            time.sleep(0.02)  # as one does that waits for a file server
        return "done"

    def in_a_thread(tick: Tick) -> str:
        thread = threading.Thread(target=work, args=(tick,))
        thread.start()
        thread.join()
        return "done"

    assert in_children([work, in_a_thread]) == ["done", "done"]


def test_after_some_that_stood_still_none_is_waited_for(taken: threading.Lock, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(standstill.MOST):
        with pytest.raises(ForkFailed, match=STOOD_STILL):
            in_child(lambda tick: taken.acquire())
    monkeypatch.setattr(forked, "Child", None)  # none is even begun
    with pytest.raises(ForkFailed, match="before"):
        in_child(lambda tick: 1)


def test_one_beside_the_program_is_cleared_away_too(taken: threading.Lock) -> None:
    beside = Beside([lambda tick: taken.acquire(), lambda tick: "done"])
    ended = []
    limit = time.monotonic() + 60
    while beside.going and time.monotonic() < limit:
        ended += beside.ended()
        time.sleep(0.01)
    assert len(ended) == 2
    results = []
    for child in ended:
        try:
            results.append(child.result())
        except ForkFailed:
            results.append("failed")
    assert sorted(results) == ["done", "failed"]


def test_a_step_made_again_that_says_nothing_is_given_up(
    taken: threading.Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_GIVEN_UP_AFTER", 0.5)
    monkeypatch.setattr(processes, "mapped_for_writing", list)  # nothing is shared: the program goes on at once
    monkeypatch.setattr(processes, "own_memory", taken.acquire)
    fork_server = ForkServer.fork(Repetition(()))
    if isinstance(fork_server, Copy):
        os._exit(0)
    told = fork_server.told()
    limit = time.monotonic() + 60
    while told is not None and time.monotonic() < limit:
        told = fork_server.told()
        time.sleep(0.01)
    assert told is None
    fork_server.end()


def test_a_killed_child_that_is_slow_to_go_is_not_found_by_the_program() -> None:
    child = forked.Child(lambda tick: time.sleep(60), beside=True)
    pid = child.pid
    child.end(patience=-1.0)
    assert child.pid == 0
    limit = time.monotonic() + 60
    while pid in forked_process._dying and time.monotonic() < limit:
        forked_process.bury()
        time.sleep(0.01)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def test_where_no_process_can_be_made_no_descriptor_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuses)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(ForkFailed):
            Beside([lambda tick: None])
    assert len(os.listdir("/proc/self/fd")) == before
