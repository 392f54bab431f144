"""Techniques that take a phase of a step away in every other block of steps, to see whether the step shrinks by what
a profile said of it: for `profiled.py` only. What the program then learns is nonsense.

What a phase leaves to the others is left to them all the same: batches, gradients and results that were made before
are handed out again. In the blocks between, the program runs as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.seams.step_counter import StepCounter
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams

_BATCHES = 4  # kept of each loader, and handed out in turn


class _Without(Technique):
    family = "benchmark"
    contract = Contract.OPEN
    targets = ()
    knobs = (
        Knob("start", 0, "the program's steps before the first block"),
        Knob("size", 1, "steps of a block"),
        Knob("first", 0, "0: the first block of each two, 1: the second; 2: all, 3: none"),
    )

    def install(self, seams: Seams, settings: Settings) -> Handle:
        away = _Away(int(settings["start"]), int(settings["size"]), int(settings["first"]))
        self.take(seams, away)
        seams.step_ends.subscribe(away.stepped)
        return seams.handle()

    def take(self, seams: Seams, away: _Away) -> None:
        """Subscribe; what is `away.now` is taken away."""
        raise NotImplementedError


class _Away:
    def __init__(self, start: int, size: int, first: int) -> None:
        self.now = False
        self._clock = StepCounter()
        self._start, self._size, self._first = start, size, first

    def stepped(self, optimizer: Any) -> None:
        self._clock.tick(optimizer)
        block = (self._clock.steps - self._start) // self._size
        turn = self._first == 2 or block % 2 == self._first
        self.now = turn and self._clock.steps >= self._start


class WithoutData(_Without):
    """Hands out batches that were fetched before.

    What it does: takes waiting for data away. When it helps, when it hurts, contract: never, always, none.
    """

    name = "without_data"

    def take(self, seams: Seams, away: _Away) -> None:
        shelves: dict[tuple[type, int], _Shelf] = {}

        def opened(loader: Any, call: Callable[[], Any]) -> Any:
            try:
                length = len(loader)
            except TypeError:  # of a data set that does not know its length
                length = sys.maxsize
            shelf = shelves.setdefault((type(loader.dataset), length), _Shelf())
            return _replayed(call, length, shelf, away)

        seams.loader_opens.subscribe(opened)


class _Shelf:
    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.fetched: Iterator[Any] = iter(())


def _replayed(call: Callable[[], Any], length: int, shelf: _Shelf, away: _Away) -> Iterator[Any]:
    """An epoch of as many batches as it has.

    It is opened only where it begins as it is; one that begins without data goes on with what is left of the epoch
    before. So there is no more opening for a fetched batch than the program does.
    """
    if not away.now:
        shelf.fetched = iter(call())
    for place in range(length):
        if away.now and len(shelf.batches) == _BATCHES:
            yield shelf.batches[place % _BATCHES]
            continue
        try:
            batch = next(shelf.fetched)
        except StopIteration:
            if length == sys.maxsize:
                return
            shelf.fetched = iter(call())
            batch = next(shelf.fetched)
        if len(shelf.batches) < _BATCHES:
            shelf.batches.append(batch)
        yield batch


class _Gradients:
    """Gradients of zero for the optimizer, in place of those that nobody makes: others, taken again and again, would
    let the weights run away."""

    def __init__(self, seams: Seams, away: _Away) -> None:
        self._away = away
        self._parameters: dict[int, Any] = {}
        self._zeros: dict[int, tuple[Any, Any]] = {}
        seams.optimizer_made.subscribe(self._made)
        seams.backward_done.subscribe(self._done)

    def _made(self, optimizer: Any, models: Any) -> None:
        self._parameters.update((id(each), each) for group in optimizer.param_groups for each in group["params"])

    def _done(self, loss: Any) -> None:
        import torch

        if self._away.now:
            for parameter, gradient in self._zeros.values():
                if parameter.grad is None:
                    parameter.grad = gradient
            return
        for key, parameter in self._parameters.items():
            if key not in self._zeros and parameter.grad is not None:
                self._zeros[key] = parameter, torch.zeros_like(parameter.grad)


class WithoutBackward(_Without):
    """Sends a number of its own backward.

    What it does: takes the backward pass away. When it helps, when it hurts, contract: never, always, none.
    """

    name = "without_backward"

    def take(self, seams: Seams, away: _Away) -> None:
        within = [0]  # calls in one step of an optimizer

        def sent(loss: Any) -> Any:
            import torch

            within[0] += 1
            return torch.zeros((), requires_grad=True) if away.now else loss

        def begins(optimizer: Any) -> None:
            within[0] = 0

        def ends(optimizer: Any) -> None:
            if within[0] > 1:
                raise CannotInstall("gradients decide how often the optimizer asks for them")

        seams.loss_backward.subscribe(sent)
        seams.step_begins.subscribe(begins)
        seams.step_ends.subscribe(ends)
        _Gradients(seams, away)


class WithoutOptimizer(_Without):
    """Leaves out what the optimizer's step does; its hooks are called.

    What it does: takes the optimizer's work away. When it helps, when it hurts, contract: never, always, none.
    """

    name = "without_optimizer"

    def take(self, seams: Seams, away: _Away) -> None:
        replaced: dict[type, Any] = {}

        def made(optimizer: Any, models: Any) -> None:
            kind = type(optimizer)
            if kind in replaced:
                return
            inner = getattr(kind.step, "__wrapped__", None)  # without PyTorch's hooks
            if inner is None:
                raise CannotInstall(f"{kind.__name__}.step has no hooks")
            step = kind.profile_hook_step(_step(inner, away))
            step.hooked = True
            replaced[kind] = vars(kind).get("step")
            kind.step = step

        def undo() -> None:
            for kind, before in replaced.items():
                if before is None:
                    del kind.step  # type: ignore[attr-defined]
                else:
                    kind.step = before  # type: ignore[attr-defined]

        seams.optimizer_made.subscribe(made)
        seams.on_undo(undo)


def _step(inner: Callable[..., Any], away: _Away) -> Callable[..., Any]:
    def step(self: Any, closure: Any = None) -> Any:
        import torch

        if not away.now:
            return inner(self) if closure is None else inner(self, closure)
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    return step


class WithoutModel(_Without):
    """Hands out the model's first result of each kind again; the gradient of the loss ends there.

    What it does: takes the forward and the backward pass away. When it helps, when it hurts, contract: never,
    always, none.
    """

    name = "without_model"
    training = True  # whether calls with gradients are left out, too

    def take(self, seams: Seams, away: _Away) -> None:
        kept: dict[Any, Any] = {}

        def called(model: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
            import torch
            from torch.utils._pytree import tree_map_only

            trains = torch.is_grad_enabled()
            if trains and not self.training:
                return call(*args, **kwargs)
            given = (*args, *kwargs.values())
            shapes = tuple(tuple(each.shape) if isinstance(each, torch.Tensor) else type(each) for each in given)
            key = id(model), trains, model.training, shapes
            if not away.now or key not in kept:
                result = call(*args, **kwargs)
                if key not in kept:
                    kept[key] = tree_map_only(torch.Tensor, lambda each: each.detach(), result)
                return result

            def again(tensor: Any) -> Any:
                return tensor.detach().requires_grad_(trains and tensor.is_floating_point())

            return tree_map_only(torch.Tensor, again, kept[key])

        seams.model_called.subscribe(called)
        if self.training:
            _Gradients(seams, away)


class WithoutEvaluation(WithoutModel):
    """As `without_model`, but only for calls without gradients.

    What it does: takes evaluations away. When it helps, when it hurts, contract: never, always, none.
    """

    name = "without_evaluation"
    training = False
