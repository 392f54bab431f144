"""What a run did: steps, samples, losses, learning rates, and a hash of where it ended."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from overdrive.clock import Clock
from overdrive.seams.hub import Seams

# A program that makes a new optimizer every episode must not keep all its models in memory.
_MOST_OPTIMIZERS = 8


class Recorder:
    """An observer for `Session`. Costs a few microseconds a step; reads no tensor until asked.

    With `losses` it also keeps every step's losses and learning rate, and the optimizers for the hashes.
    """

    def __init__(self, losses: bool = False) -> None:
        self.clock = Clock()
        self.samples = 0
        self.rates: list[float] = []  # learning rate of the stepping optimizer's first group, by step
        self.optimizers: list[Any] = []  # kept alive (a script's are gone when its main() returns)
        self.first_step_at: float | None = None  # time.perf_counter() when the first step was done
        self.last_step_at = 0.0
        self.first_step_samples = 0
        self._with_losses = losses
        self._losses: list[list[Any]] = []
        self._current: list[Any] = []
        self._pending_samples = 0

    def __call__(self, seams: Seams) -> None:
        seams.step_ends.subscribe(self._stepped)
        seams.batch_fetched.subscribe(self._fetched)
        seams.loss_backward.subscribe(self._sent_backward)

    def _fetched(self, iterator: Any, batch: Any, seconds: float) -> None:
        self._pending_samples = leading_size(batch)

    def _sent_backward(self, loss: Any) -> Any:
        # Only a batch that leads to a gradient is a training sample: evaluation does not count.
        self.samples += self._pending_samples
        self._pending_samples = 0
        if self._with_losses:
            self._current.append(loss.detach().clone())  # a clone: `loss /= 4` may follow
        return loss

    def _stepped(self, optimizer: Any) -> None:
        if self._with_losses and all(known is not optimizer for known in self.optimizers):
            self.optimizers = [*self.optimizers, optimizer][-_MOST_OPTIMIZERS:]
        if not self.clock.tick(optimizer):
            return
        self.last_step_at = time.perf_counter()
        if self.first_step_at is None:
            self.first_step_at = self.last_step_at
            self.first_step_samples = self.samples
        if self._with_losses:
            self.rates.append(float(optimizer.param_groups[0]["lr"]))
            self._losses.append(self._current)
            self._current = []

    def losses(self) -> list[list[float]]:
        """The losses sent backward, by training step; reading them waits for the device."""
        return [[float(loss.double().mean()) for loss in step] for step in self._losses]

    def seconds_per_step(self) -> float | None:
        """Mean over all steps after the first, evaluation between them included."""
        if self.first_step_at is None or self.clock.steps < 2:
            return None
        return (self.last_step_at - self.first_step_at) / (self.clock.steps - 1)

    def samples_per_second(self) -> float | None:
        if self.first_step_at is None or self.samples == self.first_step_samples:
            return None
        return (self.samples - self.first_step_samples) / (self.last_step_at - self.first_step_at)

    def parameters_hash(self) -> str | None:
        """sha256 of all parameters of all optimizers that stepped, in their order; None before any step."""
        if not self.optimizers:
            return None
        digest = hashlib.sha256()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    update(digest, parameter)
        return digest.hexdigest()

    def trained(self) -> str:
        """How much is trained, as text: optimizers that stepped, their tensors and scalars with a gradient."""
        counts = [
            [parameter.numel() for group in optimizer.param_groups for parameter in group["params"]]
            for optimizer in self.optimizers
        ]
        return "; ".join(f"{len(each)} tensors, {sum(each)} scalars" for each in counts)

    def state_hash(self) -> str:
        """sha256 of parameters, optimizer states and random states: equal only where the runs are equal."""
        import random

        import torch

        digest = hashlib.sha256((self.parameters_hash() or "").encode())
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    state = optimizer.state.get(parameter, {})
                    for key in sorted(state, key=str):
                        update(digest, state[key])
        update(digest, torch.get_rng_state())
        digest.update(repr(random.getstate()).encode())
        return digest.hexdigest()


def update(digest: Any, value: Any) -> None:
    """Add a tensor's bytes in logical order, whatever its memory format, or a plain value's text."""
    import torch

    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, (list, tuple)):
        for each in value:
            update(digest, each)
    else:
        digest.update(repr(value).encode())


def leading_size(batch: Any) -> int:
    """The first dimension of the first tensor in a batch of any structure; 0 where there is none."""
    if hasattr(batch, "shape") and hasattr(batch, "dtype"):
        return int(batch.shape[0]) if len(batch.shape) else 1
    if hasattr(batch, "values"):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for each in batch:
            if size := leading_size(each):
                return size
    return 0
