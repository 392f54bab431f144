"""The digest log of a PyTorch program (see `worker.digests`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from overdrive.core.records import StepRecord
from overdrive.core.rng import States
from overdrive.model_state import trial_call
from overdrive.seams.batches import leading_size, leaves
from overdrive.seams.hub import Seams
from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch import fetches
from overdrive.seams.torch.call_parts import in_parts, joined
from overdrive.seams.torch.internals import in_backward
from overdrive.seams.torch.step_recorder import update
from overdrive.worker import digests
from overdrive.worker.digests import NUDGE, Slot, hashed, plain
from overdrive.worker.torch.checksums import checksum
from overdrive.worker.torch.sketch import sketch
from overdrive.worker.torch.state import Subject

# Settings of an optimizer that choose how it computes, not what.
_HOW = ("params", "foreach", "fused", "capturable", "differentiable")
_MOST_SLOTS = 64  # tensors that are told apart within a step
_MOST_OPTIMIZERS = 8


class DigestLog(digests.DigestLog):
    """An observer."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.entries: list[StepRecord] = []
        self._optimizers: list[Any] = []
        self._roots: Subject | None = None
        self._calls_made: list[tuple[bool, list[bool], list[Slot]]] = []  # within the program's call under way
        self._copied: list[Slot] | None = None
        self._parts: list[list[Any]] = []  # what the call under way was given, where it is made in parts
        self._part_modes: list[bool] = []
        self._begin()

    def __call__(self, seams: Seams) -> None:
        seams.model_called.subscribe_innermost(self._called)
        seams.inputs_copied.subscribe(self._replayed_on)
        seams.model_called.subscribe(self._returned)
        seams.loader_opens.subscribe(self._opens)
        seams.optimizer_made.subscribe(self._made)

    def _begin(self) -> None:
        self._fetches = 0
        self._samples = 0
        self._calls = 0
        self._modes = 0
        self._inputs: list[Slot] = []
        self._evaluations = 0
        self._evaluated: list[Slot] = []
        self._heard = 0

    def _made(self, optimizer: Any, models: list[Any]) -> None:
        self._optimizers = [*self._optimizers, optimizer][-_MOST_OPTIMIZERS:]
        self._roots = None  # the models may be others now
        if self.perturbed:
            with torch.no_grad():
                for parameter in parameters_of(optimizer):
                    parameter.mul_(1 + NUDGE)

    def _opens(self, loader: Any, call: Callable[[], Any]) -> Iterator[Any]:
        return self._read(iter(call()))

    def _read(self, batches: Iterator[Any]) -> Iterator[Any]:
        """What the program truly gets, labels included: after all techniques, whenever they fetched it."""
        for batch in batches:
            self._fetches = checksum(batch, self._fetches)
            self._samples += leading_size(batch)
            yield batch

    def _called(self, module: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        """What the model is truly given: after all techniques. Within a fetch it is a part of the data set. Beside a
        GPU, techniques make their trial calls in this process: of these the program's log has nothing. Nor has it of
        calls that a backward pass makes again; and a call in parts is one, of all that they were given."""
        if fetches.under_way() or trial_call.under_way() or in_backward():
            return call(*args, **kwargs)
        if in_parts:
            return self._part(module, call, args, kwargs)
        self._parts = []  # should some have been made, they were given up
        slots = slots_of(args, kwargs)
        training, modes = torch.is_grad_enabled(), [each.training for each in module.modules()]
        self._copied = None
        result = call(*args, **kwargs)
        self._calls_made.append((training, modes, slots if self._copied is None else self._copied))
        return result

    def _part(self, module: Any, call: Any, args: Any, kwargs: Any) -> Any:
        self._part_modes = [each.training for each in module.modules()]
        result = call(*args, **kwargs)
        self._parts.append(list(leaves(tree_leaves([args, kwargs]))))
        return result

    def _replayed_on(self, module: Any, tensors: Any) -> None:
        self._copied = [slot(tensor) for tensor in tensors]

    def _returned(self, module: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        """The program's call is over: one that is undone and made again counts once. Of evaluations, what the program
        truly hears; in training, the gradients tell."""
        self._calls_made, self._parts = [], []
        result = call(*args, **kwargs)
        if self._parts:
            slots = slots_of(joined(self._parts), {})
            self._calls_made.append((torch.is_grad_enabled(), self._part_modes, slots))
            self._parts = []
        for training, modes, slots in self._calls_made:
            self._modes = checksum([training, modes], self._modes)
            if training:
                self._calls += 1
                extend(self._inputs, slots)
            else:
                self._evaluations += 1
                extend(self._evaluated, slots)
        if self.bits and not torch.is_grad_enabled() and not fetches.under_way():
            self._heard = checksum(tree_leaves(result), self._heard)
        return result

    def stepped(self) -> None:
        """A training step is complete."""
        entry = self.entry(
            batches=f"{self._fetches:08x}",
            samples=self._samples,
            calls=f"{self._calls} {self._evaluations} {self._modes:08x}",
            inputs=self._inputs,
            evaluation=self._evaluated,
            settings=self._settings(),
            heard=f"{self._heard:08x}",
            parts=self._hashes() if self.bits else (),
        )
        self.entries.append(entry)
        self._begin()

    def _settings(self) -> str:
        """Learning rates, weight decays and the like, with how many parameters each group of them is for."""
        told = []
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                values = {key: _number(value) for key, value in group.items() if key not in _HOW}
                trained = [parameter.numel() for parameter in group["params"] if parameter.requires_grad]
                told.append((sorted(values.items()), len(trained), sum(trained)))
        return hashed(told)

    def _hashes(self) -> list[str]:
        if self._roots is None:
            self._roots = Subject.found(self._optimizers)
        subject = self._roots
        return [
            _hash(list(subject.parameters.values())),
            _hash(list(subject.buffers.values())),
            _hash(
                [
                    [optimizer.state.get(parameter, {}).get(key) for key in sorted(optimizer.state.get(parameter, {}))]
                    for optimizer in self._optimizers
                    for parameter in parameters_of(optimizer)
                ]
            ),
            States.now().digest()[:16],
        ]


def slot(tensor: torch.Tensor) -> Slot:
    """What is noted of one tensor that a model was given."""
    return [checksum(tensor), *sketch(tensor)[1:]]


def slots_of(args: Any, kwargs: Any) -> list[Slot]:
    """Of all tensors that a call was given."""
    return [slot(leaf) for leaf in leaves(tree_leaves([args, kwargs])) if isinstance(leaf, torch.Tensor)]


def extend(slots: list[Slot], more: list[Slot]) -> None:
    """Add these, or as many as there is room for."""
    room = max(0, _MOST_SLOTS - len(slots))
    slots += more[:room]
    for slot in more[room:]:  # the rest of a long evaluation in one
        slots[-1] = [checksum([slots[-1][0], slot[0]])]


def _number(value: Any) -> Any:
    return value.detach().cpu().tolist() if isinstance(value, torch.Tensor) else plain(value)


def _hash(values: Any) -> str:
    digest = hashlib.sha256()
    update(digest, values)
    return digest.hexdigest()[:16]
