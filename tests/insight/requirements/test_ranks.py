"""How long a step takes under a layout: ranks that imagine the others, over links whose cost is known by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.warm_trials import warm_trials

torch = pytest.importorskip("torch")
from overdrive.cli.layout import technique_of  # noqa: E402
from overdrive.core.link import Link  # noqa: E402
from overdrive.core.program import Program  # noqa: E402
from overdrive.core.rank_notes import STEP, Note  # noqa: E402
from overdrive.core.requirements_result import RankLayout  # noqa: E402
from overdrive.insight.requirements import ranks as planner  # noqa: E402
from overdrive.insight.requirements.needs import Needs  # noqa: E402
from overdrive.insight.requirements.ranks import (  # noqa: E402
    CannotForetell,
    Ranks,
    foretold,
    may_be_measured,
    ranks_of,
    reckoned,
    with_steps,
)
from overdrive.insight.requirements.unlike import step_of  # noqa: E402
from overdrive.trials import pool  # noqa: E402

# Takes 2 ms a sample in each layer.
SLOW = """
import torch
from time import sleep

class Slow(torch.nn.Linear):
    def forward(self, x):
        sleep(len(x) * 2e-3)
        return super().forward(x)

torch.manual_seed(0)
model = torch.nn.Sequential(Slow(299, 50), torch.nn.ReLU(), Slow(50, 401, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):
    x, y = torch.randn(64, 299), torch.randint(401, (64,))
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""
WEIGHTS = 4 * (299 * 50 + 50 + 50 * 401)
RESULTS = 4 * 64 * 401
SLOT = 2048  # bytes of a rank's words


@dataclass(frozen=True)
class Seconds:
    """An exchange of anything takes so long."""

    each: float
    busy: float = 0.0

    def seconds(self, operation: str, size: int, ranks: int) -> float:
        return self.each


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[Note]]:
    """What the ranks of the last layout noted. Trials are forked."""
    monkeypatch.setattr(pool, "LocalLauncher", warm_trials)
    found: dict[int, list[Note]] = {}

    def seen(*what: Any) -> Any:
        notes, said = take_notes(*what)
        found.clear()
        found.update(notes)
        return notes, said

    take_notes = planner.noted
    monkeypatch.setattr(planner, "noted", seen)
    return found


