"""Layers divided over ranks: which are, how it is proved, and programs on two ranks (gloo, on this machine)."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from overdrive.cli.layout import technique_of  # noqa: E402
from overdrive.ranks.norms import norm_of_parts  # noqa: E402
from overdrive.techniques.parallel.tensor_parallel import layers, parts, roles, shards, trial, turns  # noqa: E402
from overdrive.techniques.parallel.tensor_parallel.cuts import Cut  # noqa: E402
from overdrive.techniques.parallel.tensor_parallel.parts import part_from, whole_of  # noqa: E402
from overdrive.techniques.parallel.tensor_parallel.rules import layers as rule_layers  # noqa: E402
from overdrive.techniques.parallel.tensor_parallel.rules import products, shapes  # noqa: E402
from overdrive.techniques.parallel.tensor_parallel.weights import candidates, refusal  # noqa: E402
from tests.conftest import Run  # noqa: E402
from tests.ranks.comparing import difference  # noqa: E402
from tests.ranks.tensor_models import (  # noqa: E402
    MODELS,
    WORDS,
    Decoder,
    Dropped,
    Encoder,
    GroupedAttention,
    Softmaxed,
    mlp,
)

HERE = Path(__file__).parent
ROUNDING = 1e-9  # of numbers in fp64, after eight steps


@pytest.fixture(autouse=True)
def same_kind_of_numbers() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


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


def found(model: nn.Module, *args: Any, ranks: int = 2) -> dict[str, Any]:
    torch.manual_seed(0)
    given = args or (torch.randn(5, 6),)
    return trial.ModelTrial(model, model, given, {}, ranks).found(candidates(model)[0])


def whole(model: nn.Module, told: dict[str, Any]) -> dict[str, str]:
    """Reasons of the matrices that are not divided: each has one."""
    matrices = {name for name, each in model.named_parameters() if each.dim() > 1}
    assert matrices - set(told["cuts"]) == set(told["reasons"])
    return dict(told["reasons"])


@pytest.mark.parametrize("ranks", [2, 4])
def test_layers_that_can_be_divided_are_proved(ranks: int) -> None:
    model = mlp()
    told = found(model, ranks=ranks)
    assert not whole(model, told)
    assert told["cuts"]["0.weight"] == [0, [8]] and told["cuts"]["2.weight"] == [1, [8]]
    assert "2.bias" not in told["cuts"]  # added once, by who has the sum


WHOLE = {"vit": {"patches.weight", "first", "places"}}  # the others are divided to the last matrix


@pytest.mark.parametrize("name", MODELS)
def test_models_as_people_write_them(name: str) -> None:
    make, given = MODELS[name]
    torch.manual_seed(1)
    model = make()
    assert whole(model, found(model, *given())).keys() == WHOLE.get(name, set())


def test_heads_are_found_in_one_matrix_and_in_several() -> None:
    cuts = found(Decoder("fused"), *MODELS["fused"][1]())["cuts"]
    assert cuts["attention.0.c_attn.weight"] == [0, [16, 16, 16]] and cuts["attention.0.c_proj.weight"] == [1, [16]]
    assert cuts["words.weight"] == [0, [13]]  # and so is the head, whose weight it is
    cuts = found(Encoder(), *MODELS["encoder"][1]())["cuts"]
    assert cuts["layers.layers.0.self_attn.in_proj_weight"] == [0, [16, 16, 16]]
    cuts = found(Decoder("grouped"), *MODELS["grouped"][1]())["cuts"]
    assert cuts["attention.0.k_proj.weight"] == [0, [8]] and cuts["attention.0.q_proj.weight"] == [0, [16]]


def test_heads_that_are_too_few_stay_whole_and_the_rest_is_divided() -> None:
    model = Decoder("grouped")
    reasons = whole(model, found(model, *MODELS["grouped"][1](), ranks=4))
    assert {name.split(".")[2] for name in reasons if name.startswith("attention")} == {"k_proj", "v_proj"}
    assert "seen as … × 8 × 2 × 4, of which 4 ranks cannot have parts" in reasons["attention.0.k_proj.weight"]


def test_one_head_of_keys_stays_whole() -> None:
    model = Decoder("grouped")
    for place in range(2):
        model.attention[place] = GroupedAttention(16, 4, 1)
    reasons = whole(model, found(model, *MODELS["grouped"][1]()))
    assert {name.split(".")[2] for name in reasons} == {"k_proj", "v_proj"}


def test_what_looks_at_several_outputs_is_named() -> None:
    model = Softmaxed()
    assert whole(model, found(model)) == {"one.weight": "`softmax` needs all that it gives"}


def test_dropout_between_layers_draws_as_one_process() -> None:
    assert not found(Dropped())["reasons"]


def test_sizes_that_do_not_divide() -> None:
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4))
    assert "9 outputs are not a multiple of 2" in whole(model, found(model))["0.weight"]


class Past(nn.Linear):
    """Takes its weight by another way than the attribute."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.linear(input, dict(self.named_parameters())["weight"] * 1.0, self.bias) + F.linear(input, self.weight)


