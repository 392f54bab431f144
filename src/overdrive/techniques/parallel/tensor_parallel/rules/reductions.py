"""Functions that look at several elements, along other dimensions than the one that is divided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from overdrive.techniques.parallel.tensor_parallel.parts import CannotKeep, decided, part_from, rule
from overdrive.techniques.parallel.tensor_parallel.shards import Summed, entered, shards


@rule(
    *("sum", "mean", "var", "std", "amax", "amin", "max", "min", "argmax", "argmin", "norm", "softmax", "log_softmax"),
    *("logsumexp", "cumsum", "prod", "all", "any", "normalize"),
)
def reduced(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0] if args else kwargs["input"]
    place = 2 if name in ("norm", "normalize") else 1
    dims = args[place] if len(args) > place else kwargs.get("dim", 1 if name == "normalize" else None)
    if not decided(x) or isinstance(dims, torch.Tensor):
        raise CannotKeep(f"`{name}` needs all that it gives")
    listed = range(x.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
    over = {dim % x.dim() for dim in listed}
    own = tuple(x.held if each is x else each for each in args)
    keywords = {key: x.held if each is x else each for key, each in kwargs.items()}
    if x.cut.dim in over:
        if name not in ("sum", "mean"):
            raise CannotKeep(f"`{name}` needs all that it gives")
        made = Summed.apply(function(*own, **keywords))  # type: ignore[no-untyped-call]
        if name == "sum":
            return made
        if not x.cut.even(shards().size):
            raise CannotKeep("`mean` is of parts that are not equal")
        return made / shards().size
    gone = sum(dim < x.cut.dim for dim in over)
    return pytree.tree_map(
        lambda each: part_from(each, x.cut.at(x.cut.dim - (gone if each.dim() < x.dim() else 0)), x.makers),
        function(*own, **keywords),
    )


@rule("layer_norm", "rms_norm")
def normed(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Where what is normed lies within a part."""
    x = args[0] if args else kwargs["input"]
    shape = args[1] if len(args) > 1 else kwargs["normalized_shape"]
    if not decided(x) or x.cut.dim >= x.dim() - len(shape):
        raise CannotKeep(f"`{name}` needs all that it gives")
    own = [each.held if each is x else entered(each) if isinstance(each, torch.Tensor) else each for each in args]
    keywords = {key: entered(each) if isinstance(each, torch.Tensor) else each for key, each in kwargs.items()}
    return part_from(function(*own, **keywords), x.cut, x.makers)
