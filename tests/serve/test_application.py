"""What is asked of the application itself, without a server around it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from overdrive.serve import protocol
from overdrive.serve.waiting import Refused, WaitingRequests
from tests.serve.asked import INFER, MODEL, Asked, app, body_of


def test_what_is_not_answered_by_the_end_is_refused_and_counted() -> None:
    """Uvicorn cancels it then."""
    called, goes_on = threading.Event(), threading.Event()

    def answer(inputs: Any) -> Any:
        called.set()
        goes_on.wait()
        return {"y": inputs["x"]}

    async def cancelled(asked: Asked, stopping: bool) -> Any:
        asking = asyncio.create_task(asked.sent("POST", INFER, body_of([1.0])))
        await asyncio.to_thread(called.wait)
        if stopping:
            while not asked.waiting:  # behind the first one
                await asyncio.sleep(0.01)
            asked.waiting.stop()
        asking.cancel()
        return await asking

    asked = Asked(replace(MODEL, answer=answer))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled(asked, False))
    assert asked.metrics.refused_at_end == 0
    code, told = asyncio.run(cancelled(asked, True))
    assert code == 503 and b"the server is stopping" in told and asked.metrics.refused_at_end == 1
    goes_on.set()


def test_what_waits_is_refused_while_the_model_is_in_a_call() -> None:
    called, goes_on = threading.Event(), threading.Event()

    def answer(inputs: Any) -> Any:
        called.set()
        goes_on.wait()
        return {"y": inputs["x"]}

    waiting, given = WaitingRequests(replace(MODEL, answer=answer), 8), {"x": np.zeros(1, np.float32)}
    first = waiting.ask(given)
    called.wait()
    second = waiting.ask(given)
    waiting.refuse()
    with pytest.raises(Refused, match="stopping"):
        second.result(30)
    with pytest.raises(Refused, match="stopping"):
        waiting.ask(given)
    goes_on.set()
    assert first.result(30)["y"] == [0.0]
    waiting.end()


@pytest.mark.parametrize("count", [10, 100_000])
def test_what_is_large_is_read_held_and_written_beside_the_loop(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, bool] = {}

    def noting(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            threads[name] = threading.current_thread() is threading.main_thread()
            return own(*args)

        return call

    monkeypatch.setattr(protocol, "asked", noting("read", protocol.asked))
    monkeypatch.setattr(protocol, "answered", noting("written", protocol.answered))
    monkeypatch.setattr(app, "_held", noting("held", app._held))
    x = np.random.default_rng(0).standard_normal(count).astype(np.float32)
    assert Asked().answered(x) == x.tolist()
    assert threads == dict.fromkeys(("read", "held", "written"), count < 1000)


def test_no_piece_of_an_answer_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is written, no other thread runs."""
    lengths: list[int] = []
    dumps = json.dumps

    def noting(each: Any) -> str:
        lengths.append(len(text := dumps(each)))
        return text

    monkeypatch.setattr(json, "dumps", noting)
    outputs = {"y": np.arange(100_000.0).reshape(2, -1), "n": np.arange(3), "none": np.zeros((0, 2))}
    body, _ = protocol.answered("Net", "one", outputs, dict.fromkeys(outputs, False))
    assert max(lengths) < len(body) / 4
    told = {each["name"]: (each["shape"], each["data"]) for each in json.loads(body)["outputs"]}
    assert told == {name: (list(each.shape), each.ravel().tolist()) for name, each in outputs.items()}


def test_it_is_not_ready_once_it_is_to_stop() -> None:
    asked = Asked()
    paths = ("/v2/health/ready", "/v2/models/Net/ready", "/v2/health/live")
    assert [asked.get(each) for each in paths] == [200, 200, 200]
    asked.waiting.stop()
    assert [asked.get(each) for each in paths] == [503, 503, 200]
    assert asked.answered([1.0]) == [1.0], "what comes all the same is answered"


def test_a_model_that_hangs_is_told_of_and_is_alive_again_once_it_answers() -> None:
    goes_on = threading.Event()
    given: list[float] = []

    def answer(inputs: Any) -> Any:
        given.extend(inputs["x"])
        goes_on.wait()
        return {"y": inputs["x"]}

    asked = Asked(replace(MODEL, answer=answer), within=0.2)
    assert asked.get("/v2/health/live") == 200
    for x in ([1.0], [2.0]):  # the second one still waits for the model
        code, told = asked.inferred(x)
        assert (code, told["error"]) == (504, "the model did not answer within 0.2 seconds")
    assert asked.get("/v2/health/live") == 503
    goes_on.set()
    assert asked.answered([3.0]) == [3.0]
    assert asked.get("/v2/health/live") == 200
    assert given == [1.0, 3.0], "nobody waits for an answer to the second one any more"


def test_what_is_asked_after_the_end_is_refused() -> None:
    waiting = WaitingRequests(MODEL, 8)
    waiting.end()
    with pytest.raises(Refused, match="stopping"):
        waiting.ask({"x": np.zeros(1, np.float32)})
