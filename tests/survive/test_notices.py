"""Notices of clouds: asked for as each wants it, and answered with SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from overdrive.survive.notices import CLOUDS, announced
from tests.conftest import Run

# Each cloud's page and the header without which it gives none, and its answers before and after.
PAGES = {
    "aws": (
        "/latest/meta-data/spot/instance-action",
        ("X-aws-ec2-metadata-token", "a token"),
        None,
        '{"action": "stop"}',
    ),
    "gcp": ("/computeMetadata/v1/instance/preempted", ("Metadata-Flavor", "Google"), "FALSE", "TRUE\n"),
    "azure": (
        "/metadata/scheduledevents?api-version=2020-07-01",
        ("Metadata", "true"),
        '{"Events": [{"EventType": "Reboot"}]}',
        '{"Events": [{"EventType": "Reboot"}, {"EventType": "Preempt"}]}',
    ),
}


class Metadata(BaseHTTPRequestHandler):
    """What such a cloud answers; `taken` says whether the machine is taken away."""

    taken = False

    def do_PUT(self) -> None:
        asked = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self._answer("a token" if asked else None)

    def do_GET(self) -> None:
        for page, (name, value), before, after in PAGES.values():
            if self.path == page and self.headers[name] == value:
                return self._answer(after if Metadata.taken else before)
        self._answer(None)

    def _answer(self, text: str | None) -> None:
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def host() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Metadata.taken = False
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize("cloud", list(CLOUDS))
def test_a_cloud_is_asked_in_its_own_way(cloud: str, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # which is not asked
    assert not announced(CLOUDS[cloud], host)
    Metadata.taken = True
    assert announced(CLOUDS[cloud], host)


@pytest.mark.fault(10)
def test_a_notice_comes_as_sigterm_and_a_cloud_that_is_not_there_is_told_once(host: str) -> None:
    """By a process beside this one, which ends with it."""
    run = """
import subprocess, sys, time
asks = subprocess.Popen([sys.executable, "-c", "import os; from overdrive.survive.notices import main; "
    "main('gcp', os.getppid(), __import__('sys').argv[1], 0.02)", sys.argv[1]])
print(asks.pid, flush=True)
time.sleep(30)
"""
    for where, taken in ((host, True), ("http://127.0.0.1:9", False)):
        Metadata.taken = taken
        process = subprocess.Popen(
            [sys.executable, "-c", run, where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout and process.stderr
        if taken:
            assert process.wait(20) == -signal.SIGTERM
        else:
            assert "gcp tells no notices here" in process.stderr.readline()
            asks = int(process.stdout.readline())
            process.kill()
            process.wait()
            assert _is_gone(asks)
        process.stdout.close()
        process.stderr.close()


def _is_gone(process: int) -> bool:
    for _ in range(100):
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        threading.Event().wait(0.05)
    return False


def test_notices_belong_to_a_run_that_survives(overdrive: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    told = overdrive("run", "--notices", "aws", "train.py", cwd=tmp_path)
    assert told.returncode == 2 and "--notices belongs to --survive." in told.stderr
