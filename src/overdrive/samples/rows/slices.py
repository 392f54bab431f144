"""Data sets whose samples are rows of arrays: found out by trial, and gathered a batch at a time.

`self.x[i]` lies inside `self.x`: its address tells, whatever the class is called. Where each part of a
sample comes from is found in a forked process, which also puts other arrays in their places and looks
whether the samples follow. Batches are gathered from the live arrays, so what the program writes to them
is seen at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from overdrive.core.progress import log
from overdrive.datacache.buffers import Buffers
from overdrive.datacache.fingerprint import Fingerprint, fingerprint
from overdrive.datacache.layout import Layout, Leaf
from overdrive.datacache.source import Source
from overdrive.datacache.table import Bytes, bytes_of, same_bits

_MOST_FALSE_ALARMS = 5

Step = tuple[str, Any]  # ("attribute", name) or ("item", key)
ROWS, TURNED, NUMBERS, LIST, INDEX = "rows", "turned", "numbers", "list", "index"


@dataclass(frozen=True)
class Origin:
    """Where one part of a sample comes from.

    `rows`: a row of the array or tensor at `path`, with which it shares its memory; `turned`: such a row with its last
    dimension put first, an image of H×W×C as C×H×W, say; `numbers`: an element of a 1-d array or tensor there, as a
    number; `list`: an element of a list there; `index`: the index itself.

    Attributes:
        order: of a batch's dimensions, in which rows lie in memory.
    """

    kind: str
    path: tuple[Step, ...] = ()
    order: tuple[int, ...] = ()

    def find(self, root: Any) -> Any:
        """What stands there now; None where nothing does."""
        for kind, key in self.path:
            try:
                root = vars(root)[key] if kind == "attribute" else root[key]
            except (LookupError, TypeError):
                return None
        return root


class Slices:
    """A source whose batches can be gathered from its arrays.

    Attributes:
        dropped: why they can not be any more; None while they can.
    """

    def __init__(self, source: Source, seen: Fingerprint, layout: Layout, origins: list[Origin]) -> None:
        self.source = source
        self.layout = layout
        self.origins = origins
        self.dropped: str | None = None
        self._seen = seen
        self._false_alarms = 0
        self._compared = False
        self._root, self._subsets = unwrapped(source.dataset)
        seen.watch.seal()

    def opened(self) -> None:
        """A loader begins to read. What may have changed unseen is compared again."""
        if self._seen.hidden:
            self._compared = False

    def touched(self) -> bool:
        """Quick enough for every batch; may be a false alarm."""
        return self._seen.watch.touched()

    def changed(self) -> bool:
        """Whether the data set is another one than it was: what its arrays hold does not count."""
        if self.dropped is None and self._seen.watch.changed():
            seen = fingerprint(*self.source.roots, content=False)
            self._false_alarms += 1
            if seen.digest != self._seen.digest or self._false_alarms > _MOST_FALSE_ALARMS:
                self.drop("the data set was changed")
            else:
                self._seen = seen
                seen.watch.seal()
        return self.dropped is not None

    def drop(self, reason: str) -> None:
        if self.dropped is None:
            self.dropped = reason
            log.info("batches are no longer gathered from arrays: %s", reason)

    def versions(self) -> tuple[int, ...] | None:
        """Other ones where the program has written to an array; None where that could not be told.

        What is written to a tensor through a numpy array that shares its memory is not seen.
        """
        import torch

        versions = []
        for origin in self.origins:
            if origin.kind == INDEX:
                continue
            thing: Any = origin.find(self._root)
            if isinstance(thing, torch.Tensor) and not thing.is_inference():
                versions.append(thing._version)
            elif not isinstance(thing, np.ndarray) or thing.flags.writeable:
                return None
        return tuple(versions)

    def fetch(self, fetcher: Any, indices: Any, gathered: Callable[[Any], Any]) -> Any:
        """A batch: what `gathered` has by `gather`, or the real one where that is not to be. The first one is fetched
        both ways."""
        batch = None
        try:
            if self.dropped is None and not (self.touched() and self.changed()):
                batch = gathered(indices)
        except Exception as error:  # ours: the program must not meet it
            self.drop(f"{type(error).__name__}: {error}")
        if batch is not None and self._compared:
            return batch
        real = fetcher.fetch(indices)
        if batch is not None:
            self._compared = True
            if not same_bits(real, batch, self.layout):
                self.drop("a batch came out another one than in the trial")
        return real

    def rows(self, indices: Any) -> list[int] | None:
        """Where these samples lie in the arrays; None where the real data set has to see to it."""
        rows = _plain(indices)
        for subset in self._subsets:
            rows = _plain([int(subset.indices[row]) for row in rows]) if rows else None
        return rows

    def gather(self, rows: list[int] | None, buffers: Buffers | None = None) -> Any:
        """The batch that lies there; None where the real data set has to see to it."""
        if not rows:
            return None
        tensors = []
        for origin, leaf in zip(self.origins, self.layout.leaves, strict=True):
            tensor = _gathered(origin, leaf, origin.find(self._root), rows, buffers or Buffers())
            if tensor is None:
                return None
            tensors.append(tensor)
        return self.layout.build(tensors)


def unwrapped(dataset: Any) -> tuple[Any, list[Any]]:
    """What torch's `Subset`s are made of, and these from the outermost on."""
    from torch.utils.data import Subset

    subsets = []
    while type(dataset) is Subset:
        subsets.append(dataset)
        dataset = dataset.dataset
    return dataset, subsets


