"""Technique `no_grad`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from overdrive.core.by_identity import ByIdentity
from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.seams.answering import AnsweringModel
from overdrive.techniques.technique import CannotInstall, Technique

if TYPE_CHECKING:
    from overdrive.model_state.later_backward import Requiring
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.technique import Settings


class NoGrad(Technique):
    """Calls the model without recording gradients, where the program forgot to.

    What it does: the outermost call runs under `torch.no_grad()`. Its results still say that they require a gradient,
    where the first call of this kind, which is made as it is, has shown that they do; should somebody send one back
    after all, the call is made again then, with the same random numbers, and its gradients are those.

    When it helps: programs that evaluate or answer without `torch.no_grad()` or `torch.inference_mode()`: no
    activation is kept for a backward pass that never comes, which saves memory, and on small models time.

    When it hurts: a program that asks for gradients now and then makes those calls twice. Calls with a tensor that the
    program itself wants a gradient of, those of a model that the program has put hooks on or that writes to its inputs,
    and those that return objects of a class of the program's with tensors in them, are made as they are.

    What it watches: at each call, whether gradients are recorded, inputs require some (a state that comes of the call
    before does; after the first gradient that is asked for such calls are made as they are), and modules have hooks; an
    optimizer that is made leaves it out. For a call that is made again random states, modes and a training model's
    buffers are put back, and a parameter or an input that was written to meanwhile is an error, as in PyTorch (which
    lets pass inputs that it has not kept for the gradient). What would escape: attributes or hooks that the program
    changes, or weights and inputs that it writes to through `.data`, between a call and its backward pass; a gradient
    with respect to what the model's own code keeps of a call (`self.features = x`).

    Contract: exact. The same kernels compute the same numbers.

    Source: https://docs.pytorch.org/docs/stable/notes/autograd.html (locally disabling gradient computation)
    """

    name = "no_grad"
    programs = ("inference",)
    contract = Contract.EXACT
    targets = ("forward",)
    expected_saving = 0.1
    aims = ("time", "memory")
    switchable = True
    order = 60  # around all others: they see no gradients then

    def applies(self, facts: Facts) -> str | None:
        if self.own(facts).get("records") is False:
            return "the program records no gradients"
        return None

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        found: set[bool] = set()

        def called(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            import torch

            if True not in found:
                found.add(torch.is_grad_enabled() and any(each.requires_grad for each in model.parameters()))
            return call(*args, **kwargs)

        seams.model_called.subscribe(called)
        return lambda: {"records": True in found} if found else {}

    def install(self, seams: Seams, settings: Settings) -> Handle:
        known: ByIdentity[Requiring] = ByIdentity()

        def call_without(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            import torch
            from torch.utils._pytree import tree_flatten, tree_leaves

            from overdrive.model_state.later_backward import Parts, Requiring, wants_gradients, without_graph
            from overdrive.seams.torch.hooks import own_hooks
            from overdrive.seams.torch.internals import writes_to
            from overdrive.seams.torch.tracing import traced

            if not torch.is_grad_enabled() or traced():
                return call(*args, **kwargs)
            leaves, spec = tree_flatten((args, kwargs))
            seen = known.setdefault(model, Requiring())
            if wants_gradients(leaves, seen):
                return call(*args, **kwargs)
            if own_hooks(model):  # they may keep activations, for a gradient with respect to one (Grad-CAM)
                return call(*args, **kwargs)
            parts = Parts(model)
            kind = spec, model.training, tuple(map(_kind, leaves))
            if (requiring := seen.of(parts, kind)) is not None:
                return without_graph(parts, lambda: call(*args, **kwargs), call, args, kwargs, requiring, seen)
            tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
            versions = list(map(writes_to, tensors))
            result = call(*args, **kwargs)
            # One that writes to its inputs would find others when it is made again.
            if list(map(writes_to, tensors)) == versions and not _holds_gradients(tree_leaves(result)):
                seen.note(parts, result, kind)
            return result

        def made(optimizer: Any, models: Any) -> None:
            if not isinstance(optimizer, AnsweringModel):  # each of its calls would be made twice
                raise CannotInstall("the program trains, and asks for gradients")

        seams.model_called.subscribe(call_without)
        seams.optimizer_made.subscribe(made)
        return seams.handle()


def _kind(argument: Any) -> Any:
    """By what of it calls are told apart: a detector's results are a list as long as the batch."""
    import torch

    if isinstance(argument, (bool, int, float, str, type(None))):
        return type(argument), argument
    if isinstance(argument, torch.Tensor):
        return type(argument), argument.shape[:1], argument.requires_grad
    return type(argument)


def _holds_gradients(results: Sequence[Any]) -> bool:
    """Whether one is an object of the program's with tensors that require gradients: nobody could hand out others."""
    import torch

    objects = [each for each in results if not isinstance(each, torch.Tensor)]
    held = chain.from_iterable(getattr(each, "__dict__", {}).values() for each in objects)
    return any(isinstance(each, torch.Tensor) and each.requires_grad for each in held)