def test_a_weight_that_is_taken_by_another_way_is_found_out() -> None:
    model = nn.Sequential(Past(6, 8), nn.ReLU(), nn.Linear(8, 3))
    told = found(model)
    assert "0.weight" not in told["cuts"] and told["reasons"]["0.weight"]


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 3)
        self.one.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x))


def test_what_is_not_trained_stays_whole() -> None:
    names, reasons = candidates(Frozen())
    assert "one.weight" not in names and reasons == {"one.weight": "it is not trained"}


# -- defects ------------------------------------------------------------------------------------------


def bias_on_each_rank(patch: pytest.MonkeyPatch) -> None:
    def layer(made: Any, x: Any, weight: Any, bias: Any, out: Any) -> Any:
        return products.product(lambda x, w, *b: made(x, w, *(b or [bias.held])), [x, weight], out, "out")

    patch.setattr(products, "_layer", layer)


def bias_left_out(patch: pytest.MonkeyPatch) -> None:
    right = products._layer
    patch.setattr(products, "_layer", lambda made, x, weight, bias, out: right(made, x, weight, None, out))


def not_summed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(products, "Summed", type("Summed", (), {"apply": staticmethod(lambda made: made * 2)}))


def gradient_not_summed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(products, "entered", lambda whole: whole)


def parts_in_another_order(patch: pytest.MonkeyPatch) -> None:
    right = Cut.part

    def part(self: Cut, tensor: Any, rank: int, ranks: int) -> Any:
        return right(self, tensor, ranks - 1 - rank if self.dim == 1 else rank, ranks)

    patch.setattr(Cut, "part", part)


def heads_split_across(patch: pytest.MonkeyPatch) -> None:
    """Queries, keys and values are taken for one segment."""
    right = roles.Roles.open_cut

    def open_cut(self: Any, name: str, cut: Cut, makers: Any) -> Any:
        told = right(self, name, cut, makers)
        return told if told is None or len(told.segments) == 1 else Cut(told.dim, (told.size,) * 1)

    patch.setattr(roles.Roles, "open_cut", open_cut)
    patch.setattr(shapes, "_regrouped", lambda before, cut, after: Cut(list(after).index(4), (4,)))


def segments_gathered_as_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cut, "joined", lambda self, together, ranks: together)


def vocabulary_off_by_one(patch: pytest.MonkeyPatch) -> None:
    right = Cut.held
    patch.setattr(Cut, "held", lambda self, rank, ranks: right(self, rank, ranks) - (self.size == WORDS and rank == 0))


def rows_of_others_not_zero(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rule_layers, "Summed", type("Summed", (), {"apply": staticmethod(lambda made: made)}))


def masks_drawn_for_parts(patch: pytest.MonkeyPatch) -> None:
    def dropout(name: str, function: Any, args: Any, kwargs: Any) -> Any:
        return part_from(function(args[0].held, *args[1:], **kwargs), args[0].cut, args[0].makers)

    patch.setitem(parts._rules, "dropout", dropout)


def channels_normed_by_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rule_layers, "_channels", lambda tensor, cut: cut.at(0).part(tensor.flip(0), 0, 2))


def channels_gradient_not_summed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rule_layers, "entered", lambda whole: whole)


