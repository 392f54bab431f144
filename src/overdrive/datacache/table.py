"""Tables of stacked samples: one row of bytes for each sample and leaf, and a flag whether it is there."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from overdrive.datacache.buffers import Buffers
from overdrive.forks.layout import Layout, tensors_of

if TYPE_CHECKING:
    import torch

    from overdrive.datacache.in_use import InUse

Rows = NDArray[np.intp]
Bytes = NDArray[np.uint8]


class Table:
    """`count` samples of one layout. `leaves[k]` is count × bytes, in memory or mapped from a file."""

    def __init__(self, layout: Layout, count: int, leaves: Sequence[Bytes], present: NDArray[np.bool_]) -> None:
        self.layout = layout
        self.count = count
        self.leaves = list(leaves)
        self.present = present  # shared with forked children, like the leaves
        self.writable = all(held.flags.writeable for held in self.leaves)  # else another process fills it
        self.missing = count - int(present.sum())
        self.in_use: InUse | None = None  # where it lies on disk
        self.coded: tuple[int, ...] = ()  # leaves that are kept as codes, see `CodedTable`
        self.made_from: list[str] = []  # files that its samples were read from, besides those that the key knows

    @classmethod
    def in_memory(cls, layout: Layout, count: int) -> Table:
        """Empty, in memory that forked children can write into as well."""
        leaves = [shared_bytes(count * leaf.bytes).reshape(count, leaf.bytes) for leaf in layout.leaves]
        return cls(layout, count, leaves, shared_bytes(count).view(np.bool_))

    @property
    def complete(self) -> bool:
        return self.missing == 0

    def rows(self, indices: Any, kind: type = int) -> Rows | None:
        """The rows that a batch's indices mean, or None where they are not whole numbers of this kind in range."""
        rows = whole_numbers(indices, kind)
        return rows if rows is not None and rows.max() < self.count else None

    def absent(self, rows: Rows) -> Rows:
        """The rows that are not there yet, each once, in the order of their first use."""
        if self.complete:
            return rows[:0]
        wanting = rows[~self.present[rows]]
        fence()
        _, first = np.unique(wanting, return_index=True)
        return wanting[np.sort(first)]

    def write(self, rows: Rows, batch: Any) -> bool:
        """Take in a real batch; False where it is of another layout than the samples before it.

        What another process fills is only looked at: there, nothing is written.

        Raises:
            Unfit: the table has no room for what is in it (`CodedTable`).
        """
        tensors = tensors_of(batch, self.layout.structure)
        if tensors is None or not all(
            leaf.fits(tensor) and len(tensor) == len(rows)
            for leaf, tensor in zip(self.layout.leaves, tensors, strict=True)
        ):
            return False
        if not self.writable:
            return True
        self.renew()
        for number, (leaf, tensor) in enumerate(zip(self.layout.leaves, tensors, strict=True)):
            self._keep(number, rows, bytes_of(tensor if leaf.plain else tensor.permute(leaf.order)))
        fence()
        self.present[rows] = True
        self.count_present()
        return True

    def put(self, row: int, data: Bytes) -> None:
        """Fill the first leaf of one row, or its beginning, unless another process does that."""
        self.renew()
        if self.writable:
            self.leaves[0][row][: len(data)] = data
            fence()
            self.present[row] = True

    def row(self, number: int) -> Bytes:
        """The first leaf of one row."""
        self.renew()
        row: Bytes = self.leaves[0][number]
        return row

    def renew(self) -> None:
        """It is being used; see `InUse`."""
        if self.in_use is not None:
            self.in_use.renew()

    def contents(self) -> dict[str, Bytes]:
        """All bytes, by the names of the files that they lie in when they lie on disk."""
        return {f"{number}.raw": held.reshape(-1) for number, held in enumerate(self.leaves)}

    def count_present(self) -> None:
        """Count again: forked children may have written."""
        self.missing = self.count - int(np.count_nonzero(self.present))

    def gather(self, rows: Rows, buffers: Buffers | None = None) -> Any:
        """The batch of these samples, in memory of its own.

        Args:
            buffers: where to take its memory from.

        numpy's `take` copies 250,000 CIFAR images (12 kB) a second on one core; torch's index_select
        starts threads for it and came to 3,000 to 130,000, by how busy the other cores were.
        """
        import torch

        self.renew()
        tensors = []
        for number, leaf in enumerate(self.layout.leaves):
            sizes, dtype = (len(rows), *leaf.sizes_in_memory), getattr(torch, leaf.dtype)
            tensor = torch.empty(sizes, dtype=dtype) if buffers is None else buffers.take(sizes, dtype)
            self._read(number, rows, bytes_of(tensor))
            if not leaf.plain:
                tensor = tensor.permute(np.argsort(leaf.order).tolist())
            tensors.append(tensor)
        return self.layout.build(tensors)

    def part(self, number: int, first: int, end: int) -> Bytes:
        """Leaf `number` of the samples from `first` on to `end`, as it would lie in memory."""
        return self.leaves[number][first:end]

    def _keep(self, number: int, rows: Rows, data: Bytes) -> None:
        self.leaves[number][rows] = data

    def _read(self, number: int, rows: Rows, into: Bytes) -> None:
        np.take(self.leaves[number], rows, axis=0, out=into, mode="clip")


def whole_numbers(indices: Any, kind: type = int) -> Rows | None:
    """A batch's indices; None where they are anything else than a list of numbers of this kind from 0 on."""
    if type(indices) is not list or set(map(type, indices)) != {kind}:
        return None
    numbers = np.array(indices, dtype=np.intp)
    return numbers if numbers.min() >= 0 else None


def fence() -> None:
    """What was written, or read, before this comes before what follows, for other processes too.

    Arm processors may otherwise show a row's flag before its bytes. To release a lock and then to take it is
    a barrier both ways.
    """
    lock = threading.Lock()
    for _ in range(2):
        with lock:
            pass


def shared_bytes(size: int) -> Bytes:
    """Zeros in anonymous memory that is shared with forked children."""
    return np.frombuffer(mmap.mmap(-1, max(1, size)), dtype=np.uint8)[:size]


def bytes_of(tensor: torch.Tensor) -> Bytes:
    """A view of a contiguous tensor (a copy of any other), samples × bytes."""
    from overdrive.seams.torch.layouts import as_bytes

    found: Bytes = as_bytes(tensor).reshape(len(tensor), -1)
    return found


def same_bits(one: Any, other: Any, layout: Layout) -> bool:
    """Whether two batches of this layout are equal in every bit, stride and container."""
    mine, others = tensors_of(one, layout.structure), tensors_of(other, layout.structure)
    if mine is None or others is None:
        return False
    return all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.requires_grad == b.requires_grad
        and np.array_equal(bytes_of(a), bytes_of(b))
        for a, b in zip(mine, others, strict=True)
    )
