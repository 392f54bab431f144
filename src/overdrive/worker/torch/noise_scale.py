"""The gradient's noise scale: up to about how many samples a larger batch still saves as many steps.

McCandlish et al. 2018 (https://arxiv.org/abs/1812.06162), the "simple" noise scale: the trace of the covariance of
one sample's gradient over the squared norm of the true gradient, from gradients of two batch sizes (their appendix
A.1). Here the small batches are the program's own and the large one is all of them together: the parameters move
little within a few steps. The scale grows as training goes on; what is seen here is that of its beginning.
"""

from __future__ import annotations

import math
from typing import Any

from overdrive.seams.parameters import parameters_of

# Of each gradient, evenly spread: enough for a ratio of two sums, and no memory or time to speak of.
_MOST_SCALARS = 1_000_000
_FEWEST_STEPS = 4


class NoiseScale:
    """Sums up the gradients of a few steps of one optimizer."""

    def __init__(self) -> None:
        self._optimizer: Any = None
        self._sum: Any = None
        self._squares: list[Any] = []  # squared norms, on the device: nothing waits for them
        self._unfit = False

    def add(self, optimizer: Any) -> None:
        """The gradients as the optimizer is about to use them; only those of the first that came count."""
        import torch

        if self._optimizer is None:
            self._optimizer = optimizer
        if optimizer is not self._optimizer or self._unfit:
            return
        parameters = parameters_of(optimizer)
        every = max(1, math.ceil(sum(parameter.numel() for parameter in parameters) / _MOST_SCALARS))
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not gradients or any(each.layout != torch.strided for each in gradients):
            self._unfit = True
            return
        one = torch.cat([each.detach().reshape(-1)[::every].float().to(gradients[0].device) for each in gradients])
        if self._sum is not None and self._sum.shape != one.shape:
            self._unfit = True  # other parameters have gradients than before
            return
        self._squares.append(one.square().sum())
        self._sum = one if self._sum is None else self._sum.add_(one)

    def samples(self, batch: float) -> float:
        """The noise scale, from gradients of `batch` samples each; 0 where it is not known, infinite where the steps
        seen show no direction in common."""
        count = len(self._squares)
        if self._unfit or count < _FEWEST_STEPS or not batch:
            return 0.0
        small = float(sum(float(each) for each in self._squares)) / count
        large = float((self._sum / count).square().sum())
        if not (math.isfinite(small) and math.isfinite(large)):
            return 0.0
        signal = (count * large - small) / (count - 1)
        noise = batch * count * (small - large) / (count - 1)
        return noise / signal if signal > 0 else math.inf
