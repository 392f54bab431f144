"""Functions that see the same numbers in another shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from overdrive.seams.torch.internals import as_plain_tensors
from overdrive.techniques.parallel.tensor_parallel.cuts import Cut
from overdrive.techniques.parallel.tensor_parallel.parts import CannotKeep, Part, decided, makers_of, part_from, rule
from overdrive.techniques.parallel.tensor_parallel.rules.elements import aligned, common
from overdrive.techniques.parallel.tensor_parallel.shards import shards

_STRIDES = (2, 3, 5, 7, 11, 13, 17, 19)  # of a tensor without numbers: they tell which dimension went where


@rule("view", "reshape", "view_as", "reshape_as", "flatten", "unflatten")
def regrouped(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same numbers in the same order, with other borders between dimensions."""
    x = args[0] if args else kwargs["input"]
    with as_plain_tensors():
        shape = list(function(*args, **kwargs).shape)
    if not isinstance(x, Part) or x.cut is None or prod(shape) != x.numel():
        raise CannotKeep(f"`{name}` needs all that it gives")
    cut = _regrouped(x.shape, x.cut, shape)
    them = shards()
    return part_from(x.held.reshape(cut.shape(shape, them.rank, them.size)), cut, x.makers)


def _regrouped(before: Sequence[int], cut: Cut, after: Sequence[int]) -> Cut:
    """Where the cut is then: in the outermost dimension of which each rank's numbers are whole rows."""
    inner = prod(before[cut.dim + 1 :])
    rows = [prod(after[dim + 1 :]) for dim in range(len(after))]
    for dim, size in enumerate(after):
        if size == cut.size and rows[dim] == inner:
            return cut.at(dim)
    found = _whole_rows(cut, inner, after, rows)
    if found is not None:
        return found
    said = " × ".join(str(each) for each in after[-3:])
    why = f"it is seen as … × {said}, of which {shards().size} ranks cannot have parts"
    # Perhaps it is several things one after the other (queries, keys and values), of which each has to be divided.
    counts = [size for dim, size in enumerate(after) if size > 1 and size * rows[dim] == cut.size * inner]
    segments = (cut.size // counts[0],) * counts[0] if counts and cut.size % counts[0] == 0 else ()
    raise CannotKeep(why, segments)


def _whole_rows(cut: Cut, inner: int, after: Sequence[int], rows: Sequence[int]) -> Cut | None:
    """The outermost dimension of which each rank has whole rows."""
    segment, ranks = cut.segments[0], shards().size
    if len(set(cut.segments)) > 1 or segment % ranks:
        return None
    period, block = segment * inner, segment // ranks * inner
    for dim, size in enumerate(after):
        if block % rows[dim] == 0 and size * rows[dim] % period == 0:
            return Cut(dim, (period // rows[dim],) * (size * rows[dim] // period))
    return None


@rule("__getitem__", "select", "narrow", "unbind")
def picked(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of other dimensions than the one that is divided."""
    places = args[1] if name == "__getitem__" and isinstance(args[1], tuple) else args[1:]
    if any(isinstance(each, (torch.Tensor, list)) for each in places):
        raise CannotKeep(f"`{name}` picks from it by a tensor")
    return moved(name, function, args, kwargs)


@rule("transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims", "t", "T", "mT", "unsqueeze", "squeeze")
def moved(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`function`, which moves or picks dimensions and says nothing of the size of the one that is divided."""
    x = args[0] if args else kwargs["input"]
    if not decided(x) or x.dim() > len(_STRIDES):
        raise CannotKeep(f"`{name}` needs all that it gives")
    marked = torch.empty_strided(x.shape, _STRIDES[: x.dim()], device="meta")

    def with_other(other: torch.Tensor) -> Any:
        own = (other if each is x else each for each in args)
        return function(*own, **{key: other if each is x else each for key, each in kwargs.items()})

    def found(like: torch.Tensor) -> Cut:
        for dim, stride in enumerate(like.stride()):
            if stride == _STRIDES[x.cut.dim] and like.shape[dim] == x.cut.size:
                return x.cut.at(dim)  # type: ignore[no-any-return]
        raise CannotKeep(f"`{name}` picks some of what it gives")

    seen = with_other(marked)
    several = isinstance(seen, (tuple, list))
    likes = list(seen) if several else [seen]
    cuts = [found(each) for each in likes]
    made = with_other(x.held)
    own = list(made) if several else [made]
    if any(one.dim() != other.dim() for one, other in zip(own, likes, strict=True)):
        raise CannotKeep(f"`{name}` takes a part of one row for no dimension")
    parts = [part_from(each, cut, x.makers) for each, cut in zip(own, cuts, strict=True)]
    return tuple(parts) if several else parts[0]


@rule("split", "chunk", "split_with_sizes", "tensor_split")
def pieces(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Where the dimension that is divided is split, each piece must be whole segments."""
    x = args[0] if args else kwargs["tensor"]
    dim = (args[2] if len(args) > 2 else kwargs.get("dim", 0)) % x.dim()
    if not decided(x) or dim != x.cut.dim:
        return moved(name, function, args, kwargs)
    with as_plain_tensors():
        sizes = [each.shape[dim] for each in function(*args, **kwargs)]
    rest, found = list(x.cut.segments), []
    for size in sizes:
        own: list[int] = []
        while rest and sum(own) < size:
            own.append(rest.pop(0))
        if sum(own) != size:
            raise CannotKeep(f"`{name}` takes pieces of {', '.join(map(str, sizes))} of it", tuple(sizes))
        found.append(Cut(dim, tuple(own)))
    them = shards()
    held = x.held.split([each.held(them.rank, them.size) for each in found], dim)
    return tuple(part_from(each, cut, x.makers) for each, cut in zip(held, found, strict=True))


@rule("cat", "concat", "concatenate", "stack")
def joined(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = args[0] if args else kwargs["tensors"]
    tensors = [each for each in given if name == "stack" or each.shape != (0,)]  # which PyTorch leaves out, too
    parts = [each for each in tensors if decided(each)]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    dim %= tensors[0].dim() + (name == "stack")
    if name == "stack":
        back, cut = common(parts)
        made = torch.stack([aligned(each, back, cut) for each in tensors], dim)
        return part_from(made, cut.at(cut.dim + (dim <= cut.dim)), makers_of(*parts))
    if all(each.cut.dim == dim for each in parts):
        cuts = [each.cut if decided(each) else Cut(dim, (each.shape[dim],)) for each in tensors]
        own = [aligned(each, dim - each.dim(), cut) for each, cut in zip(tensors, cuts, strict=True)]
        together = Cut(dim, tuple(size for each in cuts for size in each.segments))
        return part_from(torch.cat(own, dim), together, makers_of(*parts))
    back, cut = common(parts)
    if any(each.shape[back] != cut.size for each in tensors):
        raise CannotKeep("it meets what is divided otherwise")
    return part_from(torch.cat([aligned(each, back, cut) for each in tensors], dim), cut, makers_of(*parts))


@rule("expand", "expand_as")
def expanded(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    with as_plain_tensors():
        shape = list(function(*args, **kwargs).shape)
    if not decided(x) or shape[x.cut.dim - x.dim()] != x.cut.size:
        raise CannotKeep(f"`{name}` needs all that it gives")
    cut = x.cut.at(len(shape) + x.cut.dim - x.dim())
    them = shards()
    return part_from(x.held.expand(cut.shape(shape, them.rank, them.size)), cut, x.makers)


@rule("repeat_interleave")
def repeated(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Heads of keys, once for each head of queries that shares them."""
    x = args[0] if args else kwargs["input"]
    count = args[1] if len(args) > 1 else kwargs["repeats"]
    dim = args[2] if len(args) > 2 else kwargs.get("dim")
    if not isinstance(count, int) or dim is None or not decided(x):
        raise CannotKeep(f"`{name}` needs all that it gives")
    times = count if dim % x.dim() == x.cut.dim else 1
    cut = Cut(x.cut.dim, tuple(each * times for each in x.cut.segments))
    return part_from(x.held.repeat_interleave(count, dim), cut, x.makers)
