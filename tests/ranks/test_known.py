"""For which calls the way is taken that was found for others of a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from overdrive.model_state.division.call import CallToDivide  # noqa: E402
from overdrive.model_state.division.chance import Chance  # noqa: E402
from overdrive.model_state.division.losses import Losses  # noqa: E402
from overdrive.model_state.division.norms import Norms  # noqa: E402
from overdrive.model_state.division.tree import flatten  # noqa: E402
from overdrive.model_state.division.trial import find_way  # noqa: E402
from overdrive.model_state.division.way import Way  # noqa: E402
from overdrive.techniques.parallel.data_parallel.known import Kind, kind_of  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self, does: Callable[[Any], Any]) -> None:
        super().__init__()
        self.inner, self._does = torch.nn.Linear(4, 3), does

    def forward(self, x: Any) -> Any:
        return self._does(self.inner(x))


def tried(model: Any, rows: int, known: Kind) -> Kind:
    """With a trial of so many samples on two ranks."""
    leaves, build = flatten(((batch(rows),), {}))
    found = find_way(
        CallToDivide(
            *(model, model, leaves, build, 2, Chance(), Norms(None), Losses()), values=True, objects=True, by_hand=True
        )
    )
    return known.with_(Way.of_plain(json.loads(json.dumps(found))), model, leaves)


def batch(rows: int) -> Any:
    return torch.randn(rows, 4)


def taken(known: Kind, model: Any, *rows: int) -> list[int]:
    """For how many of these samples no trial is wanted."""
    return [each for each in rows if known.way(model, [batch(each)])]


@pytest.mark.parametrize(
    "does",
    [
        lambda made: made.sum(0) / min(len(made), 16),
        lambda made: made.sum(0) / max(len(made), 100),
        lambda made: made - made.mean(0),
        lambda made: made.square().sum() / len(made),
        lambda made: made / min(len(made), 16),
    ],
)
def test_a_way_is_tried_for_fewer_samples_and_for_more(does: Callable[[Any], Any]) -> None:
    """Such a number may be the same in a batch and in its parts, and not in other batches."""
    model = Model(does)
    known = tried(model, 64, Kind())
    assert taken(known, model, 20, 63, 64, 65, 256) == [64]
    known = tried(model, 40, known)
    assert taken(known, model, 20, 40, 50, 64, 65) == [40, 50, 64]
    known = tried(model, 80, known)
    assert taken(known, model, 20, 40, 64, 80, 81) == [40, 64, 80]


def test_what_is_beyond_what_was_tried_is_told() -> None:
    model = Model(lambda made: made.sum(0))
    known = tried(model, 16, Kind())
    assert known.beyond([batch(8)]) and not known.beyond([batch(16)]) and not Kind().beyond([batch(8)])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (0.0, 0.5, False),
        (1.0, 0.5, False),
        (0.3, 0.5, True),
        (0.0, -0.0, True),
        (0j, 1j, False),
        (torch.tensor(0.0), torch.tensor(0.5), False),
        (torch.tensor([1.0]), torch.tensor([0.5]), False),
        (torch.tensor(0.3), torch.tensor(0.5), True),
        (torch.tensor(0), torch.tensor(3), False),
        (3, 4, False),
        ("sum", "mean", False),
        (0.0, 0, False),
    ],
)
def test_zero_and_one_make_a_call_of_another_kind(one: Any, other: Any, same: bool) -> None:
    """They hide what they multiply, so that a trial shows nothing of it."""
    model = torch.nn.Linear(4, 3)
    kinds = [kind_of(model, [batch(8), each]) for each in (one, other)]
    assert (kinds[0] == kinds[1]) is same
