"""What stands in the place of a function in C is one to Python, TorchScript and the compiler, too: a class that has it
does not hand itself over."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from overdrive.core.in_place import InPlace  # noqa: E402
from overdrive.seams.hub import Seams  # noqa: E402

IN_C = [
    *((torch, name) for name in ("equal", "flatten", "where", "dropout", "conv2d", "max_pool2d", "nonzero", "randn")),
    *((F, name) for name in ("one_hot", "scaled_dot_product_attention")),
]


@pytest.mark.parametrize(("holder", "name"), IN_C, ids=[name for _, name in IN_C])
def test_it_is_as_the_one_in_c(holder: Any, name: str, request: pytest.FixtureRequest) -> None:
    plain = getattr(holder, name)
    request.getfixturevalue("all_in_place")
    ours = getattr(holder, name)
    kind = type("Kind", (), {"call": ours})
    assert isinstance(plain, types.BuiltinFunctionType) and ours is not plain
    assert kind().call is ours and kind.call is ours
    assert (ours.__name__, ours.__doc__, repr(ours)) == (plain.__name__, plain.__doc__, repr(plain))
    assert ours == plain and plain == ours and {plain: 1}[ours] == 1
    assert pickle.loads(pickle.dumps(ours)) is ours and copy.deepcopy([ours]) == [ours]
    with pytest.raises(ValueError):
        inspect.signature(plain)
    with pytest.raises(ValueError):
        inspect.signature(ours)


class Judged:
    """As a base class of metrics."""

    same = torch.equal

    def __init_subclass__(cls) -> None:
        cls.same = torch.equal


def test_a_class_may_have_it(all_in_place: Seams) -> None:
    """`self.same(a, b)` handed over three things."""
    assert type("Kind", (Judged,), {})().same(torch.ones(2), torch.ones(2)) is True


class Block(nn.Module):
    """Has one as an attribute of its class, and one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = torch.dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.flat(x, 1), 0.5, False) + 1

    @classmethod
    def made(cls) -> Block:
        cls.flat = torch.flatten  # type: ignore[attr-defined]
        return cls()


@pytest.fixture
def block(all_in_place: Seams) -> Block:
    return Block.made()


def test_a_model_may_have_it_and_is_saved(block: Block) -> None:
    x = torch.ones(2, 3, 4)
    assert torch.equal(block(x), torch.full((2, 12), 2.0))
    file = io.BytesIO()
    torch.save(block, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), block(x))


def flat(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, torch.flatten(x), torch.zeros(1)) if torch.equal(x, x) else x


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flat = torch.flatten

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.flat(x, 1)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_torchscript_takes_it(all_in_place: Seams) -> None:
    """A module's own attribute it took for a function written in Python."""
    assert torch.jit.script(flat)(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
    assert torch.jit.script(Scripted())(torch.ones(2, 3, 4)).shape == (2, 12)


def test_the_compiler_finds_the_one_in_c(block: Block) -> None:
    """In its graph, as if there were none of ours. `fullgraph`: nothing of it is left to Python."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, weight)
        y = torch.flatten(torch.where(y > 0, y, torch.zeros_like(y)), 1)
        return y + F.one_hot(torch.tensor([0]), y.shape[1]) + torch.dropout(y, 0.5, False)

    torch.compiler.reset()
    x, weight = torch.randn(1, 1, 5, 5), torch.randn(1, 1, 3, 3)
    for call, given in ((forward, (x, weight)), (block, (x,))):
        compiled = torch.compile(call, backend=backend, fullgraph=True)
        assert torch.equal(compiled(*given), call(*given))
    targets = [each.target for graph in graphs for each in graph.graph.nodes if each.op == "call_function"]
    assert torch.flatten in targets and not any(isinstance(each, InPlace) for each in targets)
    assert all("overdrive" not in str(getattr(each, "__globals__", {}).get("__name__")) for each in targets)
