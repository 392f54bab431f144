"""Locks of ours, where a program forks while a thread of it holds one: its new process must not wait for ever."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from overdrive.core.own_lock import OwnLock


@pytest.fixture
def lock() -> OwnLock:
    return OwnLock()


@pytest.fixture
def held(lock: OwnLock) -> Iterator[None]:
    """By another thread."""
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock, lock:
            taken.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    yield
    over.set()
    thread.join()


def ends_well(work: Callable[[], object]) -> bool:
    """Whether a forked process that does this comes to its end."""
    process = os.fork()
    if process == 0:
        signal.alarm(10)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(process, 0)[1] == 0


def take(lock: OwnLock) -> None:
    with lock:
        pass


def held_by_a_thread(lock: OwnLock) -> bool:
    """Whether another thread cannot take it."""
    thread = threading.Thread(target=take, args=(lock,), daemon=True)
    thread.start()
    thread.join(0.2)
    return thread.is_alive()


@pytest.mark.usefixtures("held")
def test_what_another_thread_held_is_free_in_a_forked_process(lock: OwnLock) -> None:
    assert ends_well(lambda: take(lock))
    assert held_by_a_thread(lock)  # here it is held as before


def test_who_forks_while_it_holds_one_holds_it_there_too(lock: OwnLock) -> None:
    def leave() -> None:
        assert held_by_a_thread(lock)
        lock.__exit__(None, None, None)
        assert not held_by_a_thread(lock)

    with lock:
        assert ends_well(leave)
    assert ends_well(lambda: take(lock))
    assert not held_by_a_thread(lock)
