"""Tensors of which each rank has a part, and that look whole to the program.

A `Part` has the whole's shape and no numbers; beside it is what this rank holds. PyTorch tells it of each function that
is called with it. For many there is a rule (`rules/`) by which a rank computes its part of the result. For all others
the whole is gathered first, which is right and costs a message; what is written to there goes back into the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.utils import _pytree as pytree

from overdrive.seams.points import reason_of
from overdrive.seams.torch.internals import as_plain_tensors
from overdrive.techniques.parallel.tensor_parallel.cuts import Cut
from overdrive.techniques.parallel.tensor_parallel.shards import Gathered, entered, shards
from overdrive.techniques.parallel.tensor_parallel.windows import windows_in


class Part(torch.Tensor):
    """
    Attributes:
        held: what this rank has; of a weight that is not decided about, the whole.
        cut: how it is divided; None where that is not decided.
        makers: names of the weights that it comes from.
    """

    held: torch.Tensor
    cut: Cut | None
    makers: frozenset[str]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _asked(function, args, kwargs or {})

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        copied: torch.Tensor = whole_of(self, "a copy").clone()
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return whole_of(self, "pickling").__reduce_ex__(protocol)


def part_from(held: torch.Tensor, cut: Cut, makers: Collection[str]) -> Part:
    """A result: `held` is this rank's part of it."""
    return _made(held, cut, makers, _room(held, cut))


def weight_of(name: str, held: torch.Tensor, cut: Cut | None) -> Part:
    """A parameter; whole where there is no cut yet."""
    return _made(held, cut, {name}, _room(held, cut))


def _gradient(part: Part) -> Any:
    """As a part: what is written to it counts."""
    held, cut = part.held.grad, part.cut
    if held is None or cut is None:
        return held
    # Clipping by a norm asks for its device in C, and a product with a number on "meta" does nothing, without a word.
    return _made(held, cut, part.makers, held.new_empty(()).expand(_room(held, cut).shape))


def _room(held: torch.Tensor, cut: Cut | None) -> torch.Tensor:
    """Of the whole's shape, without numbers."""
    shape = list(held.shape)
    if cut is not None:
        shape[cut.dim] = cut.size
    return torch.empty(shape, dtype=held.dtype, device="meta")


def _made(held: torch.Tensor, cut: Cut | None, makers: Collection[str], room: torch.Tensor) -> Part:
    made: Part = room.as_subclass(Part)
    made.held, made.cut, made.makers = held, cut, frozenset(makers)
    return made


def decided(thing: Any) -> bool:
    """Whether this is a part of something."""
    return isinstance(thing, Part) and thing.cut is not None


def parts_in(args: Any, kwargs: Any) -> list[Part]:
    """Those that a function is given, by themselves or in a list."""
    found = []
    for each in (*args, *kwargs.values()):
        if isinstance(each, Part):
            found.append(each)
        elif isinstance(each, (tuple, list)):
            found += [one for one in each if isinstance(one, Part)]
    return found


def makers_of(*things: Any) -> frozenset[str]:
    return frozenset().union(*(each.makers for each in things if decided(each)))


def whole_of(thing: Any, why: str = "") -> Any:
    """All of it, on all ranks. `why` it is needed, in words; with no words, it is as it should be."""
    if not isinstance(thing, Part):
        return thing
    if why:
        shards().gathered(thing.makers, why, ())
    return thing.held if thing.cut is None else Gathered.apply(thing.held, thing.cut)  # type: ignore[no-untyped-call]


class CannotKeep(Exception):
    """A rule does not know how to keep a result in parts; the message is the reason, for people."""

    def __init__(self, why: str, segments: tuple[int, ...] = ()) -> None:
        super().__init__(why)
        self.segments = segments


