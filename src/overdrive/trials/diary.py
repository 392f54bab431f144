"""A trial's diary: what went into every training step and, where asked, a hash of all that came out of it.

Written in trials that nobody times. Two diaries are compared entry by entry: what differs first says where
two runs part.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from overdrive.recording import update
from overdrive.seams.hub import Seams
from overdrive.seams.torch.optimizers import parameters_of
from overdrive.trials.probe import checksum
from overdrive.trials.subject import Subject, chance

# Settings of an optimizer that choose how it computes, not what.
_HOW = ("params", "foreach", "fused", "capturable", "differentiable")
_SKETCHED = 1 << 16  # elements of an input that its sketch is made of
_PARTS = ("parameters", "buffers", "optimizer state", "random states")


class Diary:
    """An observer. `bits`: also hash parameters, buffers, optimizer state and random states every step."""

    def __init__(self, bits: bool) -> None:
        self.entries: list[dict[str, Any]] = []
        self._bits = bits
        self._optimizers: list[Any] = []
        self._roots: Subject | None = None
        self._waves: dict[int, torch.Tensor] = {}
        self._begin()

    def __call__(self, seams: Seams) -> None:
        seams.model_called.subscribe_innermost(self._called)
        seams.batch_fetched.subscribe(self._fetched)
        seams.optimizer_made.subscribe(self._made)

    def _begin(self) -> None:
        self._fetches = 0
        self._inputs = 0
        self._calls = 0
        self._sketch: list[float] = []
        self._evaluated = 0
        self._evaluations = 0

    def _made(self, optimizer: Any, models: list[Any]) -> None:
        self._optimizers.append(optimizer)
        self._roots = None  # the models may be others now

    def _fetched(self, iterator: Any, batch: Any, seconds: float) -> None:
        self._fetches = checksum(batch, self._fetches)

    def _called(self, module: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        """What the model is truly given: after all techniques."""
        given = [*args, *kwargs.values()]
        mode = [module.training, sum(each.training for each in module.modules())]
        if torch.is_grad_enabled():
            self._calls += 1
            self._inputs = checksum([mode, given], self._inputs)
            self._sketch.append(self._sketch_of(given))
        else:
            self._evaluations += 1
            self._evaluated = checksum([mode, given], self._evaluated)
        return call(*args, **kwargs)

    def stepped(self) -> None:
        """A training step is complete."""
        entry: dict[str, Any] = {
            "batches": f"{self._fetches:08x}",
            "inputs": f"{self._calls} {self._inputs:08x}",
            "sketch": self._sketch,
            "evaluation": f"{self._evaluations} {self._evaluated:08x}",
            "settings": self._settings(),
        }
        if self._bits:
            entry |= dict(zip(_PARTS, self._hashes(), strict=True))
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
        return hashlib.sha256(repr(told).encode()).hexdigest()[:16]

    def _hashes(self) -> list[str]:
        if self._roots is None:
            self._roots = Subject(self._optimizers)
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
            _hash(list(chance().values())),
        ]

    def _sketch_of(self, given: list[Any]) -> float:
        """A number that rounding to bf16 changes by less than 0.01 and other data by about 0.7.

        The cosine-weighted sum of the first tensor of fractions over its norm.
        """
        for each in given:
            if isinstance(each, torch.Tensor) and each.is_floating_point() and each.numel():
                flat = each.detach().reshape(-1)[:_SKETCHED].double().cpu()
                wave = self._waves.get(len(flat))
                if wave is None:
                    wave = self._waves[len(flat)] = torch.cos(torch.arange(len(flat), dtype=torch.float64) * 12.9898)
                return float(flat @ wave / flat.norm().clamp_min(1e-30))
        return 0.0


def _number(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().tolist()
    return value if isinstance(value, (bool, int, float, str, tuple, list, type(None))) else type(value).__name__


def _hash(values: Any) -> str:
    digest = hashlib.sha256()
    update(digest, values)
    return digest.hexdigest()[:16]
