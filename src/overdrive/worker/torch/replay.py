"""Replayed steps: one step from a saved state, in fp64 by the reference run and as it is by each candidate.

A free-running comparison is no test (one thread more or less moved a parameter's error 1,700-fold by step
50). So the reference run, the original program, saves its state before each chosen step, takes that step in fp64,
keeps the gradients and changes as the target, and goes on in its own precision from the rounded result.
A candidate is the program as it is, or under a plan. Before each chosen step it loads the reference run's state, takes
its own step on the same batch with the same random numbers, and notes how far it comes out from the target.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from overdrive.seams.hub import Seams
from overdrive.seams.step_counter import Iterations
from overdrive.seams.torch.optimizers import parameters_of
from overdrive.worker.thinning import thinned
from overdrive.worker.torch.fp64 import REDUCED, InDouble, narrow, widen
from overdrive.worker.torch.sketch import sketch
from overdrive.worker.torch.state import Subject, Tensors

# A target of a large tensor is kept for this many evenly spaced elements: a wrong formula shows in all.
_MOST_ELEMENTS = 1 << 20
_SKETCHES = 1e-5  # what is computed in fp64 on its way to the model differs by less than this from fp32
_MOST_EVALUATED = 4  # tensors that evaluation comes to, within a chosen step
_END = object()
_NONE = torch.empty(0, dtype=torch.float64)


class Replay:
    """An observer; `Reference` and `Candidate` say what is done at the two ends of a chosen step."""

    def __init__(self, steps: Sequence[int], folder: Path) -> None:
        self.done: list[int] = []
        self._steps = set(steps)
        self._folder = folder
        self._made: list[weakref.ref[Any]] = []
        self._iterations = Iterations()
        self._clock = self._iterations.clock
        self._now = 0  # the chosen step in progress, 0 between them
        self._subject = Subject([])
        self._before: Tensors = {}
        self._gradients: Tensors = {}
        self._evaluated: Tensors = {}
        self._inputs: list[float] = []

    def __call__(self, seams: Seams) -> None:
        seams.optimizer_made.subscribe(lambda optimizer, _: self._made.append(weakref.ref(optimizer)))
        seams.model_called.subscribe(self._called)
        seams.step_begins.subscribe(self._step_begins)
        seams.step_ends.subscribe(self._step_ends)

    def begins(self, step: int) -> None:
        """The program stands just before a chosen step."""

    def ends(self, step: int, results: Tensors) -> None:
        """It has made that step; `results` are gradients and changes by kind and name."""

    def gives_up(self) -> None:
        """The chosen step came to no clear end."""

    def _called(self, module: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        starts = self._clock.steps == 0 and 1 in self._steps and len(self._optimizers()) == 1
        if starts and not self._now and torch.is_grad_enabled():
            self._begin(1)
        if self._now and not self._inputs:  # the first call's first tensor: what follows may be the model's own
            first = next((each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)), None)
            with torch._C.DisableTorchFunction():  # the reference run's mode must not widen what is sketched
                self._inputs = sketch(first)
        result = call(*args, **kwargs)
        if self._now and not torch.is_grad_enabled():
            self._note_evaluation(result)
        return result

    def _note_evaluation(self, result: Any) -> None:
        """What the program gets to hear while it evaluates: of the state that the chosen step begins with."""
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and len(self._evaluated) < _MOST_EVALUATED:
                self._evaluated[f"evaluation result {len(self._evaluated) + 1}"] = _kept(leaf).clone()

    def _step_begins(self, optimizer: Any) -> None:
        if self._now:
            names = {id(tensor): name for name, tensor in self._subject.parameters.items()}
            for parameter in parameters_of(optimizer):
                if parameter.grad is not None and id(parameter) in names:
                    self._gradients[f"gradient {names[id(parameter)]}"] = _kept(parameter.grad).clone()

    def _step_ends(self, optimizer: Any) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            return  # of Keras, which may run on PyTorch
        if not self._iterations.over(optimizer, alone=len(self._optimizers()) < 2):
            return
        if self._now:
            self._end(complete=self._now == self._clock.steps)
        if self._clock.steps + 1 in self._steps:
            self._begin(self._clock.steps + 1)

    def _optimizers(self) -> list[Any]:
        return [optimizer for made in self._made if (optimizer := made()) is not None]

    def _begin(self, step: int) -> None:
        self._subject = Subject(self._optimizers())
        self._now, self._gradients, self._inputs = step, {}, []
        self.begins(step)
        self._before = {key: _kept(tensor).clone() for key, tensor in self._watched().items()}

    def _end(self, complete: bool) -> None:
        step, self._now = self._now, 0
        results = {**self._gradients, **self._evaluated}
        for key, tensor in self._watched().items():
            after = _kept(tensor)
            results[key] = after - self._before[key] if key in self._before else after  # a first momentum, say
        if complete:
            self.ends(step, results)
            self.done.append(step)
        else:
            self.gives_up()
        self._before, self._gradients, self._evaluated, self._subject = {}, {}, {}, Subject([])

    def _watched(self) -> Tensors:
        """By kind and name: trained parameters, what optimizers keep of them, and buffers (running means, say)."""
        subject = self._subject
        watched = {}
        for name, each in subject.parameters.items():
            if id(each) in subject.trained:
                watched[f"update {name}"] = each
                for key, value in subject.kept_of(each):
                    watched[f"state {name} ({key})"] = value
        for name, each in subject.buffers.items():
            if each.is_floating_point():
                watched[f"buffer {name}"] = each
        return watched

    def _state(self, step: int) -> Path:
        return self._folder / f"state-{step}.pt"

    def _targets(self, step: int) -> Path:
        return self._folder / f"target-{step}.pt"


class Reference(Replay):
    """The original program. Its chosen steps are computed in fp64, or else in its own precision with care:

    one thread, no TF32, deterministic operations.
    """

    def __init__(self, steps: Sequence[int], folder: Path, in_double: bool) -> None:
        super().__init__(steps, folder)
        self._in_double = in_double
        self._mode: InDouble | None = None
        self._held: list[tuple[torch.Tensor, torch.Tensor | None]] = []  # with its data in the program's precision
        self._thinned = False
        self._mkldnn = torch._C._get_mkldnn_enabled()
        if not in_double:
            torch.set_num_threads(1)
            torch.set_float32_matmul_precision("highest")
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
            torch.use_deterministic_algorithms(True, warn_only=True)

    def __call__(self, seams: Seams) -> None:
        super().__call__(seams)
        seams.loader_opens.subscribe(self._opens)

    def begins(self, step: int) -> None:
        self._thin_out(step)
        self._subject.save(self._state(step))
        if self._in_double:
            self._widen_state()
            torch._C._set_mkldnn_enabled(False)  # its recurrent layers know no fp64, and fail
            self._enter()

    def ends(self, step: int, results: Tensors) -> None:
        self.gives_up()
        torch.save({"inputs": self._inputs, **results}, self._targets(step))

    def gives_up(self) -> None:
        self._leave()
        self._narrow_state()
        torch._C._set_mkldnn_enabled(self._mkldnn)

    def report(self) -> dict[str, Any]:
        return {"states": self.done, "thinned": self._thinned}

    def _called(self, module: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        def in_double(*args: Any, **kwargs: Any) -> Any:
            if self._held:
                self._enter()
                return call(*tree_map(widen, args), **tree_map(widen, kwargs))
            if self.done and next(iter(module.parameters()), _NONE).dtype is torch.float32:
                # A hidden state that was carried over from a chosen step comes in fp64.
                return call(*tree_map(narrow, args), **tree_map(narrow, kwargs))
            return call(*args, **kwargs)

        return super()._called(module, in_double, *args, **kwargs)

    def _step_begins(self, optimizer: Any) -> None:
        super()._step_begins(optimizer)
        self._leave()  # an optimizer's own arithmetic is fp64 where its parameters are

    def _step_ends(self, optimizer: Any) -> None:
        self._leave()  # a closure that the optimizer called
        super()._step_ends(optimizer)
        if self._held:  # another optimizer's step in the midst of an iteration
            self._enter()

    def _opens(self, loader: Any, call: Callable[[], Any]) -> Iterator[Any]:
        with self._paused():
            batches = iter(call())
        return self._fetched(batches)

    def _fetched(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Batches in the program's own precision: a data set may keep its samples for later steps."""
        while True:
            with self._paused():
                batch = next(batches, _END)
            if batch is _END:
                return
            yield batch

    @contextmanager
    def _paused(self) -> Iterator[None]:
        entered = self._mode is not None
        self._leave()
        try:
            yield
        finally:
            if entered:
                self._enter()

    def _enter(self) -> None:
        if self._mode is None:
            self._mode = InDouble()
            self._mode.__enter__()  # type: ignore[no-untyped-call]

    def _leave(self) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._mode = None

    def _widen_state(self) -> None:
        subject = self._subject
        states = [tensor for tensor in subject.optimizer_tensors() if tensor.dim()]  # not the counts of steps
        for tensor in (*subject.tensors.values(), *states):
            if tensor.dtype in REDUCED:
                self._held.append((tensor, tensor.data))
                gradient, tensor.grad = tensor.grad, None
                tensor.data = tensor.data.double()
                tensor.grad = None if gradient is None else gradient.double()

    def _narrow_state(self) -> None:
        held = {id(tensor) for tensor, _ in self._held}
        for tensor in self._subject.optimizer_tensors(held):
            if tensor.dtype is torch.float64 and id(tensor) not in held and tensor.dim():
                self._held.append((tensor, None))  # made in this step: the first momentum, say
        for tensor, before in self._held if self._in_double else ():
            gradient, tensor.grad = tensor.grad, None
            rounded = tensor.data.float() if before is None else before.copy_(tensor.data)
            tensor.data = rounded
            tensor.grad = None if gradient is None else gradient.to(rounded.dtype)
        self._held.clear()

    def _thin_out(self, step: int) -> None:
        """Choose fewer states where all of them would fill the disk."""
        if self.done or self._thinned:
            return
        chosen = thinned(self._steps, self._subject.bytes(), self._folder) | {step}
        self._thinned, self._steps = chosen < self._steps, chosen


