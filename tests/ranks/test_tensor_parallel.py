"""Layers divided over ranks: which are, how it is proved, and programs on two ranks (gloo, on this machine)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from overdrive.cli.layout import technique_of  # noqa: E402
from overdrive.techniques.parallel.tensor_parallel import layers, trial  # noqa: E402
from overdrive.techniques.parallel.tensor_parallel.pairs import candidates, refusal  # noqa: E402
from tests.conftest import Run  # noqa: E402
from tests.ranks.comparing import difference  # noqa: E402
from tests.ranks.tensor_programs import Dropped, Softmaxed, mlp  # noqa: E402

HERE = Path(__file__).parent
ROUNDING = 1e-9  # of numbers in fp64, after eight steps


@pytest.fixture(autouse=True)
def same_kind_of_numbers() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


def test_pairs_are_found_by_shapes_and_the_others_have_reasons() -> None:
    pairs, reasons = candidates(mlp(), 2)
    assert pairs == [("0", "2"), ("4", "5")] and reasons == {}
    pairs, reasons = candidates(mlp(), 4)
    assert pairs == [("0", "2"), ("4", "5")]
    pairs, reasons = candidates(nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 4), nn.Linear(5, 6)), 2)
    assert pairs == [] and "not a multiple of 2" in reasons["0"] and "no layer beside it" in reasons["2"]
    tied = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 8))
    tied[2].weight = tied[0].weight
    pairs, reasons = candidates(tied, 2)
    assert pairs == [] and reasons["0"] == "another module has its weights too"


class Matrices(torch.optim.SGD):
    """One of the program's own."""


def test_what_is_against_a_whole_model() -> None:
    model = mlp()
    assert refusal(model, [torch.optim.Adam(model.parameters())]) == ""
    assert "may look at more" in refusal(model, [Matrices(model.parameters(), lr=0.1)])
    assert "may look at more" in refusal(model, [torch.optim.LBFGS(model.parameters())])
    another = mlp()
    assert refusal(model, []) == "the program has a copy of it"
    del another
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    assert "scaled" in refusal(model, [])
    del scaler
    model(torch.ones(1, 6)).sum().backward()
    assert "gradients before" in refusal(model, [])
    handle = model[0].register_forward_hook(lambda *_: None)
    assert "hooks" in refusal(model, [])
    handle.remove()


def proved(model: nn.Module, ranks: int = 2) -> dict[str, Any]:
    torch.manual_seed(0)
    made = trial.ModelTrial(model, model, (torch.randn(5, 6),), {}, ranks)
    return made.found(candidates(model, ranks)[0])


@pytest.mark.parametrize("ranks", [2, 4])
def test_pairs_that_can_be_divided_are_proved(ranks: int) -> None:
    assert proved(mlp(), ranks) == {"pairs": [["0", "2"], ["4", "5"]], "reasons": {}}


def test_what_looks_at_several_outputs_or_draws_is_found() -> None:
    for kind in (Softmaxed, Dropped):
        found = proved(kind())
        assert found["pairs"] == [] and "what comes out differs" in found["reasons"]["one"]
    assert proved(Dropped().eval())["pairs"] == [["one", "two"]]


def test_one_pair_that_cannot_leaves_the_others() -> None:
    model = nn.Sequential(Softmaxed(), nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 6))
    found = proved(model)
    assert found["pairs"] == [["1", "3"]] and list(found["reasons"]) == ["0.one"]


def bias_on_each_rank(self: Any, input: Any) -> Any:
    return layers.Summed.apply(F.linear(input, layers.parts().part(self.weight, 1), self.bias))


def no_bias(self: Any, input: Any) -> Any:
    return layers.Summed.apply(F.linear(input, layers.parts().part(self.weight, 1)))


def not_summed(self: Any, input: Any) -> Any:
    return F.linear(input, layers.parts().part(self.weight, 1)) * 2 + self.bias


