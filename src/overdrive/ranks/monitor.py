"""Watches, in a thread of each rank, whether the others live and are where they should be. Nothing hangs for a minute.

Every rank tells once a second, in the store that all share, that it lives and what it waits for. One that is gone, has
failed, does not answer, or waits for something else ends the others, with a sentence. One that stands may ask all
others to write down where they stand.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

_EVERY = 0.5  # seconds
_FRESH = 2.0  # seconds for which a beat tells what its rank waits for
_SILENT = 30.0  # seconds without a beat, of a rank that is killed, stopped or cut off
_STALLED = 5.0  # seconds without a look of our own: this process stood still, and knows nothing of the others
_APART = 5.0  # seconds for which two ranks wait for different things
_TOGETHER = 45.0  # seconds for which all wait for the same thing
_LEAST_RATE = 10e6  # bytes a second of a network: what they exchange may take as long beside
_FAILED = 6.0  # seconds after another's failure, in which an own one may follow
_FOR_ONE = -1  # no number
_LAST = 5.0  # seconds for its last words
_HEARD = 2.0  # seconds for the others to hear what they are asked, and to do it
TOLD = "told"  # in the store: some rank has said why all end
_LOST = 5  # failures to reach the store
_BUSY = frozenset("RSD")  # states of a process that runs, and lets none of its threads speak: within a long call of C


def note_told(store: Any) -> bool:
    """This rank says why all end; whether none has before."""
    return bool(store.add(TOLD, 1) == 1)


class Monitor:
    """
    Attributes:
        step: steps that this rank has made.
        number: of what it waits for, or waited for last; all ranks count.
        at_next_wait: called once, before this rank waits again.
        write_stacks: writes down where this rank stands, given why; whether that was wished for.

    Args:
        store: a connection of its own: another thread may be blocked in another.
        end: called with a sentence, or nothing where the rank that failed has told itself; does not return.
    """

    def __init__(self, store: Any, rank: int, size: int, end: Callable[[str], None]) -> None:
        self._store, self._rank, self._size, self._end = store, rank, size, end
        self.step = 0
        self._waits: tuple[int, str, float, int] | None = None  # number, for what, since when, how many bytes
        self.number = 0
        self._seen: dict[int, tuple[str, float]] = {}  # of each rank the last beat, and when it was another one
        self._failed_at = 0.0
        self._first_is_over = False  # and has not failed
        self.write_stacks: Callable[[str], bool] = lambda why: False
        self.at_next_wait: Callable[[], None] | None = None
        self._asks = 0  # times that this rank has asked all others for their stacks
        self._heard: dict[int, int] = {}  # of each other rank, how many of its
        self._over = threading.Event()
        self._beat(0)  # one that is stopped in its first half second must have been seen
        self._thread = threading.Thread(target=self._watch, name="overdrive-ranks", daemon=True)
        self._thread.start()

    def waits(self, what: str, counted: bool = True, for_one: bool = False, moved: int = 0) -> None:
        """
        Args:
            counted: all ranks wait equally often; else only for what they wait is compared.
            for_one: for one other rank, while others may wait for something else: nothing is compared.
            moved: bytes over the network for which it waits.
        """
        if self.at_next_wait is not None:
            act, self.at_next_wait = self.at_next_wait, None
            act()
        self.number += counted and not for_one
        number = _FOR_ONE if for_one else self.number if counted else 0
        self._waits = number, what, time.monotonic(), moved

    @property
    def waiting(self) -> bool:
        return self._waits is not None

    def goes_on(self) -> None:
        self._waits = None

    def ask_for_stacks(self) -> None:
        """Of all other ranks. Returns when they have had time to write them. From another thread than this one's."""
        self._asks += 1
        time.sleep(_HEARD)

    def stop(self) -> None:
        """Before the interpreter ends, which would take the thread away from within C++, and abort."""
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_LAST)

    def _watch(self) -> None:
        failures = count = 0
        looked = time.monotonic()
        while not self._over.wait(_EVERY):
            count += 1
            looked, before = time.monotonic(), looked
            if looked - before > _STALLED:
                self._stood_still(looked - before, looked)
            try:
                self._beat(count)
                self._look()
                failures = 0
            except Exception:  # of the store
                failures += 1
                if failures < _LOST or self._over.is_set():
                    continue
                if self._first_is_over:  # and has taken the store with it: no other rank is needed any more
                    return
                self._end("what started the ranks, or rank 0, is gone")

    def _stood_still(self, seconds: float, now: float) -> None:
        waits = self._waits
        if waits is not None:
            self._waits = waits[0], waits[1], waits[2] + seconds, waits[3]
        self._seen = {other: (beat, now) for other, (beat, _) in self._seen.items()}

    def _beat(self, count: int) -> None:
        waits = self._waits
        told = {
            "host": _HOST,
            "process": os.getpid(),
            "count": count,
            "step": self.step,
            "number": self.number,
            "waits": waits and [*waits[:2], time.monotonic() - waits[2], waits[3]],
            "asks": self._asks,
        }
        self._store.set(f"beat/{self._rank}", json.dumps(told))

    def _look(self) -> None:
        now, waits = time.monotonic(), self._waits
        beats: dict[int, Any] = {}
        for other in range(self._size):
            if other == self._rank:
                continue
            if self._store.check([f"over/{other}"]):
                self._is_over(other, json.loads(self._store.get(f"over/{other}")), waits, now)
            elif self._store.check([f"beat/{other}"]):
                beat = self._store.get(f"beat/{other}").decode()
                if self._seen.get(other, ("",))[0] != beat:
                    self._seen[other] = beat, now
                told, silent = json.loads(beat), now - self._seen[other][1]
                if silent < _FRESH:  # else it may have gone on since
                    beats[other] = told
                    self._answer(other, told.get("asks", 0))
                if silent > _SILENT and (state := _state(told)) not in _BUSY:
                    if state == "T":  # it would not hear the launcher, which waits for half a minute
                        os.kill(told["process"], signal.SIGKILL)
                    self._end(f"rank {other} does not answer: it was killed, stopped or cut off")
        if waits is not None:
            self._compare(waits, now - waits[2], beats)

    def _answer(self, other: int, asks: int) -> None:
        if asks > self._heard.get(other, 0):
            self._heard[other] = asks
            self.write_stacks(f"rank {other} stands")

    def _end_apart(self, sentence: str) -> None:
        """All ranks stand, which each finds out by itself: the first to do so has the others write where."""
        if self.write_stacks(sentence):
            self._asks += 1
            self._beat(0)
            time.sleep(_HEARD)
        self._end(sentence)

    def _is_over(self, other: int, note: Any, waits: Any, now: float) -> None:
        self._first_is_over |= not (other or note["failed"])
        waited = now - waits[2] if waits else 0.0
        if note["failed"]:
            self._failed_at = self._failed_at or now
            if waited > 2 * _EVERY or now - self._failed_at > _FAILED:
                self._end("")
        elif waited > 4 * _EVERY:
            self._end(
                f"rank {other} has come to its end after {note['step']} steps, where rank {self._rank} is in step "
                f"{self.step + 1}: {DIFFERS}"
            )

    def _compare(self, waits: tuple[int, str, float, int], waited: float, beats: dict[int, Any]) -> None:
        waiting = {other: beat["waits"] for other, beat in beats.items() if beat["waits"]}
        for other, theirs in waiting.items():
            if _FOR_ONE in (waits[0], theirs[0]) or theirs[:2] == list(waits[:2]):
                continue
            # One may have all of an exchange of which the other still receives its part.
            if min(waited, theirs[2]) > _APART + max(waits[3], theirs[3]) / _LEAST_RATE:
                self._end_apart(
                    f"rank {self._rank} waits for {waits[1]} in step {self.step + 1}, and rank {other} for {theirs[1]} "
                    f"in step {beats[other]['step'] + 1}: {DIFFERS}"
                )
        least = min((waited, *(theirs[2] for theirs in waiting.values())))
        moved = max((waits[3], *(theirs[3] for theirs in waiting.values())))
        if len(waiting) == self._size - 1 and least > _TOGETHER + moved / _LEAST_RATE:
            self._end_apart(f"all ranks wait for {waits[1]}: the connection between them stands still")


def has_gone_on(store: Any, rank: int, number: int) -> bool:
    """Whether that rank has begun an exchange after this one, or has come to its end: it tells so within a second."""
    if store.check([f"over/{rank}"]):
        return not json.loads(store.get(f"over/{rank}"))["failed"]  # else the others are about to be ended
    return bool(json.loads(store.get(f"beat/{rank}"))["number"] > number)


def _state(beat: Any) -> str:
    """Of a rank's process, where it is on this machine: a letter, as /proc has it."""
    if beat["host"] != _HOST:
        return ""
    try:
        return Path(f"/proc/{beat['process']}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


_HOST = f"{socket.gethostname()} {uuid.getnode()}"
DIFFERS = "the program does not do the same on all ranks (a clock, a file, or chance that no seed rules)"
