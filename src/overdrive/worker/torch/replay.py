"""How a PyTorch program's steps are followed, saved, loaded and taken in fp64 (see `worker.replay`)."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from overdrive.seams.hub import Seams
from overdrive.seams.parameters import parameters_of
from overdrive.seams.step_counter import Iterations
from overdrive.seams.torch.internals import unseen_by_modes
from overdrive.seams.torch.layouts import in_reals, is_of_fractions, is_plain, is_sparse, strided_parts
from overdrive.worker.digests import spacing
from overdrive.worker.replay import MOST_ELEMENTS, Arrays, Replay
from overdrive.worker.torch.disturbing import disturb
from overdrive.worker.torch.fp64 import DOUBLE, REDUCED, InDouble, narrow, widen
from overdrive.worker.torch.group_values import GroupValues
from overdrive.worker.torch.sketch import sketch
from overdrive.worker.torch.state import Subject, Tensors

_MOST_EVALUATED = 4  # tensors that evaluation comes to, within a chosen step
_END = object()
_NONE = torch.empty(0, dtype=torch.float64)
_NOTHING = Subject((), ())


class TorchSteps:
    """See `worker.replay.Steps`. The program as it is."""

    needs = ""  # the reference run takes its steps in fp64 itself, and goes on from the rounded result
    open_ended = False

    def __init__(self) -> None:
        self._replay: Replay | None = None
        self._made: list[weakref.ref[Any]] = []
        self._iterations = Iterations()
        self._begun = False  # its first step
        self._subject = _NOTHING
        self._groups = GroupValues()
        self._noted: Arrays = {}
        self._evaluated = self._losses = 0
        self._inputs: list[float] = []

    def watch(self, seams: Seams, replay: Replay) -> None:
        self._replay = replay
        seams.optimizer_made.subscribe(lambda optimizer, _: self._made.append(weakref.ref(optimizer)))
        seams.model_called.subscribe(self._called)
        seams.loss_backward.subscribe(self._sent_backward)
        seams.step_begins.subscribe(self._step_begins)
        seams.step_ends.subscribe(self._step_ends)

    @property
    def _following(self) -> bool:
        """Whether a chosen step is in progress."""
        return self._replay is not None and bool(self._replay.now)

    def settle(self) -> None:
        self._subject = Subject.found(self._optimizers(), self._groups)

    def size(self) -> int:
        return self._subject.bytes()

    def save(self, path: Path) -> None:
        self._subject.save(path)

    def load(self, path: Path) -> None:
        self._subject.load(path)

    def disturb(self, share: float, seed: int) -> None:
        disturb(self._subject.parameters.values(), share, seed)

    def values(self) -> Arrays:
        return {key: kept(tensor) for key, tensor in self._watched().items()}

    def begin(self) -> None:
        pass

    def results(self) -> Arrays:
        return {**self._noted, **self.values()}

    def inputs(self) -> list[float]:
        return self._inputs

    def end(self) -> None:
        self._noted, self._inputs, self._subject = {}, [], _NOTHING
        self._evaluated = self._losses = 0

    def _called(self, module: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        assert self._replay is not None
        first_step = self._iterations.clock.steps == 0 and 1 in self._replay.coming and torch.is_grad_enabled()
        if first_step and not self._begun and len(self._optimizers()) == 1:
            self._begun = True
            self.settle()
            floating = {name: each for name, each in self._subject.tensors.items() if is_of_fractions(each)}
            self._replay.starts({name: kept(each) for name, each in floating.items()})
            if self._subject.begins_with(module):
                self._replay.stands(0)
        if self._following and not self._inputs:  # the first call's first tensor: what follows may be the model's own
            first = next((each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)), None)
            with unseen_by_modes():  # the reference run's mode must not widen what is sketched
                self._inputs = sketch(first)
        result = call(*args, **kwargs)
        if self._following and not torch.is_grad_enabled():
            self._note_evaluation(result)
        return result

    def _note_evaluation(self, result: Any) -> None:
        """What the program gets to hear while it evaluates: of the state that the chosen step begins with."""
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and is_of_fractions(leaf) and self._evaluated < _MOST_EVALUATED:
                self._evaluated += 1
                self._noted[f"evaluation result {self._evaluated}"] = kept(leaf)

    def _sent_backward(self, loss: Any) -> Any:
        if self._following:
            self._losses += 1
            self._noted[f"loss {self._losses}"] = kept(loss)
        return loss

    def _step_begins(self, optimizer: Any) -> None:
        if isinstance(optimizer, torch.optim.Optimizer):
            self._groups.begins(optimizer)
        if self._following:
            names = {id(tensor): name for name, tensor in self._subject.parameters.items()}
            for parameter in parameters_of(optimizer):
                if parameter.grad is not None and id(parameter) in names:
                    self._noted[f"gradient {names[id(parameter)]}"] = kept(parameter.grad)

    def _step_ends(self, optimizer: Any) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            return  # of Keras, which may run on PyTorch
        self._groups.ends(optimizer)
        if self._iterations.over(optimizer, alone=len(self._optimizers()) < 2) and self._replay is not None:
            steps = self._iterations.clock.steps
            self._replay.stands(steps, complete=self._replay.now == steps)

    def _optimizers(self) -> list[Any]:
        return [optimizer for made in self._made if (optimizer := made()) is not None]

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
            if is_of_fractions(each):
                watched[f"buffer {name}"] = each
        return watched


class StepsInDouble(TorchSteps):
    """Chosen steps are taken in fp64; their results are rounded to the program's own precision, which goes on."""

    def __init__(self) -> None:
        super().__init__()
        self._mode: InDouble | None = None
        self._held: list[tuple[torch.Tensor, torch.Tensor | None]] = []  # with its data in the program's precision
        self._ever = False
        self._mkldnn = torch.backends.mkldnn.enabled

    def watch(self, seams: Seams, replay: Replay) -> None:
        super().watch(seams, replay)
        seams.loader_opens.subscribe(self._opens)

    def begin(self) -> None:
        self._ever = True
        self._widen_state()
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # its recurrent layers know no fp64, and fail
        self._enter()

    def end(self) -> None:
        self._leave()
        self._narrow_state()
        torch.backends.mkldnn.enabled = self._mkldnn
        super().end()

    def _called(self, module: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        def in_double(*args: Any, **kwargs: Any) -> Any:
            if self._held:
                self._enter()
                return call(*tree_map(widen, args), **tree_map(widen, kwargs))
            if self._ever and next(iter(module.parameters()), _NONE).dtype in (torch.float32, torch.complex64):
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
                tensor.data = widen(tensor.data)
                tensor.grad = widen(gradient)

    def _narrow_state(self) -> None:
        held = {id(tensor) for tensor, _ in self._held}
        for tensor in self._subject.optimizer_tensors(held):
            if tensor.dtype in DOUBLE and id(tensor) not in held and tensor.dim():
                self._held.append((tensor, None))  # made in this step: the first momentum, say
        for tensor, before in self._held:
            gradient, tensor.grad = tensor.grad, None
            rounded = narrow(tensor.data) if before is None else before.copy_(tensor.data)
            tensor.data = rounded
            tensor.grad = None if gradient is None else gradient.to(rounded.dtype)
        self._held.clear()


def steps_for(role: str) -> TorchSteps:
    return StepsInDouble() if role == "reference" else TorchSteps()


def kept(tensor: torch.Tensor, most: int = MOST_ELEMENTS) -> Any:
    """A copy of its values in fp64, flat and in logical order, imaginary parts among them; evenly spaced ones where
    there are more than `most`."""
    plain = tensor.detach()
    if is_sparse(plain):
        flat = _spaced(plain, spacing(math.prod(plain.shape), most))
    else:
        whole = in_reals(plain if is_plain(plain) else torch.cat([part.flatten() for part in strided_parts(plain)]))
        flat = whole.reshape(-1)[:: spacing(whole.numel(), most)]
    return flat.to("cpu", torch.float64, copy=True).numpy()


def _spaced(sparse: torch.Tensor, every: int) -> torch.Tensor:
    """As of a dense one, which would be larger by far: an adjacency of a million nodes takes 4 TB."""
    placed = (sparse if sparse.layout is torch.sparse_coo else sparse.to_sparse()).coalesce()
    indices, values = placed.indices(), placed.values().flatten(1) if placed.dense_dim() else placed.values()[:, None]
    rows = torch.zeros(len(values), dtype=torch.long, device=sparse.device)
    for size, index in zip(placed.shape, indices, strict=False):
        rows = rows * size + index
    places = rows[:, None] * values.shape[1] + torch.arange(values.shape[1], device=sparse.device)
    chosen = places % every == 0
    flat = torch.zeros(-(-math.prod(sparse.shape) // every), dtype=torch.float64, device=sparse.device)
    flat[places[chosen] // every] = values[chosen].double()
    return flat
