"""Whether tensors lie where they lay, and how: by words of memory, by asking PyTorch, and what they hold besides."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from overdrive.changes.words import Words
from overdrive.engines import weights
from overdrive.engines.weights import Weights
from overdrive.model_state.tensor_places import places_of_tensor


def to(other: Callable[[Any], Any]) -> Callable[[Any], None]:
    def change(tensor: Any) -> None:
        tensor.data = other(tensor.data)

    return change


SHAPES = [(), (7,), (3, 4), (2, 3, 4), (2, 3, 2, 3), (2, 3, 2, 2, 3), (2, 1, 2, 1, 2, 3)]
CHANGES: dict[str, Callable[[Any], object]] = {
    "other memory": to(torch.clone),
    "flat": to(lambda data: data.reshape(-1) if data.dim() != 1 else data[None]),
    "one dimension more": to(lambda data: data[..., None]),
    "turned": to(lambda data: data.movedim(0, -1) if data.dim() > 1 else data.flip(0)[None]),
    "negative": to(torch._neg_view),
    "other type, same size": to(lambda data: data.view(torch.int32)),
    "longer storage": lambda tensor: tensor.untyped_storage().resize_(1 << 20),
    "shared storage": lambda tensor: tensor.untyped_storage().share_memory_(),
    "a value": lambda tensor: tensor.detach().view(-1).numpy().__setitem__(-1, 5.0),
    "exchanged": lambda tensor: torch.utils.swap_tensors(tensor, torch.ones_like(tensor)),
}


@pytest.mark.parametrize("words", [True, False], ids=["words", "asked"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_change_is_seen(
    shape: tuple[int, ...], change: Callable[[Any], object], words: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not words:
        monkeypatch.setattr(weights, "places_of_tensor", lambda tensor: None)
    given = torch.ones(shape)
    seen = Weights([torch.ones(3, 5), given, torch.ones(2)])
    with torch.no_grad():
        given + 1
        assert not any(seen.changed() for _ in range(3))
        change(given)
        assert seen.changed() and seen.changed()


def test_the_words_are_known_for_this_pytorch_and_say_nothing_of_other_things() -> None:
    known = torch.nn.Parameter(torch.ones(3, 4))
    places = places_of_tensor(known)
    assert places is not None and places_of_tensor(torch.ones(1, 1, 1, 1, 1, 1)) is None
    asked: list[str] = []
    words = Words()
    words.add(lambda: bool(asked.append("asked")), places)
    words.seal()
    known.requires_grad_(False).requires_grad_(True)
    (known * 2).sum().backward()
    held = [known.view(-1), known.detach(), known.numpy(force=True)]
    known.grad = None
    assert not words.changed() and not asked and held


def test_what_is_done_in_any_order_is_seen_as_by_asking() -> None:
    rng = random.Random(0)
    harmless: list[Callable[[Any], object]] = [
        lambda tensor: tensor.view(-1),
        lambda tensor: setattr(tensor, "data", tensor.data),
        lambda tensor: tensor.sum().item(),
    ]
    for _ in range(200):
        given = torch.ones(rng.choice(SHAPES[:6]))
        seen = Weights([given])
        for _ in range(rng.randrange(5)):
            rng.choice(harmless)(given)
            assert not seen.changed()
        rng.choice(list(CHANGES.values()))(given)
        assert seen.changed()
