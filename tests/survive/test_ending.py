"""Signals that announce the end, and processes that the program forks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from overdrive.survive.ending import SIGNALS, Ending


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("heed", [Ending.listen, Ending.pass_over], ids=["listens", "passes over"])
def test_a_process_that_the_program_forks_can_be_ended(heed: Callable[[Ending], None]) -> None:
    """As a pool ends its own: where it stood, a run never came out of `with Pool()`. Slurm's signals end none."""
    ending = Ending(None)
    heed(ending)
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(120,))
    child.start()
    try:
        assert child.pid is not None
        os.kill(child.pid, signal.SIGUSR1)
        child.join(0.5)
        assert child.exitcode is None
        child.terminate()
        child.join(60)
        assert child.exitcode == -signal.SIGTERM and ending.asked_by == 0
    finally:
        child.kill()


def test_the_run_itself_notes_the_signal() -> None:
    ending = Ending(None)
    ending.listen()
    os.kill(os.getpid(), signal.SIGTERM)
    assert ending.asked_by == signal.SIGTERM
