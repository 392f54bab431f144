"""`fft_convolution`: the same numbers to rounding in every shape, and only where it is chosen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.layout import fft_convolution
from overdrive.worker.session import Session

PLAN = [("fft_convolution", {"least": 2})]
KINDS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 50), (4, 3, 9), {}),
    ((2, 4, 51), (8, 2, 8), {"padding": "same", "groups": 2}),
    ((2, 4, 33), (4, 1, 33), {"padding": 16, "groups": 4}),
    ((1, 1, 7), (2, 1, 7), {}),
    ((2, 3, 13, 20), (4, 3, 5, 8), {"padding": (2, 1), "stride": (1, 1), "dilation": 1}),
    ((2, 4, 12, 11), (8, 1, 4, 7), {"padding": "same", "groups": 4}),
]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fft_convolution, "_is_faster", lambda *_: True)


def both_ways(call: Any, techniques: Any) -> list[torch.Tensor]:
    with Session(techniques):
        return call()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("signal", "weight", "options"), KINDS)
def test_forward_and_backward_are_those_of_the_direct_sum(
    signal: Any, weight: Any, options: Any, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    transforms: list[int] = []
    plain = torch.fft.rfftn
    monkeypatch.setattr(torch.fft, "rfftn", lambda *args: transforms.append(1) or plain(*args))

    def call() -> list[torch.Tensor]:
        torch.manual_seed(0)
        given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in (signal, weight, weight[:1])]
        made = (F.conv1d if len(signal) == 3 else F.conv2d)(*given, **options)
        slope = torch.randn_like(made)
        return [made, *torch.autograd.grad(made, given, slope)]

    direct, transformed = both_ways(call, []), both_ways(call, PLAN)
    assert transforms
    for one, other in zip(direct, transformed, strict=True):
        assert one.shape == other.shape and one.is_contiguous() is other.is_contiguous()
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("shape", "weight", "options"),
    [
        ((2, 3, 50), (4, 3, 9), {"stride": 2}),
        ((2, 3, 50), (4, 3, 9), {"dilation": 2}),
        ((3, 50), (4, 3, 9), {}),  # without a batch
    ],
)
def test_other_convolutions_are_computed_as_written(shape: Any, weight: Any, options: Any, always: None) -> None:
    signal, kernel = torch.randn(shape), torch.randn(weight)
    assert torch.equal(
        both_ways(lambda: F.conv1d(signal, kernel, **options), PLAN),  # type: ignore[arg-type]
        F.conv1d(signal, kernel, **options),
    )


def test_a_wrong_call_fails_as_it_does_without(always: None) -> None:
    with Session(PLAN) as session, pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        F.conv1d(torch.randn(1, 1, 4), torch.randn(1, 1, 9))
    with Session(PLAN) as session, pytest.raises(RuntimeError, match="to have 3 channels"):
        F.conv1d(torch.randn(1, 2, 40), torch.randn(4, 3, 9))
    assert not session.seams.left_out


@pytest.mark.parametrize("deterministic", [False, True])
def test_each_shape_is_decided_once_by_time_or_where_time_may_not_decide_by_arithmetic(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[Any] = []
    monkeypatch.setattr(fft_convolution, "_is_faster", lambda call, args, *_: timed.append(args[0].shape))
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    with Session([("fft_convolution", {})]):
        model = nn.Conv1d(4, 4, 1025, padding=512, groups=4)
        for length in (64, 64, 128):
            model(torch.randn(1, 4, length))
        nn.Conv2d(3, 4, 3)(torch.randn(1, 3, 8, 8))
    assert timed == ([] if deterministic else [(1, 4, 64), (1, 4, 128)])
    deep, shallow = torch.Size((8, 16, 4096)), torch.Size((8, 16, 64))
    assert fft_convolution._less_arithmetic(deep, torch.Size((16, 1, 1025)), [(512, 512)])
    assert not fft_convolution._less_arithmetic(shallow, torch.Size((16, 1, 7)), [(3, 3)])


def test_what_time_has_decided_does_not_hold_for_a_program_that_becomes_deterministic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[Any] = []
    monkeypatch.setattr(fft_convolution, "_is_faster", lambda *_: True)
    monkeypatch.setattr(fft_convolution, "_less_arithmetic", lambda *of: counted.append(of[0]))
    with Session([("fft_convolution", {})]):
        model = nn.Conv1d(4, 4, 1025, padding=512, groups=4)
        for deterministic in (False, True, True):
            monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda now=deterministic: now)
            model(torch.randn(1, 4, 64))
    assert counted == [(1, 4, 64)]


def test_timing_leaves_parameters_gradients_and_random_numbers_alone() -> None:
    def call() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Conv1d(2, 2, 65, groups=2)
        made = model(torch.randn(1, 2, 100))
        made.sum().backward()
        assert model.weight.grad is not None
        return [made.detach(), model.weight.grad, torch.rand(3)]

    for one, other in zip(both_ways(call, []), both_ways(call, [("fft_convolution", {})]), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def test_scripts_and_traces_of_models_are_as_without_and_no_trace_is_left(always: None) -> None:
    model, x = nn.Sequential(nn.Conv1d(2, 2, 9)), torch.randn(1, 2, 40)
    expected, before = model(x), (F.conv1d, torch.conv1d)
    with Session(PLAN):
        assert torch.equal(torch.jit.script(model)(x), expected)
        assert torch.equal(torch.jit.trace(model, x)(x), expected)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert model(x).dtype is torch.bfloat16
    assert (F.conv1d, torch.conv1d) == before


def test_small_kernels_are_the_reason_where_there_are_no_others() -> None:
    assert "49 elements" in str(
        catalogue()["fft_convolution"].applies(Facts(own={"fft_convolution": {"largest_kernel": 9}}))
    )
    assert catalogue()["fft_convolution"].applies(Facts(own={"fft_convolution": {"largest_kernel": 961}})) is None
