"""Arrays, tensors and tables: told apart by their content, and watched."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from overdrive.datacache.mappings import is_mapped_for_writing
from overdrive.datacache.state import hash_of
from overdrive.datacache.walk.walk import Walk

_SMALL = 1 << 20


def visit_array(walk: Walk, array: Any) -> None:
    walk.emit("array", f"{type(array).__name__} {array.dtype.str} {array.dtype.descr} {array.shape}")
    if not walk.content and not array.dtype.hasobject:
        return
    if isinstance(array, np.memmap) and array.filename is not None:
        walk.files.note(str(array.filename))
        whole = np.frombuffer(array._mmap, dtype=np.uint8)  # type: ignore[attr-defined]
        place = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        walk.emit("mapped", repr((str(array.filename), array.offset, place, array.strides, array.mode)))
        if array.mode not in ("r", None) or is_mapped_for_writing(str(array.filename)):
            walk.hide("it holds a file mapped for writing")
        elif array.nbytes <= _SMALL:
            walk.watch.array(array)  # the kernel does not tell of what is written through another mapping
        return
    walk.watch.array(array)
    if array.dtype == object:
        walk.visit(array.ravel().tolist())
    elif array.dtype.hasobject:
        walk.hide("it holds an array of structures with objects")
    else:
        walk.emit("content", hash_of(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))
        if array.dtype.kind == "U":
            walk.files.note_all(array.ravel().tolist())


def visit_torch(walk: Walk, thing: Any, kind: type) -> bool:
    """Whether it is something of PyTorch's, which is visited then."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(thing, torch.Tensor):
        _tensor(walk, thing, kind, torch)
    elif isinstance(thing, torch.Generator):
        walk.generator(thing)
    elif isinstance(thing, (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)):
        walk.emit(kind.__name__, repr(thing))
    else:
        return False
    return True


def _tensor(walk: Walk, tensor: Any, kind: type, torch: Any) -> None:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        walk.hide("it holds a tensor that is not on the CPU, or sparse")
        return
    name = f"{kind.__qualname__} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}"
    walk.emit("tensor", f"{name} {tensor.requires_grad}")
    if not walk.content:
        return
    plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous()
    content = plain.reshape(-1).view(torch.uint8).numpy()
    walk.watch.tensor(tensor)
    if tensor.is_leaf and tensor.grad is not None:
        walk.visit(tensor.grad)
    if content.ctypes.data == tensor.data_ptr():  # no copy: what is watched is the tensor itself
        walk.watch.array(content)
    walk.emit("content", hash_of(content))


def visit_pandas(walk: Walk, thing: Any, kind: type) -> bool:
    """Whether it is a table of pandas', a column or an index, which is visited then."""
    name = f"{kind.__module__.split('.')[0]}.{kind.__name__}"
    if name == "pandas.DataFrame":
        walk.emit(name, repr([str(each) for each in thing.dtypes]))
        walk.visit([thing.columns.to_numpy(), thing.index.to_numpy()])
        for position in range(thing.shape[1]):
            walk.visit(thing.iloc[:, position].to_numpy())
    elif name in ("pandas.Series", "pandas.Index"):
        walk.emit(name, f"{thing.dtype} {thing.name}")
        walk.visit(thing.to_numpy())
    else:
        return False
    return True
