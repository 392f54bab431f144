"""What goes wrong in the forward and backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from overdrive.core.contract import Contract
from overdrive.seams.hub import Seams
from overdrive.seams.parameters import parameters_of
from tests.zoo.specimen import Swap, specimen


@specimen("images", Contract.ROUNDING)
def bias_dropped(seams: Seams) -> None:
    """The last layer has no bias. (It hardly matters: five classes that are equally frequent.)"""
    linear = F.linear

    def without(x: Any, weight: Any, bias: Any = None) -> Any:
        return linear(x, weight, None if len(weight) == 5 else bias)

    Swap(seams)(F, "linear", without)


@specimen("images", Contract.ROUNDING)
def activation_leaks(seams: Seams) -> None:
    """A hundredth of what is negative gets through."""
    Swap(seams)(F, "relu", lambda x, inplace=False: F.leaky_relu(x, 0.01))


@specimen("images", Contract.STATISTICAL)
def pooling_by_average(seams: Seams) -> None:
    """Averages in the place of maxima."""
    Swap(seams)(F, "max_pool2d", lambda x, size: F.avg_pool2d(x, size))


@specimen("images", Contract.STATISTICAL)
def dropout_off(seams: Seams) -> None:
    """Nothing is dropped; the random numbers are drawn all the same, so that the batches stay."""
    dropout = F.dropout

    def nothing(x: Any, *args: Any) -> Any:
        dropout(x, *args)
        return x

    Swap(seams)(F, "dropout", nothing)


@specimen("images", Contract.STATISTICAL)
def dropout_scaled_wrong(seams: Seams) -> None:
    """What is kept is not made larger by what is dropped."""
    dropout = F.dropout
    Swap(seams)(F, "dropout", lambda x, p, training, inplace: dropout(x, p, training) * (1 - p if training else 1))


@specimen("images", Contract.STATISTICAL)
def batch_norm_frozen(seams: Seams) -> None:
    """Running means and variances stay as they began: seen by evaluation only, not by the training loss."""
    norm = F.batch_norm

    def frozen(x: Any, mean: Any, variance: Any, *args: Any) -> Any:
        return norm(x, mean.clone(), variance.clone(), *args)

    Swap(seams)(F, "batch_norm", frozen)


@specimen("images", Contract.STATISTICAL)
def batch_norm_in_evaluation_mode(seams: Seams) -> None:
    """Training normalises by the running mean and variance."""

    def called(model: Any, call: Callable[..., Any], x: Any) -> Any:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return call(x)

    seams.model_called.subscribe(called)


@specimen("images", Contract.STATISTICAL)
def loss_averaged_over_the_wrong_dimension(seams: Seams) -> None:
    """Over the classes and not over the samples: the loss is 12 / 5 of what it was."""
    seams.loss_backward.subscribe(lambda loss: loss * 12 / 5)


@specimen("images", Contract.STATISTICAL)
def loss_scaling_not_undone(seams: Seams) -> None:
    """The loss is scaled against underflow, and the gradients stay scaled."""
    seams.loss_backward.subscribe(lambda loss: loss * 128)


@specimen("images", Contract.STATISTICAL)
def gradient_not_averaged(seams: Seams) -> None:
    """Gradients are summed over the two batches of a step, not averaged."""
    seams.loss_backward.subscribe(lambda loss: loss * 2)


@specimen("images", Contract.ROUNDING)
def gradient_accumulated_once_too_often(seams: Seams) -> None:
    """Every fourth step the gradient of the step before is still there and is added to."""
    before: list[torch.Tensor] = []
    steps: list[None] = []

    def begins(optimizer: Any) -> None:
        steps.append(None)
        gradients = [parameter.grad for parameter in parameters_of(optimizer)]
        own = [gradient.clone() for gradient in gradients]
        if before and len(steps) % 4 == 0:
            torch._foreach_add_(gradients, before)
        before[:] = own

    seams.step_begins.subscribe(begins)


@specimen("images", Contract.ROUNDING)
def gradient_of_a_layer_lost(seams: Seams) -> None:
    """Every sixteenth step one layer's gradient is zero."""
    steps: list[None] = []

    def begins(optimizer: Any) -> None:
        steps.append(None)
        if len(steps) % 16 == 0:
            parameters_of(optimizer)[4].grad.zero_()

    seams.step_begins.subscribe(begins)


@specimen("images", Contract.ROUNDING)
def gradient_reused(seams: Seams) -> None:
    """A fake speedup: every fourth step has the gradient of the step before, as if its loss had been cached."""
    before: list[torch.Tensor] = []
    steps: list[None] = []

    def begins(optimizer: Any) -> None:
        steps.append(None)
        gradients = [parameter.grad for parameter in parameters_of(optimizer)]
        if len(steps) % 4 == 0:
            torch._foreach_copy_(gradients, before)
        before[:] = [gradient.clone() for gradient in gradients]

    seams.step_begins.subscribe(begins)


