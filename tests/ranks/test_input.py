"""What ranks read from standard input: each all of it, and none of a terminal's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overdrive.ranks import input as of_ranks

LINES = "".join(f"{number}\n" for number in range(1, 60_000))  # as `seq 59999` prints: more than two pipes hold


def test_each_rank_has_all_that_comes_through_a_pipe_however_often_they_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, into = os.pipe()
    monkeypatch.setattr(of_ranks, "_STDIN", end)
    of_ranks._kept.cache_clear()
    with subprocess.Popen(["seq", "59999"], stdout=into):
        os.close(into)
        for _ in range(2):
            with of_ranks.handed_on(tmp_path, 2):
                for rank in (1, 0):  # one that reads nothing holds up nobody
                    assert (tmp_path / f"input{rank}").read_text() == LINES
            assert not [*tmp_path.iterdir()]
    os.close(end)
    of_ranks._kept.cache_clear()


def test_ranks_that_read_nothing_end_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end, into = os.pipe()
    monkeypatch.setattr(of_ranks, "_STDIN", end)
    of_ranks._kept.cache_clear()
    with of_ranks.handed_on(tmp_path, 2):  # the pipe stays open
        os.write(into, b"x")
    assert not [*tmp_path.iterdir()]
    os.close(end)
    os.close(into)
    of_ranks._kept.cache_clear()


READS = """
import sys, torch
numbers = [float(line) for line in sys.stdin]
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in numbers[:5]:
    loss = model(torch.randn(8, 4) + number).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(len(numbers), sum(numbers))
"""


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["a pipe", "a file"])
def test_a_program_reads_what_it_reads_in_one_process(kind: str, script: Callable[[str], Path]) -> None:
    path, given = script(READS), "skipped\n" + LINES
    (path.parent / "lines").write_text(given)
    command = [sys.executable, "-m", "overdrive", "run", "--ranks", "2", path.name]
    pipes: dict[str, Any] = {"capture_output": True, "text": True, "cwd": path.parent, "timeout": 120}
    if kind == "a pipe":
        done = subprocess.run(command, input=LINES, **pipes)
    else:
        with (path.parent / "lines").open("rb", buffering=0) as file:
            file.seek(len("skipped\n"))
            done = subprocess.run(command, stdin=file, **pipes)
            assert file.tell() == len("skipped\n")
    numbers = [float(each) for each in LINES.split()]
    assert done.returncode == 0 and done.stdout == f"{len(numbers)} {sum(numbers)}\n", done.stderr


@pytest.mark.cluster
def test_a_terminal_is_nobodys(script: Callable[[str], Path]) -> None:
    path = script("import torch\ntry:\n    print(input())\nexcept EOFError:\n    print('nothing')\n")
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "overdrive", "run", "--ranks", "2", path.name]
    os.write(ours, b"one\ntwo\n")
    done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, cwd=path.parent, timeout=120)
    os.close(ours)
    os.close(theirs)
    assert (done.returncode, done.stdout) == (0, "nothing\n"), done.stderr
