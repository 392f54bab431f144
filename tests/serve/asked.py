"""The application itself, without a server around it, of a model that answers what it is given."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from overdrive.serve import protocol
from overdrive.serve.model import ServedModel
from overdrive.serve.waiting import WaitingRequests

app: Any = pytest.importorskip("overdrive.serve.app", exc_type=ImportError)

SIGNATURE = {
    "target": "onnx",
    "inputs": [{"name": "x", "shape": ["batch"], "dtype": "float32"}],
    "outputs": [{"name": "y", "shape": ["batch"], "dtype": "float32"}],
    "dimensions": {"batch": {"min": 1}},
}
MODEL = ServedModel("Net", SIGNATURE, lambda inputs: {"y": inputs["x"]}, lambda inputs: [*inputs.values()], "batch")
INFER = "/v2/models/Net/infer"


class Asked:
    def __init__(self, model: ServedModel = MODEL, within: float = 60.0, largest: int = 1 << 24) -> None:
        self.waiting, self.metrics = WaitingRequests(model, 8), app.Metrics()
        limits = app.Limits(largest, 8, 1, 0.0, 1.0, within, False)
        self._application = app.application(model, self.waiting, self.metrics, limits)

    def get(self, path: str) -> int:
        return asyncio.run(self.sent("GET", path))[0]

    def answered(self, x: Any) -> Any:
        code, told = self.inferred(x)
        assert code == 200, told
        return told["outputs"][0]["data"]

    def inferred(self, x: Any) -> tuple[int, Any]:
        code, told = asyncio.run(self.sent("POST", INFER, body_of(x)))
        return code, json.loads(told)

    async def sent(
        self, method: str, path: str, body: bytes = b"", receive: Callable[[], Any] | None = None
    ) -> tuple[int, bytes]:
        """`receive`: in place of the body, where that does not come at once."""
        sent: list[Any] = []

        async def at_once() -> Any:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b"", "root_path": ""}
        await self._application(scope, receive or at_once, send)
        return sent[0]["status"], b"".join(each.get("body", b"") for each in sent)


def body_of(x: Any) -> bytes:
    return protocol.made_body({"x": np.asarray(x, np.float32)})
