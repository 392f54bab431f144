"""What is said where another rank is gone, and how long it is waited for its own words."""

from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.machine.pool.shared_memory import ProcessEnded
from overdrive.ranks.lost import words_of
from overdrive.ranks.monitor import Monitor


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds, to which sleeping alone adds."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda slept: now.__setitem__(0, now[0] + slept))
    return now


@pytest.mark.parametrize(
    ("error", "seconds"), [(ProcessEnded(), 0.5), (RuntimeError("Connection closed by peer"), 5.0)]
)
def test_a_rank_whose_process_is_over_is_not_waited_for(
    error: RuntimeError, seconds: float, clock: list[float]
) -> None:
    """It has left its note or says nothing more. Of one that only does not answer, a word may come yet."""
    store: Any = SimpleNamespace(
        check=lambda keys: keys[0].startswith("beat"), get=lambda key: json.dumps({"count": 7})
    )
    told = words_of(error, 0, [1], store, lambda rank: None)
    assert told.startswith("another rank is gone, without a word") and str(error) in told
    assert clock[0] == pytest.approx(seconds, abs=0.2)
    assert words_of(error, 0, [1], store, lambda rank: {"failed": True}) == ""  # it has said why


GLOO = (
    "[/__w/gloo/transport/tcp/pair.cc:537] Read error [10.78.0.2]:42720: Connection timed out. This is typically "
    "caused by a remote worker hanging."
)


def test_a_network_that_stands_still_is_no_rank_that_was_killed(clock: list[float]) -> None:
    store: Any = SimpleNamespace(check=lambda keys: False)
    told = words_of(RuntimeError(GLOO), 0, [1], store, lambda rank: None)
    assert told == (
        "rank 0 reaches no other rank any more: the network between them stands still, or a host is down "
        "(Read error [10.78.0.2]:42720: Connection timed out)"
    )


def stopped_monitor() -> tuple[Monitor, dict[str, str], list[str]]:
    """Rank 0's, of two, with what its store holds and what it ends with; whoever has it looks by itself."""
    told: dict[str, str] = {}
    said: list[str] = []
    store: Any = SimpleNamespace(
        set=told.__setitem__, check=lambda keys: keys[0] in told, get=lambda key: told[key].encode()
    )
    monitor = Monitor(store, 0, 2, said.append)
    monitor.stop()
    return monitor, told, said


@pytest.mark.parametrize("beats_on", [True, False])
def test_only_a_rank_that_still_beats_is_said_to_wait_for_something_else(beats_on: bool) -> None:
    """What one that was stopped had told last may have come to it since."""
    monitor, told, said = stopped_monitor()
    monitor._waits = 7, "a model's result", time.monotonic() - 6.0, 0
    beat = {"host": "", "process": 1, "step": 0, "waits": [2, "how a model's call is divided", 6.0, 0]}
    told["beat/1"] = json.dumps({**beat, "count": 0})
    monitor._seen[1] = told["beat/1"], time.monotonic() - 3.0
    if beats_on:
        told["beat/1"] = json.dumps({**beat, "count": 1})
    monitor._look()
    assert bool(said) is beats_on


@pytest.mark.parametrize(
    ("waited", "moved", "theirs", "ended"),
    [
        (50.0, 0, [7, "a model's result", 50.0, 0], True),
        (50.0, 6_000_000_000, [7, "a model's result", 50.0, 0], False),  # at 1 Gbit/s it takes 48 s
        (50.0, 0, [7, "a model's result", 50.0, 6_000_000_000], False),
        (650.0, 6_000_000_000, [7, "a model's result", 650.0, 0], True),
        (6.0, 0, [8, "a number", 6.0, 0], True),
        (6.0, 100_000_000, [8, "a number", 6.0, 0], False),  # the other one has its part of it
        (16.0, 100_000_000, [8, "a number", 16.0, 0], True),
    ],
)
def test_ranks_wait_for_longer_where_they_exchange_much(
    waited: float, moved: int, theirs: list[Any], ended: bool
) -> None:
    monitor, told, said = stopped_monitor()
    monitor._waits = 7, "a model's result", time.monotonic() - waited, moved
    monitor._beat(1)
    assert json.loads(told["beat/0"])["waits"][3] == moved
    told["beat/1"] = json.dumps({"host": "", "process": 1, "step": 0, "count": 1, "waits": theirs})
    monitor._look()
    assert bool(said) is ended, said


@pytest.mark.parametrize(("over", "failed", "ends"), [(True, False, False), (True, True, True), (False, False, True)])
def test_a_store_that_goes_with_rank_0_is_no_error_where_that_has_come_to_its_end(
    over: bool, failed: bool, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overdrive.ranks.monitor._EVERY", 0.01)
    told: dict[str, str] = {"over/0": json.dumps({"failed": failed, "step": 0})} if over else {}
    said: list[str] = []
    looked, gone = threading.Event(), threading.Event()

    def check(keys: list[str]) -> bool:
        if gone.is_set():
            raise RuntimeError("Connection reset by peer")
        looked.set()
        return keys[0] in told

    store: Any = SimpleNamespace(set=told.__setitem__, check=check, get=lambda key: told[key].encode())
    monitor = Monitor(store, 1, 2, said.append)
    looked.wait(5)
    looked.clear()
    looked.wait(5)  # all of the first look is over
    gone.set()
    monitor._thread.join(5 if not ends else 1)
    monitor.stop()
    assert bool(said) is ends, said
