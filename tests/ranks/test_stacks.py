"""Where one rank stands, or all do: the stacks of all ranks are written."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.ranks.monitor import Monitor
from overdrive.worker.watching.hangs import HangWatch
from overdrive.worker.watching.stacks import Stacks
from tests.conftest import Run
from tests.ranks.test_ranks import acting, left_in
from tests.worker.test_watching import stacks  # noqa: F401

Write = Callable[[str], Path]
WATCHED = ("run", "--ranks", "2", "--on-hang", "stop", "--hang-after", "3s")


@pytest.mark.fault("hang", 17)
def test_a_rank_answers_each_question_for_its_stacks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    told: dict[str, str] = {}
    store: Any = SimpleNamespace(
        set=told.__setitem__, check=lambda keys: keys[0] in told, get=lambda key: told[key].encode()
    )
    asks, answers = (Monitor(store, rank, 2, lambda sentence: None) for rank in (0, 1))
    written: list[str] = []

    def write(why: str) -> bool:
        written.append(why)
        return True

    answers.write_stacks = write
    for monitor in (asks, answers):
        monitor.stop()
    for count in range(1, 7):
        if count in (3, 5):
            asks.ask_for_stacks()
        asks._beat(count)
        answers._look()
    assert written == ["rank 0 stands"] * 2 and json.loads(told["beat/1"])["asks"] == 0


@pytest.mark.fault("hang")
def test_stacks_that_were_just_written_are_not_written_again(stacks: Stacks) -> None:  # noqa: F811
    """Two ranks that stand by themselves ask each other."""
    said: list[str] = []
    watch = HangWatch("stacks", 60.0, lambda: 5, stacks, said.append)
    asked: list[int] = []
    watch.ask_others = lambda: asked.append(len(said))
    assert watch.write_stacks("rank 1 stands") and watch.write_stacks("rank 1 stands")
    text = stacks.path.read_text()
    assert text.count(": rank 1 stands\n") == 1 and "test_stacks.py" in text
    assert said == [f"where this rank stands meanwhile is in {stacks.path}"]
    watch._tell(70.0)
    assert asked == [2]  # it has said by then where its own are
    assert not HangWatch("go-on", 60.0, lambda: 5, None, said.append).write_stacks("rank 1 stands")


def stacks_in(told: str) -> dict[str, str]:
    """What lies where the lines say that stacks are, by rank."""
    lines = re.findall(r"rank (\d) of 2 on \S+: .* (?:in|are in) (\S+?stacks\S*?)(?::|$)", told, re.MULTILINE)
    return {rank: Path(place).read_text() for rank, place in lines}


@pytest.mark.cluster
@pytest.mark.fault("hang", 17)
@pytest.mark.parametrize("rank", [0, 1])
def test_where_one_rank_stands_all_write_their_stacks(rank: int, script: Write, overdrive: Run) -> None:
    path = script(acting(f"if rank == {rank}: time.sleep(60)"))
    told = overdrive(*WATCHED, "train.py", cwd=path.parent)
    assert told.returncode == 75, told.stderr
    found = stacks_in(told.stderr)
    assert found.keys() == {"0", "1"}, told.stderr
    assert all('train.py", line' in text for text in found.values())
    assert " in act" in found[str(rank)] and " in act" not in found[str(1 - rank)]
    assert not left_in(path.parent)


@pytest.mark.fault("hang", 17)
@pytest.mark.parametrize("theirs", [[7, "a model's result", 50.0, 0], [6, "a seed", 50.0, 0]])
@pytest.mark.parametrize("wished", [True, False])
def test_where_all_wait_all_write_their_stacks_before_the_end(
    theirs: list[Any], wished: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the same thing or for different ones: none stands by itself."""
    told: dict[str, str] = {}
    happened: list[str] = []
    store: Any = SimpleNamespace(
        set=told.__setitem__, check=lambda keys: keys[0] in told, get=lambda key: told[key].encode()
    )

    def end(sentence: str) -> None:
        happened.append("ended")
        raise SystemExit

    monitor = Monitor(store, 0, 2, end)
    monitor.stop()
    monkeypatch.setattr(time, "sleep", lambda seconds: happened.append(f"asked {json.loads(told['beat/0'])['asks']}"))

    def write(why: str) -> bool:
        happened.append("written")
        return wished

    monitor.write_stacks = write
    monitor._waits = 7, "a model's result", time.monotonic() - 50.0, 0
    told["beat/1"] = json.dumps({"host": "", "process": 1, "step": 0, "count": 1, "waits": theirs})
    with pytest.raises(SystemExit):
        monitor._look()
    assert happened == (["written", "asked 1", "ended"] if wished else ["written", "ended"])


@pytest.mark.cluster
@pytest.mark.survive
@pytest.mark.fault("hang")
def test_in_a_run_that_survives_each_rank_has_a_file(script: Write, overdrive: Run) -> None:
    path = script(acting("if rank == 1: time.sleep(60)"))
    told = overdrive(*WATCHED, "--survive=run", "train.py", cwd=path.parent)
    assert "no step and no batch for" in told.stderr, told.stderr
    for name in ("stacks.txt", "stacks-1.txt"):
        assert 'train.py", line' in (path.parent / "run" / name).read_text(), name
    assert " in act" in (path.parent / "run" / "stacks-1.txt").read_text()
