"""Batch normalisation over the batch of all ranks, with the running statistics of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from overdrive.core.flag import Flag
from overdrive.model_state.division.by_hand import aside
from overdrive.model_state.division.chance import Deviation
from overdrive.model_state.division.exchange import Total
from overdrive.ranks.group import Group

_ARGUMENTS = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")


class Norms:
    """What `torch.batch_norm`, and batch normalisation of Keras's, do inside of divided calls.

    Attributes:
        statistics: in trial calls, the means and variances of each call of it, in their order, and of how many numbers
            a channel's are (0 where Keras asked for them, which keeps running ones itself); else None.
    """

    def __init__(self, group: Group | None) -> None:
        self.group = group
        self.active = Flag()
        self.statistics: list[tuple[torch.Tensor, torch.Tensor, int]] | None = None
        self.replayed = -1  # in trial calls of a part, how many of these were used; -1: they are noted

    def moments(
        self, call: Callable[[], Any], inputs: torch.Tensor, axes: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Mean and variance of each channel, over all but the others of these axes."""
        with aside():
            return self._moments(call, inputs, axes)

    def _moments(
        self, call: Callable[[], Any], inputs: torch.Tensor, axes: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        if self.statistics is None:
            if not self.active:
                return None
            assert self.group is not None
            return _moments_of_all(self.group, inputs, axes)
        if self.replayed < 0:
            mean, variance = call()
            self.statistics.append((mean.detach(), variance.detach(), 0))
            return mean, variance
        mean, variance, _ = self.statistics[self.replayed]
        self.replayed += 1
        return mean, variance

    def answer(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
        if not given["training"] or (self.statistics is None and not self.active):
            return None
        with aside():
            return self._answered(given)

    def _answered(self, given: dict[str, Any]) -> Any:
        x = given["input"]
        if self.statistics is None:
            assert self.group is not None
            return _live(self.group, given)
        if self.replayed < 0:
            self.statistics.append((*_moments(x), x.numel() // x.shape[1]))
            return None
        mean, variance, count = self.statistics[self.replayed]
        self.replayed += 1
        _keep(given, mean, variance, count)
        return torch.batch_norm(
            x, given["weight"], given["bias"], mean, variance, False, 0.0, given["eps"], torch.backends.cudnn.enabled
        )


def _moments_of_all(group: Group, x: torch.Tensor, axes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of the samples of all ranks, not corrected; they have gradients."""
    sums = x.sum(list(axes), keepdim=True, dtype=torch.float64)
    shape = sums.shape
    own = torch.cat((sums.view(-1), sums.new_tensor([x.numel() // sums.numel()])))
    told = Total.apply(own, group)  # type: ignore[no-untyped-call]
    mean, count = told[:-1] / told[-1:], told[-1:].detach()
    centred = x - mean.view(shape).to(x.dtype)
    squares = Total.apply((centred * centred).sum(list(axes), dtype=torch.float64), group)  # type: ignore[no-untyped-call]
    return mean.to(x.dtype), (squares / count).to(x.dtype)


def _live(group: Group, given: dict[str, Any]) -> Any:
    x, weight, bias, eps = given["input"], given["weight"], given["bias"], given["eps"]
    with torch.no_grad():
        mean, variance, count = _of_all(group, x)
    _keep(given, mean, variance, count)
    return _Normalised.apply(x, weight, bias, mean.to(_kept(x)), variance.to(_kept(x)), count, eps, group)  # type: ignore[no-untyped-call]


def _kept(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of each channel, not corrected."""
    if _plain(x):  # torch's own, which its batch normalisation begins with: 3 to 30 times as fast as `var_mean`
        return torch.batch_norm_update_stats(x.detach(), None, None, 0.0)
    variance, mean = torch.var_mean(x.detach().to(_kept(x)), _but_channels(x), correction=0)
    return mean, variance


def _plain(x: torch.Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


def _but_channels(x: torch.Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _along(x: torch.Tensor, channels: torch.Tensor) -> torch.Tensor:
    return channels.view(1, -1, *(1,) * (x.dim() - 2))


def _of_all(group: Group, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Mean, variance and count over ranks, by Chan's formula in fp64: no square of a sum is taken from another."""
    count = x.numel() // x.shape[1]
    # Of rows that are chosen by their values, one rank may have none.
    of_none = x.new_zeros((2, x.shape[1]), dtype=torch.float64)
    mean, variance = (each.double() for each in _moments(x)) if count else of_none
    own = torch.cat((mean, variance * count, mean.new_tensor([count])))
    told = group.gather(own, 0, [len(own)] * group.size, "a batch's statistics").view(group.size, -1)
    means, squares = told[:, :-1].chunk(2, 1)
    counts = told[:, -1:]
    total = counts.sum()
    mean = (means * counts).sum(0) / total
    squares = squares.sum(0) + (counts * (means - mean) ** 2).sum(0)
    [count] = total.view(1).tolist()  # `int` of a tensor is the program's way to read: it asks rank 0
    if not count:
        raise Deviation("it normalises no sample at all")
    return mean, squares / total, int(count)


def _keep(given: dict[str, Any], mean: torch.Tensor, variance: torch.Tensor, count: int) -> None:
    """Into the running statistics, as PyTorch does it."""
    momentum = given["momentum"]
    with torch.no_grad():
        for name, value in (("running_mean", mean), ("running_var", variance * (count / max(1, count - 1)))):
            running = given[name]
            if running is not None:
                running.mul_(1 - momentum).add_(value.to(running.dtype), alpha=momentum)


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, count: int, eps: float, group: Group
    ) -> Any:
        ctx.save_for_backward(x, weight, bias, mean, variance)
        ctx.count, ctx.eps, ctx.group = count, eps, group
        cudnn = torch.backends.cudnn.enabled
        return torch.batch_norm(x, weight, bias, mean, variance, False, 0.0, eps, cudnn)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight, bias, mean, variance = ctx.saved_tensors
        if torch.is_grad_enabled():  # it will be differentiated again
            return (*_differentiable(ctx, x, weight, bias, gradient), *(None,) * 5)
        kind, inverse = mean.dtype, torch.rsqrt(variance + ctx.eps)
        scale = inverse if weight is None else inverse * weight.to(kind)
        # Of no numbers torch's own divides by their count, in C, and ends the process.
        with_fixed = _backward_of_fixed if _plain(x) and x.numel() else _backward_by_hand
        of_x, of_weight, of_bias = with_fixed(gradient.to(kind), x, weight, mean, variance, ctx.eps)
        sums = ctx.group.sum_(torch.cat((of_bias, of_weight)), "a batch's statistics").div_(ctx.count)
        first, second = sums.chunk(2)
        of_x.addcmul_(x.to(kind) - _along(x, mean), _along(x, second * scale * inverse), value=-1)
        of_x = of_x.sub_(_along(x, first * scale)).to(x.dtype)
        for_weight = None if weight is None else of_weight.to(weight.dtype)
        return of_x, for_weight, None if bias is None else of_bias.to(bias.dtype), *(None,) * 5


def _backward_of_fixed(
    gradient: Any, x: Any, weight: Any, mean: Any, variance: Any, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients for the input, the weight and the bias, were mean and variance given: torch's own, in two passes."""
    every = [True, True, True]
    backward = torch.ops.aten.native_batch_norm_backward
    return backward(gradient, x, weight, mean, variance, None, None, False, eps, every)  # type: ignore[no-any-return]


def _backward_by_hand(
    gradient: Any, x: Any, weight: Any, mean: Any, variance: Any, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same, for numbers of 16 bits and on a GPU."""
    dims, inverse = _but_channels(x), torch.rsqrt(variance + eps)
    normal = (x.to(mean.dtype) - _along(x, mean)) * _along(x, inverse)
    scale = inverse if weight is None else inverse * weight.to(mean.dtype)
    return gradient * _along(x, scale), (gradient * normal).sum(dims), gradient.sum(dims)


def _differentiable(ctx: Any, x: Any, weight: Any, bias: Any, gradient: Any) -> tuple[Any, Any, Any]:
    """The gradients, by operations that have gradients in their turn."""
    given = [each for each in (x, weight, bias) if each is not None and each.requires_grad]
    with torch.enable_grad():
        dims = _but_channels(x)
        mean = Total.apply(x.sum(dims), ctx.group) / ctx.count  # type: ignore[no-untyped-call]
        centred = x - _along(x, mean)
        variance = Total.apply((centred * centred).sum(dims), ctx.group) / ctx.count  # type: ignore[no-untyped-call]
        made = centred * _along(x, torch.rsqrt(variance + ctx.eps))
        made = made if weight is None else made * _along(x, weight)
        made = made if bias is None else made + _along(x, bias)
        found = iter(torch.autograd.grad(made, given, gradient, create_graph=True))
    return tuple(next(found) if each is not None and each.requires_grad else None for each in (x, weight, bias))  # type: ignore[return-value]
