"""Who overrides functions of PyTorch is told of those that it finds in `torch`, where ours stand in their place."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import fx  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from overdrive.seams.hub import Seams  # noqa: E402

CALLS = {  # how each is called with something in a tensor's place
    "conv1d": lambda call, x: call(x, x),
    "conv2d": lambda call, x: call(input=x, weight=x),
    "max_pool2d": lambda call, x: call(x, 2),
    "batch_norm": lambda call, x: call(x, x, x, x, x, True, 0.1, 1e-5, False),
    "reshape": lambda call, x: call(x, (1,)),
    "dropout": lambda call, x: call(x, 0.5, True),
    "multinomial": lambda call, x: call(x, 1),
    "allclose": lambda call, x: call(x, x),
    "equal": lambda call, x: call(x, x),
    "masked_select": lambda call, x: call(x, x),
    "scaled_dot_product_attention": lambda call, x: call(x, x, x),
}
ALONE = ("flatten", "ravel", "rand_like", "bernoulli", "normal", "poisson", "is_nonzero", "nonzero", "argwhere")
ALONE_TOO = ("where", "unique", "unique_consecutive", "bincount", "repeat_interleave", "one_hot")


class Told:
    """As a quantised tensor, or one with units."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func


def found(name: str) -> Any:
    return getattr(torch, name, None) or getattr(F, name)


@pytest.mark.parametrize("name", [*CALLS, *ALONE, *ALONE_TOO])
def test_a_class_knows_the_function_that_it_is_told_of(all_in_place: Seams, name: str) -> None:
    """It kept `torch.conv2d` in a table, was told of another function, and took it for one that it does not have."""
    call = CALLS.get(name, lambda call, x: call(x))
    assert call(found(name), Told()) is found(name)


def test_a_class_knows_it_beside_a_default_device(all_in_place: Seams) -> None:
    """Which is a mode that is to be told of PyTorch's own functions: a class behind it is not."""
    with torch.device("cpu"):
        assert torch.flatten(Told()) is torch.flatten and torch.rand_like(Told()) is torch.rand_like
        assert torch.rand(2).shape == (2,)


def test_a_name_of_an_argument_is_pytorchs_own(all_in_place: Seams) -> None:
    """`one_hot(input=labels)` was refused."""
    labels, names = torch.tensor([0, 2]), ("input", "tensor")
    seen = [name for name in names if _takes(F.one_hot, **{name: labels})]
    assert seen == [name for name in names if _takes(F.one_hot.__wrapped__, **{name: labels})]
    assert F.one_hot(**{seen[0]: labels}, num_classes=4).shape == (2, 4) and F.one_hot(labels).shape == (2, 3)


def _takes(call: Any, **kwargs: Any) -> bool:
    try:
        return bool(call(**kwargs).shape == (2, 3))
    except TypeError:
        return False


class Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_so_does_a_mode_and_subscribers_are_asked_within_it(all_in_place: Seams) -> None:
    asked: list[str] = []
    all_in_place.random_drawn.subscribe(lambda name, *_: asked.append(name))
    x = torch.ones(2, 1, 4, 4)
    with Counting() as mode:
        torch.conv2d(x, x[:1])
        torch.bernoulli(x)
    assert torch.conv2d in mode.seen and torch.bernoulli in mode.seen
    assert asked == ["bernoulli"]


def test_a_mode_of_ours_is_told_of_pytorchs_own_when_subscribers_have_been_asked(all_in_place: Seams) -> None:
    asked: list[str] = []
    all_in_place.random_drawn.subscribe(lambda name, *_: asked.append(name))
    ours = type("Ours", (Counting,), {"__module__": "overdrive.somewhere"})
    with ours() as mode:
        torch.bernoulli(torch.ones(2))
    assert not any(each is torch.bernoulli for each in mode.seen) and asked == ["bernoulli"]


def test_what_is_traced_is_found_by_its_function(all_in_place: Seams) -> None:
    """As by passes over graphs: `node.target is torch.flatten`."""
    graph = fx.symbolic_trace(lambda x, weight: torch.flatten(torch.conv2d(x, weight), 1))
    assert [each.target for each in graph.graph.nodes if each.op == "call_function"] == [torch.conv2d, torch.flatten]
    x, weight = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    assert torch.equal(graph(x, weight), torch.conv2d(x, weight).flatten(1))
    assert "torch.conv2d(x, weight)" in graph.code


def test_a_subclass_that_overrides_nothing_stays_one(all_in_place: Seams) -> None:
    class Own(torch.Tensor):
        pass

    x = torch.ones(1, 1, 3, 3).as_subclass(Own)
    assert type(torch.conv2d(x, x)) is Own and type(torch.where(x > 0)[0]) is Own
    assert type(torch.rand_like(x)) is Own
