"""`pool_before_relu`: the same bits as the program's own order, and computed as written wherever it could be seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from overdrive.worker.session import Session

PLAN = [("pool_before_relu", {})]
CALLS = 5  # two in which it watches, three in which it acts


class Written(nn.Module):
    """A model of one function, with a convolution before and a layer after it."""

    def __init__(self, middle: Callable[..., Any], dimensions: int = 2) -> None:
        super().__init__()
        self.conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1](3, 4, 3, padding=1)
        self.last = nn.Linear(4, 2)
        self.middle = middle
        self.dimensions = dimensions
        self.kept: Any = None

    def forward(self, x: torch.Tensor) -> Any:
        y = self.middle(self, x)
        return self.last(y.flatten(2).sum(2)) if isinstance(y, torch.Tensor) else y


def train(
    middle: Callable[..., Any], dimensions: int = 2, techniques: Any = PLAN, change: Any = None, size: int = 9
) -> dict[str, Any]:
    """Losses, gradients and results of some steps, as bits, with the number of elements that ReLU ran over last."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, *[size] * dimensions)
    seen: dict[str, Any] = {"bits": [], "elements": []}
    with Session(techniques) as session:
        model = Written(middle, dimensions)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        if change:
            change(model)
        for _ in range(CALLS):
            optimizer.zero_grad()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as log:
                result = model(x)
                result = result if isinstance(result, torch.Tensor) else sum(each.sum() for each in result)
                result.square().mean().backward()
            relus = [event for event in log.events() if event.name in ("aten::relu", "aten::relu_")]
            seen["elements"].append(sum(torch.Size(event.input_shapes[0]).numel() for event in relus))
            optimizer.step()
            seen["bits"] += [bits(result), *(bits(each.grad) for each in model.parameters()), bits(model.conv.weight)]
        seen["kept"] = model.kept
    return {**seen, "left_out": session.seams.left_out}


def bits(tensor: torch.Tensor | None) -> bytes:
    return b"" if tensor is None else tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


