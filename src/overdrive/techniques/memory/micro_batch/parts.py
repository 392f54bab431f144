"""A model's call in parts of its batch, one after the other. It needs to know nothing of the loss.

The forward pass makes each part and puts the results together. The backward pass makes each part again, now with its
graph, and sends its share of the gradient through it: only one part at a time has anything in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from overdrive.core.rng import States
from overdrive.model_state.quiet import quiet
from overdrive.model_state.state import State
from overdrive.seams.torch.call_parts import in_parts
from overdrive.seams.torch.hooks import without_gradient_hooks
from overdrive.seams.torch.moment import Circumstances, chance_as

Call = Callable[..., Any]


@dataclass(frozen=True)
class Way:
    """How this model's arguments are split and its results put together."""

    split: tuple[bool, ...]  # which leaves of the arguments have one row a sample
    dims: tuple[int | None, ...]  # along which dimension a leaf of the result is put together; None: no tensor
    differentiable: tuple[bool, ...]


def bounds(size: int, parts: int) -> list[tuple[int, int]]:
    """Where the parts begin and end: all of one size, but for the last."""
    step = -(-size // parts)
    return [(start, min(size, start + step)) for start in range(0, size, step)]


def part_of(leaves: Sequence[Any], split: Sequence[bool], start: int, stop: int) -> list[Any]:
    return [leaf[start:stop] if cut else leaf for leaf, cut in zip(leaves, split, strict=True)]


def call_in_parts(
    way: Way,
    state: State,
    call: Call,
    leaves: Sequence[Any],
    spec: TreeSpec,
    parts: int,
    trained: Sequence[torch.Tensor],
    failed: Callable[[str], None],
) -> Any:
    """As `call` on the whole batch.

    Args:
        state: that of the model, which each part finds as it is now.
        failed: told why, where the backward pass failed once: it is then carried out anew, which leaves no trace.
    """
    job = _Job(way, state, call, list(leaves), spec, parts, failed)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    results = _InParts.apply(job, *tensors, *trained)  # type: ignore[no-untyped-call]
    return tree_unflatten([results[n] if n is not None else job.others[i] for i, n in job.places()], job.result_spec)


class _Job:
    """One such call: all that its backward pass needs but the tensors."""

    def __init__(
        self,
        way: Way,
        state: State,
        call: Call,
        leaves: list[Any],
        spec: TreeSpec,
        parts: int,
        failed: Callable[[str], None],
    ) -> None:
        self.failed = failed
        self._way = way
        self._state = state
        self._call = call
        self._spec = spec
        self._is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        self._rest = [None if tensor else leaf for leaf, tensor in zip(leaves, self._is_tensor, strict=True)]
        split = [len(leaf) for leaf, cut in zip(leaves, way.split, strict=True) if cut]
        self._bounds = bounds(split[0], parts)
        self._circumstances = Circumstances()
        self._chance: list[States] = []
        self.result_spec: Any = None
        self.others: dict[int, Any] = {}  # leaves of the result that are no tensors

    def places(self) -> list[tuple[int, int | None]]:
        """The leaves of the result, each with its number among those that are tensors."""
        found: list[tuple[int, int | None]] = []
        tensors = 0
        for place, dim in enumerate(self._way.dims):
            found.append((place, None if dim is None else tensors))
            tensors += dim is not None
        return found

    def forward(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        whole: list[torch.Tensor] = []
        filled = [0] * len(self._way.dims)
        total = self._bounds[-1][1]
        for start, stop in self._bounds:
            self._chance.append(States.now())
            with torch.no_grad(), self._circumstances.again(), in_parts:
                leaves, spec = self._make(tensors, start, stop)
            self.result_spec = spec if self.result_spec is None else self.result_spec
            if spec != self.result_spec or len(leaves) != len(self._way.dims):
                raise TypeError("the model's result for a part of the batch has another structure")
            for place, number in self.places():
                leaf = leaves[place]
                if number is None:
                    self.others[place] = leaf
                    continue
                leaf = leaf.detach()
                dim = self._dim(place)
                if not start:
                    shape = list(leaf.shape)
                    shape[dim] = shape[dim] * total // (stop - start)
                    whole.append(leaf.new_empty(shape))
                length = leaf.shape[dim]
                whole[number].narrow(dim, filled[place], length).copy_(leaf)
                filled[place] += length
            del leaves
        for place, number in self.places():
            if number is not None and filled[place] != whole[number].shape[self._dim(place)]:
                raise ValueError("the model's result has not one row a sample")
        return whole

    def differentiable(self) -> list[bool]:
        return [yes for yes, dim in zip(self._way.differentiable, self._way.dims, strict=True) if dim is not None]

    def backward(
        self, tensors: Sequence[torch.Tensor], needed: Sequence[bool], gradients: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """The gradients of those tensors, arguments first and then parameters, where they are needed."""
        again = torch.is_grad_enabled()  # the program will differentiate the gradients themselves
        wanted = [place for place, need in enumerate(needed) if need]
        found: list[torch.Tensor | None] = [None] * len(tensors)
        for number, (start, stop) in enumerate(self._bounds):
            given = list(tensors) if again else self._cut_off(tensors, needed)
            with ExitStack() as as_then:
                as_then.enter_context(self._state.as_it_was())
                as_then.enter_context(quiet(self._state.reach.loggers))  # it was said in the forward pass
                as_then.enter_context(chance_as(self._chance[number]))
                as_then.enter_context(self._circumstances.again())
                as_then.enter_context(torch.enable_grad())
                leaves, _ = self._make(given, start, stop)
            ends, sent = self._ends(leaves, gradients, start)
            del leaves
            if not ends or not wanted:
                continue
            sources = [given[place] for place in wanted]
            del given
            with without_gradient_hooks(sources):  # they are called once, with the sum of the parts
                got = torch.autograd.grad(ends, sources, sent, create_graph=again, allow_unused=True)
            del ends, sent, sources
            with nullcontext() if again else torch.no_grad():
                for place, gradient in zip(wanted, got, strict=True):
                    if gradient is not None:
                        # Not in place: autograd may hand out the same memory twice, or an expanded scalar.
                        known = found[place]
                        found[place] = gradient if known is None else known + gradient
        return found

    def _cut_off(self, tensors: Sequence[torch.Tensor], needed: Sequence[bool]) -> list[torch.Tensor]:
        """The arguments without what made them; parameters as they are."""
        arguments = sum(self._is_tensor)
        cut = [each.detach().requires_grad_(need) for each, need in zip(tensors[:arguments], needed, strict=False)]
        return [*cut, *tensors[arguments:]]

    def _make(self, tensors: Sequence[torch.Tensor], start: int, stop: int) -> tuple[list[Any], TreeSpec]:
        following = iter(tensors)
        leaves = [next(following) if tensor else rest for tensor, rest in zip(self._is_tensor, self._rest, strict=True)]
        args, kwargs = tree_unflatten(part_of(leaves, self._way.split, start, stop), self._spec)
        result: tuple[list[Any], TreeSpec] = tree_flatten(self._call(*args, **kwargs))
        return result

    def _ends(
        self, leaves: Sequence[Any], gradients: Sequence[torch.Tensor | None], start: int
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """What of a part's result has a gradient, and that."""
        ends, sent = [], []
        for place, number in self.places():
            gradient = None if number is None else gradients[number]
            leaf = leaves[place]
            if gradient is None or not leaf.requires_grad:
                continue
            dim = self._dim(place)
            a_row = gradient.shape[dim] * start // self._bounds[-1][1]
            ends.append(leaf)
            sent.append(gradient.narrow(dim, a_row, leaf.shape[dim]))
        return ends, sent

    def _dim(self, place: int) -> int:
        dim = self._way.dims[place]
        assert dim is not None
        return dim


class _InParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: _Job, *tensors: torch.Tensor) -> Any:
        ctx.job = job
        ctx.save_for_backward(*tensors)  # torch refuses where one of them was written to before the backward pass
        ctx.set_materialize_grads(False)
        results = job.forward(tensors)
        ctx.mark_non_differentiable(
            *(result for result, yes in zip(results, job.differentiable(), strict=True) if not yes)
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        given = ctx.saved_tensors, ctx.needs_input_grad[1:], gradients
        try:
            return None, *ctx.job.backward(*given)
        except Exception as error:  # all that it is made of is still there
            reason = f"the model's call on a part of a batch failed in the backward pass ({error})"
        ctx.job.failed(reason)
        return None, *ctx.job.backward(*given)
