"""The kernel's numbers, in Triton's interpreter on the CPU: as near to those of 64 bits as torch's own."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from overdrive.kernels.cross_entropy.comparison import CrossEntropy, worse
from overdrive.kernels.cross_entropy.operator import KINDS, MEAN, NONE, SUM, Call, computed, slopes_plainly
from tests.kernels.cross_entropy.cases import case, needs_interpreter, simple
from tests.kernels.cross_entropy.errors import Errors

pytestmark = needs_interpreter
CASES = int(os.environ.get("OVERDRIVE_KERNEL_CASES", "200"))
AT_ONCE = 250


def slopes_of(loss: torch.Tensor, leaf: torch.Tensor, gradient: torch.Tensor | None = None) -> torch.Tensor:
    return torch.autograd.grad(loss, leaf, gradient, retain_graph=True)[0]


@pytest.mark.parametrize("first", range(0, CASES, AT_ONCE))
def test_errors_are_no_larger_than_torchs(first: int) -> None:
    """Call for call by `worse`. Of 250 together the mean square may be larger by what chance makes of it: in 32 bits,
    where both are as good, it was by 8 % in one of 40 such groups; of all 10,000 it is smaller (`test_compiled`)."""
    errors = Errors()
    for number in range(first, min(first + AT_ONCE, CASES)):
        call = case(number)
        assert worse(F.cross_entropy, call) is None, number
        errors.add(call)
    print(json.dumps(errors.told()))
    for key, (ours, torchs) in errors.pools.items():
        assert ours.numbers == torchs.numbers > 0 and torchs.rms > 0
        assert ours.rms <= 1.15 * torchs.rms, (key, ours, torchs)
        assert ours.largest <= torchs.largest + 1, (key, ours, torchs)


def test_a_gpus_own_exponential_is_near_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """There `exp` is a product in 32 bits and `ex2.approx`, off by 2^-22.5 at the most, and small numbers are zero."""
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    draw = np.random.default_rng(0)

    def exponential(self: Any, given: Any) -> Any:
        product = (given.data * np.float32(1.4426950408889634)).astype(np.float64)
        found = np.exp2(product) * (1 + draw.uniform(-1, 1, product.shape) * 2**-22.5)
        found[found < 2**-126] = 0
        return TensorHandle(found.astype(np.float32), given.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_exp", exponential)
    assert [number for number in range(150) if worse(F.cross_entropy, case(number))] == []


@pytest.mark.parametrize("columns", [50257, 128256])
@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary(columns: int, kind: torch.dtype) -> None:
    call = simple(4, columns, kind, MEAN)
    assert worse(F.cross_entropy, call) is None
    assert CrossEntropy().differs_on(F.cross_entropy, call) is None


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
def test_options_on_strange_values(reduction: int, weighted: bool, smoothing: float) -> None:
    for kind in KINDS:
        call = simple(7, 13, kind, reduction, smoothing)
        call = replace(call, weight=torch.rand(13).to(kind) if weighted else None)
        assert CrossEntropy().differs_on(F.cross_entropy, call) is None


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
def test_where_all_rows_are_ignored_a_mean_is_nan_and_gradients_are_zero(reduction: int, smoothing: float) -> None:
    call = replace(simple(3, 5, reduction=reduction, smoothing=smoothing), target=torch.full((3,), -100))
    found = []
    for way in (computed, lambda given: given.plainly(F.cross_entropy, given.logits)):
        leaf = call.logits.clone().requires_grad_()
        loss = way(replace(call, logits=leaf))
        found.append((loss.detach(), slopes_of(loss, leaf, torch.ones_like(loss))))
    for ours, torchs in zip(*found, strict=True):
        assert torch.equal(ours.nan_to_num(7), torchs.nan_to_num(7))
    assert bool(found[0][0].isnan().all()) is (reduction == MEAN)


def test_a_target_that_is_no_class_gives_nan_and_reads_nothing() -> None:
    call = replace(simple(4, 6), target=torch.tensor([0, 6, -1, 1 << 40]))
    leaf = call.logits.clone().requires_grad_()
    loss = computed(replace(call, logits=leaf))
    assert loss.isnan().tolist() == [False, True, True, True]
    assert slopes_of(loss, leaf, torch.ones(4)).isnan().all(1).tolist() == [False, True, True, True]


def test_nan_and_infinity_come_out_as_torchs() -> None:
    x = torch.randn(5, 9)
    x[0, 2], x[1, 3], x[2] = torch.nan, torch.inf, -torch.inf
    x[3, 1] = torch.nan  # of an ignored row
    for reduction in (NONE, MEAN, SUM):
        call = Call(x, torch.tensor([1, 3, 0, -100, 4]), None, -100, reduction, 0.0, False)
        assert worse(F.cross_entropy, call) is None


def test_rows_that_lie_two_thousand_million_numbers_apart() -> None:
    """Their places are numbers of 64 bits. What is between is never touched, and takes no memory."""
    apart = 1 << 30
    room = torch.empty(4 * apart + 64, dtype=torch.bfloat16)
    x = room.as_strided((5, 10), (apart, 1))
    x.copy_(torch.randn(5, 10))
    assert worse(F.cross_entropy, Call(x, torch.arange(5), None, -100, NONE, 0.0, False)) is None


def test_going_back_twice_gives_the_same_and_leaves_the_logits() -> None:
    call = simple(6, 11, reduction=MEAN)
    leaf = call.logits.clone().requires_grad_()
    loss = computed(replace(call, logits=leaf))
    first, second = slopes_of(loss, leaf), slopes_of(loss, leaf)
    assert torch.equal(first, second) and torch.equal(leaf, call.logits)
    assert first.data_ptr() != leaf.data_ptr()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
def test_gradients_can_be_differentiated_again(reduction: int, weighted: bool, smoothing: float) -> None:
    call = simple(5, 7, reduction=reduction, smoothing=smoothing)
    call.target[2] = call.ignored
    call = replace(call, weight=torch.rand(7) if weighted else None)
    found = []
    for way in (computed, lambda given: given.plainly(F.cross_entropy, given.logits)):
        leaf = call.logits.clone().requires_grad_()
        loss = way(replace(call, logits=leaf * 1.5))
        outer = torch.linspace(1, 2, loss.numel()).view(loss.shape).requires_grad_()
        (slopes,) = torch.autograd.grad(loss, leaf, outer, create_graph=True)
        found.append((slopes.detach(), *torch.autograd.grad(slopes.pow(2).sum(), (leaf, outer))))
    for ours, torchs in zip(*found, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-6)


def test_where_the_kernel_of_the_backward_pass_fails_torch_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from overdrive.kernels.cross_entropy import operator

    call = simple(6, 11, reduction=MEAN)
    leaf = call.logits.clone().requires_grad_()
    loss = computed(replace(call, logits=leaf))
    expected = slopes_of(loss, leaf)

    def full(logits: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(operator, "_room", full)
    torch.testing.assert_close(slopes_of(loss, leaf), expected)


def test_logits_that_are_changed_in_place_are_told_by_the_techniques_name() -> None:
    leaf = torch.randn(4, 5, requires_grad=True)
    logits = leaf * 2
    loss = computed(Call(logits, torch.arange(4), None, -100, MEAN, 0.0, False))
    logits.add_(1)
    with pytest.raises(RuntimeError, match="fast_cross_entropy"):
        loss.backward()


@pytest.mark.parametrize("number", range(6))
def test_they_are_operators_like_torchs(number: int) -> None:
    call = simple(3, 4, KINDS[number % 3], number % 3, 0.1 * (number // 3))
    weight = torch.rand(4).to(call.logits.dtype) if number % 2 else None
    given = call.logits.requires_grad_(), call.target, weight, -100, call.reduction, call.smoothing
    told = torch.library.opcheck(torch.ops.overdrive.cross_entropy.default, (*given, False))
    assert set(told.values()) == {"SUCCESS"}
    loss, kept, count = torch.ops.overdrive.cross_entropy(*given, False)
    back = torch.ones_like(loss).detach(), call.logits.detach(), call.target, weight, kept, count, -100, *given[4:]
    told = torch.library.opcheck(torch.ops.overdrive.cross_entropy_back.default, back)
    assert set(told.values()) == {"SUCCESS"}


def test_under_autocast_the_result_has_32_bits() -> None:
    call = replace(simple(4, 9, torch.bfloat16, MEAN), wide=True)
    leaf = call.logits.clone().requires_grad_()
    loss = computed(replace(call, logits=leaf))
    exact = F.cross_entropy(leaf.detach().float(), call.target)
    assert loss.dtype is torch.float32 and abs(float(loss.detach() - exact)) < 1e-6
    assert slopes_of(loss, leaf).dtype is torch.bfloat16


def test_torchs_operations_give_the_same_gradient() -> None:
    for number in range(60):
        call = case(number)
        leaf = call.logits.clone().requires_grad_()
        given = leaf, call.target, call.weight, call.ignored, call.reduction, call.smoothing
        loss, _, count = torch.ops.overdrive.cross_entropy(*given, False)
        outer = torch.linspace(1, 2, loss.numel()).view(loss.shape).to(loss.dtype)
        torch.testing.assert_close(
            slopes_plainly(outer, *given[:3], count, *given[3:]), slopes_of(loss, leaf, outer), equal_nan=True
        )
