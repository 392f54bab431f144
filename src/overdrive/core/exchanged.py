"""What a rank has exchanged with the others so far: how often and how much, and how long it stood for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Exchanged:
    """Attributes:
    seconds: in which the program's own thread exchanged something, or waited for the others. What goes beside it, as
        sums of gradients beside the backward pass, is not in it.
    counts: exchanges by operation and bytes, as "all_reduce 4096": operations as `machine.pool.curve` names them, and
        bytes of the whole.
    by_memory: ranks have memory in common, by which they gather and sum.
    """

    seconds: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    by_memory: bool = False

    def since(self, before: Exchanged) -> Exchanged:
        more = {kind: count - before.counts.get(kind, 0) for kind, count in self.counts.items()}
        made = {kind: count for kind, count in more.items() if count}
        return Exchanged(self.seconds - before.seconds, made, self.by_memory)

    def plus(self, other: Exchanged) -> Exchanged:
        kinds = {**self.counts, **other.counts}
        both = {kind: self.counts.get(kind, 0) + other.counts.get(kind, 0) for kind in kinds}
        return Exchanged(self.seconds + other.seconds, both, other.by_memory)


def kind_of(operation: str, size: int) -> str:
    """The key of an exchange in `Exchanged.counts`."""
    return f"{operation} {size}"


def of_kind(kind: str) -> tuple[str, int]:
    """Operation and bytes of such a key."""
    operation, _, size = kind.rpartition(" ")
    return operation, int(size)
