"""The server: what is asked over HTTP, its limits, and how it stops. Uvicorn and Starlette do the work."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from overdrive.serve import protocol
from overdrive.serve.model import Arrays, ServedModel
from overdrive.serve.patience import ImpatientProtocol
from overdrive.serve.room import Place, Room
from overdrive.serve.waiting import STOPPING, Refused, WaitingRequests
from overdrive.version import __version__

_BODY = 30.0  # seconds until a request has to be there
_IN_LOOP = 64 << 10  # bytes of a request, or an answer's arrays, that are read or written beside others; of more a
# thread does it
_LONGEST = 1000  # letters of what is told of an error: a request may hold names of any length
_LARGEST_TOGETHER = 16  # requests of the largest size, which all that are under way may hold the bytes of
_LAST_CALL = 5  # seconds for the call of the model that is under way when the grace is over
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


@dataclass(frozen=True)
class Limits:
    """
    Attributes:
        request: bytes of one.
        waiting: requests.
        rows: answered together.
        linger: seconds that a request waits for others at most.
        grace: seconds in which what was taken is answered, once the server is to stop.
        answer: seconds in which a request is answered; a call of the model that takes longer is held to hang.
        not_finite: whether NaN and infinity are taken.
    """

    request: int
    waiting: int
    rows: int
    linger: float
    grace: float
    answer: float
    not_finite: bool


Handler = Callable[[Request], Awaitable[Response]]


class _Code(Exception):
    """A code of HTTP's, and a sentence."""

    def __init__(self, code: int, told: str) -> None:
        super().__init__(told)
        self.code = code


class Metrics:
    """`refused_at_end`: requests that had no answer when the server was to stop, and got none."""

    def __init__(self) -> None:
        self.all = CollectorRegistry()
        self.requests = Counter("overdrive_requests", "Requests, by code of the answer", ["code"], registry=self.all)
        self.seconds = Histogram(
            "overdrive_request_seconds", "From a request's head to its answer", registry=self.all, buckets=_SECONDS
        )
        self.model = Histogram("overdrive_model_seconds", "Calls of the model", registry=self.all, buckets=_SECONDS)
        self.together = Histogram(
            "overdrive_batch_rows", "Inputs answered together", registry=self.all, buckets=(1, 2, 4, 8, 16, 32)
        )
        self.waiting = Gauge("overdrive_waiting", "Requests that wait for the model", registry=self.all)
        self.refused_at_end = 0

    def batch(self, requests: int, rows: int, seconds: float) -> None:
        self.model.observe(seconds)
        self.together.observe(rows)


def serve(model: ServedModel, listener: socket.socket, limits: Limits) -> int:
    """Answers until SIGTERM or SIGINT, and then what was taken; returns how many requests it had no time to answer."""
    metrics = Metrics()
    waiting = WaitingRequests(model, limits.waiting, limits.rows, limits.linger, metrics.batch)
    metrics.waiting.set_function(lambda: len(waiting))
    config = uvicorn.Config(
        application(model, waiting, metrics, limits),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=math.ceil(limits.grace) + _LAST_CALL,
        http=ImpatientProtocol,
    )
    server: Any = uvicorn.Server(config)

    def stop(number: int, frame: Any) -> None:
        server.force_exit = server.should_exit and number == signal.SIGINT
        server.should_exit = True
        waiting.stop()
        loop = asyncio.get_running_loop()  # a signal's handler runs between two steps of it
        loop.call_soon_threadsafe(loop.call_later, limits.grace, waiting.refuse)

    server.handle_exit = stop  # without the signal that Uvicorn's own raises again at the end
    server.run(sockets=[listener])
    waiting.end()
    return metrics.refused_at_end


