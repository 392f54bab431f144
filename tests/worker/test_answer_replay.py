"""Which calls of a program that only answers were given the same, by all that they were given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from overdrive.evidence.agreement import judge
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
