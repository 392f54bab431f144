"""Random numbers that PyTorch draws, as its subscribers hear of them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from overdrive.seams.hub import Seams  # noqa: E402
from overdrive.seams.patch import Patches  # noqa: E402
from overdrive.seams.torch import draws  # noqa: E402


def test_a_draw_is_heard_of_while_another_thread_draws() -> None:
    """As one that reads a data set ahead: the dropout of a rank was its own then, not its part of all ranks'."""
    seams, patches, heard = Seams(), Patches(), []
    begun, over = threading.Event(), threading.Event()

    def drawn(name: str, call: Any, args: Any, kwargs: Any) -> None:
        heard.append(name)
        if name == "randn":
            begun.set()
            over.wait(60)

    seams.random_drawn.subscribe(drawn)
    draws.enter(seams, patches)
    try:
        ahead = threading.Thread(target=torch.randn, args=(3,))
        ahead.start()
        assert begun.wait(60)
        torch.nn.functional.dropout(torch.ones(3))
        over.set()
        ahead.join(60)
    finally:
        over.set()
        patches.restore()
    assert heard == ["randn", "dropout"]


def test_a_draw_is_made_on_the_default_device() -> None:
    from torch.utils._device import _device_constructors

    seams, patches = Seams(), Patches()
    seams.random_drawn.subscribe(lambda *_: None)
    _device_constructors.cache_clear()  # as in a new process, in which nothing was made on another device yet
    draws.enter(seams, patches)
    try:
        with torch.device("meta"):
            made = [torch.rand(2), torch.randn(2), torch.randint(3, (2,)), torch.randperm(2)]
    finally:
        patches.restore()
        _device_constructors.cache_clear()
    assert [each.device.type for each in made] == ["meta"] * 4


def test_a_mask_of_a_class_of_its_own_is_told_of_attention() -> None:
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    seams, patches, heard = Seams(), Patches(), []
    attention = torch.nn.functional.scaled_dot_product_attention
    query, key, value = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    expected = [attention(query, key, value, make(3, 5)) for make in (causal_upper_left, causal_lower_right)]
    seams.random_drawn.subscribe(lambda name, *_: heard.append(name))
    draws.enter(seams, patches)
    try:
        for make, plain in zip((causal_upper_left, causal_lower_right), expected, strict=True):
            assert torch.equal(torch.nn.functional.scaled_dot_product_attention(query, key, value, make(3, 5)), plain)
            found = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=make(3, 5))
            assert torch.equal(found, plain)
    finally:
        patches.restore()
    assert set(heard) == {"scaled_dot_product_attention"}
