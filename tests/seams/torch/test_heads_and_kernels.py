"""Heads and kernel sizes: what is found, and that a changed model computes with the shapes around it as they were."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from overdrive.seams.torch.heads_and_kernels import of_models


class Attention(nn.Module):
    """As nanoGPT and timm have it."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.n_head, self.head_dim, self.scale = heads, size // heads, (size // heads) ** -0.5
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: Any) -> Any:
        batch, length, size = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.n_head, self.head_dim).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * self.scale).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, size))


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n_head = 4
        self.blocks = nn.ModuleList(Attention(24, 4) for _ in range(5))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + block(x)
        return x


def holder() -> tuple[nn.Module, Any]:
    return Holder(), torch.randn(2, 5, 24)


def torchs_own() -> tuple[nn.Module, Any]:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True), 2), torch.randn(2, 5, 16)


def images() -> tuple[nn.Module, Any]:
    return nn.Sequential(
        *(nn.Conv2d(2, 6, 5, stride=2, padding=2), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=6), nn.Conv2d(6, 4, 1), nn.Conv2d(4, 4, 3, padding=1)),
    ), torch.randn(3, 2, 16, 16)


def tight() -> tuple[nn.Module, Any]:
    return nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Conv1d(4, 2, 3, padding=1)), torch.randn(3, 1, 16)


@pytest.mark.parametrize(
    ("make", "places"),
    [
        (holder, {("heads", 4): ("2", "4", "8")}),
        (torchs_own, {("heads", 4): ("2", "4", "8")}),
        (images, {("kernel", 5): ("3", "5", "7"), ("kernel", 3): ("1", "3", "5")}),
        (tight, {("kernel", 3): ("3", "5")}),  # the first one has no padding that could shrink
        (lambda: (nn.Sequential(nn.Conv2d(1, 2, (3, 5)), nn.Conv2d(2, 2, 3, padding="same")), None), {}),
    ],
)
def test_what_is_found_and_computes_with_others(make: Any, places: dict[tuple[str, int], tuple[str, ...]]) -> None:
    model, given = make()
    assert {(each.kind, each.value): each.choices for each in of_models([model], {})} == places
    for place in of_models([model], {}):
        for choice in place.choices:
            torch.manual_seed(0)
            changed, _ = make()
            before = changed(given).detach().clone()
            state = torch.get_rng_state()
            of_models([changed], {place.key: int(choice)})
            assert torch.equal(torch.get_rng_state(), state)
            after = changed(given)
            assert after.shape == before.shape
            assert torch.equal(after, before) is (int(choice) == place.value)
            assert float(after.detach().std()) == pytest.approx(float(before.std()), rel=0.5)
            after.square().mean().backward()
            assert all(each.grad is not None and each.grad.shape == each.shape for each in changed.parameters())


def test_those_of_one_value_are_named_together() -> None:
    assert of_models([Holder()], {})[0].of == "blocks.0, blocks.1, blocks.2 and 2 more"


def test_what_the_model_cannot_have_is_refused() -> None:
    model, _ = holder()
    place = of_models([model], {})[0]
    for wrong in (5, 0):
        with pytest.raises(ValueError, match="cannot have heads"):
            of_models([model], {place.key: wrong})