def mean_of_parts(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(parts._rules, "mean", lambda name, call, args, kwargs: call(args[0].held, *args[1:], **kwargs))


class Averaged(Softmaxed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.one(x).mean(-1, keepdim=True)


@pytest.mark.parametrize(
    ("defect", "name", "caught"),
    [
        (bias_on_each_rank, "mlp", "2.weight"),
        (bias_left_out, "mlp", "2.weight"),
        (not_summed, "mlp", "2.weight"),
        (gradient_not_summed, "mlp", "4.weight"),
        (parts_in_another_order, "mlp", "2.weight"),
        (heads_split_across, "fused", "attention.0.c_attn.weight"),
        (vocabulary_off_by_one, "fused", "words.weight"),
        (rows_of_others_not_zero, "fused", "words.weight"),
        (masks_drawn_for_parts, "dropped", "two.weight"),
        (channels_normed_by_others, "resnet", "0.weight"),
        (channels_gradient_not_summed, "resnet", "0.weight"),
        (mean_of_parts, "averaged", "one.weight"),
    ],
)
def test_seeded_defects_are_caught(defect: Any, name: str, caught: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"mlp": mlp, "dropped": Dropped, "averaged": Averaged}
    make, given = (small[name], lambda: (torch.randn(5, 6),)) if name in small else MODELS[name]
    torch.manual_seed(1)
    model = make()
    assert caught in found(copy.deepcopy(model), *given())["cuts"]
    defect(monkeypatch)
    torch.set_default_dtype(torch.float32)
    assert caught not in found(model, *given())["cuts"]


class OneGroup:
    """What two ranks gather, in one process."""

    size = 2

    def __init__(self, other: float) -> None:
        self._other = other

    def gather(self, mine: Any, dim: int, sizes: Any, what: str) -> Any:
        return torch.cat((mine, torch.full_like(mine, self._other)))


def test_a_norm_is_that_of_all_parts() -> None:
    def call(gradients: Any, kind: float, error: bool, foreach: Any) -> Any:
        return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each, kind) for each in gradients]), kind)

    mine, both = torch.full((4,), 1.0), torch.full((9,), 2.0)
    group: Any = OneGroup(3.0)  # the other rank's part has this norm
    for kind, expected in ((2.0, (4 + 9 + 36) ** 0.5), (float("inf"), 3.0)):
        assert float(norm_of_parts(call, [mine, both], {id(mine)}, kind, None, group)) == pytest.approx(expected)
    assert norm_of_parts(call, [both], {id(mine)}, 2.0, None, group) is None


# -- a run, all ranks in this process --------------------------------------------------------------------


class Live(turns.InTurns):
    """Each rank has a model of its own, with parts in its parameters."""

    def weight(self, parameter: torch.Tensor, cut: Cut) -> torch.Tensor:
        return parameter

    def gathered(self, makers: Any, why: str, segments: Any) -> None:
        pass


