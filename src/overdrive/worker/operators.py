"""Counts what the operators of a step compute and move, and on a CPU how long each takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from overdrive.seams.torch.internals import packet_of, schema_of, storage_id
from overdrive.seams.torch.layouts import bytes_of
from overdrive.worker.live_memory import LiveMemory

# Written without being read: the tensor in their first place is counted once.
_WRITE_ONLY = ("copy_", "zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_")
# Read only where they are asked to: of their first tensor no more than the result is moved.
_GATHERS = ("embedding", "index", "index_select", "gather")
_RECURRENT = (
    "mkldnn_rnn_layer",
    "mkldnn_rnn_layer_backward",
    "_cudnn_rnn",
    "_cudnn_rnn_backward",
    "miopen_rnn",
    "miopen_rnn_backward",
)
_CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


@dataclass
class Call:
    """One operator's call."""

    name: str
    dtype: str
    elements: int  # of the largest tensor
    flops: int
    bytes: int
    began: float
    seconds: float


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation below autograd while it is entered."""

    def __init__(self, memory: LiveMemory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self.memory = memory

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        began = time.perf_counter()
        result = function(*args, **(kwargs or {}))
        seconds = time.perf_counter() - began
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        results = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        self.memory.made(given, results)
        moved = bytes_moved(function, args, given, results)
        if moved:
            tensors = [*given, *results]
            floating = next((each.dtype for each in tensors if each.is_floating_point()), tensors[0].dtype)
            elements = max(each.numel() for each in tensors)
            flops = flops_of(function, args, kwargs or {}, result) or 0
            name = schema_of(function).name.removeprefix("aten::")
            self.calls.append(Call(name, str(floating).removeprefix("torch."), elements, flops, moved, began, seconds))
        return result

    def drop_since(self, began: float) -> None:
        """Forget the calls since then: they were no part of the step's own work."""
        while self.calls and self.calls[-1].began >= began:
            self.calls.pop()


def bytes_moved(function: Any, args: Sequence[Any], given: list[torch.Tensor], results: list[torch.Tensor]) -> int:
    """Bytes that an operation has to read and write: 0 for one that only looks at its tensor in another way."""
    schema = schema_of(function)
    name = schema.name.removeprefix("aten::")
    mine = {storage_id(each) for each in given}
    new = sum(bytes_of(each) for each in results if storage_id(each) not in mine)
    written = [
        leaf
        for argument, value in zip(schema.arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
        for leaf in tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
    ]
    if not new and not written:
        return 0 if any(storage_id(each) in mine for each in results) else sum(bytes_of(each) for each in given)
    if name.startswith(("empty", "new_empty")):
        return 0
    read = sum(bytes_of(each) for each in given)
    if name in _GATHERS and given:
        read += min(0, new - bytes_of(given[0]))
    if name in _WRITE_ONLY and given:
        read -= bytes_of(given[0])
    return read + new + sum(bytes_of(each) for each in written)


def flops_of(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int | None:
    """Of products and convolutions alone, a product and a sum being two, as `torch.utils.flop_counter` has them; None
    where no formula is known."""
    packet = packet_of(function)
    formula: Callable[..., Any] | None = flop_registry.get(packet)
    try:
        if formula is not None:
            return int(formula(*args, **kwargs, out_val=result))
        name = packet.__name__
        if name.startswith(_CPU_ATTENTION):
            return _attention(args, backward=name.endswith("backward"))
        if name in _RECURRENT:
            return _recurrent(args, backward="backward" in name)
    except Exception:  # a formula that does not know these arguments
        return 0
    return None


def _attention(args: Sequence[Any], backward: bool) -> int:
    """Two products forward; backward five, of which one makes the scores again."""
    query, key, value = args[1:4] if backward else args[:3]
    batch, heads, length, size = query.shape
    one = 2 * batch * heads * length * key.shape[-2]
    return int(one * (3 * size + 2 * value.shape[-1]) if backward else one * (size + value.shape[-1]))


def _recurrent(args: Sequence[Any], backward: bool) -> int:
    """Fused recurrent layers: every weight meets every element of every sequence once, and twice more backward."""
    sequence = args[0]
    # oneDNN's layer has its two matrices there, cuDNN's a list of all weights.
    weights = sum(each.numel() for each in tree_leaves(args[1:3]) if isinstance(each, torch.Tensor) and each.dim() == 2)
    return int(2 * weights * (sequence.numel() // sequence.shape[-1]) * (2 if backward else 1))
