"""Requests that arrive by themselves: at moments that are drawn before, whether the last one is answered or not.

A request's time is counted from the moment at which it was to be sent. A client that waits for each answer before it
asks again sends least while the server is slow, and never sees how long others would have waited.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from overdrive.core.interval import Interval
from overdrive.evidence.latency import percentiles

_PATIENCE = 30.0  # seconds for an answer
_CONNECTIONS = 512
_BLOCK = 0.5  # seconds whose requests are drawn again together
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class UnderLoad:
    """How long answers took, from the moment at which each request was to be sent.

    Attributes:
        rate: requests in a second, as asked for; they arrive at random (a Poisson process).
        sent: in all; `answered`: with code 200, within `seconds` and what it took to answer the last ones.
        others: requests without an answer, by code or reason.
        p50, p99: in seconds, of those answered, with 95 % intervals; None where too few were.
        late: seconds by which the sender itself was late, in the worst case.
    """

    rate: float
    seconds: float
    sent: int
    answered: int
    others: dict[str, int]
    p50: Interval | None
    p99: Interval | None
    late: float


@dataclass
class _Seen:
    times: list[tuple[float, float]] = field(default_factory=list)  # moment it was to be sent, seconds
    others: Counter[str] = field(default_factory=Counter)
    late: float = 0.0


def measure(port: int, path: str, bodies: Sequence[bytes], rate: float, seconds: float) -> UnderLoad:
    """`bodies`: of requests in JSON, sent in turn to this machine's own server."""
    heads = [
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(each)}\r\n\r\n".encode() + each
        for each in bodies
    ]
    chance, moments, moment = random.Random(0), [], 0.0
    while (moment := moment + chance.expovariate(rate)) < seconds:
        moments.append(moment)
    seen = _Seen()
    asyncio.run(_send(port, heads, moments, seen))
    blocks: dict[int, list[float]] = {}
    for at, took in seen.times:
        blocks.setdefault(int(at / _BLOCK), []).append(took)
    p50, p99 = percentiles([(0, each) for each in blocks.values()])
    return UnderLoad(rate, seconds, len(moments), len(seen.times), dict(seen.others), p50, p99, seen.late)


async def _send(port: int, requests: Sequence[bytes], moments: Sequence[float], seen: _Seen) -> None:
    free: deque[_Connection] = deque()
    gate, began, tasks = asyncio.Semaphore(_CONNECTIONS), time.perf_counter(), []

    async def one(number: int, moment: float) -> None:
        async with gate:
            try:
                code = await asyncio.wait_for(_ask(port, free, requests[number % len(requests)]), _PATIENCE)
            except asyncio.TimeoutError:
                code = f"no answer in {_PATIENCE:.0f} s"
            except (OSError, asyncio.IncompleteReadError):
                code = "the connection was closed"
        if code == "200":
            seen.times.append((moment, time.perf_counter() - began - moment))
        else:
            seen.others[code] += 1

    for number, moment in enumerate(moments):
        ahead = began + moment - time.perf_counter()
        if ahead > 0:
            await asyncio.sleep(ahead)
        seen.late = max(seen.late, time.perf_counter() - began - moment)
        tasks.append(asyncio.create_task(one(number, moment)))
    await asyncio.gather(*tasks)
    for _, writer in free:
        writer.close()


def _still_open(free: deque[_Connection]) -> _Connection | None:
    """One that the server has not closed: it does, of those that were idle for some seconds."""
    while free:
        reader, writer = free.pop()
        if not (reader.at_eof() or writer.is_closing()):
            return reader, writer
        writer.close()
    return None


async def _ask(port: int, free: deque[_Connection], request: bytes) -> str:
    """The code of the answer."""
    reader, writer = _still_open(free) or await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        lines = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        await reader.readexactly(int(lines.get("content-length", 0)))
    except BaseException:
        writer.close()
        raise
    if lines.get("connection") == "close":
        writer.close()
    else:
        free.append((reader, writer))
    return head.split(" ", 2)[1]
