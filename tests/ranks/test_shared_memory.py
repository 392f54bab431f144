"""What ranks of one machine exchange by memory: the same as by messages, for any number of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ranks.test_slurm import free_ports

pytest.importorskip("torch")
from overdrive.machine.pool import shared_memory

# One rank of so many: prints a line of JSON.
RANK = """
import json, os, signal, sys, time, torch
from overdrive.machine.pool import shared_memory
from overdrive.ranks.group import Group
from overdrive.ranks.membership import Membership

def end(sentence, store):
    print(json.dumps(sentence), flush=True)

rank, size, port = map(int, sys.argv[1:4])
told = {}
ROUNDS = 3

def sums(group):
    found = []
    for turn in range(ROUNDS):
        torch.manual_seed(turn)
        whole = [torch.randn(size, n) for n in (5, 1000, 70_001)]
        parts = [each[rank] for each in whole]
        work = group.begin_shared_sum(parts, torch.float32)
        if work is not None:
            group.finish([work])
            total = work.parts[0] if len(work.parts) == 1 else torch.add(*work.parts)
            wanted = torch.cat([each.sum(0) for each in whole])
            found.append(float((total - wanted).abs().max()))
            bits = int(total.view(torch.int32).sum())
            assert group.of_all([bits], "bits") == [[bits]] * size
        else:
            found.append(None)
        group.sums_read()
    return found
"""

ALL = (
    RANK
    + """
group = Group(Membership(rank, size, rank, "127.0.0.1", port, agents_store=False), end)
told["shares"] = group._sums is not None
told["numbers"] = group.of_all([rank, 2**60 + rank], "numbers")
told["first"] = group.told_by_first({"a": "x" * 3_000_000} if rank == 0 else None, "a thing")["a"][:3]
small = torch.full((2 + rank,), rank, dtype=torch.int16)
told["small"] = group.gather(small, 0, [2 + r for r in range(size)], "a").tolist()
large = torch.full((2, 400_000 + rank), float(rank))  # of more than one slot
whole = group.gather(large, 1, [400_000 + r for r in range(size)], "b")
ends = torch.tensor([400_000 + r for r in range(size)]).cumsum(0)
told["large"] = list(whole.shape) + [whole[1, int(each) - 1].item() for each in ends]
told["complex"] = group.sum_(torch.tensor([1 + 1j, rank], dtype=torch.complex128), "c")[1].real.item()
summed = group.sum_(torch.arange(600_000.0).view(2, 300_000).t(), "d")
told["sum"] = [summed[299_999, 1].item(), summed[1, 0].item(), list(summed.shape)]
told["empty"] = group.gather(torch.empty(0), 0, [0] * size, "e").shape[0]
told["gradients"] = sums(group)
group.monitor.stop()
group.of_all([0], "the end")
print(json.dumps(told), flush=True)
os._exit(0)
"""
)


def ranks(tmp_path: Path, program: str, size: int) -> list[subprocess.Popen[str]]:
    path, (port,) = tmp_path / "rank.py", free_ports(1)
    path.write_text(program)
    words = [[sys.executable, str(path), str(rank), str(size), str(port)] for rank in range(size)]
    return [subprocess.Popen(each, stdout=subprocess.PIPE, text=True) for each in words]


def told_by(processes: list[subprocess.Popen[str]]) -> list[object]:
    return [json.loads(each.communicate(timeout=100)[0].splitlines()[-1]) for each in processes]


@pytest.mark.parametrize("size", [2, 3, pytest.param(5, marks=pytest.mark.cluster)])
@pytest.mark.parametrize("shares", [True, False])
def test_ranks_have_what_all_ranks_said(tmp_path: Path, size: int, shares: bool) -> None:
    without = "" if shares else "\nshared_memory._made = lambda size: ''\n"
    found = told_by(ranks(tmp_path, ALL.replace("\ngroup = ", f"{without}\ngroup = ", 1), size))
    assert all(each == found[0] for each in found)
    told = found[0]
    assert isinstance(told, dict) and told["shares"] == shares
    assert told["numbers"] == [[rank, 2**60 + rank] for rank in range(size)] and told["first"] == "xxx"
    assert told["small"] == [rank for rank in range(size) for _ in range(2 + rank)]
    assert told["large"] == [2, sum(400_000 + rank for rank in range(size)), *map(float, range(size))]
    assert told["complex"] == sum(range(size)) and told["empty"] == 0
    assert told["sum"] == [599_999.0 * size, float(size), [300_000, 2]]
    first, *later = told["gradients"]
    assert first is None  # its room is made then
    assert all(each < 1e-5 for each in later) if shares else later == [None, None]


def test_where_one_rank_cannot_have_it_none_takes_it(tmp_path: Path) -> None:
    """On another machine, or in a container with a place of its own."""
    without = "\nif rank == 1: shared_memory._File._opened = classmethod(lambda *_: None)\n"
    found = told_by(ranks(tmp_path, ALL.replace("\ngroup = ", f"{without}\ngroup = ", 1), 2))
    assert found[0] == found[1] and isinstance(found[0], dict) and not found[0]["shares"]


def test_a_rank_that_is_killed_is_missed_by_the_others(tmp_path: Path) -> None:
    program = (
        RANK
        + """
group = Group(Membership(rank, size, rank, "127.0.0.1", port, agents_store=False), end)
assert group._sums is not None
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
group.of_all([0], "numbers")
"""
    )
    first, second = ranks(tmp_path, program, 2)
    second.wait(timeout=60)
    said, _ = first.communicate(timeout=60)
    assert "another rank is gone, without a word" in said and "its process has ended" in said


def test_an_error_within_an_exchange_is_no_lost_rank_where_all_live(tmp_path: Path) -> None:
    program = (
        RANK
        + """
group = Group(Membership(rank, size, rank, "127.0.0.1", port, agents_store=False), end)
if rank == 0:
    for own in (torch.OutOfMemoryError("none left"), NotImplementedError("no kernel"), RuntimeError("CUDA error: x")):
        try:
            with group._waiting("a result"):
                raise own
        except RuntimeError as error:
            assert error is own
    with group._waiting("a result"):
        raise RuntimeError("Invalid scalar type")
time.sleep(30)
"""
    )
    first, second = ranks(tmp_path, program, 2)
    said, errors = first.communicate(timeout=60)
    second.kill()
    assert "failed on rank 0, and no other one is gone (Invalid scalar type)" in said, errors


def test_nothing_is_left_of_it(tmp_path: Path) -> None:
    before = set(Path("/dev/shm").glob("overdrive-ranks-*"))
    told_by(ranks(tmp_path, ALL, 2))
    assert set(Path("/dev/shm").glob("overdrive-ranks-*")) <= before


def test_what_a_rank_0_that_was_killed_has_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "PLACE", str(tmp_path))
    with subprocess.Popen(["true"]) as process:
        pass
    gone = process.pid
    old = {f"overdrive-ranks-{gone}-1": False, f"overdrive-ranks-{os.getpid()}-2": True, "other-1-3": True}
    for name in [*old, f"overdrive-ranks-{gone}-4"]:
        (tmp_path / name).write_bytes(b"x")
        if name in old:
            os.utime(tmp_path / name, (1, 1))
    made = shared_memory._made(4096)
    assert made and Path(made).parent == tmp_path and os.path.getsize(made) == 4096
    kept = {name for name, stays in old.items() if stays} | {f"overdrive-ranks-{gone}-4", Path(made).name}
    assert {each.name for each in tmp_path.iterdir()} == kept