def _plain(indices: Any) -> list[int] | None:
    """The indices, or None where they are not plain numbers from 0 on."""
    plain = type(indices) is list and indices and set(map(type, indices)) == {int} and min(indices) >= 0
    return indices if plain else None


# Gathering


def _gathered(origin: Origin, leaf: Leaf, thing: Any, rows: list[int], buffers: Buffers) -> Any:
    """One tensor of a batch, in memory of its own; None where `thing` is not what it was in the trial."""
    import torch
    from torch.utils.data import default_collate

    if origin.kind == INDEX:
        return default_collate(rows)
    if type(thing) is list:
        return _listed(thing, leaf, rows) if origin.kind == LIST else None
    if thing is None or origin.kind == LIST or max(rows) >= len(thing):
        return None
    if origin.kind == NUMBERS:
        numbers = numbers_of(thing)
        return None if numbers is None else torch.from_numpy(np.take(numbers, rows).astype(leaf.dtype))
    sizes = tuple(leaf.sizes[dimension - 1] for dimension in origin.order[1:])
    turned = origin.kind == TURNED
    held = rows_of(thing) if turned else rows_of(thing, origin.order)
    if held is None or dtype_of(thing) != leaf.dtype or tuple(thing.shape[1:]) != (sizes if turned else leaf.sizes):
        return None
    taken = buffers.take((len(rows), *sizes), getattr(torch, leaf.dtype))
    np.take(held, np.array(rows, dtype=np.intp), axis=0, out=bytes_of(taken), mode="clip")
    if origin.order == leaf.order:
        return _turned_back(taken, leaf.order)
    tensor = _turned_back(buffers.take((len(rows), *leaf.sizes_in_memory), taken.dtype), leaf.order)
    return tensor.copy_(_turned_back(taken, origin.order))


def _turned_back(tensor: Any, order: tuple[int, ...]) -> Any:
    """With its dimensions in their own order, where they lie in this one."""
    plain = order == tuple(range(len(order)))
    return tensor if plain else tensor.permute(np.argsort(order).tolist())


def _listed(thing: list[Any], leaf: Leaf, rows: list[int]) -> Any:
    import torch
    from torch.utils.data import default_collate

    if max(rows) >= len(thing):
        return None
    values = [thing[row] for row in rows]
    if not {int, float, bool}.issuperset(map(type, values)):
        return None
    batch = default_collate(values)
    # `torch.tensor(self.labels[i])` makes 32 bits of a float, where the number by itself is taken for 64.
    return batch if dtype_of(batch) == leaf.dtype else torch.tensor(values, dtype=getattr(torch, leaf.dtype))


def dtype_of(thing: Any) -> str:
    return str(thing.dtype).removeprefix("torch.")


def rows_of(thing: Any, order: tuple[int, ...] = ()) -> Bytes | None:
    """A view of an array or tensor as rows of bytes; None where it does not lie in memory row by row.

    Args:
        order: of its dimensions in memory, where it is not their own.
    """
    import torch

    if type(thing) is torch.Tensor:
        plain = thing.layout is torch.strided and thing.device.type == "cpu" and not thing.requires_grad
        if not plain or not thing.dim() or not thing.numel() or thing.is_conj() or thing.is_neg():
            return None
        if len(order) == thing.dim():
            thing = thing.permute(order)
        return bytes_of(thing) if thing.is_contiguous() else None
    if type(thing) in (np.ndarray, np.memmap) and thing.ndim and thing.size:
        if len(order) == thing.ndim:
            thing = thing.transpose(order)
        if thing.dtype.hasobject or not thing.dtype.isnative or not thing.flags.c_contiguous:
            return None
        flat: Bytes = np.asarray(thing).reshape(-1).view(np.uint8).reshape(len(thing), -1)
        return flat
    return None


def numbers_of(thing: Any) -> Any:
    """A 1-d array or tensor of numbers as an array; None where it is none."""
    if rows_of(thing) is None or thing.ndim != 1 or dtype_of(thing) in ("bfloat16", "float16"):
        return None
    array = np.asarray(thing) if isinstance(thing, np.ndarray) else thing.numpy()
    return array if array.dtype.kind in "biuf" else None
