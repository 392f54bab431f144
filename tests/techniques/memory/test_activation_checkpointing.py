"""Activations made again: the same bits, fewer in memory, and left out where a second call would not be the same."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import random
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from overdrive.techniques.memory.activation_checkpointing.blocks import choose
from overdrive.techniques.memory.activation_checkpointing.measure import measure
from overdrive.worker.session import Session

F = nn.functional
CHECKPOINTING = "activation_checkpointing"
BATCH = 4096


class Block(nn.Module):
    """Keeps twelve times what goes into it, draws random numbers and has running means."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = 2.0 if random.random() < 0.5 else 1.0
        return x + self.down(F.dropout(torch.tanh(scale * self.up(self.norm(x))), 0.2))


def deep(block: Callable[[], nn.Module] = Block, depth: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), *[block() for _ in range(depth)])


class Malloc(ctypes.Structure):
    _fields_: ClassVar[Any] = [
        (name, ctypes.c_size_t) for name in ("arena", *"osh", "hblkhd", *"uf", "uordblks", *"dk")
    ]


def bytes_in_use() -> int:
    """That glibc has given out."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = Malloc
    found = ask()
    return int(found.uordblks + found.hblkhd)


def train(
    make: Callable[[], nn.Module], budget: float | None, steps: int = 3, prepare: Callable[[Any], None] = lambda _: None
) -> dict[str, Any]:
    """A few steps; with a budget under the technique. `peak` is of the bytes in use, at the end of the forward pass and
    whenever a gradient is there in the backward pass."""
    torch.manual_seed(0)
    random.seed(0)
    peak = before = 0

    def look(_: Any = None) -> None:
        nonlocal peak
        peak = max(peak, bytes_in_use() - before)

    with Session([(CHECKPOINTING, {"budget": budget})] if budget is not None else []) as session:
        model = make()
        prepare(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for step in range(steps):
            x = torch.randn(BATCH, 8)
            if step == 1:
                for each in model.parameters():
                    each.grad = torch.zeros_like(each)
                    each.register_post_accumulate_grad_hook(look)
            optimizer.zero_grad(set_to_none=False)
            gc.collect()
            before = bytes_in_use()
            loss = model(x).square().mean()
            look()
            if step == 0:
                peak = 0
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {
        "losses": losses, "peak": peak, "left_out": session.seams.left_out.get(CHECKPOINTING, ""),
        "state": [each.clone() for each in model.state_dict().values()], "model": model,
        "chance": [*torch.rand(2).tolist(), random.random()],
    }  # fmt: skip


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["losses"] == other["losses"] and one["chance"] == other["chance"]
    assert all(torch.equal(a, b) for a, b in zip(one["state"], other["state"], strict=True))


def test_trains_to_the_same_bit_with_less_in_memory() -> None:
    """Dropout, batch normalisation and Python's own random numbers included."""
    plain = train(deep, None)
    half, least = train(deep, 0.5), train(deep, 0.0)
    assert not half["left_out"] and not least["left_out"]
    assert_same_bits(plain, half)
    assert_same_bits(plain, least)
    assert half["peak"] < 0.75 * plain["peak"]
    assert least["peak"] < 0.5 * plain["peak"]


@pytest.mark.parametrize("activation", [nn.Tanh, lambda: nn.ReLU(inplace=True)])
def test_a_flat_sequential_is_called_again_in_runs(activation: Callable[[], nn.Module]) -> None:
    def make() -> nn.Module:
        return nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(8, 8), activation(), nn.Dropout(0.1))])

    plain, kept = train(make, None), train(make, 0.0)
    assert not kept["left_out"]
    assert_same_bits(plain, kept)
    assert kept["peak"] < 0.6 * plain["peak"]


def test_counting_leaves_no_trace_and_agrees_with_what_is_saved() -> None:
    torch.manual_seed(0)
    model, x = deep(), torch.randn(64, 8)
    state, chance = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    measured = measure(model, model, (x,), {})
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    seen: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor.detach())
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x)
    own = {each.data_ptr() for each in (*model.parameters(), *model.buffers())}
    assert measured.total == sum(size for place, size in seen.items() if place not in own)


def test_a_smaller_budget_makes_more_again() -> None:
    model = deep(depth=8)
    measured = measure(model, model, (torch.randn(64, 8),), {})
    choices = [choose(model, measured, budget) for budget in (0.8, 0.5, 0.0)]
    counts = [len(each.blocks) for each in choices if each]
    assert len(counts) == 3 and counts[0] < counts[1] <= counts[2] == 8
    assert choices[1] is not None and choices[1].peak <= 0.5 * measured.total


class Stateful(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x) / self.calls


class InPlace(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.relu_())


@pytest.mark.parametrize("block", [Stateful, InPlace])
def test_a_block_whose_second_call_would_differ_is_not_called_again(block: Any) -> None:
    plain, kept = train(lambda: deep(block), None), train(lambda: deep(block), 0.0)
    assert_same_bits(plain, kept)
    if block is Stateful:
        assert kept["model"][-1].calls == 3


def test_models_without_blocks_and_models_with_hooks_are_left_as_they_are() -> None:
    plain = train(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)), 0.5)
    assert "no blocks" in plain["left_out"]
    seen: list[int] = []

    def hooked(model: Any) -> None:
        model[3].register_forward_hook(lambda *_: seen.append(1))

    assert "hooks" in train(deep, 0.5, prepare=hooked)["left_out"] and len(seen) == 3


def test_between_calls_a_model_shows_nothing_of_it() -> None:
    with Session([(CHECKPOINTING, {"budget": 0.0})]):
        model = deep()
        loss = model(torch.randn(64, 8)).sum()
        assert not any("forward" in vars(each) for each in model.modules())
        torch.save(model, io.BytesIO())
        other = copy.deepcopy(model)
        loss.backward(retain_graph=True)
        loss.backward()
        assert all(each.grad is not None for each in model.parameters())
        assert all(each.grad is None for each in other.parameters())
        gone = weakref.ref(model)
        del model, loss
        assert gone() is None


def test_a_compiled_model_is_left_to_its_compiler() -> None:
    """Given a budget of what to keep, PyTorch's compiler draws other dropout masks in the backward pass."""
    with Session([(CHECKPOINTING, {"budget": 0.25})]) as session:
        model = deep()
        model.compile(backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(64, 8)).sum().backward()
        optimizer.step()
    assert "compiled" in session.seams.left_out[CHECKPOINTING]
