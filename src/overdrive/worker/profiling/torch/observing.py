"""Watches for what a user may want to edit: only what was seen to happen, with the line where it did.

Most of it is seen through the function seam in a few steps of their own, which are slow and not timed; an evaluation
and the order of calls are watched in all of the trial.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves

from overdrive.seams.hub import Seams
from overdrive.seams.parameters import parameters_of
from overdrive.seams.patch import Patches
from overdrive.seams.torch import functions
from overdrive.seams.torch.iterators import dataset_of
from overdrive.worker.profiling.timeline import Timeline
from overdrive.worker.profiling.torch.lines import called_by_user, fetched_by, user_line

# What needs a tensor's numbers on the host before the program can go on.
_READS = frozenset(
    """item tolist numpy cpu nonzero masked_select unique unique_consecutive equal allclose is_nonzero argwhere __bool__
    __float__ __int__ __index__ __repr__ __format__ __array__""".split()  # noqa: SIM905
)
_BATCH_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "LazyBatchNorm2d")
_CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
_LAYERS = (nn.Linear, *_CONVOLUTIONS)
_CHECKS = {"anomaly": torch.is_anomaly_enabled, "deterministic": torch.are_deterministic_algorithms_enabled}
_MOST = 200  # lines kept of each kind

Line = tuple[str, int, str]


class Observing:
    """An observer of the whole trial, with `start` and `stop` for the steps that are watched closely."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._seams: Seams | None = None
        self._leave: list[Callable[[], None]] = []
        self.steps = 0
        self.reads: dict[tuple[Line, str], list[float]] = {}  # calls, seconds, of which on a GPU
        self.in_items: dict[Line, list[float]] = {}  # functions called while a batch is fetched: calls, seconds
        self.in_library_items: dict[Line, list[float]] = {}  # likewise, by a library's data set
        self.doubles: dict[Line, list[Any]] = {}  # where fp64 begins: calls, function
        self.double_batches: dict[str, str] = {}  # data set's class -> shapes
        self.evaluations: dict[Line, list[float]] = {}  # models called to evaluate, with gradients: calls, seconds
        self.late_zeroing: dict[Line, list[float]] = {}  # calls, bytes of gradients kept through the forward pass
        self.checks: dict[str, Line] = {}  # what the program asked PyTorch to check -> where it sent a loss backward
        self.freed: list[tuple[int, int, int]] = []  # gradients: time in ns, address, size below zero
        self.norms: dict[str, tuple[Line, str]] = {}  # a biased layer's name -> line, name of its batch norm
        self.widths: dict[str, tuple[Line, str, str]] = {}  # line, sizes, type of the numbers
        self._forward_since_step = False
        self._differentiated: set[Line] = set()  # where gradients came back to what a model gave in evaluation mode
        self._produced: dict[int, tuple[str, Any, Line]] = {}

    def __call__(self, seams: Seams) -> None:
        self._seams = seams
        seams.model_called.subscribe(self._called)
        seams.gradients_zeroed.subscribe(self.zeroed)
        seams.loss_backward.subscribe(self._sent_backward)
        seams.step_ends.subscribe(self._stepped)
        seams.batch_fetched.subscribe(self._fetched)

    def start(self) -> None:
        assert self._seams is not None
        patches = Patches()
        self._seams.function_called.subscribe(self._function)
        self._leave = [lambda: self._seams.function_called.unsubscribe(self._function)]  # type: ignore[union-attr]
        self._leave += functions.enter(self._seams, patches)
        handles = [
            register_module_forward_pre_hook(_harmless(self._module_called)),
            register_module_forward_hook(_harmless(self._module_left)),
        ]
        self._leave += [handle.remove for handle in handles]

    def stop(self, steps: int) -> None:
        for leave in reversed(self._leave):
            leave()
        self._leave = []
        self._produced = {}
        self.steps += steps

    # -- seen in all steps ----------------------------------------------------------------------

    def _called(self, module: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return call(*args, **kwargs)
        if module.training:
            self._forward_since_step = True
            return call(*args, **kwargs)
        began = time.perf_counter()
        result = call(*args, **kwargs)
        seconds = time.perf_counter() - began
        if any(each.requires_grad for each in module.parameters()):
            self._evaluated(user_line(sys._getframe(1)), seconds, result)
        return result

    def _evaluated(self, line: Line, seconds: float, result: Any) -> None:
        """Whether it was an evaluation shows when no gradient comes back to what the model gave."""

        def used(_: Any) -> None:  # it gives nothing, which leaves the gradient as it is
            self.evaluations.pop(line, None)
            self._differentiated.add(line)

        given = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor) and each.requires_grad]
        if given and line not in self._differentiated:
            _add(self.evaluations, line, seconds)
            for each in given:
                each.register_hook(used)  # type: ignore[no-untyped-call]

    def _sent_backward(self, loss: Any) -> Any:
        for check, is_on in _CHECKS.items():
            if check not in self.checks and is_on():
                self.checks[check] = user_line(sys._getframe(1))
        return loss

    def _stepped(self, optimizer: Any) -> None:
        self._forward_since_step = False

    def zeroed(self, holder: Any, call: Any, set_to_none: bool) -> Any:
        if set_to_none:
            owned = parameters_of(holder) if hasattr(holder, "param_groups") else list(holder.parameters())
            gone = [each.grad for each in owned if each.grad is not None and each.grad.layout is torch.strided]
            kept = sum(each.nbytes for each in gone)
            now = time.time_ns()
            self.freed = [(now, each.untyped_storage().data_ptr(), -each.nbytes) for each in gone] + self.freed[:_MOST]
            if kept and self._forward_since_step:
                _add(self.late_zeroing, user_line(sys._getframe(1)), kept)
        return call(set_to_none)

    def _fetched(self, iterator: Any, batch: Any, seconds: float) -> None:
        shapes = _doubles_in(batch)
        if shapes and len(self.double_batches) < _MOST:
            self.double_batches.setdefault(type(dataset_of(iterator)).__name__, ", ".join(shapes))

    # -- seen in the steps that are watched closely ----------------------------------------------

    def _function(self, called: Any) -> Any:
        function, args, kwargs = called
        name = getattr(function, "__name__", "")
        reads = name in _READS or (name == "__getitem__" and _by_mask(args)) or (name == "where" and len(args) == 1)
        if reads and args and isinstance(args[0], torch.Tensor) and not (name == "cpu" and not args[0].is_cuda):
            return _timed(function, lambda seconds: self._read(name, args[0].is_cuda, seconds)), args, kwargs
        if self._timeline.phase == "data" and name not in ("__get__", "size", "dim"):
            return _timed(function, self._in_item), args, kwargs
        if name not in ("__get__", "__set__", "backward"):
            return _after(function, lambda result: self._look_at(name, args, kwargs, result)), args, kwargs
        return called

    def _read(self, name: str, on_gpu: bool, seconds: float) -> None:
        if not on_gpu and not called_by_user(sys._getframe(1)):
            return  # an optimizer's counter of steps, a sampler's order: it waits for nothing, and is not the user's
        kept = self.reads.setdefault((user_line(sys._getframe(1)), name), [0, 0.0, 0])
        kept[0] += 1
        kept[1] += seconds
        kept[2] += on_gpu

    def _in_item(self, seconds: float) -> None:
        frame = sys._getframe(1)
        if whose := fetched_by(frame):
            _add(self.in_items if whose == "user" else self.in_library_items, user_line(frame), seconds)

    def _look_at(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        if not isinstance(result, torch.Tensor) or result.dtype is not torch.float64 or result.dim() == 0:
            return
        given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        floating = [each for each in given if each.is_floating_point() and each.dim()]
        if floating and all(each.dtype is torch.float64 for each in floating):
            return  # they came from elsewhere
        if not called_by_user(sys._getframe(1)):
            return  # a library's own choice (times of an ODE solver, indices of a sampler), which no edit reaches
        kept = self.doubles.setdefault(user_line(sys._getframe(1)), [0, name])
        kept[0] += 1

    def _module_called(self, module: Any, args: Any) -> None:
        kind = type(module).__name__
        if kind in _BATCH_NORMS and module.training and args and id(args[0]) in self._produced:
            name, output, line = self._produced[id(args[0])]
            if output is args[0]:
                self.norms.setdefault(name, (line, kind))
        layer = isinstance(module, (*_LAYERS, nn.Embedding))
        if layer and args and isinstance(args[0], torch.Tensor) and args[0].is_cuda:
            sizes = [int(size) for size in module.weight.shape[:2]]
            if any(size % 8 for size in sizes) and len(self.widths) < _MOST:
                dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else args[0].dtype
                told = f"{sizes[1]} to {sizes[0]}"
                self.widths.setdefault(_named(module), (user_line(sys._getframe(1)), told, str(dtype)))

    def _module_left(self, module: Any, args: Any, result: Any) -> None:
        if not (isinstance(module, _LAYERS) and isinstance(result, torch.Tensor)):
            return  # what a class is called says nothing of what it is
        if module.bias is not None and module.training:
            if len(self._produced) > _MOST:
                self._produced = {}
            self._produced[id(result)] = (_named(module), result, user_line(sys._getframe(1)))

    def report(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "reads": [
                {**_line(line), "call": name, "calls": calls, "seconds": seconds, "on_gpu": on_gpu}
                for (line, name), (calls, seconds, on_gpu) in self.reads.items()
            ],
            "in_items": _lines(self.in_items),
            "in_library_items": _lines(self.in_library_items),
            "doubles": [{**_line(line), "calls": calls, "call": name} for line, (calls, name) in self.doubles.items()],
            "double_batches": [{"data_set": name, "shapes": shapes} for name, shapes in self.double_batches.items()],
            "evaluations": _lines(self.evaluations),
            "late_zeroing": _lines(self.late_zeroing),
            "checks": [{**_line(line), "check": check} for check, line in self.checks.items()],
            "norms": [{**_line(line), "layer": name, "norm": norm} for name, (line, norm) in self.norms.items()],
            "widths": [
                {**_line(line), "layer": name, "sizes": sizes, "dtype": dtype}
                for name, (line, sizes, dtype) in self.widths.items()
            ],
        }


def _harmless(watch: Callable[..., None]) -> Callable[..., None]:
    """PyTorch calls these hooks itself: what fails in one would fail the program's model."""

    def watched(*args: Any) -> None:
        with suppress(Exception):
            watch(*args)

    return watched


def _timed(function: Any, tell: Callable[[float], None]) -> Any:
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        result = function(*args, **kwargs)
        tell(time.perf_counter() - began)
        return result

    return timed


def _after(function: Any, look: Callable[[Any], None]) -> Any:
    def watched(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        look(result)
        return result

    return watched


def _by_mask(args: Any) -> bool:
    index = args[1] if len(args) > 1 else None
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(each, torch.Tensor) and each.dtype in (torch.bool, torch.uint8) for each in parts)


def _doubles_in(batch: Any) -> list[str]:
    if isinstance(batch, torch.Tensor):
        return ["x".join(map(str, batch.shape))] if batch.dtype is torch.float64 else []
    if hasattr(batch, "values"):
        batch = list(batch.values())
    return [shape for each in batch for shape in _doubles_in(each)] if isinstance(batch, (list, tuple)) else []


def _named(module: Any) -> str:
    """As a program writes it, what goes in first: a transposed convolution's weight has them in this order."""
    sizes = list(module.weight.shape[:2])
    if not getattr(module, "transposed", False):
        sizes.reverse()
    return f"{type(module).__name__}({', '.join(map(str, sizes))})"


def _add(table: dict[Line, list[float]], line: Line, amount: float) -> None:
    if line in table or len(table) < _MOST:
        kept = table.setdefault(line, [0, 0.0])
        kept[0] += 1
        kept[1] += amount


def _line(line: Line) -> dict[str, Any]:
    return {"file": line[0], "line": line[1], "function": line[2]}


def _lines(table: dict[Line, list[float]]) -> list[dict[str, Any]]:
    return [{**_line(line), "calls": calls, "amount": amount} for line, (calls, amount) in table.items() if line[1]]
