"""What an exported graph tells of the values that it is right for in any library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from overdrive.engines.bounds import bounds_of, placing

TABLE = torch.randn(100, 4)
WHOLE = -(2.0**31), 2.0**31 - 1
TOLD: dict[str, tuple[Callable[..., Any], Any]] = {
    "a table": (lambda t: F.embedding(t, TABLE), (0, 99)),
    "a table, in another order": (lambda t: F.embedding(t.t()[:, :2].reshape(-1), TABLE), (0, 99)),
    "the smaller of two": (lambda t: F.embedding(t, TABLE) + F.embedding(t, TABLE[:30]), (0, 29)),
    "rows": (lambda t: TABLE.index_select(0, t[0]), (0, 99)),
    "places by indexing": (lambda t: TABLE[t], (0, 99)),
    "one index twice": (lambda t: TABLE[t[0] % 4, t[0] % 4], None),
    "gather": (lambda t: TABLE[:2].gather(1, t), (0, 3)),
    "and compared": (lambda t: F.embedding(t, TABLE) * (t != 0)[..., None], (0, 99)),
    "and positions by its length": (
        lambda t: F.embedding(t, TABLE) + F.embedding(torch.arange(t.shape[1]), TABLE),
        (0, 99),
    ),
    "and zeros of its size": (lambda t: F.embedding(t, TABLE) + F.embedding(torch.zeros_like(t), TABLE), (0, 99)),
    "and the best": (lambda t: TABLE[F.embedding(t, TABLE).argmax(-1)], (0, 99)),
    "and the first of those": (lambda t: TABLE[F.embedding(t, TABLE).topk(2).indices], (0, 99)),
    "as fractions": (lambda t: t.float() * 2, WHOLE),
    "places of its own making": (lambda t: TABLE[t + 1], None),
    "counted": (lambda t: TABLE[(t != 3).long().cumsum(1)], None),
    "changed before": (lambda t: F.embedding(t.masked_fill(t < 0, 0), TABLE), None),
    "products": (lambda t: t * 3, None),
}


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, given: torch.Tensor) -> Any:
        return self.function(given)


def graph_of(function: Callable[..., Any], given: torch.Tensor, varying: bool = False) -> Any:
    shapes = ({1: torch.export.Dim.AUTO},) if varying else None
    graph = torch.export.export(Function(function), (given,), {}, dynamic_shapes=shapes, strict=False)
    return graph.run_decompositions({})


def found(function: Callable[..., Any], given: torch.Tensor, varying: bool = False) -> Any:
    return bounds_of(graph_of(function, given, varying))


@pytest.mark.parametrize("what", TOLD)
def test_whole_numbers_are_bounded_where_the_graph_tells(what: str) -> None:
    function, ends = TOLD[what]
    assert found(function, torch.tensor([[0, 1, 2], [3, 2, 1]])) == {0: ends}


def test_a_length_that_varies_hides_nothing() -> None:
    assert found(TOLD["and positions by its length"][0], torch.zeros(2, 7, dtype=torch.int64), True) == {0: (0, 99)}


def test_fractions_have_no_ends_unless_they_become_places() -> None:
    x = torch.rand(3, 4)
    assert found(lambda x: torch.relu(x).sum(1).softmax(0), x) == {} and found(lambda x: x.argmax(1), x) == {}
    assert found(lambda x: TABLE[x.long()], x) == {0: None}


PLACING: dict[str, tuple[Callable[..., Any], bool]] = {
    "a column of codes": (lambda x: F.embedding(x[:, 0].long(), TABLE) + x[:, :4], True),
    "made of them": (lambda x: TABLE[(x * 10).round().int() * 2 + 1], True),
    "places that are written to": (lambda x: torch.zeros(3, 9).scatter(1, x.long(), 1.0), True),
    "labels": (lambda x: (x.sigmoid() > 0.5).long(), False),
    "rounded": (lambda x: x.round().long(), False),
    "lengths": (lambda x: x.sum(1, keepdim=True) / (x != 0).sum(1, keepdim=True), False),
    "one of two rows": (lambda x: TABLE[(x > 0).long()], False),
    "the best": (lambda x: TABLE[x.argmax(1)], False),
    "buckets": (lambda x: TABLE[torch.bucketize(x, torch.linspace(0, 1, 9))], False),
}


@pytest.mark.parametrize("what", PLACING)
def test_of_fractions_it_is_told_whether_places_are_made_of_them(what: str) -> None:
    function, expected = PLACING[what]
    assert placing(graph_of(function, torch.rand(3, 4))) == (frozenset({0}) if expected else frozenset())
