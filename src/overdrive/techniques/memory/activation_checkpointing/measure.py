"""How many bytes each module of a model keeps for the backward pass, counted in a call that keeps none of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from overdrive.seams.torch.moment import Circumstances
from overdrive.seams.torch.rehearsal import Rehearsal

Keys = set[int]


@dataclass
class Kept:
    """What one module keeps over all its calls: blocks of memory by key, those it was given and those it returns."""

    saved: Keys = field(default_factory=set)
    given: Keys = field(default_factory=set)
    returned: Keys = field(default_factory=set)
    written: Keys = field(default_factory=set)  # what it was given and wrote over: made again, it would find that
    safe: bool = True  # whether it keeps nothing on itself that a second call would find


@dataclass
class Measured:
    """A model's call."""

    sizes: dict[int, int]  # of every block of memory that is kept
    modules: dict[torch.nn.Module, Kept]
    written: list[torch.Tensor]  # buffers that the call writes to

    @property
    def total(self) -> int:
        return sum(self.sizes.values())

    def bytes(self, keys: Keys) -> int:
        return sum(self.sizes[key] for key in keys & self.sizes.keys())


class _Frame:
    def __init__(self, module: torch.nn.Module, given: list[torch.Tensor]) -> None:
        self.module = module
        self.given = [(tensor, tensor._version) for tensor in given]


class _Measuring:
    """Hooks on all modules and on all that is saved. What is saved is let go at once."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.sizes: dict[int, int] = {}
        self.modules: dict[torch.nn.Module, Kept] = {}
        self._references: dict[int, Any] = {}  # they keep a key from being given to another block
        self._stack: list[_Frame] = []
        self._model = model
        self._own = {self.key(each) for each in (*model.parameters(), *model.buffers())}

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
        given = _tensors((args, kwargs))
        self.modules.setdefault(module, Kept()).given |= {self.key(each) for each in given}
        self._stack.append(_Frame(module, given))

    def after(self, module: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        frame = self._stack.pop()
        kept = self.modules[module]
        kept.returned |= {self.key(each) for each in _tensors(result)}
        kept.written |= {self.key(tensor) for tensor, version in frame.given if tensor._version != version}

    def hooked(self) -> ExitStack:
        stack = ExitStack()
        for module in self._model.modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            stack.callback(module.register_forward_pre_hook(self.before, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(self.after, with_kwargs=True).remove)
        return stack


def measure(model: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Measured:
    """Makes the call once, without a trace, and with no more memory than a call without gradients takes."""
    measuring = _Measuring(model)
    with Circumstances().again(), Rehearsal(model) as rehearsal:
        with measuring.hooked(), torch.autograd.graph.saved_tensors_hooks(measuring.pack, measuring.unpack):
            call(*args, **kwargs)
        buffers = dict(model.named_buffers())
        replaced = set(rehearsal.replaced_buffers())
        written = [buffers[name] for name in rehearsal.changed_buffers() if name not in replaced]
        stateful = [*replaced, *rehearsal.changed_attributes()]
    for path, module in model.named_modules():
        if module in measuring.modules and any(name.startswith(f"{path}." if path else "") for name in stateful):
            measuring.modules[module].safe = False
    return Measured(measuring.sizes, measuring.modules, written)


def _tensors(thing: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(thing) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