def parts_in_another_order(self: Any, input: Any) -> Any:
    them = layers.parts()
    rows = self.weight.flip(0)
    return F.linear(layers.Entered.apply(input), them.part(rows, 0), them.part(self.bias, 0))


def gradient_not_summed(self: Any, input: Any) -> Any:
    them = layers.parts()
    return F.linear(input, them.part(self.weight, 0), them.part(self.bias, 0))


@pytest.mark.parametrize(
    ("kind", "defect"),
    [
        ("RowLinear", bias_on_each_rank),
        ("RowLinear", no_bias),
        ("RowLinear", not_summed),
        ("ColumnLinear", parts_in_another_order),
        ("ColumnLinear", gradient_not_summed),
    ],
)
def test_seeded_defects_are_caught(kind: str, defect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getattr(layers, kind), "forward", defect)
    model = nn.Sequential(nn.Linear(6, 6), nn.Softmax(-1), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    torch.manual_seed(0)
    found = trial.ModelTrial(model, model, (torch.randn(5, 6),), {}, 2).found([("2", "4")])
    assert found["pairs"] == []


class Same:
    """Two ranks that have the same parts."""

    rank, size = 0, 2

    def part(self, tensor: Any, dim: int) -> Any:
        return tensor

    def sum_(self, tensor: Any) -> Any:
        return tensor * 2

    def gather(self, tensor: Any, dim: int) -> Any:
        return torch.cat((tensor.detach(), tensor.detach()), dim)


def test_states_and_pickles_are_whole_and_copies_are_parts() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    for each in (model[0].weight, model[0].bias):
        each.data[2:] = each.data[:2]
    model[2].weight.data[:, 2:] = model[2].weight.data[:, :2]
    before = {name: each.clone() for name, each in model.state_dict().items()}
    x, given = torch.randn(5, 3), list(model.parameters())
    expected = model(x)
    end = layers.divided_by(Same())
    try:
        divided = layers.divide((model[0], model[2]))
        assert [list(each.shape) for each in model.parameters()] == [[2, 3], [2], [2, 2], [2]]
        assert all(one is other for one, other in zip(given, model.parameters(), strict=True)) and len(divided) == 3
        made, copied, loaded = model(x), copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
        assert type(copied[0]) is layers.ColumnLinear and torch.equal(copied(x), made)
        assert copied[0].weight is not model[0].weight
        assert type(loaded[0]) is nn.Linear and torch.allclose(loaded(x), expected)
        model.load_state_dict({name: each + 1 for name, each in before.items()})
        assert torch.equal(model[0].weight, before["0.weight"][:2] + 1)
    finally:
        end()
    assert torch.allclose(made, expected)


def test_a_layout_is_a_kind_and_all_ranks() -> None:
    assert technique_of("data=2", 2)[0] == "data_parallel" and technique_of("tensor=2", 2)[0] == "tensor_parallel"
    for layout in ("tensor", "pipeline=2", "tensor=x", "tensor=4"):
        with pytest.raises((click.UsageError, SystemExit)):
            technique_of(layout, 2)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mlp", "Sequential: 2 pairs of layers are divided over 2 ranks"),
        ("gpt", "GPT: 2 pairs of layers are divided over 2 ranks"),
        ("softmaxed", "Softmaxed stays whole on every rank: one (what comes out differs"),
        ("dropped", "Dropped stays whole on every rank: one (what comes out differs"),
    ],
)
def test_programs_print_the_numbers_of_one_process(name: str, said: str, python: Run, overdrive: Run) -> None:
    one = python("tensor_programs.py", name, cwd=HERE)
    many = overdrive("run", "--ranks", "2", "--layout", "tensor=2", "tensor_programs.py", name, cwd=HERE)
    assert one.returncode == many.returncode == 0, many.stderr
    assert said in many.stderr
    assert not difference(one.stdout, many.stdout, ROUNDING)
