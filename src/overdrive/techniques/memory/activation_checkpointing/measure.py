"""How many bytes each module of a model keeps for the backward pass, counted in a call that keeps none of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from overdrive.model_state.state import State
from overdrive.model_state.trial_call import tried
from overdrive.seams.torch.internals import version_of
from overdrive.seams.torch.modules import parameters_in
from overdrive.seams.torch.moment import Circumstances
from overdrive.techniques.memory.activation_checkpointing.frames import can_be_given

Keys = set[int]


@dataclass
class ModuleMemory:
    """What one module keeps over all its calls: blocks of memory by key, those it was given and those it returns."""

    safe: bool = True  # whether it does nothing but compute, from tensors and constants
    saved: Keys = field(default_factory=set)
    given: Keys = field(default_factory=set)
    made: Keys = field(default_factory=set)  # of what it was given, what the model has made
    returned: Keys = field(default_factory=set)
    written: Keys = field(default_factory=set)  # what it was given and wrote over: made again, it would find that


@dataclass
class MeasuredCall:
    """A model's call."""

    sizes: dict[int, int]  # of every block of memory that is kept
    modules: dict[torch.nn.Module, ModuleMemory]

    @property
    def total(self) -> int:
        return sum(self.sizes.values())

    def bytes(self, keys: Keys) -> int:
        return sum(self.sizes[key] for key in keys & self.sizes.keys())


class _Frame:
    def __init__(self, module: torch.nn.Module, given: list[torch.Tensor], leaves: list[Any], changes: int) -> None:
        self.module = module
        self.given = [(tensor, version_of(tensor)) for tensor in given]
        self.leaves = leaves
        self.changes = changes
        self.versions = _versions(module)


class _Measuring:
    """Hooks on all modules and on all that is saved. What is saved is let go at once."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.sizes: dict[int, int] = {}
        self.modules: dict[torch.nn.Module, ModuleMemory] = {}
        self._references: dict[int, Any] = {}  # they keep a key from being given to another block
        self._stack: list[_Frame] = []
        self._model = model
        self._own = {self.key(each) for each in (*model.parameters(), *model.buffers())}
        self._state: State | None = None
        self.changes = 0  # how often something of Python's was found to have changed

    def key(self, tensor: torch.Tensor) -> int:
        reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        return int(self._references.setdefault(reference.cdata, reference).cdata)

    def pack(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided:
            return
        key = self.key(tensor)
        if key not in self._own:
            self.sizes[key] = tensor.untyped_storage().nbytes()
            for frame in self._stack:
                self.modules[frame.module].saved.add(key)

    def unpack(self, nothing: None) -> torch.Tensor:
        raise RuntimeError("the model differentiates inside its own call")

    def before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self._look(module)
        given = _tensors((args, kwargs))
        kept = self.modules.setdefault(module, ModuleMemory())
        kept.given |= {self.key(each) for each in given}
        kept.made |= {self.key(each) for each in given if each.grad_fn is not None}
        kept.safe &= can_be_given(args, kwargs)
        self._stack.append(_Frame(module, given, tree_leaves((args, kwargs)), self.changes))

    def after(self, module: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        self._look(module)
        frame = self._stack.pop()
        self.changes += frame.versions != _versions(module)
        kept = self.modules[module]
        kept.returned |= {self.key(each) for each in _tensors(result)}
        kept.written |= {self.key(tensor) for tensor, version in frame.given if version_of(tensor) != version}
        leaves = tree_leaves((args, kwargs))
        same = len(leaves) == len(frame.leaves) and all(map(is_, leaves, frame.leaves))
        kept.safe &= frame.changes == self.changes and same

    def _look(self, module: torch.nn.Module) -> None:
        """Whether something has changed since the last look; modules of PyTorch's own change nothing."""
        if type(module).__module__.startswith("torch.nn.") and type(module) is not torch.nn.Sequential:
            return
        if self._state is not None and not self._state.changed():
            return
        self.changes += self._state is not None
        self._state = State([self._model])

    def hooked(self) -> ExitStack:
        stack = ExitStack()
        for module in self._model.modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            stack.callback(module.register_forward_pre_hook(self.before, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(self.after, with_kwargs=True).remove)
        return stack


def measure(model: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> MeasuredCall:
    """Makes the call, without a trace, and with no more memory than a call without gradients takes.

    Raises:
        NoTrial: it could not be made.
    """
    modules = list(dict.fromkeys(model.modules()))
    circumstances = Circumstances()

    def count() -> Any:
        with circumstances.again():
            measuring = _count(model, call, args, kwargs)
            if measuring.changes:  # what a model makes for itself in its first call it finds in its second
                measuring = _count(model, call, args, kwargs)
        found = [
            [place, kept.safe, *map(sorted, (kept.saved, kept.given, kept.made, kept.returned, kept.written))]
            for place, module in enumerate(modules)
            if (kept := measuring.modules.get(module))
        ]
        return [list(measuring.sizes.items()), found]

    sizes, found = tried(model, count).made
    kept = {modules[place]: ModuleMemory(safe, *map(set, keys)) for place, safe, *keys in found}
    return MeasuredCall(dict(sizes), kept)


def _count(model: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> _Measuring:
    measuring = _Measuring(model)
    with measuring.hooked(), torch.autograd.graph.saved_tensors_hooks(measuring.pack, measuring.unpack):
        call(*args, **kwargs)
    return measuring


def _versions(module: torch.nn.Module) -> list[int]:
    """Of its own parameters: whether it writes to them."""
    return [version_of(each) for each in parameters_in(module).values() if each is not None]


def _tensors(thing: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(thing) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
