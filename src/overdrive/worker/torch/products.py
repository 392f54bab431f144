"""What a PyTorch program's run produces: outputs of its evaluations, and buffers and parameters at its end.

An observer of untimed trials. What it keeps is bounded: outputs become a few numbers as they are seen, of 64
evaluations at the most; 2,048 predictions; 16 MB of the first batches; 1,024 elements of each parameter as it was at
first.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_leaves, tree_map_only

from overdrive.core.products import Evaluation, Products
from overdrive.core.rng import States
from overdrive.seams.hub import Seams
from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch import fetches, late_compiler
from overdrive.seams.torch.layouts import bytes_of
from overdrive.worker.digests import spacing
from overdrive.worker.torch.state import Subject

_MOST_EVALUATIONS = 64
_MOST_CALLS = 64  # of an evaluation that are looked at; of those that follow, every eighth
_MOST_NUMBERS = 1 << 18  # of a call's output
_MOST_PREDICTIONS = 2048
_MOST_BINS = 32
_MOST_HELD, _MOST_HELD_BYTES = 8, 16 << 20
_MOST_TENSORS = 512  # whose first values are kept, or that are asked at the end ...
_MOST_TOLD = 24  # ... and that are told one by one, evenly spaced
_SAMPLED = 1024  # elements of a parameter
# What a tensor says that has no elements to read: sparse, nested, not yet made, of a transform. It is passed over.
_UNREADABLE = (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError)
_ONE = 1e-3  # rows whose sum is so near to 1 are probabilities already

_Matrix = NDArray[np.floating[Any]]


@dataclass
class _Tally:
    """An evaluation that is under way."""

    calls: int = 0
    rows: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    classes: _Matrix = field(default_factory=lambda: np.zeros(0))
    predictions: list[int] = field(default_factory=list)

    def add(self, outputs: _Matrix) -> None:
        """Outputs: rows x classes."""
        self.rows += len(outputs)
        self._sum("level", outputs.mean(axis=1))
        self._sum("square", (outputs**2).mean(axis=1))
        count = outputs.shape[1]
        if count == 1:
            predicted = (outputs[:, 0] > 0).astype(int)
        else:
            predicted = outputs.argmax(axis=1)
            chances = _probabilities(outputs)
            self._sum("confidence", chances.max(axis=1))
            self._sum("entropy", -(chances * np.log(np.maximum(chances, 1e-300))).sum(axis=1))
            bins = min(count, _MOST_BINS)
            if len(self.classes) == bins or not len(self.classes):
                found = np.bincount(predicted * bins // count, minlength=bins)
                self.classes = found + (self.classes if len(self.classes) else 0.0)
        self.predictions += predicted[: _MOST_PREDICTIONS - len(self.predictions)].tolist()

    def _sum(self, name: str, values: _Matrix) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + float(values.sum())

    def told(self) -> Evaluation | None:
        if not self.rows:
            return None
        means = {name: value / self.rows for name, value in self.sums.items()}
        return Evaluation(
            rows=self.rows,
            level=means["level"],
            size=math.sqrt(means["square"]) if means["square"] >= 0 else math.nan,
            confidence=means.get("confidence", 0.0),
            entropy=means.get("entropy", 0.0),
            classes=tuple((self.classes / max(1.0, self.classes.sum())).tolist()),
        )


class ProductsWatch:
    """An observer."""

    def __init__(self) -> None:
        self._tally = _Tally()
        self._last = _Tally()
        self._seen = 0  # evaluations that are over
        self._every = 1  # of which one is kept
        self._kept: list[Evaluation] = []
        self._held: list[tuple[Any, Any]] = []
        self._held_bytes = 0
        self._model: Callable[[], Any] = lambda: None
        self._first: dict[int, tuple[Callable[[], Any], torch.Tensor]] = {}  # by id: a parameter, some first values

    def __call__(self, seams: Seams) -> None:
        seams.model_called.subscribe(self._called)  # outermost: what the program truly hears
        seams.optimizer_made.subscribe(self._made)

    def _made(self, optimizer: Any, models: list[Any]) -> None:
        for parameter in parameters_of(optimizer)[: _MOST_TENSORS - len(self._first)]:
            with contextlib.suppress(*_UNREADABLE):
                known = self._first.get(id(parameter))
                if known is None or known[0]() is not parameter:
                    self._first[id(parameter)] = weakref.ref(parameter), _sampled(parameter).clone()

    def _called(self, module: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        if fetches.under_way():
            return call(*args, **kwargs)
        training = torch.is_grad_enabled() and module.training
        if training:
            self._hold(module, args, kwargs)
        result = call(*args, **kwargs)
        if not training:
            self._heard(self._tally, result)
        return result

    def _heard(self, tally: _Tally, result: Any) -> None:
        tally.calls += 1
        if tally.calls <= _MOST_CALLS or tally.calls % 8 == 0:
            with contextlib.suppress(*_UNREADABLE):
                outputs = _outputs(result)
                if outputs is not None:
                    tally.add(outputs)

    def _hold(self, module: Any, args: Any, kwargs: Any) -> None:
        """Keep the first training batches, as one model was given them."""
        if not self._held:
            self._model = weakref.ref(module)
        if len(self._held) >= _MOST_HELD or self._model() is not module:
            return
        size = sum(bytes_of(each) for each in tree_leaves([args, kwargs]) if isinstance(each, torch.Tensor))
        if self._held_bytes + size <= _MOST_HELD_BYTES:
            self._held_bytes += size
            with contextlib.suppress(*_UNREADABLE):
                self._held.append(tree_map_only(torch.Tensor, lambda each: each.detach().clone(), (args, kwargs)))

    def stepped(self) -> None:
        """A training step is complete, and with it the evaluation before it."""
        told = self._tally.told()
        if told is not None:
            if self._seen % self._every == 0:
                self._kept.append(told)
            if len(self._kept) >= _MOST_EVALUATIONS:
                self._kept, self._every = self._kept[::2], 2 * self._every
            self._seen += 1
            self._last = self._tally
        self._tally = _Tally()

    def report(self, optimizers: Sequence[Any]) -> Products:
        """At the end of the run, when nobody needs its state any more; `optimizers`: those that stepped."""
        self.stepped()
        last = self._last.told()
        kept = self._kept if last is None or self._kept[-1:] == [last] else [*self._kept, last]
        return Products(
            evaluations=tuple(kept),
            held=self._looked_at_held().told(),
            predictions=tuple(self._last.predictions),
            state=self._state(list(optimizers)),
        )

    def _looked_at_held(self) -> _Tally:
        """What the model as it is now makes of the first batches; nothing where it cannot be asked."""
        tally, model = _Tally(), self._model()
        if model is None:
            return tally
        modes = [(module, module.training) for module in model.modules()]
        states = States.now()
        try:
            model.eval()
            with torch.no_grad(), _eager():
                for args, kwargs in self._held:
                    outputs = _outputs(model(*args, **kwargs))
                    if outputs is not None:
                        tally.add(outputs)
        except Exception:  # it is made for training only
            return _Tally()
        finally:
            for module, training in modes:
                module.training = training
            states.restore()
        self._tally = _Tally()  # these calls were ours
        return tally

    def _state(self, optimizers: list[Any]) -> dict[str, float]:
        """Sizes of buffers and of parameters that are matrices, and how far the latter moved."""
        subject = Subject.found(optimizers)
        buffers, sizes, moved = {}, {}, {}
        for name, tensor in list(subject.buffers.items())[:_MOST_TENSORS]:
            if tensor.is_floating_point() and tensor.dim() and tensor.numel():
                with contextlib.suppress(*_UNREADABLE):
                    buffers[name] = _size(_sampled(tensor))
        for name, tensor in subject.parameters.items():
            known = self._first.get(id(tensor))
            if known is None or known[0]() is not tensor or tensor.dim() < 2:
                continue
            with contextlib.suppress(*_UNREADABLE):
                values = _sampled(tensor)
                sizes[name] = _size(values)
                if values.shape == known[1].shape:
                    moved[name] = _size(values - known[1])
        return {
            **_told("size of buffer", buffers),
            **_told("size of parameter", sizes),
            **_told("way of parameter", moved),
        }


def _eager() -> contextlib.AbstractContextManager[Any]:
    """A compiled model is not compiled once more. Where nothing was compiled, its compiler (2 s) is not imported."""
    return torch.compiler.set_stance("force_eager") if late_compiler.is_loaded() else contextlib.nullcontext()


def _told(what: str, values: Mapping[str, float]) -> dict[str, float]:
    """Some of them, and the geometric mean of all."""
    if not values:
        return {}
    every = -(-len(values) // _MOST_TOLD)
    found = {f"{what} {name}": values[name] for name in list(values)[::every]}
    logs = [math.log(max(value, 1e-30)) for value in values.values()]
    return {**found, f"{what}s, all": math.exp(sum(logs) / len(logs))}


def _size(values: torch.Tensor) -> float:
    """The root mean square."""
    return float(values.square().mean().sqrt())


def _sampled(tensor: torch.Tensor) -> torch.Tensor:
    """Elements from all over it, as fp64 on the CPU."""
    return tensor.detach().reshape(-1)[:: spacing(tensor.numel(), _SAMPLED)].to("cpu", torch.float64)


def _outputs(result: Any) -> _Matrix | None:
    """The first tensor of fractions in what a model returned, as rows x classes; None where there is none.

    The classes are the second axis of two, or of four and more (N, C, H, W), and the last of three (N, T, C).
    """
    for leaf in tree_leaves(result):
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or not leaf.dim() or not leaf.numel():
            continue
        tensor = leaf.detach()
        classes = 1 if tensor.dim() != 3 else 2
        if tensor.dim() == 1:
            tensor = tensor[:, None]
        tensor = _thinned(tensor, classes).movedim(classes, -1)
        taken = tensor.reshape(-1, tensor.shape[-1]).to("cpu", torch.float64)
        return np.asarray(taken.numpy(), np.float64)
    return None


def _thinned(tensor: torch.Tensor, classes: int) -> torch.Tensor:
    """A view with all classes of fewer rows, spaced evenly: a copy of all may not fit beside the model."""
    for axis in range(tensor.dim()):
        if axis != classes and tensor.numel() > _MOST_NUMBERS:
            every = min(tensor.shape[axis], -(-tensor.numel() // _MOST_NUMBERS))
            tensor = tensor[(slice(None),) * axis + (slice(None, None, every),)]
    return tensor


def _probabilities(outputs: _Matrix) -> _Matrix:
    """Of each class, rows x classes: the soft maximum of what is no probability yet."""
    if outputs.min() >= 0 and np.abs(outputs.sum(axis=1) - 1).max() < _ONE:
        return outputs
    with np.errstate(invalid="ignore"):  # of a run that diverged
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        found: _Matrix = powers / powers.sum(axis=1, keepdims=True)
    return found
