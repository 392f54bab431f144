"""Watches, in a thread of each rank, whether the others live and are where they should be. Nothing hangs for a minute.

Every rank tells once a second, in the store that all share, that it lives and what it waits for. One that is gone, has
failed, does not answer, or waits for something else ends the others, with a sentence.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

_EVERY = 0.5  # seconds
_SILENT = 30.0  # seconds without a beat, of a rank that is killed, stopped or cut off
_APART = 5.0  # seconds for which two ranks wait for different things
_TOGETHER = 45.0  # seconds for which all wait for the same thing
_FAILED = 6.0  # seconds after another's failure, in which an own one may follow
_LOST = 5  # failures to reach the store


class Monitor:
    """
    Args:
        store: a connection of its own: another thread may be blocked in another.
        end: called with a sentence, or nothing where the rank that failed has told itself; does not return.
    """

    def __init__(self, store: Any, rank: int, size: int, end: Callable[[str], None]) -> None:
        self._store, self._rank, self._size, self._end = store, rank, size, end
        self.step = 0
        self._waits: tuple[int, str, float] | None = None  # number, for what, since when
        self._number = 0
        self._seen: dict[int, tuple[str, float]] = {}  # of each rank the last beat, and when it was another one
        self._failed_at = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="overdrive-ranks", daemon=True)
        self._thread.start()

    def waits(self, what: str) -> None:
        self._number += 1
        self._waits = self._number, what, time.monotonic()

    def goes_on(self) -> None:
        self._waits = None

    def stop(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        failures = count = 0
        while not self._over.wait(_EVERY):
            count += 1
            try:
                self._beat(count)
                self._look()
                failures = 0
            except Exception:  # of the store
                failures += 1
                if failures >= _LOST and not self._over.is_set():
                    self._end("what started the ranks, or rank 0, is gone")

    def _beat(self, count: int) -> None:
        waits = self._waits
        told = {"count": count, "step": self.step, "waits": waits and [*waits[:2], time.monotonic() - waits[2]]}
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
                if now - self._seen[other][1] > _SILENT:
                    self._end(f"rank {other} does not answer: it was killed, stopped or cut off")
                beats[other] = json.loads(beat)
        if waits is not None:
            self._compare(waits, now - waits[2], beats)

    def _is_over(self, other: int, note: Any, waits: Any, now: float) -> None:
        waited = now - waits[2] if waits else 0.0
        if note["failed"]:
            self._failed_at = self._failed_at or now
            if waited > 2 * _EVERY or now - self._failed_at > _FAILED:
                self._end("")
        elif waited > 4 * _EVERY:
            self._end(
                f"rank {other} has come to its end after {note['step']} steps, where rank {self._rank} is in step "
                f"{self.step + 1}: {_DIFFERS}"
            )

    def _compare(self, waits: tuple[int, str, float], waited: float, beats: dict[int, Any]) -> None:
        all_wait = len(beats) == self._size - 1 and all(each["waits"] for each in beats.values())
        for other, beat in beats.items():
            theirs = beat["waits"]
            if theirs and theirs[:2] != list(waits[:2]) and min(waited, theirs[2]) > _APART:
                self._end(
                    f"rank {self._rank} waits for {waits[1]} in step {self.step + 1}, and rank {other} for {theirs[1]} "
                    f"in step {beat['step'] + 1}: {_DIFFERS}"
                )
        if all_wait and min(waited, *(each["waits"][2] for each in beats.values())) > _TOGETHER:
            self._end(f"all ranks wait for {waits[1]}: the connection between them stands still")


_DIFFERS = "the program does not do the same on all ranks (a clock, a file, or chance that no seed rules)"
