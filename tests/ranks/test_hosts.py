"""Hosts with other versions, or another script, and ranks that do not meet end a run in one sentence."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from overdrive.ranks import arriving, hosts
from overdrive.ranks.membership import Membership
from tests.conftest import Run
from tests.ranks.test_slurm import free_ports

FIRST = {"Python": "3.11", "PyTorch": "2.13.0", "Overdrive": "1.0", "another train.py:": "aa"}


class Store:
    """What a store of PyTorch's is asked for."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.held[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.held[key]

    def add(self, key: str, number: int) -> int:
        self.set(key, str(int(self.held.get(key, b"0")) + number))
        return int(self.held[key])

    def check(self, keys: list[str]) -> bool:
        return all(key in self.held for key in keys)


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
    with pytest.raises(arriving.CannotMeet) as error:
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
    said = [each.communicate(timeout=60) for each in ranks]
    assert [each.returncode for each in ranks] == [1, 1]
    assert "has another train.py: " in said[1][1] and "all hosts need the same" in said[1][1]
    assert said[0] == ("", "")  # rank 1 has said it


def start(rank: int, size: int, port: int, folder: Path, seconds: float = 60.0) -> subprocess.Popen[str]:
    """`overdrive run train.py` as that rank; `seconds`: that a start may take."""
    told = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    text = f"import datetime\nfrom overdrive.ranks import arriving\narriving.START = datetime.timedelta(0, {seconds})\n"
    (folder / "sitecustomize.py").write_text(text)  # the command starts Python again
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, **{name: str(each) for name, each in told.items()}}
    environment["PYTHONPATH"] = os.pathsep.join(each for each in (str(folder), os.environ.get("PYTHONPATH")) if each)
    command = [sys.executable, "-m", "overdrive", "run", "train.py"]
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


@pytest.mark.cluster
@pytest.mark.fault("absent")
def test_a_rank_that_never_comes_ends_the_others_who_say_which(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    (port,) = free_ports(1)
    ranks = [start(rank, 3, port, tmp_path, 15.0) for rank in (0, 1)]
    said = [each.communicate(timeout=60) for each in ranks]
    assert [each.returncode for each in ranks] == [1, 1]
    assert [each[0] for each in said] == ["", ""] and "Traceback" not in said[0][1] + said[1][1]
    assert (said[0][1] + said[1][1]).count("overdrive: ") == 1
    assert f"rank 2 of 3 did not come to 127.0.0.1:{port} within 15 s" in said[0][1] + said[1][1]


def test_rank_0_that_never_comes_is_told_and_who_has_told_why_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arriving, "START", timedelta(0))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    store = Store()
    with pytest.raises(arriving.CannotMeet, match="rank 0 did not come within"):
        hosts.compare(store, 1)
    store.set("beat/0", "")
    with pytest.raises(arriving.CannotMeet, match="ranks 1, 2 and 3 of 4 did not come to there within 0 s"):
        arriving.wait_for_all(store, 4, "there")
    with pytest.raises(arriving.CannotMeet, match=r"^$"):
        arriving.wait_for_all(store, 4, "there")


@pytest.mark.fault("absent")
def test_a_rank_that_was_told_the_address_of_another_run_leaves_that_one_alone() -> None:
    store = Store()
    hosts.compare(store, 0, "step 7.0 of Slurm")
    hosts.compare(store, 1, "step 7.0 of Slurm")
    before = {**store.held}
    with pytest.raises(arriving.CannotMeet, match=r"is of step 8\.0 of Slurm, and rank 0 at this address of step 7\.0"):
        hosts.compare(store, 1, "step 8.0 of Slurm")
    assert store.held == before


@pytest.mark.parametrize(
    ("variables", "run"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "a"}, "run a"),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_JOB_ID": "5"}, ""),  # of which there may be one for each host
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_JOB_ID": "5", "SLURM_STEP_ID": "3"}, "step 5.3"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_JOB_ID": "5", "SLURM_HET_SIZE": "2"}, ""),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_JOBID": "kvs_7", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            "job kvs_7",
        ),
    ],
)
def test_what_the_launcher_calls_a_run(variables: dict[str, str], run: str) -> None:
    found = Membership.of(variables)
    assert found and (found.run.startswith(run) if run else not found.run)


@pytest.mark.cluster
@pytest.mark.fault("absent")
def test_a_rank_whose_number_is_taken_is_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nprint(1)\n")
    (port,) = free_ports(1)
    first = start(0, 3, port, tmp_path, 240)
    second = [start(1, 3, port, tmp_path, 240) for _ in range(2)]
    until = time.monotonic() + 120
    while all(each.poll() is None for each in second) and time.monotonic() < until:
        time.sleep(0.1)
    refused, stays = sorted(second, key=lambda each: each.poll() is None)
    said = refused.communicate(timeout=9)[1]
    assert refused.returncode == 1 and "another process is rank 1 of this run already" in said, said
    assert f"process {stays.pid})" in said and "MASTER_PORT of its own" in said
    last = start(2, 3, port, tmp_path, 240)
    told = [each.communicate(timeout=120)[0] for each in (first, stays, last)]
    assert [each.returncode for each in (first, stays, last)] == [0, 0, 0] and told == ["1\n", "", ""]


class Server:
    """A store of an agent's, in which each room is a `Store`."""

    def __init__(self) -> None:
        self.rooms: dict[str, Store] = {}

    def within(self, name: str) -> Store:
        return self.rooms.setdefault(name, Store())


def test_ranks_that_are_started_again_meet_where_rank_0_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the start before, one had come no further than to Python, and so had not been counted."""
    server: Any = Server()
    first = arriving.room_of_start(server, 0)
    server.within(first).set("beat/0", "7")
    happens = iter(
        [
            lambda: None,  # rank 0 is not there yet
            lambda: arriving.room_of_start(server, 0),
            lambda: server.within("overdrive 2").set("beat/0", "0"),
            lambda: server.within("overdrive 2").set("beat/0", "1"),
        ]
    )
    monkeypatch.setattr(time, "sleep", lambda seconds: next(happens)())
    assert (first, arriving.room_of_start(server, 1)) == ("overdrive 1", "overdrive 2")
    assert not [*happens]
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(arriving, "START", timedelta(0))
    with pytest.raises(arriving.CannotMeet, match="rank 0 did not come within 0 s, for which rank 1 waited"):
        arriving.room_of_start(server, 1)
