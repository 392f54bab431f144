"""What steps of PyTorch's optimizers left behind: samples, losses, learning rates, and hashes of where they ended."""

from __future__ import annotations

import hashlib
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer
from torch.utils._pytree import tree_leaves

from overdrive.core.rng import States
from overdrive.seams.answer_recorder import AnswersOfModels
from overdrive.seams.hub import Seams
from overdrive.seams.parameters import parameters_of
from overdrive.seams.scaled_losses import ScaledLosses
from overdrive.seams.torch.fingerprints import fingerprint
from overdrive.seams.torch.iterators import samples_in
from overdrive.seams.torch.layouts import as_bytes, is_plain, kind_of, strided_parts

# A program that makes a new optimizer every episode must not keep all its models in memory.
_MOST_OPTIMIZERS = 8
_MOST_AHEAD = 1024  # batches that a program fetches before it sends their losses backward; others may lead to none


def make_step_recorder(hub: Seams, losses: bool) -> TrainingRecorder:
    return AnswerRecorder(hub, losses) if hub.inference else TrainingRecorder(hub, losses)


class TrainingRecorder:
    def __init__(self, hub: Seams, losses: bool) -> None:
        self.samples = 0
        self.rates: list[float] = []
        self.optimizers: list[Any] = []
        self._with_losses = losses
        self._losses = _Losses()
        self._scaled = ScaledLosses(hub) if losses else None
        self._in_step = 0  # losses sent backward since the last step
        self._by_step: list[int] = []
        self._source: Callable[[], Any] = lambda: None  # the iterator that gave the last batch; its workers end with it
        self._fetched_sizes: deque[int] = deque(maxlen=_MOST_AHEAD)  # of its batches that no backward pass counted
        hub.batch_fetched.subscribe(self._fetched)
        hub.loss_backward.subscribe(self._sent_backward)

    def _fetched(self, iterator: Any, batch: Any, seconds: float) -> None:
        if iterator is not self._source():
            self._source = weakref.ref(iterator)
            self._fetched_sizes.clear()
        self._fetched_sizes.append(samples_in(iterator, batch))

    def _sent_backward(self, loss: Any) -> Any:
        # Only a batch that leads to a gradient is a training sample: evaluation does not count. One for each backward
        # pass: before it transformers' Trainer fetches all whose gradients it gathers for a step.
        if self._fetched_sizes:
            self.samples += self._fetched_sizes.popleft()
        if self._with_losses:
            self._losses.append(self._scaled.plain(loss) if self._scaled else loss)
            self._in_step += 1
        return loss

    def stepped(self, optimizer: Any, ticked: bool) -> bool:
        if not isinstance(optimizer, Optimizer):
            return False
        if not self._with_losses:
            return True
        if all(known is not optimizer for known in self.optimizers):
            self.optimizers = [*self.optimizers, optimizer][-_MOST_OPTIMIZERS:]
        if ticked:
            self.rates.append(_rate(optimizer))
            self._by_step.append(self._in_step)
            self._in_step = 0
        return True

    def losses(self) -> list[list[float]]:
        values = iter(self._losses.values())
        return [[next(values) for _ in range(count)] for count in self._by_step]

    def parameters_hash(self) -> str | None:
        """sha256 of all parameters of all optimizers that stepped, in their order; None before any step."""
        if not self.optimizers:
            return None
        digest = hashlib.sha256()
        for optimizer in self.optimizers:
            update(digest, parameters_of(optimizer))
        return digest.hexdigest()

    def trained(self) -> str:
        counts = [[parameter.numel() for parameter in parameters_of(optimizer)] for optimizer in self.optimizers]
        return "; ".join(f"{len(each)} tensors, {sum(each)} scalars" for each in counts)

    def call_sizes(self) -> dict[str, int]:
        return {}

    def state_hash(self) -> str:
        digest = hashlib.sha256((self.parameters_hash() or "").encode())
        for optimizer in self.optimizers:
            for parameter in parameters_of(optimizer):
                state = optimizer.state.get(parameter, {})
                for key in sorted(state, key=str):
                    update(digest, state[key])
        digest.update(States.now().digest().encode())
        return digest.hexdigest()


def _rate(optimizer: Any) -> float:
    """0 of one that finds its own, as transformers' Adafactor does without `lr`."""
    try:
        return float(optimizer.param_groups[0].get("lr") or 0.0)
    except (TypeError, ValueError, RuntimeError, IndexError):  # one for each parameter, say
        return 0.0


class AnswerRecorder(AnswersOfModels, TrainingRecorder):
    framework = "torch"

    def __init__(self, hub: Seams, losses: bool) -> None:
        super().__init__(hub, losses)
        self._begin(losses)
        hub.model_called.subscribe(self._called)

    def state_hash(self) -> str:
        digest = hashlib.sha256(super().state_hash().encode())
        update(digest, tree_leaves(self._answer))
        return digest.hexdigest()

    def _alone(self, answer: Any) -> Any:
        """Without its graph, which has all that was computed: where a script forgot `no_grad`, a ResNet-50 had two of
        them, 3.4 GB instead of 1.9, and its calls took 0.9 s instead of 1.4, since no memory went back to the system.
        """
        if isinstance(answer, torch.Tensor):
            return answer.detach()
        if not torch.is_grad_enabled():
            return answer
        return [each.detach() if isinstance(each, torch.Tensor) else each for each in tree_leaves(answer)]


class _Losses:
    """Numbers that are still to be computed, kept without a tensor for each.

    Thousands of small blocks that stay, among large ones that come and go, split the heap: the peak of a program
    with tensors of 1 MB grew from 0.3 to 1 GB within 4,000 steps.
    """

    _CHUNK = 1024

    def __init__(self) -> None:
        self._numbers: list[float | tuple[Any, int]] = []  # or a tensor on a device, and the place in it
        self._chunk: Any = None
        self._used = 0

    def append(self, loss: Any) -> None:
        """Does not wait for a device. The loss may be changed in place afterwards."""
        value = loss.detach()
        if value.device.type == "cpu":
            self._numbers.append(float(value.double().mean()))
            return
        if value.numel() != 1:
            value = value.double().mean()
        if self._chunk is None or self._chunk.device != value.device or self._used == self._CHUNK:
            self._chunk = torch.empty(self._CHUNK, dtype=torch.float64, device=value.device)
            self._used = 0
        self._chunk[self._used].copy_(value.reshape(()))  # one launch, which makes it fp64 as well
        self._numbers.append((self._chunk, self._used))
        self._used += 1

    def values(self) -> list[float]:
        """All so far, in order; waits for the device."""
        fetched: dict[int, list[float]] = {}
        found = []
        for number in self._numbers:
            if isinstance(number, tuple):
                chunk, place = number
                if id(chunk) not in fetched:
                    fetched[id(chunk)] = chunk.tolist()
                number = fetched[id(chunk)][place]
            found.append(number)
        return found


def update(digest: Any, value: Any) -> None:
    """Add a tensor's bytes in logical order, whatever its memory format, or a plain value's text. Of a tensor on a GPU
    its fingerprint."""
    if isinstance(value, torch.Tensor):
        digest.update(kind_of(value).encode())
        if not is_plain(value):
            update(digest, strided_parts(value))
        elif value.device.type == "cuda":
            digest.update(fingerprint(value))
        else:
            digest.update(as_bytes(value.detach().cpu()))
    elif isinstance(value, (list, tuple)):
        for each in value:
            update(digest, each)
    else:
        digest.update(repr(value).encode())