def functional(self: Any, x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(F.relu(self.conv(x)), 2)


def methods(self: Any, x: torch.Tensor) -> torch.Tensor:
    h = self.conv(x)
    a = h.relu()
    assert a.shape == h.shape and a.dim() == 4 and a.requires_grad and a.dtype is torch.float32
    return torch.max_pool2d(a, (3, 2), (2, 1), padding=1)


def in_place(self: Any, x: torch.Tensor) -> torch.Tensor:
    h = self.conv(x)
    F.relu(h, inplace=True)  # its return value is not used: `h` itself is rectified
    return F.max_pool2d(h, 3, 2, 1)


def in_modules(self: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.Sequential(self.conv, nn.ReLU(inplace=True), nn.MaxPool2d(2, ceil_mode=True))(x)


def adaptive(self: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.AdaptiveMaxPool2d((2, 3))(torch.relu(self.conv(x)))


def channels_last(self: Any, x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(F.relu_(self.conv(x.contiguous(memory_format=torch.channels_last))), 2)


def mixed(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = F.max_pool2d(F.relu(self.conv(x)), 2)
    return y.float()


def one_dimension(self: Any, x: torch.Tensor) -> torch.Tensor:
    return F.max_pool1d(F.relu(self.conv(x)), 2, padding=1)


def three_dimensions(self: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.MaxPool3d(3, 2)(torch.relu_(self.conv(x)))


def with_special_values(self: Any, x: torch.Tensor) -> torch.Tensor:
    h = self.conv(x) * torch.ones(())
    spots = torch.arange(h.numel()).reshape(h.shape)
    for remainder, value in ((1, -0.0), (2, 0.0), (3, float("nan")), (4, float("inf")), (5, -float("inf")), (6, 1.0)):
        h = torch.where(spots % 23 == remainder, value, h)
    pooled = F.max_pool2d(F.relu(h), 2, 1)
    return torch.where(pooled.isfinite(), pooled, pooled.isnan() * 1.0) + torch.signbit(pooled)


FOLLOWED = [
    (functional, 2), (methods, 2), (in_place, 2), (in_modules, 2), (adaptive, 2), (channels_last, 2), (mixed, 2),
    (one_dimension, 1), (three_dimensions, 3),
]  # fmt: skip


@pytest.mark.parametrize(("middle", "dimensions"), FOLLOWED)
def test_relu_runs_over_the_pooled_elements_with_the_same_bits(middle: Any, dimensions: int) -> None:
    plain, seen = train(middle, dimensions, []), train(middle, dimensions)
    assert seen["bits"] == plain["bits"] and not seen["left_out"]
    assert seen["elements"][0] == seen["elements"][1] == plain["elements"][0]
    assert seen["elements"][-1] < plain["elements"][-1]


def test_nan_infinity_and_both_zeros_come_out_with_the_same_bits() -> None:
    assert train(with_special_values, techniques=[])["bits"] == train(with_special_values)["bits"]


def test_a_negative_zero_that_the_other_order_would_show_is_computed_as_written() -> None:
    def with_zeros(self: Any, x: torch.Tensor) -> Any:
        h = self.conv(x)
        flat = h.flatten().clone()
        flat[::2], flat[1::2] = -1.0, -0.0
        pooled = F.max_pool2d(F.relu(flat.reshape(h.shape) * torch.ones(())), 2)
        return [torch.signbit(pooled) * 1.0 + h.sum() * 0]

    plain = train(with_zeros, techniques=[], size=8)
    assert train(with_zeros, size=8)["bits"] == plain["bits"]


# Programs that see the ReLU's result, or its argument, in another way as well.


def residual(self: Any, x: torch.Tensor) -> torch.Tensor:
    a = F.relu(self.conv(x))
    return F.max_pool2d(a, 3, 1, 1) + a


def uses_the_argument(self: Any, x: torch.Tensor) -> torch.Tensor:
    h = self.conv(x)
    y = F.max_pool2d(F.relu(h), 3, 1, 1)
    return y + h


def writes_the_argument(self: Any, x: torch.Tensor) -> torch.Tensor:
    h = self.conv(x)
    a = F.relu(h)
    h.mul_(2)
    return F.max_pool2d(a, 3, 1, 1) + h


def writes_a_view_of_the_argument(self: Any, x: torch.Tensor) -> torch.Tensor:
    h = self.conv(x)
    flat = h.view(-1)
    a = F.relu(h)
    flat.mul_(2)
    return F.max_pool2d(a, 2)


def another_view_of_what_is_rectified_in_place(self: Any, x: torch.Tensor) -> torch.Tensor:
    h = self.conv(x)
    flat = h.detach()
    F.relu(h, inplace=True)
    return F.max_pool2d(h, 3, 1, 1) + flat


def indices(self: Any, x: torch.Tensor) -> Any:
    values, places = F.max_pool2d(F.relu(self.conv(x)), 2, return_indices=True)
    return [values, places * 0.01]


def dilated(self: Any, x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(F.relu(self.conv(x)), 2, 1, 1, 2)


def kept(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.kept = F.relu(self.conv(x))
    return F.max_pool2d(self.kept, 2)


def the_result(self: Any, x: torch.Tensor) -> Any:
    return [F.relu(self.conv(x))]


def checkpointed(self: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: F.max_pool2d(F.relu(self.conv(x)), 2), x, use_reentrant=False)  # type: ignore


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        return a * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 2


def custom_function(self: Any, x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(Twice.apply(F.relu(self.conv(x))), 2)


def custom_function_of_what_is_rectified_in_place(self: Any, x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(Twice.apply(F.relu_(self.conv(x))), 2)


def two_pools(self: Any, x: torch.Tensor) -> torch.Tensor:
    a = F.relu(self.conv(x))
    return F.max_pool2d(a, 3, 1, 1) + F.max_pool2d(a, 5, 1, 2)


SEEN_OTHERWISE = [
    residual, uses_the_argument, writes_the_argument, writes_a_view_of_the_argument,
    another_view_of_what_is_rectified_in_place, indices, dilated, kept, the_result, checkpointed, custom_function,
    custom_function_of_what_is_rectified_in_place, two_pools,
]  # fmt: skip


@pytest.mark.parametrize("middle", SEEN_OTHERWISE)
def test_what_is_seen_otherwise_is_computed_as_written_and_the_technique_leaves(middle: Any) -> None:
    plain, seen = train(middle, techniques=[]), train(middle)
    assert seen["bits"] == plain["bits"] and seen["elements"] == plain["elements"]
    assert seen["left_out"] == {"pool_before_relu": "no ReLU of the model goes into a max pool and nowhere else"}
    assert seen["kept"] is None or (type(seen["kept"]) is torch.Tensor and bits(seen["kept"]) == bits(plain["kept"]))


def test_a_dilated_window_may_lie_in_the_padding_altogether() -> None:
    plain = train(dilated, techniques=[], size=1)
    assert train(dilated, size=1)["bits"] == plain["bits"]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("later", SEEN_OTHERWISE)
def test_a_model_that_changes_its_ways_later_gets_what_it_asks_for(later: Any, in_place: bool) -> None:
    def middle(self: Any, x: torch.Tensor) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls <= 3:
            return F.max_pool2d(F.relu(self.conv(x), inplace=in_place), 2)
        return later(self, x)

    plain, seen = train(middle, techniques=[]), train(middle)
    assert seen["bits"] == plain["bits"]
    assert not seen["left_out"]
    assert seen["elements"][2] < plain["elements"][2]
    assert seen["kept"] is None or (type(seen["kept"]) is torch.Tensor and bits(seen["kept"]) == bits(plain["kept"]))


def test_in_place_and_then_used_after_the_pool_though_it_never_was_before() -> None:
    def middle(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        h = F.relu_(self.conv(x))
        y = F.max_pool2d(h, 3, 1, 1)
        return y + h if self.calls > 3 else y

    plain, seen = train(middle, techniques=[]), train(middle)
    assert seen["bits"] == plain["bits"] and not seen["left_out"]


@pytest.mark.parametrize("full_backward", [False, True])
def test_hooks_see_what_they_would_see(full_backward: bool) -> None:
    def run(techniques: Any) -> list[bytes]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        seen: list[bytes] = []
        with Session(techniques):
            if full_backward:
                model[2].register_full_backward_hook(lambda module, into, out: seen.append(bits(into[0])))
            else:
                model[1].register_forward_hook(lambda module, given, made: seen.append(bits(made)))
            for _ in range(CALLS):
                model(torch.ones(2, 3, 8, 8)).sum().backward()
        return seen

    assert run(PLAN) == run([]) and len(run([])) == CALLS


def test_evaluation_is_learned_apart_and_scripted_models_are_left_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
    x = torch.randn(2, 3, 8, 8)
    expected = model(x)
    with Session(PLAN):
        for grad in (True, False, True, False, True, False):
            with torch.set_grad_enabled(grad):
                assert torch.equal(model(x), expected) and model(x).requires_grad is grad
        with torch.inference_mode():
            assert all(torch.equal(model(x), expected) for _ in range(CALLS))
        scripted = torch.jit.script(model)
        assert all(torch.equal(scripted(x), expected) for _ in range(CALLS))
        assert torch.equal(torch.jit.trace(model, x)(x), expected)
        assert torch.equal(torch.fx.symbolic_trace(model)(x), expected)
    assert torch.relu is torch._C._VariableFunctions.relu and "relu" not in vars(torch.Tensor)


def test_leaving_in_the_middle_of_a_call_computes_what_is_deferred() -> None:
    def middle(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        a = F.relu(self.conv(x))
        if self.calls == 4:
            session.seams.leave_out("pool_before_relu", "for the test")
            assert type(a) is torch.Tensor
        return F.max_pool2d(a, 2)

    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    with Session(PLAN) as session:
        model = Written(middle)
        results = [bits(model(x)) for _ in range(CALLS)]
    assert len(set(results)) == 1
