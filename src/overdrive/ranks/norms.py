"""The norm of gradients of which each rank has a part."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from overdrive.ranks.group import Group


def norm_of_parts(
    call: Callable[..., Any], gradients: Sequence[Any], own: Collection[int], kind: float, foreach: Any, group: Group
) -> Any:
    """Of all together; None where no part is among them. An answer to the seam *norm taken*.

    Args:
        own: the ids of those that are this rank's part; of the others all ranks have the same.
    """
    parts = [each for each in gradients if id(each) in own]
    if not parts:
        return None
    rest = [each for each in gradients if id(each) not in own]
    filled = [each for each in parts if each.numel()]
    mine = call(filled, kind, False, foreach).reshape(1) if filled else parts[0].new_zeros(1)
    norms = [group.gather(mine, 0, [1] * group.size, "the norm of gradients")]
    if rest:
        norms.append(call(rest, kind, False, foreach).reshape(1).to(mine.device))
    return call([torch.cat(norms)], kind, False, foreach)
