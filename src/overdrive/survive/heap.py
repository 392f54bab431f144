"""All that a program of PyTorch holds at a moment, in an order that another run of it gives again.

Tensors are listed, since their numbers have to be put back; numbers, texts and the shape of everything are noted, since
a run that came here another way shows by them. What libraries keep for themselves is looked through for tensors only.
"""

from __future__ import annotations

import functools
import gc
import io
import random
import threading
import types
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.optim import Optimizer

from overdrive.seams.torch.hooks import accumulation_hooks, gradient_hooks
from overdrive.seams.torch.internals import is_compiled
from overdrive.seams.torch.iterators import is_of_workers
from overdrive.seams.torch.layouts import kind_of, strided_parts
from overdrive.seams.torch.passed_iterators import is_stand_in
from overdrive.survive.names import attributes
from overdrive.survive.ours import belongs_to_library, is_our_function
from overdrive.survive.program_walk import (
    OF_CODE,
    PLAIN,
    SEQUENCES,
    Child,
    ProgramWalk,
    hash_of,
    hash_of_buffer,
    in_code,
    short,
)

if TYPE_CHECKING:
    from overdrive.survive.in_parts import Parts

_KEEPS_RESULTS = type(functools.cache(int))
_OPAQUE_MODULES = (
    "_contextvars", "_io", "_queue", "_socket", "_thread", "_weakref", "asyncio", "concurrent", "importlib", "io",
    "logging", "multiprocessing", "overdrive", "socket", "subprocess", "threading", "warnings", "weakref",
)  # fmt: skip
_LATER = (weakref.WeakKeyDictionary, SimpleQueue, Future)  # of these: looked into when all else is known
# Of these libraries' objects the numbers are the program's state as well.
_STATE_MODULES = ("torch.nn", "torch.optim", "torch.amp")
_NOT_OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
# Set at each entry and read at its exit: those that decorate a method are not entered where its calls are left out.
_NOT_OF_AUTOCAST = ("prev", "prev_cache_enabled", "prev_fastdtype")
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_MOST_HASHED = 1 << 28  # bytes of an array
_ADDRESSES = 1 << 32  # of Python's objects are above that
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


