"""What a batch is told by: elements from all over it, not its beginning."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from overdrive.worker.digests import MOST_SKETCHED, spacing
from overdrive.worker.torch.checksums import checksum
from overdrive.worker.torch.digests import slots_of
from overdrive.worker.torch.sketch import sketch


def batch(rows: int, side: int) -> torch.Tensor:
    return torch.randn(rows, 3, side, side, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("rows", "side"), [(4, 16), (32, 64), (32, 224), (32, 256)])
def test_samples_behind_the_first_ones_are_seen(rows: int, side: int) -> None:
    """The first 1 MiB decided, of 32 pictures the first two: any other might be stale."""
    first, other = batch(rows, side), batch(rows, side)
    other[rows - 1] = other[1]
    assert checksum(first) == checksum(batch(rows, side)) != checksum(other)
    assert any(abs(a - b) > 1e-4 for a, b in zip(sketch(first), sketch(other), strict=True))
    assert sketch(first) == sketch(batch(rows, side))


def test_rounding_hardly_moves_a_sketch() -> None:
    whole = batch(32, 224)
    moved = [abs(a - b) for a, b in zip(sketch(whole), sketch(whole.bfloat16().float()), strict=True)]
    assert max(moved) < 0.02


@pytest.mark.parametrize("count", [1, MOST_SKETCHED, MOST_SKETCHED + 1, 2 * MOST_SKETCHED, 96 * MOST_SKETCHED])
def test_all_parts_of_an_array_are_looked_at(count: int) -> None:
    seen = np.arange(count)[:: spacing(count)]
    assert 1 <= len(seen) <= MOST_SKETCHED
    assert seen[-1] >= count - 2 * spacing(count) and spacing(count) % 2


def test_odd_tensors_have_a_checksum() -> None:
    for each in (
        torch.empty(0, 3),
        torch.tensor(True),
        torch.tensor(2),
        torch.zeros(3, 4).t(),
        torch.zeros(2).bfloat16(),
    ):
        assert checksum(each) == checksum(each.clone())


def _others(layout: str, values: torch.Tensor) -> torch.Tensor:
    match layout:
        case "coo" | "csr":
            matrix = torch.sparse_coo_tensor(torch.tensor([[0, 1, 3], [2, 0, 3]]), values, (4, 4)).coalesce()
            return matrix if layout == "coo" else matrix.to_sparse_csr()
        case _:
            kind = torch.jagged if layout == "jagged" else torch.strided
            return torch.nested.nested_tensor([values[:1], values[1:]], layout=kind)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout", ["coo", "csr", "nested", "jagged"])
def test_a_sparse_or_nested_tensor_that_a_model_is_given_is_told_as_any_other(layout: str) -> None:
    """A graph network is given its adjacency so: its digest log failed, and with it each proof of such a program."""
    values = torch.tensor([0.5, 1.25, -2.0])
    (one,), (same,), (rounded,), (other,) = (
        slots_of((_others(layout, each),), {})
        for each in (values, values.clone(), values * (1 + 1e-6), torch.tensor([0.5, -2.0, 1.25]))
    )
    assert one == same and len(one) == 4
    assert one[0] != rounded[0] and one[1:] == pytest.approx(rounded[1:], abs=1e-5)
    assert abs(one[1] - other[1]) > 0.1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_where_the_values_of_a_sparse_matrix_lie_is_part_of_its_sketch() -> None:
    matrix = _others("coo", torch.ones(3))
    assert sketch(matrix)[0] == sketch(matrix * 2)[0] != sketch(matrix.t().coalesce())[0]
