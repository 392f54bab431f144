"""A model's call as a graph that an engine can be built from, or the reason why there is none."""

from __future__ import annotations

import copy
import inspect
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from overdrive.core.rng import States
from overdrive.engines.runtime import NoEngine, unlogged
from overdrive.model_state.quiet import quiet
from overdrive.model_state.state import State
from overdrive.seams.points import reason_of
from overdrive.seams.torch.internals import storage_id


def exported(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], state: State, dynamic: Any = None
) -> Any:
    """The `torch.export.ExportedProgram` of a call with tensors of these shapes. Of the program nothing is changed.

    Args:
        dynamic: which dimensions may vary, as `torch.export` takes it; none, where it is not given.

    Raises:
        NoEngine: it cannot be exported, or the graph would leave something undone.
    """
    chance = States.now()
    try:
        with warnings.catch_warnings(), quiet(state.reach.loggers) as said, unlogged(), torch.no_grad():
            warnings.simplefilter("ignore")
            shell = _shell(model, state)
            graph = torch.export.export(shell, args, kwargs, dynamic_shapes=dynamic, strict=False)
            graph = graph.run_decompositions({})
    except NoEngine:
        raise
    except Exception as error:
        raise NoEngine(f"it cannot be exported ({reason_of(error)[:200]})") from None
    finally:
        chance.restore()
    if said:
        raise NoEngine("it prints in its call")
    change = state.change()  # by exporting: an LSTM finds other tensors in the place of its weights, say
    state.put_back()  # values that are equal, too: modules that set their attributes would be kept before each call
    if change and state.change():
        raise NoEngine(f"exporting it changes {change}")
    state.watch_anew()
    if left := _left_undone(graph):
        raise NoEngine(left)
    return graph


class ByTensors(torch.nn.Module):
    """A model's call as a function of its tensors, in order; all else that it is given is part of it."""

    def __init__(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        leaves, self._spec = tree_flatten((args, kwargs))
        self._constants = [_TENSOR if isinstance(each, torch.Tensor) else each for each in leaves]

    def forward(self, *tensors: torch.Tensor) -> Any:
        following = iter(tensors)
        leaves = [next(following) if each is _TENSOR else each for each in self._constants]
        args, kwargs = tree_unflatten(leaves, self._spec)
        return self.model(*args, **kwargs)


_TENSOR = "a tensor of the call's"  # a text, which is itself in a copy


def for_sizes_that_vary(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """What to export in place of this call: `torch.export` (2.13) loses count of sizes that vary where the model's own
    `**kwargs` takes an argument, as in each call of transformers' `generate`."""
    try:
        signature = inspect.signature(model.forward)
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return model, args, kwargs
    if not any(each.kind is each.VAR_KEYWORD and name in bound for name, each in signature.parameters.items()):
        return model, args, kwargs
    given = tree_flatten((args, kwargs))[0]
    return ByTensors(model, args, kwargs), tuple(each for each in given if isinstance(each, torch.Tensor)), {}


def _shell(model: torch.nn.Module, state: State) -> torch.nn.Module:
    """What is exported: other modules with the model's tensors. While a graph is made PyTorch puts tensors without
    values in the place of a module's own, which another thread's call would find."""
    if threading.active_count() == 1:
        return model
    tensors = {id(each): each for each in (*model.parameters(), *model.buffers(), *state.reach.tensors)}
    try:
        return copy.deepcopy(model, tensors)
    except Exception as error:
        raise NoEngine(f"there are other threads, and it cannot be copied: {reason_of(error)[:200]}") from None


def _left_undone(graph: Any) -> str:
    """What a call does that the graph's results do not tell, in words; empty where that is nothing."""
    signature = graph.graph_signature
    if signature.buffers_to_mutate:
        return f"a call writes to the buffer {next(iter(signature.buffers_to_mutate.values()))}"
    if signature.user_inputs_to_mutate:
        return "a call writes to its inputs"
    for node in graph.graph.nodes:
        if node.op == "call_function" and "higher_order" in type(node.target).__module__:
            return f"a call takes its way through {node.target}"
    return ""


def share_memory(results: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether a result lies in memory of another one, or of these: what is written to it would show there."""
    mine = [storage_id(each) for each in results]
    return len(set(mine)) < len(mine) or not set(mine).isdisjoint(storage_id(each) for each in others)