class Heap:
    """
    Attributes:
        tensors: with the path that led to each.
        facts: path and text of all else that counts.
        generators: PyTorch's, NumPy's and Python's, that the program made.
        compiled: the path to what was scripted or compiled; "" where nothing was.
        hidden: what alone leads to some tensors and cannot be gone through in an order that another run gives again, a
            set of the program's, say: its path and what it is; "" where there is none.
    """

    def __init__(self, frame: Any, parts: Parts | None = None) -> None:
        """
        Args:
            frame: the innermost call of the program's.
            parts: what this rank has of parameters that are divided.
        """
        self._parts = parts
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.optimizers: list[Optimizer] = []
        self.generators: list[Any] = []
        self.compiled = self.hidden = ""
        self._weak: list[tuple[str, Any]] = []
        self._hiding: list[tuple[str, Any]] = []
        self._walk = ProgramWalk()  # is lent `_look` each time: with it for good, all that was seen would outlive this
        self._walk.from_roots(frame, self._look)
        self._look_into_weak()
        self._look_into_hiding()

    @property
    def facts(self) -> list[tuple[str, str]]:
        return self._walk.facts

    def digest(self) -> list[str]:
        """A line for each tensor and fact: equal for runs that hold the same, but for the tensors' numbers."""
        how = self._parts.told if self._parts is not None else lambda tensor: ""
        lines = [f"{path}: {how(tensor) or _about(tensor)}" for path, tensor in self.tensors]
        return [*lines, *(f"{path}: {text}" for path, text in self.facts)]

    # -- inside ---------------------------------------------------------------------------------

    def _look_into_weak(self) -> None:
        """For tensors that are to be found by no other way: how long a key lives may be a matter of chance."""
        for path, thing in self._weak:  # which grows by those that are in them
            values = enumerate(list(thing.values()))
            self._walk.through(((f"{path}[value {number}]", value, False) for number, value in values), self._look)

    def _look_into_hiding(self) -> None:
        """For what is to be found by no other way."""
        walk = self._walk
        known = self.tensors, self.optimizers, self.generators, walk.facts
        for path, thing in self._hiding:  # which grows by those that are in them
            self.tensors, self.optimizers, self.generators, walk.facts = [], [], [], []
            walk.through(((path, each, True) for each in _hidden_in(thing)), self._look)
            if self.tensors:
                kind = "set, which has no order" if isinstance(thing, (set, frozenset)) else type(thing).__name__
                self.hidden = f"{path} is a {kind}"
                break
        self.tensors, self.optimizers, self.generators, walk.facts = known

    def _look(self, path: str, thing: Any, own: bool) -> Iterator[Child]:
        if isinstance(thing, torch.Tensor):
            yield from self._tensor(path, thing, own)
            return
        kind = type(thing)
        if own and kind in (io.BytesIO, io.StringIO):
            self._walk.note(path, _of_buffer(thing))
        if kind in _LATER:
            (self._weak if kind is weakref.WeakKeyDictionary else self._hiding).append((path, thing))
        if kind is not threading.local and _is_opaque(thing):
            return
        if is_of_workers(thing) or is_stand_in(thing):
            return
        self._compiled(path, thing)
        if own and not isinstance(thing, types.FrameType):
            self._walk.note(path, kind.__qualname__)
        yield from self._children(path, thing, own)

    def _compiled(self, path: str, thing: Any) -> None:
        """What it computes depends, in its last bits, on how often and on what it was called in this process."""
        if not self.compiled and is_compiled(thing):
            self.compiled = path

    def _tensor(self, path: str, tensor: torch.Tensor, own: bool) -> Iterator[Child]:
        parts = strided_parts(tensor) if _is_sparse(tensor) else [tensor]
        if len(parts) > 1:
            self._walk.note(path, f"{_about(tensor)} {kind_of(tensor)} {_is_coalesced(tensor)}")
        self.tensors += [(path, part) for part in parts]
        yield from ((f"{path}.{name}", value, own) for name, value in vars(tensor).items())
        if tensor.is_leaf:  # on what a call computed they are gone with it
            for name, hooks in (("hooks after", accumulation_hooks(tensor)), ("hooks", gradient_hooks(tensor))):
                if functions := [each for each in (hooks or {}).values() if not is_our_function(each)]:
                    yield f"{path}.{name}", functions, own

    def _children(self, path: str, thing: Any, own: bool) -> Iterator[Child]:
        if isinstance(thing, (np.ndarray, np.generic)):
            yield from self._array(path, thing, own)
        elif isinstance(thing, _GENERATORS):
            self.generators.append(thing)
        elif isinstance(thing, OF_CODE):
            yield from in_code(path, thing, own)
        elif isinstance(thing, (types.GeneratorType, types.CoroutineType)):
            yield from self._generator(path, thing)
        elif isinstance(thing, types.MethodType):
            yield f"{path}.__self__", thing.__self__, own
            yield f"{path}.__func__", thing.__func__, own
        elif type(thing) is threading.local:  # of this thread
            yield from ((f"{path}.{name}", value, own) for name, value in vars(thing).items())
        elif isinstance(thing, functools.partial):
            yield f"{path}.args", (thing.func, thing.args, thing.keywords), own
        else:
            yield from self._instance(path, thing, own)

    def _instance(self, path: str, thing: Any, own: bool) -> Iterator[Child]:
        kind = type(thing)
        if isinstance(thing, Optimizer):
            self.optimizers.append(thing)
        inner = own and not (belongs_to_library(kind.__module__) and not kind.__module__.startswith(_STATE_MODULES))
        if kind.__module__ in ("builtins", "collections"):
            inner = own
        found = False
        if isinstance(thing, (dict, types.MappingProxyType)):
            found = True
            yield from self._dict(path, thing, inner)
        elif isinstance(thing, SEQUENCES):
            found = True
            yield from self._sequence(path, thing, inner)
        elif isinstance(thing, (set, frozenset)):
            found = True
            plain = all(type(each) in PLAIN for each in thing)
            if inner:
                self._hiding += [] if plain else [(path, thing)]
                self._walk.note(path, short(repr(sorted(map(repr, thing)))) if plain else f"{len(thing)} things")
        if isinstance(thing, torch.jit.ScriptModule):
            found = True
            for name, tensor in [*thing.named_parameters(), *thing.named_buffers()]:
                yield f"{path}.{name}", tensor, inner
        held = attributes(thing)
        is_optimizer = isinstance(thing, Optimizer)
        skipped = _NOT_OF_OPTIMIZERS if is_optimizer else _NOT_OF_AUTOCAST if isinstance(thing, torch.autocast) else ()
        for name, value in held:
            if name not in skipped and not (is_optimizer and type(value) in PLAIN):  # a step may set them
                # A step sets numbers in its groups, whoever wrote it; they are put back, and what is there is compared.
                yield f"{path}.{name}", value, inner or (own and is_optimizer and name == "param_groups")
        keeps_results = isinstance(thing, _KEEPS_RESULTS)
        if keeps_results or (not found and not held and not isinstance(thing, type)):
            for number, value in enumerate(gc.get_referents(thing)):
                if not isinstance(value, (type, types.ModuleType)):
                    yield f"{path}<{number}>", value, False

    def _dict(self, path: str, thing: Any, own: bool) -> Iterator[Child]:
        for number, (key, value) in enumerate(list(thing.items())):
            plain = type(key) in PLAIN and not self._is_address(key)
            name = repr(key) if plain else f"key {number}"
            if type(key) not in PLAIN:
                yield f"{path}[{name}]", key, own
            yield f"{path}[{name}]", value, own

    def _is_address(self, key: Any) -> bool:
        """Of a thing that is alive: another number in each process. A `GradScaler` keeps optimizers' states by it."""
        if type(key) is not int or key < _ADDRESSES:
            return False
        return key in self._walk.seen or key in self._alive

    @functools.cached_property
    def _alive(self) -> set[int]:
        return set(map(id, gc.get_objects()))

    def _sequence(self, path: str, thing: Any, own: bool) -> Iterator[Child]:
        items = list(thing)
        if all(type(each) in PLAIN for each in items):
            if own:
                self._walk.note(path, f"{len(items)} " + short(repr(items)))
            return
        for number, value in enumerate(items):
            yield f"{path}[{number}]", value, own

    def _array(self, path: str, array: Any, own: bool) -> Iterator[Child]:
        if array.dtype.hasobject:
            yield path, array.tolist(), own
        elif own and isinstance(tensor := _base_of(array), torch.Tensor):  # by `.numpy()`: the numbers are the tensor's
            self._walk.note(path, f"{array.dtype} {array.shape} {array.strides}")
            yield f"{path}.base", tensor, own
        elif own:
            content = hash_of(array.tobytes()) if array.nbytes <= _MOST_HASHED else ""
            self._walk.note(path, f"{array.dtype} {array.shape} {content}")

    def _generator(self, path: str, thing: Any) -> Iterator[Child]:
        frame = getattr(thing, "gi_frame", None) or getattr(thing, "cr_frame", None)
        if frame is not None:
            yield f"{path}()", frame, True


