"""Each in a process of its own: that of the tests has children of other tests, which may end at any time."""

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from overdrive.forks import unnoticed
from overdrive.forks.forked_process import ForkedProcess, is_ours

WAYS: dict[str, Callable[[], int]] = {
    "wait": lambda: os.wait()[0],
    "wait3": lambda: os.wait3(0)[0],
    "waitpid": lambda: os.waitpid(-1, 0)[0],
    "wait4": lambda: os.wait4(-1, 0)[0],
    "waitid": lambda: getattr(os.waitid(os.P_ALL, 0, os.WEXITED), "si_pid", 0),
}


class Owner:
    given_up = 0

    def give_up(self) -> None:
        self.given_up += 1


def apart(body: Callable[..., None]) -> Callable[..., None]:
    """Run in a forked process, with an owner of processes beside it as the argument `owner`."""

    @wraps(body)
    def test(**arguments: Any) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                owner = Owner()
                unnoticed.began(owner)
                body(owner=owner, **arguments)
            except BaseException:
                os.write(writing, traceback.format_exc().encode()[-4000:])
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as said:
            failure = said.read()
        os.waitpid(pid, 0)
        assert not failure, failure

    del test.__wrapped__  # type: ignore[attr-defined]  # pytest would look there for a fixture `owner`
    return test


def process(seconds: float, code: int = 0) -> int:
    pid = os.fork()
    if pid == 0:
        time.sleep(seconds)
        os._exit(code)
    return pid


@pytest.mark.parametrize("way", WAYS)
def test_who_waits_for_any_process_is_not_told_of_one_of_ours(way: str) -> None:
    @apart
    def body(owner: Owner) -> None:
        ours = ForkedProcess(process(0.0))  # it ends first
        theirs = process(0.2)
        given_up = owner.given_up
        assert WAYS[way]() == theirs
        assert owner.given_up == given_up + 1, "what goes on beside the program is ended before it waits"
        assert not is_ours(ours.pid) and ours.is_gone()

    body()


@pytest.mark.parametrize("way", WAYS)
def test_who_has_no_process_of_his_own_is_told_so(way: str) -> None:
    @apart
    def body(owner: Owner) -> None:
        ForkedProcess(process(0.05))
        with pytest.raises(ChildProcessError):
            WAYS[way]()

    body()


@apart
def test_who_only_looks_does_not_wait_for_one_of_ours(owner: Owner) -> None:
    ours = ForkedProcess(process(60.0))
    try:
        assert os.waitpid(-1, os.WNOHANG) == (0, 0)
        assert os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is None
    finally:
        ours.kill(10.0)


@apart
def test_one_of_ours_that_is_only_looked_at_is_passed_over(owner: Owner) -> None:
    ForkedProcess(process(0.0))
    theirs = process(0.2)
    found: Any = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    assert found.si_pid == theirs == os.waitpid(theirs, 0)[0]


@apart
def test_who_waits_for_his_own_by_name_ends_nothing_of_ours(owner: Owner) -> None:
    theirs, given_up = process(0.0, 7), owner.given_up
    assert os.waitpid(theirs, 0) == (theirs, 7 << 8) and owner.given_up == given_up, "but by the fork"
    assert subprocess.run([sys.executable, "-c", "raise SystemExit(3)"]).returncode == 3
    assert owner.given_up == given_up


@apart
def test_a_process_that_is_forked_has_none_of_ours(owner: Owner) -> None:
    ours = ForkedProcess(process(60.0))
    try:
        theirs = os.fork()
        if theirs == 0:
            os._exit(is_ours(ours.pid))
        assert is_ours(ours.pid) and os.waitpid(theirs, 0) == (theirs, 0)
    finally:
        ours.kill(10.0)
