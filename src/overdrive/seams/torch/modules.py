"""What a module holds, in the private dictionaries of its own that PyTorch's documented methods only read."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parameter import is_lazy


def live_modules() -> list[torch.nn.Module]:
    """All that the process holds, whoever made them; by their own classes: asked of an object, some would say so."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]


def first_parameter(module: torch.nn.Module) -> Any:
    """None where there is none, or where it cannot be told: programs override `parameters()`, with lists too, and some
    modules are no more than proxies."""
    try:
        return next(iter(module.parameters()), None)
    except Exception:
        return None


def still_lazy(model: torch.nn.Module) -> bool:
    """Whether its first call decides the shapes of parameters or buffers (`LazyLinear`)."""
    held = ((*each._parameters.values(), *each._buffers.values()) for each in torch.nn.Module.modules(model))
    return any(tensor is not None and is_lazy(tensor) for tensors in held for tensor in tensors)


def parameters_in(module: torch.nn.Module) -> dict[str, Any]:
    """Its own, without those of modules in it, by name; what is written there is the module's. Values may be None."""
    return module._parameters


def own_parameters(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Without those of modules in it, each once; asked of PyTorch's class, as programs override `parameters()`."""
    return [each for _, each in torch.nn.Module.named_parameters(module, recurse=False)]


def buffers_in(module: torch.nn.Module) -> dict[str, Any]:
    """The same of its buffers."""
    return module._buffers


def modules_in(module: torch.nn.Module) -> dict[str, Any]:
    """The same of the modules that it holds itself."""
    return module._modules


def tensors_in(module: torch.nn.Module) -> list[torch.Tensor]:
    """The parameters and buffers of this module, without those of modules in it."""
    return [each for each in (*module._parameters.values(), *module._buffers.values()) if each is not None]


def change_tensors(module: torch.nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """All that it and the modules in it hold, as `module.to(device)` does, recurrent layers' flat weights included."""
    module._apply(change)  # type: ignore[no-untyped-call]


@contextmanager
def swapped(modules: Sequence[torch.nn.Module], others: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Within it, these modules have other parameters and buffers, by the id of those in whose place they stand.

    `torch.func.functional_call` passes over the weights of an LSTM.
    """
    before: list[tuple[dict[str, Any], str, Any]] = []
    lists: list[tuple[dict[str, Any], Any, Any]] = []
    try:
        for module in modules:
            for holder in (parameters_in(module), buffers_in(module)):
                for name, tensor in holder.items():
                    if id(tensor) in others:
                        before.append((holder, name, tensor))
                        holder[name] = others[id(tensor)]
            if isinstance(module, torch.nn.RNNBase):
                # It has a list of its weights, and finds by weak references that it is out of date.
                lists.append((vars(module), vars(module)["_flat_weights"], vars(module)["_flat_weight_refs"]))
                module._flat_weights = [
                    None if each is None else others.get(id(each), each) for each in module._flat_weights
                ]
        yield
    finally:
        for space, weights, references in lists:
            space["_flat_weights"], space["_flat_weight_refs"] = weights, references
        for holder, name, tensor in before:
            holder[name] = tensor


class TellsOfLoading(torch.nn.Module):
    """For classes that are put over a module's own: told of what is loaded into it, and copied as that class."""

    def about_to_load(self, state: dict[str, Any], prefix: str) -> None:
        """`state` has what is loaded under this prefix; it may be changed."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self.about_to_load(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)


def another(module: torch.nn.Module, kind: Any, parameters: Mapping[str, Any], without: str) -> torch.nn.Module:
    """A module of this class with all that `module` has, but the attribute `without`, and with these parameters."""
    made: torch.nn.Module = kind.__new__(kind)
    made.__dict__.update({name: each for name, each in vars(module).items() if name != without})
    made.__dict__["_parameters"] = {**module._parameters, **parameters}
    return made
