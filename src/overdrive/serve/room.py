"""What requests that are under way hold together: how many they are, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from overdrive.serve.waiting import Refused


class Room:
    """Of one event loop."""

    def __init__(self, requests: int, size: int) -> None:
        """`requests`, `size`: the most, and their bytes."""
        self._most, self._size = requests, size
        self._under_way = self._held = 0

    @contextmanager
    def place(self) -> Iterator[Place]:
        """
        Raises:
            Refused: there is none.
        """
        if self._under_way >= self._most:
            raise Refused(f"{self._most:,} requests are under way already: ask again later")
        self._under_way += 1
        place = Place(self)
        try:
            yield place
        finally:
            self._under_way -= 1
            self._held -= place.size

    def hold(self, more: int) -> None:
        self._held += more
        if more > 0 and self._held > self._size:
            raise Refused(f"requests under way hold {self._size:,} bytes already: ask again later")


class Place:
    """Of one request. `size`: the bytes that it holds."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.size = 0

    def hold(self, size: int) -> None:
        """So many from now on.

        Raises:
            Refused: there is no room for them.
        """
        more, self.size = size - self.size, size
        self._room.hold(more)
