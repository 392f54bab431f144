"""Techniques that keep their contract. `contract` is the strictest level that must let them pass."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from overdrive.core.contract import Contract
from overdrive.seams.hub import Seams
from overdrive.seams.parameters import parameters_of
from tests.zoo.specimen import Swap, specimen

Call = Callable[..., Any]


# -- exact ------------------------------------------------------------------------------------------


@specimen("images", Contract.EXACT)
def hooks_that_only_look(seams: Seams) -> None:
    """Forward and gradient hooks that hand on what they are given."""

    def made(optimizer: Any, models: list[Any]) -> None:
        for model in models:
            for module in model.modules():
                module.register_forward_hook(lambda module, given, result: result)
        for parameter in parameters_of(optimizer):
            parameter.register_hook(lambda gradient: gradient)

    seams.optimizer_made.subscribe(made)


@specimen("images", Contract.EXACT)
def batches_copied(seams: Seams) -> None:
    """Every batch is copied to new memory, as a pinned or a device buffer would hold it."""

    def opens(loader: Any, call: Call) -> Any:
        return ([part.clone() for part in batch] for batch in call())

    seams.loader_opens.subscribe(opens)


@specimen("rows", Contract.EXACT)
def batches_fetched_ahead(seams: Seams) -> None:
    """A thread fetches two batches ahead. (Exact where fetching draws no random numbers.)"""

    def ahead(batches: Iterator[Any]) -> Iterator[Any]:
        fetched: queue.Queue[Any] = queue.Queue(2)

        def fetch() -> None:
            for batch in batches:
                fetched.put(batch)
            fetched.put(None)

        threading.Thread(target=fetch, daemon=True).start()
        return iter(fetched.get, None)

    seams.loader_opens.subscribe(lambda loader, call: ahead(call()))


@specimen("images", Contract.EXACT)
def gradients_zeroed_in_place(seams: Seams) -> None:
    """`zero_grad` fills with zeros what it would have thrown away."""
    Swap(seams)(torch.optim.SGD, "zero_grad", lambda optimizer: torch._foreach_zero_(_gradients(optimizer)))


@specimen("images", Contract.EXACT)
def foreach_optimizer(seams: Seams) -> None:
    """SGD's operations are made over lists of tensors."""

    def made(optimizer: Any, models: list[Any]) -> None:
        for group in optimizer.param_groups:
            group["foreach"] = True

    seams.optimizer_made.subscribe(made)


@specimen("images", Contract.EXACT)
def pool_before_activation(seams: Seams) -> None:
    """The maximum of what is cut off at zero is what is left of the maximum, and a quarter of the work."""
    relu, pool = F.relu, F.max_pool2d

    def activated(x: Any) -> Any:
        return x if x.dim() == 4 else relu(x)

    Swap(seams)(F, "relu", activated)
    Swap(seams)(F, "max_pool2d", lambda x, size: relu(pool(x, size)))


@specimen("rows", Contract.EXACT)
def parameters_moved(seams: Seams) -> None:
    """All parameters lie in one piece of memory, as for communication or CUDA graphs."""

    def made(optimizer: Any, models: list[Any]) -> None:
        parameters = parameters_of(optimizer)
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        for parameter, piece in zip(parameters, flat.split([each.numel() for each in parameters]), strict=True):
            parameter.data = piece.view(parameter.shape)

    seams.optimizer_made.subscribe(made)


# -- rounding ---------------------------------------------------------------------------------------


@specimen("images", Contract.ROUNDING)
def convolution_by_matrix_product(seams: Seams) -> None:
    """Convolutions as products of unfolded images."""

    def unfolded(x: Any, weight: Any, bias: Any, *_: Any) -> Any:
        columns = F.unfold(x, 3, padding=1)
        result = weight.flatten(1) @ columns + bias[:, None]
        return result.view(len(x), len(weight), *x.shape[2:])

    Swap(seams)(F, "conv2d", unfolded)


@specimen("images", Contract.ROUNDING)
def gradients_in_19_bits(seams: Seams) -> None:
    """Gradients lose their last four bits, as much as PyTorch's own kernels differ by."""

    def begins(optimizer: Any) -> None:
        for gradient in _gradients(optimizer):
            bits = gradient.view(torch.int32)
            bits &= -(1 << 4)

    seams.step_begins.subscribe(begins)


@specimen("images", Contract.ROUNDING)
def loss_in_other_words(seams: Seams) -> None:
    """Cross-entropy as a logarithm of a sum of exponentials, less the label's own."""

    def entropy(x: Any, y: Any) -> Any:
        return (x.logsumexp(1) - x.gather(1, y[:, None])[:, 0]).mean()

    Swap(seams)(F, "cross_entropy", entropy)


