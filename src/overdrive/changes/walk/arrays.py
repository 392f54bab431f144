"""Arrays, tensors and tables: told apart by their content, and watched."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from overdrive.changes.code import is_library_module
from overdrive.changes.mappings import is_mapped_for_writing
from overdrive.changes.state import hash_of
from overdrive.changes.walk.unnamed import visit_hooks
from overdrive.changes.walk.walk import Walk

_SMALL = 1 << 20
_FEW_GAPS = 2  # times as much memory as a tensor's elements take: what is written between them costs a fingerprint


def visit_array(walk: Walk, array: Any) -> None:
    flags = "" if array.flags.writeable else " for reading"
    walk.emit("array", f"{type(array).__name__} {array.dtype.str} {array.dtype.descr} {array.shape}{flags}")
    watch_names(walk, array.dtype)
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
    if array.base is not None:
        walk.views.append(array.base)
    walk.watch.array(array)
    if array.dtype == object:
        walk.visit(array.ravel().tolist())
    elif array.dtype.hasobject:
        walk.hide("it holds an array of structures with objects")
    else:
        walk.emit("content", hash_of(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))
        if array.dtype.kind == "U":
            walk.files.note_all(array.ravel().tolist())


def watch_names(walk: Walk, dtype: Any) -> None:
    """A structure's fields can be given other names where they are."""
    walk.visit(dtype.metadata)
    if dtype.names is not None:
        walk.watch.state(lambda: str(dtype))


def visit_torch(walk: Walk, thing: Any, kind: type) -> bool:
    """Whether it is something of PyTorch's, which is visited then."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(thing, torch.Tensor):
        if _hears(kind):
            walk.hide("it holds a tensor of a class that is told of each operation")
        else:
            _tensor(walk, thing, kind, torch)
    elif isinstance(thing, torch.Generator):
        walk.generator(thing)
    elif isinstance(thing, (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)):
        walk.emit(kind.__name__, repr(thing))
    else:
        return False
    return True


def _hears(kind: type) -> bool:
    """Whether code of the program's would run when one is looked at."""
    names = ("__torch_function__", "__torch_dispatch__")
    told = (next((base for base in kind.__mro__ if name in vars(base)), object) for name in names)
    return not all(is_library_module(base.__module__) for base in told)


def _tensor(walk: Walk, tensor: Any, kind: type, torch: Any) -> None:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        walk.hide("it holds a tensor that is not on the CPU, or sparse")
        return
    name = f"{kind.__qualname__} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}"
    walk.emit("tensor", f"{name} {tensor.requires_grad} {tensor.is_conj()} {tensor.is_neg()}")
    walk.of_gradients = walk.of_gradients or tensor.requires_grad
    if tensor.grad_fn is not None:
        walk.hide("it holds a tensor with a graph of operations")
        return
    walk.watch.tensor(tensor)
    walk.views.append(tensor.untyped_storage())
    if tensor.requires_grad:
        visit_hooks(walk, tensor)
    if tensor.is_leaf and tensor.grad is not None:
        walk.visit(tensor.grad)
    content, around = _memory_of(tensor, torch)
    walk.watch.array(around, of=tensor)
    walk.emit("content", hash_of(np.ascontiguousarray(content).reshape(-1).view(np.uint8)))


def _memory_of(tensor: Any, torch: Any) -> tuple[Any, Any]:
    """Arrays of the memory that a tensor's elements lie in, in the order in which they lie there: of these alone, and
    of what is to be watched, which has no gaps where those are few.

    Not by `numpy()`: PyTorch lets nobody resize a tensor from then on, and the program may want to.
    """
    size, first = tensor.element_size(), tensor.storage_offset()
    lies = sorted((each for each in zip(tensor.stride(), tensor.shape, strict=True) if each[0]), reverse=True)
    if not tensor.numel():
        lies = [(1, 0)]
    if size == 16:  # no whole number is that long
        size, first, lies = 8, 2 * first, [*((2 * stride, length) for stride, length in lies), (1, 2)]

    def array(shape: list[int], strides: list[int]) -> Any:
        whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
        return np.from_dlpack(torch.empty(0, dtype=whole).set_(tensor.untyped_storage(), first, shape, strides))

    content = array([length for _, length in lies], [stride for stride, _ in lies])
    reach = 1 + sum(stride * (length - 1) for stride, length in lies)
    sparse = content.flags.forc or not content.size < reach <= _FEW_GAPS * content.size
    return content, content if sparse else array([reach], [1])


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
