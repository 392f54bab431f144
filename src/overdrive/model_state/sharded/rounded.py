"""Parameters that ranks send each other with fewer digits, for a model's call and its backward pass: half of the bytes.

Each rank keeps its share with all digits, which steps change and which everybody else gathers. Vectors are sent as they
are: of biases and of what norms multiply by there is a hundredth of a model, and they are the ones that 8 bits hurt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from overdrive.model_state.sharded.share import Share, in_buckets
from overdrive.ranks.group import Group

_SENT = torch.bfloat16  # as many exponents as fp32 has: what is rounded is never out of its range


@dataclass
class Sent:
    """A parameter that is sent.

    Attributes:
        part: this rank's share of it, flat, with all digits.
        whole: in which the shares of all are put.
        stays: what is there has all digits already, and is left so.
    """

    part: torch.Tensor
    whole: torch.Tensor
    share: Share
    stays: bool = False

    @property
    def kind(self) -> torch.dtype:
        return _kind(self.part, self.share)


def as_sent(part: torch.Tensor, share: Share) -> torch.Tensor:
    """The numbers that the others have of this part."""
    return part.to(_kind(part, share)).to(part.dtype)


def exchange_rounded(sent: Sequence[Sent], group: Group, what: str, astray: bool) -> bool:
    """Put what all ranks have of these into each whole.

    Args:
        astray: this rank has found that what was sent before was written to.

    Returns: whether any rank has said so; it is the same on all.
    """
    found = False
    for bucket in in_buckets(sent, lambda each: each.whole, lambda each: each.whole.device):
        words = [_bytes(each.part.to(each.kind)) for each in bucket]
        own = torch.cat([*words, words[0].new_full((1,), int(astray))])
        sizes = [sum(map(_size, bucket, [rank] * len(bucket))) + 1 for rank in range(group.size)]
        told = group.gather(own, 0, sizes, what).split(sizes)  # type: ignore[no-untyped-call]
        found |= any(torch.cat([each[-1:] for each in told]).tolist())
        for rank, theirs in enumerate(told):
            _put(bucket, rank, theirs)
    return found


def _put(bucket: Sequence[Sent], rank: int, theirs: torch.Tensor) -> None:
    """What this rank has sent: its own part too, so that all ranks compute with the same numbers."""
    first = 0
    for each in bucket:
        size = _size(each, rank)
        words = theirs.narrow(0, first, size)
        first += size
        if not each.stays:
            aligned = words if words.storage_offset() % each.kind.itemsize == 0 else words.clone()
            each.share.of(each.whole, rank).copy_(aligned.view(each.kind))


def _kind(part: torch.Tensor, share: Share) -> torch.dtype:
    return _SENT if part.dtype is torch.float32 and len(share.shape) > 1 else part.dtype


def _size(sent: Sent, rank: int) -> int:
    return sent.share.sizes[rank] * sent.kind.itemsize


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Of two flat ones."""
    return one.dtype is other.dtype and torch.equal(_bytes(one), _bytes(other))
