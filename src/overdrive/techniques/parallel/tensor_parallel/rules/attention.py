"""Attention by heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from overdrive.model_state.attention import attention_weights
from overdrive.seams.torch.internals import body_of
from overdrive.techniques.parallel.tensor_parallel.cuts import Cut
from overdrive.techniques.parallel.tensor_parallel.parts import (
    CannotKeep,
    decided,
    deciding,
    makers_of,
    part_from,
    rule,
    whole_of,
)
from overdrive.techniques.parallel.tensor_parallel.rules.elements import aligned, kept
from overdrive.techniques.parallel.tensor_parallel.shards import entered, shards


@deciding("multi_head_attention_forward")
def multi_head(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As PyTorch wrote it: the functions that it calls have rules."""
    return body_of(function)(*args, **kwargs)


@rule("scaled_dot_product_attention")
def scaled_dot_product(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    three = [_heads(given.pop(each)) for each in names[:3]]
    parts = [each for each in three if decided(each)]
    backs = {each.cut.dim - each.dim() for each in parts}
    if not parts or len(backs) > 1 or decided(given.get("attn_mask")):
        raise CannotKeep("attention needs all that it gives")
    back, cut = backs.pop(), parts[0].cut
    if not given.get("enable_gqa") and any(each.cut.segments != cut.segments for each in parts):
        raise CannotKeep("it meets what is divided otherwise")
    if given.get("enable_gqa") and not all(decided(each) and each.cut.even(shards().size) for each in three):
        raise CannotKeep("its groups of heads are divided otherwise")
    mask, p = given.pop("attn_mask", None), given.pop("dropout_p", 0.0)
    own = [aligned(each, back, each.cut if decided(each) else cut) for each in three]
    if mask is not None:
        mask = aligned(mask, back, cut)
    made = _dropping(own, mask, p, back, cut, **given) if p else function(*own, mask, **given)
    return part_from(made, three[0].cut if decided(three[0]) else cut.at(made.dim() + back), makers_of(*parts))


def _heads(tensor: Any) -> Any:
    """Divided by heads, or whole: a head of keys that all queries share cannot be divided."""
    within = decided(tensor) and tensor.cut.dim >= tensor.dim() - 2
    return whole_of(tensor, "attention needs all of a head") if within else tensor


def _dropping(own: list[torch.Tensor], mask: Any, p: float, back: int, cut: Cut, **given: Any) -> torch.Tensor:
    """With the mask of all heads drawn."""
    q, k, v = own
    if given.get("enable_gqa"):
        raise CannotKeep("its attention with grouped queries drops out")
    if mask is not None and mask.dtype is not torch.bool and not given.get("is_causal"):
        mask = entered(mask)
    weights = attention_weights(q, k, mask, bool(given.get("is_causal")), given.get("scale"))
    place = weights.dim() + back
    ones = weights.new_ones([cut.size if dim == place else size for dim, size in enumerate(weights.shape)])
    them = shards()
    return weights * cut.at(place).part(kept(ones, p), them.rank, them.size) @ v
