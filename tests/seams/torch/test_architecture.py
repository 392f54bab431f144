"""Depth and width of a model: what is found, and that a changed model computes and is trained whole."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from overdrive.core.hyperparameters import DEPTH, WIDTH
from overdrive.seams.torch.architecture import of_models


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))
        self.norm = nn.LayerNorm(size)
        self.gate, self.up = nn.Linear(size, 3 * size), nn.Linear(size, 3 * size)
        self.down = nn.Linear(3 * size, size)

    def forward(self, x: Any) -> Any:
        x = x + self.out(self.query(x) * self.key(x) + self.value(x))
        x = self.norm(x)
        return x + self.down(self.gate(x).sigmoid() * self.up(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(4))
        self.head = nn.Linear(8, 20)

    def forward(self, x: Any) -> Any:
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def decoder() -> tuple[nn.Module, Any]:
    return Decoder(), torch.randint(0, 20, (2, 5))


def images() -> tuple[nn.Module, Any]:
    convolutions = nn.Sequential(
        *(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    )
    return nn.Sequential(convolutions, nn.Sequential(nn.Linear(12 * 16, 30), nn.ReLU(), nn.Linear(30, 3))), torch.randn(
        4, 1, 12, 12
    )


def perceptron() -> tuple[nn.Module, Any]:
    layers = [nn.Linear(5, 16), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Linear(16, 16), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(16, 2)), torch.randn(4, 5)


def found(model: nn.Module) -> dict[str, Any]:
    return {(each.name if each.kind == DEPTH else each.of): each.value for each in of_models([model], adam(model), {})}


def adam(model: nn.Module) -> Any:
    return torch.optim.Adam(model.named_parameters(), 0.01)


def changed(model: nn.Module, optimizer: Any, wanted: dict[int, int], kind: str) -> None:
    keys = {
        each.key: wanted[int(each.value)]
        for each in of_models([model], optimizer, {})
        if each.kind == kind and each.value in wanted
    }
    assert len(keys) == len(wanted)
    of_models([model], optimizer, keys)


def trained_whole(model: nn.Module, optimizer: Any, given: Any) -> None:
    """Every parameter is the optimizer's, has a gradient, and moves."""
    group = optimizer.param_groups[0]
    assert {id(each) for each in group["params"]} == {id(each) for each in model.parameters()}
    assert len(group["param_names"]) == len(group["params"]) == len(set(group["param_names"]))
    before = [each.detach().clone() for each in model.parameters()]
    model(given).square().mean().backward()
    optimizer.step()
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert parameter.grad is not None and parameter.grad.shape == parameter.shape
        assert parameter.shape == old.shape and not torch.equal(parameter, old)


@pytest.mark.parametrize(
    ("make", "places"),
    [
        (
            decoder,
            {"Decoder.blocks": 4, "Decoder.blocks.0.gate, Decoder.blocks.1.gate, Decoder.blocks.2.gate and 1 more": 24},
        ),
        (images, {"Sequential.0.0": 6, "Sequential.0.3": 12, "Sequential.1.0": 30}),
        (perceptron, {"Sequential": 3, "Sequential.0, Sequential.2, Sequential.4 and 1 more": 16}),
    ],
)
def test_what_is_found(make: Any, places: dict[str, int]) -> None:
    model, _ = make()
    assert found(model) == places


@pytest.mark.parametrize("factor", [0.5, 1, 2])
@pytest.mark.parametrize("make", [decoder, images, perceptron])
def test_a_model_of_another_width_is_trained_whole(make: Any, factor: float) -> None:
    torch.manual_seed(0)
    model, given = make()
    optimizer = adam(model)
    shape = model(given).shape
    sizes = {
        each.value: int(factor * int(each.value)) for each in of_models([model], optimizer, {}) if each.kind == WIDTH
    }
    changed(model, optimizer, sizes, WIDTH)
    assert model(given).shape == shape
    trained_whole(model, optimizer, given)
    layers = [each for each in model.modules() if isinstance(each, nn.Linear)]
    assert all((each.out_features, each.in_features) == tuple(each.weight.shape) for each in layers)


