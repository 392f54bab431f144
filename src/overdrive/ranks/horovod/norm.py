"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import BatchNorm1d

from overdrive.ranks.horovod.reductions import Sum, allreduce
from overdrive.ranks.horovod.world import size

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(BatchNorm1d):
    """In training, mean and variance of all ranks' samples; in evaluation as PyTorch's.

    Input: (N, C) or (N, C, ...), of two dimensions or more; N may differ from rank to rank.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        own = self.training or self.running_mean is None
        if size() == 1 or not own:
            return super().forward(input)
        kept = input if input.dtype is torch.float64 else input.float()
        dims = [each for each in range(input.dim()) if each != 1]
        told = allreduce(torch.cat((kept.sum(dims), kept.new_tensor([kept.numel() // kept.shape[1]]))), op=Sum)
        count = told[-1].detach()
        mean = told[:-1] / count
        centred = kept - _along(kept, mean)
        variance = allreduce((centred * centred).sum(dims), op=Sum) / count
        self._keep(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        made = centred * _along(kept, torch.rsqrt(variance + self.eps))
        if self.affine:
            made = made * _along(kept, self.weight) + _along(kept, self.bias)
        return made.to(input.dtype)

    def _keep(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share: Any = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        for running, value in ((self.running_mean, mean), (self.running_var, variance)):
            running.mul_(1 - share).add_(value.to(running.dtype) * share)


def _along(x: torch.Tensor, channels: torch.Tensor) -> torch.Tensor:
    return channels.view(1, -1, *(1,) * (x.dim() - 2))
