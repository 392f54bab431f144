"""Arguments and results of calls, taken apart and put together again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from overdrive.techniques.compile.cuda_graphs.flat import flattened, parts_of, result_of, unflattened

X, Y = torch.zeros(2), nn.Parameter(torch.ones(3))
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((X,), {}),
    ((X, Y, None, 2, True), {}),
    ((), {"x": X}),
    (((X, Y), [2]), {}),
    (({"x": X, "y": (Y, 1.5)},), {"mask": None}),
]


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_a_call_is_what_it_was(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    leaves, form = flattened(args, kwargs)
    assert all(isinstance(leaf, (torch.Tensor, bool, int, float, type(None))) for leaf in leaves)
    assert repr(unflattened(leaves, form)) == repr((args, kwargs))
    parts, of_result = parts_of(args)
    assert repr(result_of(parts, of_result)) == repr(args)


def test_calls_of_other_forms_are_told_apart() -> None:
    forms = [flattened(*each)[1] for each in CALLS]
    assert [[one == other for other in forms] for one in forms] == [[i == j for j in range(5)] for i in range(5)]
    assert flattened((Y, X, 1, 2.0, "a"), {})[1] == forms[1]


def test_a_result_that_is_one_tensor_is_that() -> None:
    assert result_of(*parts_of(X)) is X
    (part,), form = parts_of(Y)  # a parameter, by PyTorch's trees
    assert result_of([part], form) is Y
