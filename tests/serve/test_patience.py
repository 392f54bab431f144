"""Connections that send nothing are closed; those that are answered are not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("uvicorn")

import uvicorn
from uvicorn.server import ServerState

from overdrive.serve import patience

HEAD = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(patience.HEAD * 3)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"here"})


@pytest.mark.parametrize("requests", [0, 2])
@pytest.mark.parametrize("half", [b"", b"GET / HTTP/1.1\r\nho"])
def test_a_connection_on_which_no_request_comes_is_closed(
    requests: int, half: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "HEAD", 0.1)
    config = uvicorn.Config(
        answer, http=patience.ImpatientProtocol, lifespan="off", log_level="warning", timeout_keep_alive=1
    )
    config.load()

    def protocol() -> Any:
        return config.http_protocol_class(config=config, server_state=ServerState(), app_state={})

    async def asked() -> bytes:
        server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        told = b""
        for _ in range(requests):
            writer.write(HEAD)
            told += await asyncio.wait_for(reader.readuntil(b"here"), 30)
        writer.write(half)
        told += await asyncio.wait_for(reader.read(), 30)  # to its end
        writer.close()
        server.close()
        return told

    assert asyncio.run(asked()).count(b"200 OK") == requests
