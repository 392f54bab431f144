"""Connections that send no request: Uvicorn keeps one open for ever that has never sent anything, or half of a head.

As many as a process may have files open would keep everybody else out, and who asks whether it lives.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD = 10.0  # seconds until a request's head has to be there, once its connection is, or its first byte


class ImpatientProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Uvicorn's own, that closes them. Its timer for connections between two requests stays."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:  # a request is under way, whose handler has its own patience
            self._no_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD, self.transport.close)

    def _no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
