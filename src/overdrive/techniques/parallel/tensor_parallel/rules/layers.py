"""Layers that are no products: tables, norms by channel, pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from overdrive.techniques.parallel.tensor_parallel.cuts import Cut
from overdrive.techniques.parallel.tensor_parallel.parts import (
    CannotKeep,
    Part,
    decided,
    deciding,
    part_from,
    rule,
    whole_of,
)
from overdrive.techniques.parallel.tensor_parallel.shards import Summed, entered, shards


@deciding("embedding")
def embedding(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """By vocabulary: of each row that is looked up, one rank has the numbers, and the others zeros."""
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    index, weight, padding = given["input"], given["weight"], given.get("padding_idx")
    if not isinstance(weight, Part) or isinstance(index, Part):
        raise CannotKeep("`embedding` needs all that it gives")
    if any(given.get(each) for each in ("max_norm", "scale_grad_by_freq", "sparse")):
        raise CannotKeep("its gradients are made in a way of their own")
    them, rows = shards(), weight.shape[0]
    cut = weight.cut or them.open_cut(next(iter(weight.makers)), Cut(0, (rows,)), ())
    if cut is None:
        return function(index, weight.held, *args[2:], **{key: kwargs[key] for key in kwargs if key != "weight"})
    if cut.dim != 0 or len(cut.segments) > 1:
        raise CannotKeep("it is divided otherwise")
    own = weight.held if weight.cut else them.weight(weight.held, cut)
    first = sum(cut.held(rank, them.size) for rank in range(them.rank))
    elsewhere = (index < first) | (index >= first + len(own))
    if padding is not None:
        padding = padding % rows - first if first <= padding % rows < first + len(own) else None
    made = F.embedding((index - first).masked_fill(elsewhere, 0), own, padding)
    return Summed.apply(made.masked_fill(elsewhere.unsqueeze(-1), 0))  # type: ignore[no-untyped-call]


@rule("batch_norm")
def batch_norm(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """By channel. Running statistics stay whole on all ranks."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    x = given.pop("input")
    if not decided(x) or x.cut.dim != 1 or (args and len(args) > len(names)):
        raise CannotKeep("`batch_norm` needs all that it gives")
    running = [given[each] for each in names[1:3]]
    for each in names[1:5]:
        if isinstance(given.get(each), torch.Tensor):
            given[each] = _channels(given[each], x.cut).contiguous()
    if running[0] is not None and given.get("training"):
        given["running_mean"], given["running_var"] = (given[each].clone() for each in names[1:3])
    made = function(x.held, **given)
    if running[0] is not None and given.get("training"):
        with torch.no_grad():
            both = torch.stack([given[each] for each in names[1:3]])
            for each, now in zip(running, shards().gather(both, Cut(1, x.cut.segments)), strict=True):
                each.copy_(now)
    return part_from(made, x.cut, x.makers)


@rule("group_norm")
def group_norm(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Where no group lies across two parts."""
    given = {**dict(zip(("input", "num_groups", "weight", "bias", "eps"), args, strict=False)), **kwargs}
    x, groups = given["input"], given["num_groups"]
    if not decided(x) or x.cut.dim != 1:
        raise CannotKeep("`group_norm` needs all that it gives")
    width, size = x.shape[1] // groups, shards().size
    if any(each % size or each // size % width for each in x.cut.segments):
        raise CannotKeep(f"its {groups} groups cannot be shared out to {size} ranks")
    own = [_channels(given[each], x.cut) if given.get(each) is not None else None for each in ("weight", "bias")]
    made = function(x.held, x.held.shape[1] // width, *own, given.get("eps", 1e-5))
    return part_from(made, x.cut, x.makers)


def _channels(tensor: torch.Tensor, cut: Cut) -> torch.Tensor:
    them = shards()
    return cut.at(0).part(entered(whole_of(tensor)), them.rank, them.size)


@rule(
    *(f"{kind}_pool{dim}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for dim in (1, 2, 3)),
    *("interpolate", "upsample", "pad"),
)
def by_channel(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What looks at places of each channel."""
    x = args[0] if args else kwargs["input"]
    back = x.dim() - x.cut.dim if decided(x) else 0
    padded = len(args[1] if len(args) > 1 else kwargs["pad"]) // 2 if name == "pad" else x.dim() - 2
    if not back or back <= padded or kwargs.get("return_indices"):
        raise CannotKeep(f"`{name}` needs all that it gives")
    return part_from(function(*(x.held if each is x else each for each in args), **kwargs), x.cut, x.makers)
