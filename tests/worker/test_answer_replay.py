"""Which calls of a program that only answers were given the same, by all that they were given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.evidence import rounding
from overdrive.evidence.agreement import judge
from overdrive.evidence.replayed import TensorRow, rows_of, usable
from overdrive.worker.observers import make_replay
from overdrive.worker.session import Session

CALLS = tuple(range(1, 13))


class Compares(nn.Module):
    """As a CLIP does: pictures with words, which are the same in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.pictures = nn.Embedding(8, 4), nn.Linear(6, 4)

    def forward(self, words: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
        return self.pictures(pictures) @ self.words(words).mean(1).T


def answers(role: str, folder: Path, rows: int = 5, same: bool = False) -> dict[str, Any]:
    torch.manual_seed(0)
    model, words = Compares(), torch.randint(8, (3, 2))
    replay = make_replay("torch", role, CALLS, folder, inference=True)
    with Session([], [replay], inference=True) as session, torch.no_grad():
        for call in CALLS:
            torch.manual_seed(0 if same else call)
            model(words, torch.randn(rows, 6))
    assert not session.seams.left_out, session.seams.left_out
    return replay.report()


def test_calls_that_differ_in_their_second_argument_are_no_repetitions(tmp_path: Path) -> None:
    """Of twelve calls one was compared, so that nothing could be told."""
    answers("answers", tmp_path)
    told = answers("agreement", tmp_path)
    assert told["repeated"] == [] == told["other_inputs"]
    found = judge(told, 0.05)
    assert found.record is not None and found.record.samples == 12 * 5 and found.holds, found.sentence


def test_calls_that_were_given_the_same_count_once(tmp_path: Path) -> None:
    answers("answers", tmp_path, same=True)
    assert answers("agreement", tmp_path, same=True)["repeated"] == list(CALLS[1:])


def test_a_call_whose_second_argument_has_another_form_says_nothing(tmp_path: Path) -> None:
    answers("answers", tmp_path)
    assert answers("agreement", tmp_path, rows=6)["other_inputs"] == list(CALLS)


class Masked(nn.Module):
    """Scores, of which one is impossible."""

    def __init__(self, off: float) -> None:
        super().__init__()
        self.layer, self.off = nn.Linear(6, 4), off

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) * (1 + self.off)).masked_fill(torch.arange(4) == 2, -torch.inf)


def test_masked_scores_are_compared_where_they_are_finite(tmp_path: Path) -> None:
    """The distance between two infinities is no number, and whatever the other scores were, they passed."""

    def rows(role: str, off: float = 0.0) -> list[TensorRow]:
        torch.manual_seed(0)
        model = Masked(off)
        replay = make_replay("torch", role, CALLS, tmp_path, inference=True)
        with Session([], [replay], inference=True) as session, torch.no_grad():
            for _ in CALLS:
                model(torch.randn(5, 6))
        assert not session.seams.left_out, session.seams.left_out
        return rows_of(replay.report())

    rows("reference")
    own = rows("candidate")
    assert usable(own) is None
    same, other = rounding.judge(own, own), rounding.judge(own, rows("candidate", 0.01))
    assert same.holds and same.record.tensors == 1 and other.holds is False, (same.sentence, other.sentence)


class WithItsCache(nn.Module):
    """A GPT answers with two tensors a layer besides its scores."""

    def __init__(self, off: float) -> None:
        super().__init__()
        self.layer, self.off = nn.Linear(6, 4), off

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        scores = self.layer(x)
        return [*[scores + each for each in range(24)], scores * (1 + self.off)]


@pytest.mark.parametrize("reference, role", [("reference", "candidate"), ("answers", "agreement")])
def test_all_tensors_of_an_answer_are_compared(reference: str, role: str, tmp_path: Path) -> None:
    """Of twenty-five the first sixteen were."""

    def run(role: str, off: float = 0.0) -> dict[str, Any]:
        replay = make_replay("torch", role, CALLS, tmp_path, inference=True)
        torch.manual_seed(0)
        model = WithItsCache(off)
        with Session([], [replay], inference=True) as session, torch.no_grad():
            for _ in CALLS:
                model(torch.randn(50, 6))
        assert not session.seams.left_out, session.seams.left_out
        return replay.report()

    run(reference)
    own, off = run(role), run(role, 0.5)
    if role == "agreement":
        assert judge(own, 0.05).holds and judge(off, 0.05).holds is False
        return
    same, other = rounding.judge(rows_of(own), rows_of(own)), rounding.judge(rows_of(own), rows_of(off))
    assert same.holds and same.record.tensors == 25, same.sentence
    assert other.holds is False and "tensor 25" in other.sentence, other.sentence