def _is_opaque(thing: Any) -> bool:
    return isinstance(thing, weakref.ref) or type(thing).__module__.partition(".")[0] in _OPAQUE_MODULES


def _hidden_in(thing: Any) -> list[Any]:
    """In one of what `Heap.hidden` names."""
    if isinstance(thing, Future):
        over = thing.done() and not thing.cancelled()
        return [thing.result()] if over and thing.exception() is None else []
    things = gc.get_referents(thing) if isinstance(thing, SimpleQueue) else thing
    return [each for each in things if gc.is_tracked(each)]


def _base_of(array: Any) -> Any:
    """Whose memory it lies in."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


def _of_buffer(buffer: Any) -> str:
    """A model that was saved into it would be one of zeros when the run is made again."""
    if buffer.closed:
        return "closed"
    return f"at {buffer.tell()}: {hash_of_buffer(buffer)}"


def _is_sparse(tensor: torch.Tensor) -> bool:
    """A matrix of a graph, say. One that is trained is no memory alone: it has a gradient, which is sparse, too."""
    return type(tensor) is torch.Tensor and tensor.layout in _SPARSE and not tensor.requires_grad


def _is_coalesced(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.sparse_coo and tensor.is_coalesced()


def _about(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided:
        return f"{type(tensor).__name__} {tensor.layout}"
    place = f"{list(tensor.shape)} {tensor.stride()} {tensor.storage_offset()}"
    return f"{type(tensor).__name__} {place} {tensor.dtype} {tensor.device} {tensor.requires_grad}"
