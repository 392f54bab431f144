"""What only private names of PyTorch's tell. Other rooms ask here, so that a new PyTorch breaks one file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from types import FunctionType
from typing import Any

import torch


def unseen_by_modes() -> AbstractContextManager[None]:
    """Functions called inside pass no `TorchFunctionMode`."""
    guard: Any = torch._C.DisableTorchFunction()
    return guard  # type: ignore[no-any-return]


def function_modes() -> bool:
    """Whether functions called now pass a `TorchFunctionMode`."""
    return bool(torch._C._len_torch_function_stack() > 0)


def all_function_modes() -> list[Any]:
    """The `TorchFunctionMode`s that functions called now pass, a default device among them; the outermost first."""
    return [torch._C._get_function_stack_at(number) for number in range(torch._C._len_torch_function_stack())]


def count_of_function_modes() -> Callable[[], int]:
    """Tells how many these are, quick enough for every batch."""
    return torch._C._len_torch_function_stack


def storage_id(tensor: Any) -> int:
    """Equal for tensors that share their memory; that of the tensor itself where it has none of its own."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # sparse, fake or wrapped tensors
        return id(tensor)


def storage_owners(storage: Any) -> int | None:
    """How many tensors and handles own this memory, this handle among them; None where PyTorch does not tell."""
    try:
        return int(torch._C._storage_Use_Count(storage._cdata))
    except AttributeError:
        return None


def schema_of(operator: Any) -> Any:
    """Of an operator that PyTorch dispatches to: its name and arguments."""
    return operator._schema


def packet_of(operator: Any) -> Any:
    """All overloads of an operator together."""
    return operator._overloadpacket


def gradient_number() -> int | None:
    """In a backward pass, the number of the forward operator whose gradient is being computed; else None."""
    node = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def next_number() -> int:
    """The number that the next forward operator with a gradient will have."""
    return int(torch._C._autograd._get_sequence_nr())


def on_cpu(event: Any) -> bool:
    """Of the profiler's events."""
    return bool(event.device_type() == torch._C._autograd.DeviceType.CPU)


def is_allocation(event: Any) -> bool:
    """Of the profiler's tree of events."""
    from torch._C._profiler import _EventType

    return bool(event.tag == _EventType.Allocation)


def begin_mark(name: str) -> Any:
    """A span of that name in a recording of the profiler."""
    return torch.ops.profiler._record_function_enter_new(name, None)


def end_mark(mark: Any) -> None:
    torch.ops.profiler._record_function_exit._RecordFunction(mark)


def in_backward() -> bool:
    """Whether this thread is in a backward pass: what checkpoints compute anew is computed there."""
    return bool(torch._C._current_graph_task_id() != -1)


def graph_is_kept() -> bool:
    """In a backward pass, whether its graph is kept for another one (`retain_graph`)."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def all_modules_have_hooks() -> bool:
    """Whether there are hooks that are called for every module."""
    return bool(torch.nn.modules.module._has_any_global_hook())  # type: ignore[no-untyped-call]


def global_hooks() -> list[dict[Any, Any]]:
    """Where the hooks are that are called for every module."""
    module: Any = torch.nn.modules.module
    return [value for name, value in vars(module).items() if name.startswith("_global_") and isinstance(value, dict)]


def keeps_saved_tensors_elsewhere() -> bool:
    """Whether somebody's hooks take what operations save for their backward pass."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def is_profiled() -> bool:
    return bool(torch._C._autograd._profiler_enabled())


def is_batch_norm(module: Any) -> bool:
    return isinstance(module, torch.nn.modules.batchnorm._BatchNorm)


def has_running_means(module: Any) -> bool:
    """Of a batch or an instance, whether they are kept or not."""
    return isinstance(module, torch.nn.modules.batchnorm._NormBase)


def forget_package(package: Any) -> None:
    """Undo `torch.serialization.register_package`."""
    torch.serialization._package_registry.remove(package)


def end_allocating_to_pool(device: Any, pool: Any) -> None:
    """What `torch.cuda.use_mem_pool` does at its end, for a recording that failed before it came to it."""
    torch._C._cuda_endAllocateToPool(device.index, pool)


def onednn_multiplies_bf16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


_distributed: Any = torch.distributed


class Store:
    """A `TCPStore`; its owner keeps it, since what is `within` it lives as long."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def within(self, name: str) -> Any:
        return _distributed.PrefixStore(name, self._inner)


def tcp_store(host: str, port: int, hosts: bool, patience: timedelta) -> Store:
    """`hosts`: whether this process keeps it."""
    store = _distributed.TCPStore(host, port, None, hosts, timeout=patience, wait_for_workers=False)
    return Store(store)


def gloo_group(store: Any, name: str, rank: int, size: int, patience: timedelta) -> Any:
    """A process group of its own, which is not the default one, and which the program does not see."""
    return _distributed.ProcessGroupGloo(_distributed.PrefixStore(name, store), rank, size, timeout=patience)


def nccl_group(store: Any, name: str, rank: int, size: int, patience: timedelta) -> Any:
    options = _distributed.ProcessGroupNCCL.Options()
    options._timeout = patience
    return _distributed.ProcessGroupNCCL(_distributed.PrefixStore(name, store), rank, size, options)


def after_backward(act: Callable[[], None]) -> None:
    """In a backward pass: call this at its end, before it returns."""
    torch.autograd.Variable._execution_engine.queue_callback(act)


def gradient_hooks(parameter: Any) -> Any:
    """The program's hooks on the gradient of a leaf, by key; None where there are none."""
    return parameter._backward_hooks


def accumulation_hooks(parameter: Any) -> Any:
    """The same, of those that are called once it is in `.grad`."""
    return parameter._post_accumulate_grad_hooks


def is_compiled(thing: Any) -> bool:
    """Whether it is a module or a function that PyTorch has scripted, or is to compile."""
    if isinstance(thing, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return True
    held = getattr(thing, "__dict__", {})
    if isinstance(thing, torch.nn.Module):
        return "_torchdynamo_orig_callable" in held or held.get("_compiled_call_impl") is not None
    return isinstance(thing, FunctionType) and "_is_torch_compile" in held
