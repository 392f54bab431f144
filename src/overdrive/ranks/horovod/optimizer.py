"""An optimizer whose gradients are those of all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from overdrive.core.flag import Flag
from overdrive.ranks.horovod.compression import Compression
from overdrive.ranks.horovod.handles import Handle, for_all, synchronize
from overdrive.ranks.horovod.operations import sparse_allreduce_async
from overdrive.ranks.horovod.reductions import Average, allreduce_async_, reduction
from overdrive.ranks.horovod.world import global_process_set, size
from overdrive.seams.parameters import parameters_of

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Any]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = global_process_set,
) -> torch.optim.Optimizer:
    """An optimizer of a class made from the given one's, with which it shares state and groups.

    Args:
        backward_passes_per_step: gradients travel after so many backward passes.
        gradient_predivide_factor: of the mean, divide by so much before the sum, and by the rest after it.
        num_groups, groups: accepted; what is ready at once travels together in any case.

    Raises:
        ValueError: names are missing or twice there.
        NotImplementedError: for Adasum, or a part of the ranks.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    for_all(process_set)
    kind = type(optimizer)
    made: Any = kind.__new__(type(kind.__name__, (_Reducing, kind), {}))
    made.__dict__ = {name: value for name, value in vars(optimizer).items() if name != "step"}  # a scheduler's
    gradients = _Gradients(made, _named(optimizer, named_parameters), compression, reduction(op), sparse_as_dense)
    gradients.passes, gradients.before = backward_passes_per_step, gradient_predivide_factor
    made._horovod = gradients
    if size() > 1:
        gradients.watch()
    return made  # type: ignore[no-any-return]


def _named(optimizer: torch.optim.Optimizer, given: Iterable[tuple[str, Any]] | None) -> dict[Any, str]:
    own = parameters_of(optimizer)
    if given is None:
        return {each: f"parameter.{place}" for place, each in enumerate(own)}
    named = list(given)
    if any(not isinstance(each, tuple) for each in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), as named_parameters() gives."
        )
    names = [name for name, _ in named]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}")
    found = {each: name for name, each in named}
    if missing := [each for each in own if each not in found]:
        raise ValueError(f"named_parameters has no names for {len(missing)} of the optimizer's parameters.")
    return found


class _Reducing(torch.optim.Optimizer):
    """Mixed into the class of the program's optimizer."""

    _horovod: _Gradients

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        gradients = self._horovod
        if closure is not None:
            return super().step(lambda: _after(closure(), gradients.synchronize))
        if gradients.skipped:
            gradients.synchronized = False
            return super().step()
        if gradients.synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): "
                "gradients are exchanged twice",
                stacklevel=2,
            )
        gradients.synchronize()
        gradients.synchronized = False
        return super().step()

    step.hooked = True  # type: ignore[attr-defined]  # PyTorch wraps it for its hooks, and has the inner one for that

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        if self._horovod.handles:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        super().zero_grad(*args, **kwargs)

    def synchronize(self) -> None:
        """Wait until all gradients are those of all ranks."""
        self._horovod.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, `step` exchanges nothing: `synchronize` did."""
        with self._horovod.skipped:
            yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        self._horovod.passes = passes
        self._horovod.made.clear()


def _after(result: Any, act: Callable[[], None]) -> Any:
    act()
    return result


class _Gradients:
    """
    Attributes:
        passes: backward passes after which a gradient travels.
        handles: of parameters whose gradients travel.
        made: backward passes of each since it last travelled.
        skipped: whether `step` is to exchange nothing.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, names: dict[Any, str], compression: Any, op: str, dense: bool
    ) -> None:
        self._optimizer, self._names, self._compression = optimizer, names, compression
        self._op, self._dense = op, dense
        self.passes, self.before = 1, 1.0
        self.handles: dict[Any, tuple[Handle, Any, Any] | None] = {}  # None: a sparse one, which waits
        self.made: dict[Any, int] = {}
        self.synchronized, self.skipped = False, Flag()

    def __deepcopy__(self, memo: Any) -> _Gradients:
        raise NotImplementedError("an optimizer of hvd.DistributedOptimizer is not copied: copy its state_dict")

    def watch(self) -> None:
        for each in self._trained():
            each.register_post_accumulate_grad_hook(self._arrived)

    def name(self, parameter: Any) -> str:
        """Of one that came later, in a group of its own, by its place: that is the same on all ranks."""
        if parameter not in self._names:
            place = next(place for place, each in enumerate(parameters_of(self._optimizer)) if each is parameter)
            self._names[parameter] = f"added.{place}"
        return self._names[parameter]

    def _trained(self) -> list[Any]:
        return [each for each in parameters_of(self._optimizer) if each.requires_grad]

    def _arrived(self, parameter: Any) -> None:
        if parameter in self.handles:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
                "backward_passes_per_step to accumulate gradients locally."
            )
        self.made[parameter] = self.made.get(parameter, 0) + 1
        if self.made[parameter] >= self.passes:
            self._send(parameter)

    def _send(self, parameter: Any) -> None:
        if parameter.grad is None:  # other ranks may have one
            parameter.grad = torch.zeros_like(parameter)
        gradient = parameter.grad
        if gradient.is_sparse and self._dense:
            gradient = gradient.to_dense()
        if gradient.is_sparse:
            self.handles[parameter] = None
            return
        sent, context = self._compression.compress(gradient)
        before, after = (1 / self.before, self.before) if self._op == Average else (1.0, 1.0)
        handle = allreduce_async_(sent, None, f"gradient.{self.name(parameter)}", self._op, before, after)
        self.handles[parameter] = handle, sent, context

    def synchronize(self) -> None:
        if size() == 1:
            return
        for parameter in self._trained():
            if parameter not in self.handles:
                self._send(parameter)
        for parameter, sent in self.handles.items():
            if sent is None:
                name = f"gradient.{self.name(parameter)}"
                parameter.grad = sparse_allreduce_async(parameter.grad, name, self._op)()
                continue
            handle, tensor, context = sent
            synchronize(handle)
            made = self._compression.decompress(tensor, context)
            if parameter.grad.is_sparse:  # as it is given to the optimizer, which may take no other
                parameter.grad = made.to_sparse(parameter.grad.sparse_dim())
            elif made is not parameter.grad:
                parameter.grad.copy_(made)
        self.handles.clear()
        self.made.clear()
        self.synchronized = True