Rule = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
_rules: dict[str, Rule] = {}
# Told by the whole's shape, or by what this rank has of it.
_OF_SHAPE = {"size", "dim", "ndimension", "numel", "nelement", "__len__", "is_floating_point", "is_complex", "__hash__"}
_OF_SHAPE |= {"shape", "ndim", "dtype", "itemsize", "nbytes"}
_OF_HELD = {"device", "requires_grad", "is_leaf", "grad_fn", "layout", "is_cuda", "is_cpu", "is_meta", "is_sparse"}
_OF_HELD |= {"is_nested", "is_quantized", "is_mps", "is_xpu", "is_mkldnn", "is_contiguous", "get_device"}
_OF_HELD |= {"element_size", "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "requires_grad_"}
# What a program does with weights between calls: attributes that are set on each rank, functions that write in place
# whatever their names end in, and those that would be told of a gathered copy alone.
_SET = {"data", "grad", "requires_grad"}
_WRITES = {"__setitem__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"}
_HOOKS = {"register_hook", "register_post_accumulate_grad_hook"}
# What makes one number of all: it has to see all, and the ranks' parts are as good up to there.
_LOSSES = {"cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss"}
_LOSSES |= {"l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers it for functions of these names."""

    def registered(given: Rule) -> Rule:
        _rules.update(dict.fromkeys(names, given))
        return given

    return registered


def _asked(function: Any, args: Any, kwargs: Any) -> Any:
    name = getattr(function, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        asked_of = getattr(getattr(function, "__self__", None), "__name__", "")
        if name != "__get__":
            return _set(asked_of, *args)
        name = asked_of
        if name == "grad":
            return _gradient(args[0])
    if name in _OF_SHAPE:
        with as_plain_tensors():
            return function(*args, **kwargs)
    if name in _OF_HELD:
        made = function(*(each.held if isinstance(each, Part) else each for each in args), **kwargs)
        return args[0] if args and isinstance(args[0], Part) and made is args[0].held else made
    tensors = parts_in(args, kwargs)
    given = _rules.get(name)
    try:
        if (given is not None and any(map(decided, tensors))) or name in _DECIDING:
            return given(name, function, args, kwargs)  # type: ignore[misc]
        raise CannotKeep(f"`{name}` needs all that it gives")
    except CannotKeep as left:
        return _with_wholes(name, function, args, kwargs, left)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        shards().gathered(makers_of(*tensors), f"`{name}` fails with parts of it ({reason_of(error)})", ())
        raise


def _set(name: str, part: Any, value: Any = None) -> None:
    """An attribute of a part, which the program sets or deletes."""
    fits = not isinstance(value, torch.Tensor) or value.shape == part.shape
    if name not in _SET or not isinstance(part, Part) or not fits:
        raise RuntimeError(f"`{name}` of a layer's weight cannot be set: ranks have parts of it")
    if isinstance(value, torch.Tensor):
        value = _own(value, part)
    setattr(part.held, name, value)


def _own(value: torch.Tensor, part: Part) -> torch.Tensor:
    """What this rank holds of `value`, where it is divided as `part` is."""
    if isinstance(value, Part) and value.cut == part.cut:
        return value.held
    whole: torch.Tensor = whole_of(value)
    if part.cut is None:
        return whole
    own = part.cut.part(entered(whole), shards().rank, shards().size)
    return own.clone(memory_format=torch.contiguous_format)  # a view would keep the whole


def _begun_anew(function: Any, args: Any, kwargs: Any, part: Any) -> Any:
    """`nn.init` draws for the whole, on every rank alike."""
    with torch.no_grad():
        whole = whole_of(part)
        args, kwargs = pytree.tree_map_only(
            Part, lambda each: whole if each is part else whole_of(each), (args, kwargs)
        )
        function(*args, **kwargs)
        part.held.copy_(_own(whole, part))
    return part


_DECIDING: set[str] = set()  # functions that use weights as a layer does: these say how weights may be divided


def deciding(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule that also takes weights about which nothing is decided."""
    _DECIDING.update(names)
    return rule(*names)


def _with_wholes(name: str, function: Any, args: Any, kwargs: Any, left: CannotKeep) -> Any:
    part = first if isinstance(first := next(iter((*args, *kwargs.values())), None), Part) else None
    if decided(part) and getattr(function, "__module__", "") == "torch.nn.init":
        return _begun_anew(function, args, kwargs, part)
    if part is not None and name.endswith("_") and not name.endswith("__"):
        shards().gathered(part.makers, f"`{name}` writes to it", ())
        raise RuntimeError(f"`{name}` cannot write to what ranks have parts of")
    if decided(part) and name in _HOOKS:
        shards().gathered(makers_of(part), f"`{name}` watches it", ())
        raise RuntimeError(f"`{name}` cannot watch what ranks have parts of")
    if name not in _LOSSES:
        makers = frozenset().union(*(each.makers for each in parts_in(args, kwargs)))
        shards().gathered(makers, str(left), left.segments)
    args, kwargs = pytree.tree_map_only(Part, lambda each: whole_of(each), (args, kwargs))
    made = function(*args, **kwargs)
    if part is None or part.cut is None:
        return part if part is not None and name in _WRITES else made
    whole = next(iter((*args, *kwargs.values())))
    if name in _WRITES:
        part.held.copy_(_own(whole, part))
        return part
    return windows_in(made, whole, part.held, lambda whole: _own(whole, part))
