"""Hosts with other versions, or another script, and ranks that do not meet end a run in one sentence."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from overdrive.ranks import hosts
from tests.conftest import Run
from tests.ranks.test_slurm import free_ports

FIRST = {"Python": "3.11", "PyTorch": "2.13.0", "Overdrive": "1.0", "another train.py:": "aa"}


class Store(dict[str, str]):
    set = dict.__setitem__
    get = dict.__getitem__

    def add(self, key: str, number: int) -> None:
        self[key] = str(number)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({}, ""),
        ({"PyTorch": "2.12.1"}, "PyTorch 2.12.1 (rank 0 has 2.13.0)"),
        ({"Python": "3.12", "Overdrive": "2.0"}, "Python 3.12 (rank 0 has 3.11), Overdrive 2.0 (rank 0 has 1.0)"),
        ({"another train.py:": "bb"}, "another train.py: bb (rank 0 has aa)"),
    ],
)
def test_what_a_host_has_otherwise_is_named(other: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    monkeypatch.setattr(hosts, "_facts", lambda: FIRST)
    hosts.compare(store, 0)
    monkeypatch.setattr(hosts, "_facts", lambda: FIRST | other)
    if not said:
        hosts.compare(store, 1)
        return
    with pytest.raises(hosts.CannotMeet) as error:
        hosts.compare(store, 1)
    assert said in str(error.value) and str(error.value).startswith("rank 1 on ")


@pytest.mark.cluster
def test_a_port_that_another_program_has_is_told(
    tmp_path: Path, overdrive: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        found = overdrive("run", "train.py", cwd=tmp_path)
    assert found.returncode == 1 and f"rank 0 cannot keep the store at 127.0.0.1:{port}: set MASTER_" in found.stderr
    assert "Traceback" not in found.stderr and found.stderr.count("overdrive: ") == 1


@pytest.mark.cluster
def test_another_script_on_another_host_ends_the_run(tmp_path: Path) -> None:
    """As a launcher starts ranks in the folders of two hosts."""
    (port,), ranks = free_ports(1), []
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "train.py").write_text(f"import torch\nprint({rank})\n")
        told = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, "-m", "overdrive", "run", "train.py"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        ranks.append(subprocess.Popen(command, cwd=tmp_path / str(rank), env={**os.environ, **told}, **pipes))  # type: ignore[call-overload]
    _, said = ranks[1].communicate(timeout=60)
    ranks[0].kill()
    assert ranks[1].returncode == 1 and "has another train.py: " in said and "all hosts need the same" in said
    assert ranks[0].communicate()[0] == ""
