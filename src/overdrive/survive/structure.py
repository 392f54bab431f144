"""What a call returned, without the numbers: written into the journal, and made again as tensors of zeros."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from overdrive.seams.torch.internals import storage_id

_PLAIN = (bool, int, float, str, type(None))


class _Bare:
    """An object whose class takes as many bytes as this one keeps all in its `__dict__`."""


class CannotTell(Exception):
    """A result that cannot be made again; the message says what it holds."""


def told(result: Any, given: Any) -> Any:
    """As JSON. `given`: the arguments of the call, parts of which may be returned as they are.

    Raises:
        CannotTell: there is something in it that is no tensor and no usual container.
    """
    return _Telling(tree_leaves(given)).tell(result)


def signature(result: Any) -> Any:
    """Equal for results that are told alike, and found in a tenth of the time; None where it takes a closer look."""
    if type(result) is torch.Tensor:
        whole = result.untyped_storage().nbytes() == result.nbytes and not result.requires_grad
        return (result.shape, result.stride(), result.dtype, result.device) if whole else None
    if type(result) in (list, tuple):
        found = [signature(each) for each in result]
        return None if None in found else (type(result), found)
    if type(result) is dict:
        found = [(key, signature(each)) for key, each in result.items()]
        return None if any(each is None for _, each in found) else found
    return None


def told_alone(result: Any) -> Any:
    """The same of what shares nothing with anything else: each tensor has all of its memory.

    Raises:
        CannotTell: likewise.
    """
    for leaf in tree_leaves(result):
        strided = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
        if strided and (leaf.requires_grad or leaf.untyped_storage().nbytes() != leaf.nbytes):
            raise CannotTell("a part of another tensor")
    return _Telling([]).tell(result)


class _Telling:
    def __init__(self, leaves: list[Any]) -> None:
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._given = {id(tensor): place for place, tensor in reversed(list(enumerate(given)))}
        self._memories = {storage_id(tensor): place for place, tensor in reversed(list(enumerate(given)))}
        self._own: dict[int, int] = {}  # memories by their number
        self._met = {id(leaf) for leaf in leaves if _is_object(type(leaf))}
        self._told: dict[int, int] = {}  # tensors by their number

    def tell(self, thing: Any) -> Any:
        if isinstance(thing, torch.Tensor):
            return self._tensor(thing)
        if type(thing) in _PLAIN:
            return ["plain", thing]
        if type(thing) in (list, tuple):
            return [type(thing).__name__, [self.tell(each) for each in thing]]
        kind = type(thing)
        if kind in (dict, OrderedDict) and all(type(key) in _PLAIN for key in thing):
            return [kind.__name__, [[key, self.tell(value)] for key, value in thing.items()]]
        name = f"{kind.__module__}:{kind.__qualname__}"
        if kind is torch.Size or kind.__module__ == "torch.return_types":  # as those of a distribution, and of `max`
            return ["sequence", name, [self.tell(each) for each in thing]]
        if isinstance(thing, tuple) and hasattr(kind, "_fields"):
            return ["fields", name, [self.tell(each) for each in thing]]
        if isinstance(thing, dict) and hasattr(kind, "__dataclass_fields__"):  # an output of transformers
            return ["keywords", name, [[key, self.tell(value)] for key, value in thing.items()]]
        if hasattr(kind, "__dataclass_fields__"):
            return ["keywords", name, [[key, self.tell(getattr(thing, key))] for key in kind.__dataclass_fields__]]
        if kind in (torch.dtype, torch.device):
            return [kind.__name__, str(thing).removeprefix("torch.")]
        if isinstance(thing, type) and _found(f"{thing.__module__}:{thing.__qualname__}") is thing:
            return ["class", f"{thing.__module__}:{thing.__qualname__}"]
        if _is_object(kind) and _found(name) is kind:  # a cache of transformers
            return ["object", name, self._attributes(thing)]
        raise CannotTell(f"a {kind.__qualname__}")

    def _attributes(self, thing: Any) -> Any:
        """
        Raises:
            CannotTell: it was given to the call, which may have changed it, or it is in more than one place: made again
                it would be another object.
        """
        if id(thing) in self._met:
            raise CannotTell(f"a {type(thing).__qualname__} that is elsewhere, too")
        self._met.add(id(thing))
        return [[key, self.tell(value)] for key, value in vars(thing).items()]

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if id(tensor) in self._given:
            return ["given", self._given[id(tensor)]]
        if id(tensor) in self._told:
            return ["same", self._told[id(tensor)]]
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            raise CannotTell(f"a tensor of the kind {type(tensor).__name__}, {tensor.layout}")
        if tensor.is_quantized or tensor.is_meta:
            raise CannotTell("a tensor that is quantized or has no numbers")
        try:
            size = tensor.untyped_storage().nbytes()
        except (RuntimeError, NotImplementedError):
            raise CannotTell("a tensor within a transform of torch.func") from None
        memory = storage_id(tensor)
        about = [
            list(tensor.shape),
            list(tensor.stride()),
            int(tensor.storage_offset()),
            str(tensor.dtype).removeprefix("torch."),
            str(tensor.device),
            bool(tensor.requires_grad),
        ]
        self._told[id(tensor)] = len(self._told)
        if memory in self._memories:
            return ["view", self._memories[memory], *about]
        number = self._own.setdefault(memory, len(self._own))
        return ["tensor", number, size, *about]


def made(structure: Any, given: Any, passed_through: Callable[[], None]) -> Any:
    """The result again, with zeros for its numbers.

    `passed_through` is called where a backward pass goes through it: what comes of that are zeros.
    """
    tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
    return _Making(tensors, passed_through).make(structure)


class _StandIn(torch.autograd.Function):
    """`sources`: what was given and is differentiated, too: the way back leads there, as it did the first time."""

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, tensor: torch.Tensor, passed_through: Callable[[], None], *sources: torch.Tensor
    ) -> Any:
        ctx.passed_through = passed_through
        ctx.sources = [(each.shape, each.dtype, each.device) for each in sources]
        return tensor.detach()  # what is given back as it was given counts as a view, which may not be written to

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.passed_through()
        back = (torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.sources)
        return torch.zeros(0), None, None, *back


class _Making:
    def __init__(self, given: list[torch.Tensor], passed_through: Callable[[], None]) -> None:
        self._given, self._passed_through = given, passed_through
        self._memories: dict[int, torch.Tensor] = {}
        self._made: list[torch.Tensor] = []

    def make(self, structure: Any) -> Any:
        kind = structure[0]
        if kind == "plain":
            return structure[1]
        if kind in ("list", "tuple"):
            made = [self.make(each) for each in structure[1]]
            return made if kind == "list" else tuple(made)
        if kind in ("dict", "OrderedDict"):
            items = {key: self.make(value) for key, value in structure[1]}
            return items if kind == "dict" else OrderedDict(items)
        if kind == "sequence":
            return _sequence(structure[1])([self.make(each) for each in structure[2]])
        if kind == "fields":
            return _class(structure[1])(*(self.make(each) for each in structure[2]))
        if kind == "keywords":
            return _class(structure[1])(**{key: self.make(value) for key, value in structure[2]})
        if kind in ("dtype", "device"):
            return getattr(torch, structure[1]) if kind == "dtype" else torch.device(structure[1])
        if kind == "class":
            return _found(structure[1])
        if kind == "object":
            return self._object(*structure[1:])
        if kind == "given":
            return self._given[structure[1]]
        if kind == "same":
            return self._made[structure[1]]
        self._made.append(self._tensor(structure))
        return self._made[-1]

    def _tensor(self, structure: Any) -> torch.Tensor:
        if structure[0] == "view":
            return self._view(self._given[structure[1]].detach(), *structure[2:])
        _, number, size, *about = structure
        shape, strides, offset, kind, device, graph = about
        if number not in self._memories and not (graph or offset):  # as most are, and in a tenth of the time
            tensor = torch.zeros(shape, dtype=getattr(torch, kind), device=device)
            if tensor.nbytes == size and list(tensor.stride()) == strides:
                self._memories[number] = tensor.detach().view(-1)
                return tensor
        if number not in self._memories:
            dtype = getattr(torch, about[3])
            count = -(-size // dtype.itemsize)
            self._memories[number] = torch.zeros(count, dtype=dtype, device=about[4])
        return self._view(self._memories[number], *about)

    def _object(self, name: str, attributes: Any) -> Any:
        kind = _found(name)
        if not _is_object(kind):
            raise CannotTell(f"a {name}, which is not there")
        thing = object.__new__(kind)
        vars(thing).update((key, self.make(value)) for key, value in attributes)
        return thing

    def _view(
        self, memory: torch.Tensor, shape: Any, strides: Any, offset: int, dtype: str, device: str, graph: bool
    ) -> torch.Tensor:
        with torch.no_grad():
            tensor = memory.view(getattr(torch, dtype)) if str(memory.dtype) != f"torch.{dtype}" else memory
            tensor = tensor.as_strided(shape, strides, offset).detach()
        if not graph:
            return tensor.detach()  # what is given back as it was given counts as a view, which may not be written to
        with torch.enable_grad():
            anchor = torch.zeros(0, requires_grad=True)
            sources = [each for each in self._given if each.requires_grad]
            out: torch.Tensor = _StandIn.apply(anchor, tensor, self._passed_through, *sources)  # type: ignore[no-untyped-call]
        return out


def _sequence(name: str) -> Any:
    found = _found(name)
    if found is None or not issubclass(found, tuple):
        raise CannotTell(f"a {name}, which is not there")
    return found


def _class(name: str) -> Any:
    found = _found(name)
    fits = isinstance(found, type) and (hasattr(found, "_fields") or hasattr(found, "__dataclass_fields__"))
    if not fits:
        raise CannotTell(f"a {name}, which is not there")
    return found


def _found(name: str) -> Any:
    """A class of a module that the program has imported; data name no other. None where there is none."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _is_object(kind: Any) -> bool:
    """Whether its objects are what their attributes are: no modules, whose calls go on, and nothing that is in C."""
    plain: Any = object
    return (
        isinstance(kind, type)
        and kind.__new__ is plain.__new__
        and kind.__basicsize__ == _Bare.__basicsize__
        and kind.__setattr__ is plain.__setattr__
        and not issubclass(kind, torch.nn.Module)
    )
