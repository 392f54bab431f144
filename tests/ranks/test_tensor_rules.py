"""How ranks compute with parts: each function gives what it gives of the whole, and so do its gradients."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

from overdrive.techniques.parallel.tensor_parallel import roles, rules, shards, turns  # noqa: E402
from overdrive.techniques.parallel.tensor_parallel.cuts import Cut  # noqa: E402
from overdrive.techniques.parallel.tensor_parallel.parts import Part, part_from, whole_of  # noqa: E402

assert rules  # importing them registers them
MATRIX = torch.randn(6, 6, dtype=torch.float64)


class Noting(turns.InTurns):
    """Notes what had to be gathered."""

    def __init__(self, size: int) -> None:
        super().__init__(size, roles.Roles(size))
        self.why: list[str] = []

    def gathered(self, makers: Any, why: str, segments: Any) -> None:
        self.why.append(why)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    shards.call_over()


def of_both(call: Callable[..., Any], whole: torch.Tensor, cut: Cut, ranks: int) -> tuple[list[Any], list[str]]:
    """What `call` gives on each rank, in one piece, with its gradient; and what was gathered."""
    them = Noting(ranks)
    end = shards.divided_by(them)

    def work() -> tuple[Any, Any]:
        x = whole.clone().requires_grad_(whole.is_floating_point())
        made = call(part_from(cut.part(shards.entered(x), them.rank, ranks), cut, {"x"}))
        made = made[0] if isinstance(made, tuple) else made
        kept = isinstance(made, Part)
        made = whole_of(made)
        return made.detach(), torch.autograd.grad(weighed(made), x)[0], kept

    try:
        return them.run(work), them.why
    finally:
        end()


def weighed(made: torch.Tensor) -> torch.Tensor:
    return (made * torch.linspace(1, 2, made.numel(), dtype=torch.float64).view(made.shape)).sum()


# What is called with a part of four rows and six columns (times three), how it is divided, and whether it stays so.
CALLS: dict[str, tuple[Callable[..., Any], Cut, bool]] = {
    "arithmetic": (lambda x: (2 * x - x / 3).relu() + x**2, Cut(1, (6,)), True),
    "with a whole of its size": (lambda x: x[..., 0] * MATRIX[:4], Cut(1, (6,)), True),
    "with a whole of one row": (lambda x: x * MATRIX[:, :1], Cut(1, (6,)), True),
    "where": (lambda x: torch.where(x > 0, x, x.new_zeros(())), Cut(1, (6,)), True),
    "view apart": (lambda x: x.view(4, 2, 3, 3), Cut(1, (6,)), True),
    "view together": (lambda x: x.reshape(4, 18), Cut(1, (6,)), True),
    "view back": (lambda x: x.transpose(0, 1).reshape(2, 3, 4, 3).reshape(6, 4, 3), Cut(1, (6,)), True),
    "view across": (lambda x: x.view(4, 3, 2, 3), Cut(1, (6,)), False),
    "view of segments": (lambda x: x.view(4, 3, 2, 3), Cut(1, (2, 2, 2)), True),
    "rows merged": (lambda x: x.transpose(0, 1).reshape(24, 3), Cut(1, (6,)), True),
    "rows merged within": (lambda x: x.reshape(24, 3).view(4, 2, 3, 3), Cut(1, (6,)), True),
    "permute": (lambda x: x.permute(2, 0, 1).unsqueeze(1).mT, Cut(1, (6,)), True),
    "flatten": (lambda x: x.flatten(1), Cut(1, (6,)), True),
    "a row": (lambda x: x[1], Cut(1, (6,)), True),
    "some columns": (lambda x: x[:, 1:4], Cut(1, (6,)), False),
    "some of another": (lambda x: x[1:3, :, ..., None], Cut(1, (6,)), True),
    "by a tensor": (lambda x: x[:, torch.tensor([0, 5])], Cut(1, (6,)), False),
    "squeezed": (lambda x: x[:, :2].narrow(1, 0, 2).squeeze(), Cut(1, (6,)), False),
    "chunks of segments": (lambda x: operator.mul(*x.chunk(2, 1)), Cut(1, (3, 3)), True),
    "chunks of one": (lambda x: operator.mul(*x.chunk(2, 1)), Cut(1, (6,)), False),
    "joined": (lambda x: torch.cat([x, MATRIX[:4, :, None].expand(4, 6, 3)], 1), Cut(1, (6,)), True),
    "joined beside": (lambda x: torch.cat([x, x], 2), Cut(1, (6,)), True),
    "stacked": (lambda x: torch.stack([x, x * 2], 1), Cut(1, (6,)), True),
    "expanded": (lambda x: x[:, None].expand(4, 5, 6, 3), Cut(1, (6,)), True),
    "repeated": (lambda x: x.repeat_interleave(2, 1), Cut(1, (6,)), True),
    "repeated, of segments": (lambda x: x.repeat_interleave(2, 1), Cut(1, (2, 4)), True),
    "sum over all of it": (lambda x: x.sum((0, 1)), Cut(1, (6,)), False),
    "mean over all of it": (lambda x: x.mean(1, keepdim=True), Cut(1, (6,)), False),
    "mean beside": (lambda x: x.mean(0), Cut(1, (6,)), True),
    "largest beside": (lambda x: x.max(2), Cut(1, (6,)), True),
    "softmax beside": (lambda x: x.softmax(-1), Cut(1, (6,)), True),
    "softmax over it": (lambda x: F.softmax(x, 1), Cut(1, (6,)), False),
    "norm beside": (lambda x: F.layer_norm(x, (3,), MATRIX[0, :3], MATRIX[1, :3]), Cut(1, (6,)), True),
    "norm over it": (lambda x: F.layer_norm(x, (6, 3)), Cut(1, (6,)), False),
    "groups": (lambda x: F.group_norm(x, 2, MATRIX[0], MATRIX[1]), Cut(1, (6,)), True),
    "groups across": (lambda x: F.group_norm(x, 1, MATRIX[0], MATRIX[1]), Cut(1, (6,)), False),
    "linear, summed": (lambda x: F.linear(x.mT, MATRIX, MATRIX[0]), Cut(1, (6,)), False),
    "products of rows": (lambda x: MATRIX @ x, Cut(1, (6,)), False),
    "products of batches": (lambda x: x.transpose(0, 1) @ MATRIX[:3, :3], Cut(1, (6,)), True),
    "einsum": (lambda x: torch.einsum("bcs,cd->bcds", x, MATRIX), Cut(1, (6,)), True),
    "einsum, summed": (lambda x: torch.einsum("bcs,cd->bds", x, MATRIX), Cut(1, (6,)), False),
    "pool": (lambda x: F.avg_pool1d(x, 3), Cut(1, (6,)), True),
    "pad": (lambda x: F.pad(x, (1, 1)), Cut(1, (6,)), True),
    "pad across": (lambda x: F.pad(x, (0, 0, 1, 1)), Cut(1, (6,)), False),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2.0), Cut(1, (6,)), True),
    "has no rule": (lambda x: x.cumprod(1).flip(1), Cut(1, (6,)), False),
}


@pytest.mark.parametrize("name", CALLS)
def test_ranks_compute_what_one_process_does(name: str) -> None:
    call, cut, stays = CALLS[name]
    torch.manual_seed(0)
    whole = torch.randn(4, 6, 3, dtype=torch.float64)
    x = whole.clone().requires_grad_()
    expected = call(x)
    expected = expected[0] if isinstance(expected, tuple) else expected
    (gradient,) = torch.autograd.grad(weighed(expected), x)
    for made, own, kept in of_both(call, whole, cut, 2)[0]:
        assert torch.allclose(made, expected, rtol=1e-12, atol=1e-12)
        assert torch.allclose(own, gradient, rtol=1e-12, atol=1e-12)
        assert kept is stays


def test_what_is_gathered_is_named() -> None:
    _, why = of_both(lambda x: x.softmax(1), torch.randn(4, 6, dtype=torch.float64), Cut(1, (6,)), 2)
    assert why[0] == "`softmax` needs all that it gives"


def test_parts_of_a_vocabulary_need_not_be_equal() -> None:
    for size, ranks in ((7, 2), (7, 3), (5, 4)):
        cut, whole = Cut(0, (size, 2 * size)), torch.arange(3 * size)
        parts = [cut.part(whole, rank, ranks) for rank in range(ranks)]
        assert [len(each) for each in parts] == [cut.held(rank, ranks) for rank in range(ranks)]
        assert torch.equal(cut.joined(torch.cat(parts), ranks), whole)