@pytest.mark.parametrize("count", [1, 2, 6])
@pytest.mark.parametrize(("make", "default"), [(decoder, 4), (perceptron, 3)])
def test_a_model_of_another_depth_is_trained_whole(make: Any, default: int, count: int) -> None:
    torch.manual_seed(0)
    model, given = make()
    optimizer = adam(model)
    of_one = sum(each.numel() for each in (model.blocks[0] if make is decoder else model[2]).parameters())
    whole = sum(each.numel() for each in model.parameters())
    changed(model, optimizer, {default: count}, DEPTH)
    assert sum(each.numel() for each in model.parameters()) == whole + (count - default) * of_one
    trained_whole(model, optimizer, given)


def test_new_weights_have_the_scale_of_the_programs_own() -> None:
    torch.manual_seed(0)
    model, given = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 500)), torch.randn(500, 40)
    for each in model.parameters():
        each.data.mul_(7)  # an initialisation of its own
    before = model(given).std()
    for size in (256, 16):
        changed(model, adam(model), {int(model[0].out_features): size}, WIDTH)
        assert model[0].weight.shape == (size, 40)
        assert float(model(given).std()) == pytest.approx(float(before), rel=0.35)
    assert torch.equal(nn.Sequential(nn.LayerNorm(4)).requires_grad_()[0].weight.data, torch.ones(4))


def test_chance_is_left_as_it_was() -> None:
    model, _ = decoder()
    state = torch.get_rng_state()
    changed(model, adam(model), {4: 6}, DEPTH)
    changed(model, adam(model), {24: 48}, WIDTH)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_is_shared_frozen_or_of_another_kind_stays() -> None:
    tied = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.Linear(4, 8), nn.Linear(8, 4))
    tied[4].weight = tied[2].weight
    assert found(tied) == {}
    frozen = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    frozen[0].requires_grad_(False)
    assert found(frozen) == {}
    grouped = nn.Sequential(nn.Conv1d(4, 8, 1), nn.Conv1d(8, 8, 1, groups=8), nn.Conv1d(8, 2, 1))
    assert found(grouped) == {}
    assert found(nn.Sequential(nn.Linear(4, 8), nn.LSTM(8, 8), nn.Linear(8, 2))) == {}


@pytest.mark.parametrize("kind", [DEPTH, WIDTH])
def test_none_at_all_is_refused(kind: str) -> None:
    model, _ = decoder()
    with pytest.raises(ValueError, match="or more"):
        changed(model, adam(model), {4 if kind == DEPTH else 24: 0}, kind)


def test_a_model_whose_parameters_take_no_argument_is_looked_at_as_any_other() -> None:
    """As functional code has it (`Learner.parameters()` of MAML)."""

    class Learner(nn.Sequential):
        def parameters(self) -> Any:  # type: ignore[override]
            return list(super().parameters())

    model = Learner(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
    assert found(model) == {"Learner.0": 16}


def test_a_place_that_a_list_of_modules_leaves_empty_is_no_block() -> None:
    """As transformers of many kinds have it, where a block has no second normalisation."""
    layers = nn.ModuleList([nn.Linear(4, 4), None, nn.Linear(4, 4), None, nn.Linear(4, 4)])  # type: ignore[list-item]
    assert not any(each.kind == DEPTH for each in of_models([layers], adam(layers), {}))
    blocks = nn.ModuleList(nn.ModuleList([nn.Linear(4, 4), None]) for _ in range(3))  # type: ignore[list-item]
    assert [each.value for each in of_models([blocks], adam(blocks), {}) if each.kind == DEPTH] == [3]
    changed(blocks, adam(blocks), {3: 5}, DEPTH)
    assert len(blocks) == 5