def application(model: ServedModel, waiting: WaitingRequests, metrics: Metrics, limits: Limits) -> Starlette:
    path_of_model = f"/v2/models/{model.name}"
    known = [each["name"] for each in model.signature["outputs"]]
    room = Room(4 * limits.waiting + 64, _LARGEST_TOGETHER * limits.request)

    async def infer(request: Request) -> Response:
        with room.place() as place:
            body = await _body(request, limits.request, place)
            length = request.headers.get(protocol.LENGTH)
            read = asyncio.to_thread if len(body) > _IN_LOOP else _at_once
            asked, held = await read(_asked, body, length, known, model, limits)
            del body  # while it waits for the model
            place.hold(sum(each.nbytes for each in held.values()))
            outputs = await _in_time(waiting.ask(held), limits.answer)
            size = sum(np.asarray(outputs[name]).nbytes for name in asked.outputs)
            write = asyncio.to_thread if size > _IN_LOOP else _at_once
            content, headers = await write(protocol.answered, model.name, asked.id, outputs, asked.outputs)
            return Response(content, headers=headers)

    async def metadata(request: Request) -> Response:
        return JSONResponse(_metadata(model))

    async def server(request: Request) -> Response:
        return JSONResponse({"name": "overdrive", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def well(request: Request) -> Response:
        return Response(status_code=503 if waiting.longest() > limits.answer else 200)

    async def ready(request: Request) -> Response:
        return Response(status_code=503 if waiting.stopping else 200)

    async def measured(request: Request) -> Response:
        return Response(generate_latest(metrics.all), media_type=CONTENT_TYPE_LATEST)

    routes = [
        Route(f"{path_of_model}/infer", _counted(infer, metrics, waiting), methods=["POST"]),
        Route(path_of_model, metadata),
        Route("/v2", server),
        Route("/v2/health/live", well),
        *(Route(path, ready) for path in ("/v2/health/ready", f"{path_of_model}/ready")),
        Route("/metrics", measured),
    ]
    return Starlette(routes=routes)


def _counted(handler: Handler, metrics: Metrics, waiting: WaitingRequests) -> Handler:
    """What goes wrong is a code and a sentence; all is counted."""

    async def answer(request: Request) -> Response:
        began = time.perf_counter()
        try:
            response = await handler(request)
        except protocol.BadRequest as error:
            response = _error(400, str(error))
        except _Code as error:
            response = _error(error.code, str(error))
        except Refused as error:
            response = _error(503, str(error), {"retry-after": "1"})
        except asyncio.CancelledError:  # by Uvicorn, once the time for the last answers is over
            if not waiting.stopping:
                raise
            response = _error(503, STOPPING)
        except ClientDisconnect:
            response = _error(400, "the request was broken off")  # nobody reads this; it is counted
        except Exception as error:
            response = _error(500, f"the model failed ({type(error).__name__}: {str(error)[:300]})")
        if waiting.stopping and response.status_code in (503, 504):
            metrics.refused_at_end += 1
        metrics.requests.labels(str(response.status_code)).inc()
        metrics.seconds.observe(time.perf_counter() - began)
        return response

    return answer


def _error(code: int, told: str, headers: dict[str, str] | None = None) -> Response:
    sent = told[:_LONGEST].encode("utf-8", "backslashreplace").decode()  # a name may hold half of a letter
    return JSONResponse({"error": sent}, code, headers)


async def _in_time(answer: Future[Arrays], seconds: float) -> Arrays:
    """
    Raises:
        _Code: it is not there by then; one that still waits for the model is never asked of it.
    """
    try:
        return await asyncio.wait_for(asyncio.wrap_future(answer), seconds)
    except asyncio.TimeoutError:
        raise _Code(504, f"the model did not answer within {seconds:g} seconds") from None


async def _at_once(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


async def _body(request: Request, most: int, place: Place) -> bytes:
    """
    Raises:
        _Code: it is too large, or not there in time.
        Refused: there is no room for it.
    """
    try:
        return await asyncio.wait_for(_read(request, most, place), _BODY)
    except asyncio.TimeoutError:
        raise _Code(408, f"the request was not there after {_BODY:.0f} seconds") from None


async def _read(request: Request, most: int, place: Place) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= most:
            place.hold(size)
            chunks.append(chunk)
        elif size > 2 * most:  # up to there it is read to its end: who still sends does not see an answer
            break
    if size > most:
        raise _Code(413, f"the request has more than {most:,} bytes, which is the most")
    return b"".join(chunks)


def _asked(
    body: bytes, length: str | None, known: Sequence[str], model: ServedModel, limits: Limits
) -> tuple[protocol.Asked, Arrays]:
    found = protocol.asked(body, length, known)
    return found, _held(model, found.inputs, limits.not_finite)


def _held(model: ServedModel, inputs: Mapping[str, Any], not_finite: bool) -> Arrays:
    """The inputs in the signature's order.

    Raises:
        protocol.BadRequest: the signature wants others.
    """
    try:
        arrays = model.checked(inputs)
    except ValueError as error:
        raise protocol.BadRequest(str(error)) from None
    held = {each["name"]: array for each, array in zip(model.signature["inputs"], arrays, strict=True)}
    for name, array in held.items():
        if not not_finite and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise protocol.BadRequest(f"{name} holds NaN or infinity, and this server takes finite numbers alone")
    return held


def _metadata(model: ServedModel) -> dict[str, Any]:
    told: dict[str, Any] = {"name": model.name, "versions": ["1"], "platform": model.signature["target"]}
    for side in ("inputs", "outputs"):
        told[side] = [
            {
                "name": each["name"],
                "datatype": protocol.datatype(each["dtype"]),
                "shape": [size if isinstance(size, int) else -1 for size in each["shape"]],
            }
            for each in model.signature[side]
        ]
    return told