def trained(model: nn.Module, batches: list[Any]) -> list[Any]:
    """Losses, then what an evaluation gives, and the state."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    told = []
    for batch in batches:
        optimizer.zero_grad()
        made = model(*batch)
        loss = made[1] if isinstance(made, tuple) else made.square().mean()
        loss.backward()
        optimizer.step()
        told.append(loss.item())
        shards.call_over()
    model.eval()
    with torch.no_grad():
        made = model(*batches[0])
    made = whole_of(made[0] if isinstance(made, tuple) else made)
    return [told, made, dict(model.state_dict())]


@pytest.mark.parametrize("name", MODELS)
def test_ranks_train_and_evaluate_as_one_process(name: str) -> None:
    make, given = MODELS[name]
    torch.manual_seed(1)
    model = make().double()
    torch.set_default_dtype(torch.float64)
    batches = [given() for _ in range(3)]
    told = found(copy.deepcopy(model), *batches[0])["cuts"]
    cuts = {name: Cut(dim, tuple(segments)) for name, (dim, segments) in told.items()}

    def as_a_rank() -> list[Any]:
        own = copy.deepcopy(model)
        layers.divide(own, cuts)
        return trained(own, batches)

    torch.manual_seed(2)
    one = trained(copy.deepcopy(model), batches)
    torch.manual_seed(2)
    end = shards.divided_by(ranks := Live(2, roles.Roles(2)))
    try:
        both = ranks.run(as_a_rank)
    finally:
        end()
    for losses, made, state in both:
        assert losses == pytest.approx(one[0], rel=ROUNDING)
        assert torch.allclose(made, one[1], rtol=ROUNDING, atol=ROUNDING)
        assert state.keys() == one[2].keys()
        assert all(torch.allclose(each, one[2][key], rtol=1e-6, atol=1e-9) for key, each in state.items())


def test_states_and_pickles_are_whole_and_copies_are_parts() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3), nn.Linear(3, 4))
    model[3].weight = model[0].weight
    before = {name: each.clone() for name, each in model.state_dict().items()}
    x, expected = torch.randn(5, 3), model(torch.ones(5, 3))
    cuts = {"0.weight": Cut(0, (4,)), "0.bias": Cut(0, (4,)), "2.weight": Cut(1, (4,))}

    def as_a_rank() -> None:
        own = copy.deepcopy(model)
        given = list(own.parameters())
        divided = layers.divide(own, cuts)
        assert all(one is other for one, other in zip(given, own.parameters(), strict=True)) and len(divided) == 3
        assert [list(each.shape) for each in given] == [[2, 3], [2], [3, 2], [3], [4]]
        assert own[0].weight.shape == (4, 3) and own[0].weight.numel() == 12 and repr(own) == repr(model)
        assert torch.equal(copy.deepcopy(own[0].weight), pickle.loads(pickle.dumps(own[0].weight)))
        assert torch.equal(whole_of(own[0].weight), before["0.weight"])
        made, copied, loaded = whole_of(own(x)), copy.deepcopy(own), pickle.loads(pickle.dumps(own))
        assert all(torch.equal(each, before[name]) for name, each in own.state_dict().items())
        assert isinstance(copied[0], layers.Divided) and torch.equal(whole_of(copied(x)), made)
        assert copied[0].weight.held is not given[0] and given[0] is own[0].weight.held
        assert type(loaded[0]) is nn.Linear and torch.allclose(loaded(torch.ones(5, 3)), expected)
        assert loaded[0].weight is loaded[3].weight
        own.load_state_dict({name: each + 1 for name, each in before.items()})
        assert torch.equal(whole_of(own[0].weight), before["0.weight"] + 1)
        assert own[0].weight.sum().item() == pytest.approx(float((before["0.weight"] + 1).sum()))
        with pytest.raises(RuntimeError, match="cannot write to what ranks have parts of"):
            own[0].weight.normal_()

    end = shards.divided_by(ranks := Live(2, roles.Roles(2)))
    try:
        ranks.run(as_a_rank)
    finally:
        end()


def test_the_gradient_of_a_weight_that_is_gathered_keeps_no_more_than_a_part() -> None:
    parts = [torch.ones(4, 3, requires_grad=True) for _ in range(2)]

    def as_a_rank() -> None:
        whole_of(part_from(parts[shards.shards().rank], Cut(0, (8,)), ())).square().sum().backward()

    end = shards.divided_by(ranks := Live(2, roles.Roles(2)))
    try:
        ranks.run(as_a_rank)
    finally:
        end()
    assert all(torch.equal(each.grad, torch.full((4, 3), 2.0)) for each in parts)
    assert [each.grad.untyped_storage().nbytes() for each in parts] == 2 * [4 * 3 * 4]


def test_a_layout_is_a_kind_and_all_ranks() -> None:
    assert technique_of("data=2", 2)[0] == "data_parallel" and technique_of("tensor=2", 2)[0] == "tensor_parallel"
    for layout in ("tensor", "pipelines=2", "tensor=x", "tensor=4"):
        with pytest.raises((click.UsageError, SystemExit)):
            technique_of(layout, 2)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mlp", "Sequential: the weights of 4 layers are divided over 2 ranks"),
        ("gpt", "GPT: the weights of 10 layers are divided over 2 ranks"),
        ("softmaxed", "Softmaxed: the weights of 1 layer are divided over 2 ranks"),
        ("dropped", "Dropped: the weights of 2 layers are divided over 2 ranks"),
        ("encoder", "Encoder: the weights of 10 layers are divided over 2 ranks"),
        ("resnet", "Sequential: the weights of 9 layers are divided over 2 ranks"),
    ],
)
def test_programs_print_the_numbers_of_one_process(name: str, said: str, python: Run, overdrive: Run) -> None:
    one = python("tensor_programs.py", name, cwd=HERE)
    many = overdrive("run", "--ranks", "2", "--layout", "tensor=2", "tensor_programs.py", name, cwd=HERE)
    assert one.returncode == many.returncode == 0, many.stderr
    assert said in many.stderr
    assert not difference(one.stdout, many.stdout, ROUNDING)


@pytest.mark.cluster
def test_gradients_of_a_result_that_another_is_computed_from_are_whole(python: Run, overdrive: Run) -> None:
    names = ("gradients_between_results", "gradients_watched_between_results")
    one = python("small_programs.py", *names, cwd=HERE)
    many = overdrive("run", "--ranks", "2", "--layout", "tensor=2", "small_programs.py", *names, cwd=HERE)
    assert many.stderr.count("Generator: the weights of 3 layers are divided over 2 ranks") == 2, many.stderr
    # The last number of each goes through the parameters, of which a rank has parts.
    expected, got = (re.sub(r", [^,]+\)$", "", each.stdout, flags=re.MULTILINE) for each in (one, many))
    assert "Error" not in expected and not difference(expected, got, ROUNDING), got


TWO_MODELS = """
import torch
from torch import nn
for _ in range(2):
    layers = (nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).sum().backward()
        optimizer.step()
    weights = [each for each in model.parameters() if each.dim() == 2]
    print([tuple(each.shape) for each in weights], sum(each.grad.untyped_storage().nbytes() for each in weights))
"""


@pytest.mark.cluster
def test_a_model_after_another_one_is_divided_as_the_first(script: Callable[[str], Path], overdrive: Run) -> None:
    path = script(TWO_MODELS)
    told = overdrive("run", "--ranks", "2", "--layout", "tensor=2", path.name, cwd=path.parent)
    pairs = [(4, 6), (8, 4), (4, 8), (3, 4)]
    assert told.stdout.splitlines() == 2 * [f"{pairs} {4 * sum(rows * columns for rows, columns in pairs)}"], told
