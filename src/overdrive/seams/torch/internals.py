"""What only private names of PyTorch's tell. Other rooms ask here, so that a new PyTorch breaks one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
from torch._C import _current_graph_task_id
from torch.overrides import TorchFunctionMode


def unseen_by_modes() -> AbstractContextManager[None]:
    """Functions called inside pass no `TorchFunctionMode`."""
    guard: Any = torch._C.DisableTorchFunction()
    return guard  # type: ignore[no-any-return]


def as_plain_tensors() -> AbstractContextManager[None]:
    """Functions called inside are not told to the classes of tensors that want to know."""
    guard: Any = torch._C.DisableTorchFunctionSubclass()
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


def uses_onednn() -> Callable[[], bool]:
    """Tells whether oneDNN's kernels are used, quick enough for every batch."""
    return torch._C._get_mkldnn_enabled


def onednn_precisions() -> list[Callable[[], str]]:
    """These tell how precisely oneDNN multiplies, quick enough for every batch."""
    return [partial(torch._C._get_fp32_precision_getter, "mkldnn", each) for each in ("matmul", "conv", "rnn")]


def storage_id(tensor: Any) -> int:
    """Equal for tensors that share their memory; that of the tensor itself where it has none of its own."""
    try:
        return id_of(tensor.untyped_storage())
    except (RuntimeError, NotImplementedError):  # sparse, fake or wrapped tensors
        return id(tensor)


def impl_of(tensor: Any) -> int:
    """Where its C++ object lies, which a swap of two tensors exchanges."""
    return int(tensor._cdata)


def id_of(storage: Any) -> int:
    return int(storage._cdata)


def storage_owners(storage: Any) -> int | None:
    """How many tensors and handles own this memory, this handle among them; None where PyTorch does not tell."""
    try:
        return int(torch._C._storage_Use_Count(storage._cdata))
    except AttributeError:
        return None


def version_of(tensor: Any) -> int:
    """How often it was written to in place, as autograd counts. A tensor made in inference mode counts nothing."""
    return int(tensor._version)


def writes_to(tensor: Any) -> int:
    """The same of any tensor; -1 of one that counts nothing."""
    return -1 if tensor.is_inference() else version_of(tensor)


def is_view(tensor: Any) -> bool:
    """Whether autograd knows it as a part of another tensor, whose memory it shares."""
    return bool(tensor._is_view())


def base_of(view: Any) -> Any:
    """The tensor that it is a part of, as autograd knows; None of any other."""
    return view._base


def number_of(node: Any) -> int:
    """Of a node of autograd: operators are numbered in the order of their calls, on each thread."""
    return int(node._sequence_nr())


def become(tensor: Any, other: Any) -> None:
    """From now on this object is the tensor that `other` was, its graph and memory included, whoever holds it."""
    try:
        torch._C._swap_tensor_impl(tensor, other)
    except RuntimeError:  # something else holds `other`, a graph say, and would find itself exchanged
        torch._C._swap_tensor_impl(tensor, other.view_as(other))


def delayed_error(message: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Makes of a tensor with a gradient another one of the same memory, of which a backward pass raises this."""
    made: Callable[[torch.Tensor], torch.Tensor] = torch._C._functions.DelayedError(message.encode(), 1)
    return made


def schema_of(operator: Any) -> Any:
    """Of an operator that PyTorch dispatches to: its name and arguments."""
    return operator._schema


def packet_of(operator: Any) -> Any:
    """All overloads of an operator together."""
    return operator._overloadpacket


def gradient_number() -> int | None:
    """In a backward pass, the number of the forward operator whose gradient is being computed; else None."""
    node = torch._C._current_autograd_node()
    return None if node is None else number_of(node)


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


def beside_the_program() -> list[Any]:
    """What a `TorchFunctionMode` is told of, and computes nothing: marks for the profiler, and gradients on and off."""
    packets: list[Any] = [torch.ops.profiler._record_function_enter_new, torch.ops.profiler._record_function_exit]
    marks = [*packets, *(getattr(each, name) for each in packets for name in each.overloads())]
    return [*marks, torch._C._set_grad_enabled]


def in_backward() -> bool:
    """Whether this thread is in a backward pass: what checkpoints compute anew is computed there."""
    return _current_graph_task_id() != -1  # the name alone: asked for in every step, and for each module's call


def is_accumulated() -> bool:
    """In a hook of a parameter, whether its gradient is about to be added to `.grad`, not given by `autograd.grad`."""
    try:
        return bool(torch._C._will_engine_execute_node(torch._C._current_autograd_node()))
    except RuntimeError:  # PyTorch refuses to tell, of what torch.autograd.grad was asked for
        return False


def graph_is_kept() -> bool:
    """In a backward pass, whether its graph is kept for another one (`retain_graph`)."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


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


def give_up_pool(device: Any, pool: Any) -> None:
    """What `torch.cuda.use_mem_pool` does at its end, for a recording that failed before it came to it.

    Raises:
        RuntimeError: nothing is recorded to this pool.
    """
    torch._C._cuda_endAllocateToPool(device.index, pool)
    torch._C._cuda_releasePool(device.index, pool)


def onednn_multiplies_bf16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@contextmanager
def capturable_as_it_is(optimizer: Any) -> Iterator[None]:
    """Within it, an optimizer set to be recorded does not warn that it runs unrecorded."""
    warned = vars(optimizer).get("_warned_capturable_if_run_uncaptured")
    optimizer._warned_capturable_if_run_uncaptured = True
    try:
        yield
    finally:
        if warned is None:
            del optimizer._warned_capturable_if_run_uncaptured
        else:
            optimizer._warned_capturable_if_run_uncaptured = warned


@contextmanager
def arguments_unchecked() -> Iterator[None]:
    """Within it, distributions and `one_hot` do not look whether their arguments are valid."""
    kind: Any = torch.distributions.Distribution
    before = kind._validate_args
    kind.set_default_validate_args(False)
    try:
        with _Unchecked():
            yield
    finally:
        kind._validate_args = before


class _Unchecked(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.one_hot:
            x, classes = (*args, *kwargs.values(), -1)[:2]
            if isinstance(x, torch.Tensor) and isinstance(classes, int) and classes > 0:
                return x.new_zeros((*x.shape, classes)).scatter_(-1, x.unsqueeze(-1), 1)
        return func(*args, **kwargs)


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


def gather(group: Any, whole: Any, own: Any) -> Any:
    """Every rank's `own`, one after the other in `whole`; to be waited for."""
    return group._allgather_base(whole, own)


def when_cuda_is_used(act: Callable[[], None]) -> None:
    """Call this once, as soon as the process begins to use CUDA."""
    torch.cuda._lazy_call(act)  # type: ignore[no-untyped-call]


def after_backward(act: Callable[[], None]) -> None:
    """In a backward pass: call this at its end, before it returns."""
    torch.autograd.Variable._execution_engine.queue_callback(act)


def is_compiled(thing: Any) -> bool:
    """Whether it is a module or a function that PyTorch has scripted, or is to compile."""
    if isinstance(thing, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return True
    held = getattr(thing, "__dict__", {})
    if isinstance(thing, torch.nn.Module):
        return "_torchdynamo_orig_callable" in held or held.get("_compiled_call_impl") is not None
    return isinstance(thing, FunctionType) and "_is_torch_compile" in held


@cache
def body_of(function: Any) -> Any:
    """A function of PyTorch's that is written in Python, without asking whether a class wants to be told of it."""
    asks_nobody = {**function.__globals__, "has_torch_function": lambda given: False}
    made = FunctionType(function.__code__, asks_nobody, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made