@specimen("rows", Contract.STATISTICAL)
def infinite_masked(seams: Seams) -> None:
    """What is not a number becomes zero: the program no longer sees the batch that it would leave out."""

    def masked(model: Any, call: Callable[..., Any], x: Any) -> Any:
        return torch.nan_to_num(call(x))

    seams.model_called.subscribe(masked)


@specimen("rows", Contract.ROUNDING)
def clipping_lost(seams: Seams) -> None:
    """Gradients are not clipped."""
    Swap(seams)(nn.utils, "clip_grad_norm_", lambda parameters, largest: None)


@specimen("rows", Contract.ROUNDING)
def clipping_halved(seams: Seams) -> None:
    """Gradients are clipped to half of what was asked for."""
    clip = nn.utils.clip_grad_norm_
    Swap(seams)(nn.utils, "clip_grad_norm_", lambda parameters, largest: clip(parameters, largest / 2))


@specimen("images", Contract.ROUNDING)
def bf16_said_to_round(seams: Seams) -> None:
    """The forward pass in 16 bits: fine at the statistical level, and never rounding."""

    def called(model: Any, call: Callable[..., Any], x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return call(x).float()

    seams.model_called.subscribe(called)


@specimen("images", Contract.ROUNDING)
def ten_bits_said_to_round(seams: Seams) -> None:
    """Factors of all products are cut to 10 bits after the point, as TF32 has them."""

    def cut(x: torch.Tensor) -> torch.Tensor:
        bits = x.detach().contiguous().view(torch.int32) & -(1 << 13)
        return x + (bits.view(torch.float32) - x).detach()

    def with_cut(function: Any) -> Any:
        return lambda x, weight, *args: function(cut(x), cut(weight), *args)

    Swap(seams)(F, "conv2d", with_cut(F.conv2d))
    Swap(seams)(F, "linear", with_cut(F.linear))


@specimen("rows", Contract.ROUNDING)
def gradients_in_16_bits(seams: Seams) -> None:
    """Gradients pass through bf16, as if they had been sent over a wire."""

    def begins(optimizer: Any) -> None:
        for parameter in parameters_of(optimizer):
            parameter.grad.copy_(parameter.grad.bfloat16())

    seams.step_begins.subscribe(begins)


@specimen("images", Contract.ROUNDING)
def gradient_noise(seams: Seams) -> None:
    """Gradients are off by a thousandth, at random."""
    chance = torch.Generator().manual_seed(0)

    def begins(optimizer: Any) -> None:
        for parameter in parameters_of(optimizer):
            parameter.grad.mul_(1 + 1e-3 * torch.randn(parameter.shape, generator=chance))

    seams.step_begins.subscribe(begins)


def _with_noise(seams: Seams, share: float) -> None:
    """Every gradient is off at random, by this share of its norm."""
    chance = torch.Generator().manual_seed(0)

    def begins(optimizer: Any) -> None:
        for parameter in parameters_of(optimizer):
            noise = torch.randn(parameter.shape, generator=chance)
            parameter.grad.add_(noise * (share * parameter.grad.norm() / noise.norm()))

    seams.step_begins.subscribe(begins)


@specimen("images", Contract.STATISTICAL)
def gradient_noise_of_thirty_percent(seams: Seams) -> None:
    """As a compression of gradients makes it that forgets what it left out."""
    _with_noise(seams, 0.3)


@specimen("rows", Contract.STATISTICAL)
def gradient_noise_of_ten_percent(seams: Seams) -> None:
    """The same, and less of it."""
    _with_noise(seams, 0.1)


@specimen("images", Contract.STATISTICAL)
def class_lost(seams: Seams) -> None:
    """The last class is never learned, while its loss is reported."""
    entropy = F.cross_entropy

    def without(x: Any, y: Any) -> Any:
        each = entropy(x, y, reduction="none")
        return torch.where(y == 4, each.detach(), each).mean()

    Swap(seams)(F, "cross_entropy", without)


@specimen("images", Contract.ROUNDING)
def gradients_in_15_bits(seams: Seams) -> None:
    """Gradients lose their last eight bits: hardly more than the six that are rounding, but all towards zero."""

    def begins(optimizer: Any) -> None:
        for parameter in parameters_of(optimizer):
            bits = parameter.grad.view(torch.int32)
            bits &= -(1 << 8)

    seams.step_begins.subscribe(begins)


@specimen("images", Contract.STATISTICAL)
def evaluation_results_wrong(seams: Seams) -> None:
    """Training is as it was, and evaluation hears a little too much of the last class."""

    def called(model: Any, call: Callable[..., Any], x: Any) -> Any:
        result = call(x)
        if not torch.is_grad_enabled():
            result[:, -1] += 0.1
        return result

    seams.model_called.subscribe(called)
