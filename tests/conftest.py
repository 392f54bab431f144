"""What the tests share: running real programs in real processes, in a folder of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parent.parent

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's caches, ledger or home settings."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("OVERDRIVE_CACHE", raising=False)
    # One thread: the tests share two cores, and spinning OpenMP threads slow each other down tenfold.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A copy of the naive programs, so that what they write stays out of the repository."""
    folder = tmp_path / "programs"
    shutil.copytree(PROGRAMS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def python() -> Run:
    """Runs `python ARGS`."""

    def run(*args: str, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *args], cwd=cwd, capture_output=True, text=True, timeout=timeout, env=dict(os.environ)
        )

    return run


@pytest.fixture
def overdrive(python: Run) -> Run:
    """Runs `overdrive ARGS`."""

    def run(*args: str, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return python("-m", "overdrive", *args, cwd=cwd, timeout=timeout)

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a script into a folder of its own and returns its path."""

    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / "project" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write
