"""Requests that are under way are no more, and hold no more, than there is room for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from overdrive.serve.room import Room
from overdrive.serve.waiting import Refused
from tests.serve.asked import INFER, Asked, body_of

HEALTH = ("/v2/health/live", "/metrics")


class Slow:
    """Requests whose bodies have begun, and do not go on before `goes_on`, when their connections end."""

    def __init__(self, asked: Asked, count: int, part: bytes) -> None:
        self.goes_on, self._part, self._waiting = asyncio.Event(), part, 0
        self._tasks = [asyncio.create_task(asked.sent("POST", INFER, receive=self._receive())) for _ in range(count)]

    def _receive(self) -> Callable[[], Any]:
        parts = [{"type": "http.request", "body": self._part, "more_body": True}]

        async def receive() -> Any:
            if parts:
                return parts.pop()
            self._waiting += 1
            await self.goes_on.wait()
            return {"type": "http.disconnect"}

        return receive

    async def all_wait(self) -> None:
        while self._waiting < len(self._tasks):
            await asyncio.sleep(0)

    async def over(self) -> None:
        self.goes_on.set()
        assert {code for code, _ in await asyncio.gather(*self._tasks)} == {400}


def test_who_asks_whether_it_lives_is_answered_however_many_requests_are_under_way() -> None:
    asked = Asked()

    async def crowd() -> None:
        slow = Slow(asked, 96, b"")
        await slow.all_wait()
        code, told = await asked.sent("POST", INFER, body_of([1.0]))
        assert code == 503 and b"96 requests are under way already" in told
        assert [(await asked.sent("GET", each))[0] for each in HEALTH] == [200, 200]
        await slow.over()
        assert (await asked.sent("POST", INFER, body_of([1.0])))[0] == 200

    asyncio.run(crowd())


def test_requests_under_way_hold_no_more_than_there_is_room_for() -> None:
    asked = Asked(largest=200)

    async def crowd() -> None:
        slow = Slow(asked, 16, b" " * 200)
        await slow.all_wait()
        code, told = await asked.sent("POST", INFER, body_of([1.0]))
        assert code == 503 and b"hold 3,200 bytes already" in told
        await slow.over()
        assert (await asked.sent("POST", INFER, body_of([1.0])))[0] == 200

    asyncio.run(crowd())


def test_what_is_held_is_given_back_when_a_request_is_read_and_over() -> None:
    room = Room(3, 100)
    with room.place() as one:
        one.hold(90)
        with room.place() as other, pytest.raises(Refused, match="100 bytes"):
            other.hold(20)
        one.hold(40)  # its arrays, in place of its body
        with room.place() as other, room.place():
            other.hold(60)
            with pytest.raises(Refused, match="3 requests are under way"), room.place():
                pass
    with room.place() as last:
        last.hold(100)