def exchanges(notes: list[Note]) -> Counter[tuple[str, int]]:
    """What one step exchanges, and how often: by operation and bytes, without words."""
    steps = sum(note.operation == STEP for note in notes)
    found = Counter((each.operation, each.bytes) for each in notes if each.operation not in ("", STEP))
    assert all(count % steps == 0 for (_, size), count in found.items() if size % SLOT), found
    return Counter({key: count // steps for key, count in found.items() if key[1] % SLOT})


def slow(script: Callable[..., Path], steps: int = 60) -> Program:
    return Program(str(script(SLOW.replace("STEPS", str(steps)))))


def over(link: float, count: int) -> Ranks:
    return Ranks(count, Seconds(link), False, "")


def test_a_batch_over_32_ranks_of_which_one_is_there(script: Callable[..., Path], noted: dict[int, list[Note]]) -> None:
    step = foretold(slow(script), technique_of("data=32", 32), over(0.05, 32))
    assert exchanges(noted[0]) == {("all_reduce", WEIGHTS): 1, ("all_gather", RESULTS): 1}
    assert {note.members for note in noted[0] if note.operation not in ("", STEP)} == {tuple(range(32))}
    # Words for the results and the results, words for which gradients there are, beside which these are summed.
    apart = step_of(noted, Seconds(0.05), 32)
    assert apart.network == pytest.approx(3 * 0.05, rel=0.05)
    # Beside that a rank waits for the slowest of this step.
    assert step.seconds * step.communication == pytest.approx(apart.network + apart.slowest) and apart.slowest >= 0
    # Of 64 samples it has two, in two layers.
    assert 2 * 2 * 2e-3 < step.seconds * (1 - step.communication) < 0.5 * 64 * 2 * 2e-3, "a part of one process's"


def test_what_was_noted_once_is_reckoned_over_any_network() -> None:
    steps = [Note(3.0, "all_reduce", 0, 8, "row", (0, 1)), Note(0.0, "", 0), Note(0.0, STEP)]
    over_links = [reckoned({0: steps}, ("said",), over(link, 2)) for link in (0.0, 2.0)]
    assert [each.seconds for each in over_links] == pytest.approx([3.0, 5.0])
    assert [each.communication for each in over_links] == pytest.approx([0.0, 2 / 5])
    assert over_links[0].said == ("said",)


def test_stages_are_measured_one_after_the_other(script: Callable[..., Path], noted: dict[int, list[Note]]) -> None:
    step = foretold(slow(script), technique_of("pipeline=2", 2), over(0.0, 2), stages=2)
    assert set(noted) == {0, 1}
    micro = 64 // 4
    sent = Counter(note.bytes for note in noted[0] if note.operation == "send")
    received = Counter(note.bytes for note in noted[1] if note.operation == "receive")
    assert set(sent) == {4 * micro * 50} and sent == received, "what the first stage makes of a micro-batch"
    assert "2 stages on 2 ranks" in step.said[0] and "in 4 micro-batches" in step.said[0]
    # Each rank goes through all of the code: it sleeps in both layers.
    assert step.seconds > 64 * 2 * 2e-3


def test_a_mesh_and_layers_in_parts_and_shares(script: Callable[..., Path], noted: dict[int, list[Note]]) -> None:
    program = slow(script)
    mesh = foretold(program, technique_of("data=2,pipeline=2", 4), over(0.0, 4), stages=2)
    assert "2 replicas of 2 stages" in mesh.said[0]
    columns = {note.members for note in noted[1] if note.channel.startswith("column") and note.operation}
    assert columns == {(1, 3)}, "the same stage of both rows"
    foretold(program, technique_of("tensor=2", 2), over(0.0, 2))
    assert exchanges(noted[0]) == {("all_reduce", RESULTS): 1}, "the second layer's results, which are sums"
    foretold(program, technique_of("shard=2", 2), over(0.0, 2))
    first, last = ("all_gather", 4 * (299 * 50 + 50)), ("all_gather", 4 * 50 * 401)
    found = exchanges(noted[0])
    assert found[first] >= 1 and found[last] >= 1, "a layer's weights are gathered"


def test_of_stages_that_made_different_numbers_of_steps_the_same_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick stage is measured for more steps; messages are numbered from the start."""

    def stage(pool: object, program: object, technique: object, ranks: int, started: range, most: object) -> object:
        (rank,) = started
        kind, seconds, steps = (("send", 3.0, 21), ("receive", 1.0, 9))[rank]
        notes = []
        for step in range(steps):
            notes += [Note(seconds, kind, step, 8, "row", (0, 1), step), Note(0.0, "", step), Note(0.0, STEP)]
        return {rank: notes}, ()

    monkeypatch.setattr(planner, "_noted", stage)
    step = foretold(Program("x.py"), technique_of("pipeline=2", 2), over(2.0, 2), stages=2)
    assert step.seconds == pytest.approx(5.0), "each sends one after the other"
    assert step.communication == pytest.approx(1 - (3 + 1) / 2 / 5)


def test_a_program_of_few_steps_is_told(script: Callable[..., Path], noted: dict[int, list[Note]]) -> None:
    with pytest.raises(CannotForetell, match="came to an end"):
        foretold(slow(script, steps=5), technique_of("data=2", 2), over(0.0, 2))


# -- what is not foretold ----------------------------------------------------------------------------------------


def test_ranks_of_a_link_have_machines_of_their_own_and_more_than_cores_need_one() -> None:
    there = ranks_of(64, Link(1e9, 0.0, "8Gbit,0us"), quick=True)
    assert not there.together and there.name == "64 machines as this one, over 8Gbit,0us"
    with pytest.raises(CannotForetell, match=r"cores here for 100000 ranks: say how they are connected \(--link"):
        ranks_of(100_000, None, quick=True)


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ("tensor=64", "layers are not tried over more than 8 ranks"),
        ("data=8,pipeline=8", "more than 4 stages are not tried"),
    ],
)
def test_a_cell_is_empty_with_its_reason(layout: str, why: str) -> None:
    alone = RankLayout("one process", {}, 1, None, "", seconds=2.0, communication=0.0)
    asked = [alone, RankLayout(layout, {}, 1, None, "")]
    told = with_steps(Program("x.py"), asked, _never, over(0.0, 64))
    assert told[0] is alone
    assert (told[1].seconds, told[1].communication, told[1].why) == (None, None, why)


@pytest.mark.parametrize(
    ("told", "why"), [({"inference": True}, "trains nothing"), ({"device": "cuda"}, "on CPUs alone")]
)
def test_of_some_programs_no_rank_is_measured(told: dict[str, object], why: str) -> None:
    given = {"device": "cpu", "threads": 1, "memory": {}, "program": 0, "operators": ()}
    may_be_measured(Needs(**given))  # type: ignore[arg-type]
    with pytest.raises(CannotForetell, match=why):
        may_be_measured(Needs(**{**given, **told}))  # type: ignore[arg-type]


def _never(layout: str) -> planner.Chosen:
    raise AssertionError("nothing is started")