@specimen("images", Contract.ROUNDING)
def sums_in_another_order(seams: Seams) -> None:
    """Products are summed from the last to the first."""
    linear, convolve = F.linear, F.conv2d

    def reversed_convolution(x: Any, weight: Any, *args: Any) -> Any:
        return convolve(x.flip(1), weight.flip(1), *args)

    Swap(seams)(F, "linear", lambda x, weight, bias: linear(x.flip(1), weight.flip(1), bias))
    Swap(seams)(F, "conv2d", reversed_convolution)


@specimen("images", Contract.ROUNDING)
def batch_norm_in_two_passes(seams: Seams) -> None:
    """Batch norm from its formula, mean and variance one after the other."""

    def norm(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, training: bool, share: float, eps: float) -> Any:
        if training:
            own = x.mean((0, 2, 3))
            spread = ((x - own[:, None, None]) ** 2).mean((0, 2, 3))
            count = x.numel() / x.shape[1]
            with torch.no_grad():
                mean.lerp_(own, share)
                variance.lerp_(spread * count / (count - 1), share)
        else:
            own, spread = mean, variance
        scale = weight * torch.rsqrt(spread + eps)
        return (x - own[:, None, None]) * scale[:, None, None] + bias[:, None, None]

    Swap(seams)(F, "batch_norm", norm)


@specimen("rows", Contract.ROUNDING)
def two_threads(seams: Seams) -> None:
    """Operations share their work between two threads."""

    def arrived() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        seams.on_undo(lambda: torch.set_num_threads(before))

    seams.framework_arrived.subscribe(arrived)


@specimen("rows", Contract.ROUNDING)
def lstm_by_hand(seams: Seams) -> None:
    """The LSTM from its formula, all steps' input products in one."""

    def forward(lstm: Any, x: Any) -> Any:
        given = x @ lstm.weight_ih_l0.T + (lstm.bias_ih_l0 + lstm.bias_hh_l0)
        state = cell = x.new_zeros(len(x), lstm.hidden_size)
        states = []
        for each in given.unbind(1):
            into, forget, new, out = (each + state @ lstm.weight_hh_l0.T).chunk(4, 1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(into) * torch.tanh(new)
            state = torch.sigmoid(out) * torch.tanh(cell)
            states.append(state)
        return torch.stack(states, 1), (state, cell)

    Swap(seams)(nn.LSTM, "forward", forward)


@specimen("rows", Contract.ROUNDING)
def clipping_in_other_words(seams: Seams) -> None:
    """The norm of all gradients as the norm of one long vector."""

    def clip(parameters: Any, largest: float) -> None:
        gradients = [parameter.grad for parameter in parameters]
        norm = torch.cat([gradient.reshape(-1) for gradient in gradients]).norm()
        torch._foreach_mul_(gradients, (largest / (norm + 1e-6)).clamp(max=1.0))

    Swap(seams)(nn.utils, "clip_grad_norm_", clip)


# -- statistical ------------------------------------------------------------------------------------


@specimen("images", Contract.STATISTICAL)
def bf16(seams: Seams) -> None:
    """The training forward pass in 16 bits."""

    def called(model: Any, call: Call, x: Any) -> Any:
        if not torch.is_grad_enabled():
            return call(x)
        with torch.autocast("cpu", torch.bfloat16):
            return call(x).float()

    seams.model_called.subscribe(called)


@specimen("images", Contract.STATISTICAL)
def images_in_16_bits(seams: Seams) -> None:
    """Images are rounded to bf16 on their way to the model."""
    seams.model_called.subscribe(lambda model, call, x: call(x.bfloat16().float()))


@specimen("images", Contract.STATISTICAL)
def other_dropout(seams: Seams) -> None:
    """Other numbers decide what is dropped; those that decided before are drawn all the same."""
    dropout = F.dropout
    chance = torch.Generator()

    def other(x: Any, p: float, training: bool, inplace: bool) -> Any:
        if not training:
            return x
        if chance.initial_seed() != torch.initial_seed() + 1:
            chance.manual_seed(torch.initial_seed() + 1)
        dropout(x, p, training)
        return x * (torch.rand(x.shape, generator=chance) >= p) / (1 - p)

    Swap(seams)(F, "dropout", other)


@specimen("images", Contract.STATISTICAL)
def other_initial_weights(seams: Seams) -> None:
    """The model begins with other weights of the same distribution."""

    def made(optimizer: Any, models: list[Any]) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(torch.initial_seed() + 1)
            for module in models[0].modules():
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()

    seams.optimizer_made.subscribe(made)


@specimen("rows", Contract.STATISTICAL)
def noise_of_a_thousandth(seams: Seams) -> None:
    """Gradients are off by a thousandth, at random, as stochastic rounding makes them."""
    chance = torch.Generator().manual_seed(0)

    def begins(optimizer: Any) -> None:
        for gradient in _gradients(optimizer):
            gradient.mul_(1 + 1e-3 * torch.randn(gradient.shape, generator=chance))

    seams.step_begins.subscribe(begins)


def _gradients(optimizer: Any) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters_of(optimizer) if parameter.grad is not None]
