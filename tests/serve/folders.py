"""Exported folders that need NumPy alone, for the server's tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from overdrive.targets import runners
from tests.conftest import ROOT

RUN = """
import pathlib
import time
import checks
import numpy as np

called = pathlib.Path(__file__).with_name("called")
weights = np.arange(12, dtype=np.float32).reshape(4, 3)

def answer(inputs):
    (x,) = checks.checked(inputs)
    called.touch()
    time.sleep(SLOW)
    if (x < -1e5).any():
        raise RuntimeError("no such place in the table")
    return checks.named([np.stack([row @ weights for row in x])])
"""
SIGNATURE = {
    "format": 1,
    "model": "Net",
    "target": "onnx",
    "artefact": "model.onnx",
    "files": {},
    "inputs": [{"name": "x", "shape": ["batch", 4], "dtype": "float32"}],
    "outputs": [{"name": "output", "shape": ["batch", 3], "dtype": "float32"}],
    "dimensions": {"batch": {"min": 1}},
    "versions": {},
}


def exported(place: Path, slow: float = 0.0) -> Path:
    """`slow`: seconds of a call. Each leaves a file `called` there."""
    place.mkdir()
    shutil.copy(Path(runners.__file__).with_name("checks.py"), place)
    (place / "run.py").write_text(RUN.replace("SLOW", str(slow)))
    (place / "signature.json").write_text(json.dumps(SIGNATURE))
    return place


class Server:
    """A running one. `first`: what it says when it is there."""

    def __init__(self, process: subprocess.Popen[str], first: str) -> None:
        self.process, self.first = process, first
        self.port = int(re.findall(r":(\d+)/v2", first)[0])

    def ask(self, body: Any, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """The code and the body; `body`: JSON, where it is no bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._sent("POST", "/v2/models/Net/infer", data, headers)

    def get(self, path: str) -> tuple[int, bytes]:
        return self._sent("GET", path, None, None)

    def _sent(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.read()


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "overdrive", "serve", str(folder), "--port", "0", *options]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield Server(process, process.stdout.readline())
        finally:
            process.kill()


def request(*rows: Any, **more: Any) -> dict[str, Any]:
    numbers = [each for row in rows for each in row]
    return {"inputs": [{"name": "x", "shape": [len(rows), 4], "datatype": "FP32", "data": numbers, **more}]}