class Candidate(Replay):
    """The program as it is, or under a plan."""

    def __init__(self, steps: Sequence[int], folder: Path) -> None:
        super().__init__([step for step in steps if (folder / f"target-{step}.pt").exists()], folder)
        self._rows: list[dict[str, Any]] = []
        self._other_inputs: list[int] = []

    def begins(self, step: int) -> None:
        if step == 1:
            self._compare_initial_values()
        self._subject.load(self._state(step))

    def _compare_initial_values(self) -> None:
        """What a run begins with is nowhere else compared: every chosen step begins with the reference run's values."""
        saved = torch.load(self._state(1), weights_only=True, map_location="cpu")["tensors"]
        for name, tensor in self._subject.tensors.items():
            if tensor.is_floating_point():
                expected = _kept(saved[name]) if name in saved else None
                self._note(1, "initial value", name, _kept(tensor), expected)

    def ends(self, step: int, results: Tensors) -> None:
        target = torch.load(self._targets(step), weights_only=True)
        if not _alike(target.pop("inputs"), self._inputs):
            self._other_inputs.append(step)
        for key in sorted(target.keys() | results.keys()):
            kind, name = key.split(" ", 1)
            self._note(step, kind, name, results.get(key), target.get(key))

    def _note(self, step: int, kind: str, name: str, found: torch.Tensor | None, expected: torch.Tensor | None) -> None:
        row: dict[str, Any] = {"step": step, "kind": kind, "tensor": name, "error": None, "size": 0, "count": 0}
        if found is not None and expected is not None and found.shape == expected.shape:
            row |= {"error": _rms(found - expected), "size": _rms(expected), "count": expected.numel()}
        self._rows.append(row)

    def report(self) -> dict[str, Any]:
        return {"states": self.done, "rows": self._rows, "other_inputs": self._other_inputs}


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(abs(a - b) < _SKETCHES for a, b in zip(one, other, strict=True))


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    """Its values in fp64, flat and in logical order; evenly spaced ones where there are very many."""
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    flat = plain.reshape(-1)
    return flat[:: -(-flat.numel() // _MOST_ELEMENTS) or 1].cpu().double()


def _rms(tensor: torch.Tensor) -> float | None:
    """Root mean square; None where it is not finite."""
    value = float(tensor.square().mean().sqrt()) if tensor.numel() else 0.0
    return value if value < float("inf") else None
