"""`torch.cuda`, and what tensors say of themselves, with a `FakeGpu` behind them."""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from overdrive.seams.torch import fingerprints, tracing
from tests.fakes.gpu import CAPTURING, DEFAULT, DEVICE, FakeGpu
from tests.fakes.tensors import provide_factories, provide_tensors

_numbers = itertools.count(1)


@contextlib.contextmanager
def fake_cuda(memory: int = 1 << 40) -> Iterator[FakeGpu]:
    """Within it, `torch.cuda` has one GPU, and `cuda()` and `to("cuda")` send tensors there."""
    gpu = FakeGpu(memory)
    fingerprints._places.cache_clear()  # what it keeps lies on another GPU
    with pytest.MonkeyPatch.context() as patch:
        provide_tensors(gpu, patch)
        provide_factories(gpu, patch)
        _module(gpu, patch)
        _engine(gpu, patch)
        # It stands for hardware: who asks whether operations are observed is not told of it.
        observers = tracing._len_torch_dispatch_stack
        patch.setattr(tracing, "_len_torch_dispatch_stack", lambda: max(0, observers() - 1))
        with gpu:
            yield gpu


class FakeStream:
    def __init__(self, gpu: FakeGpu, name: str) -> None:
        self.gpu, self.name = gpu, name
        self.device = DEVICE
        self.cuda_stream = abs(hash(name)) if name != DEFAULT else 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeStream) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def record_event(self, event: Any = None) -> FakeEvent:
        event = event or FakeEvent(self.gpu)
        event.record(self)
        return event  # type: ignore[no-any-return]

    def wait_event(self, event: FakeEvent) -> None:
        tape = self.gpu.tape
        if tape is not None and event.tape is not tape:
            tape.broken = "it waits for work that is not captured"
            raise torch.AcceleratorError("CUDA error: dependency created on uncaptured work in another stream")
        self.gpu.order.waits(self.name, event.clocks)

    def wait_stream(self, other: FakeStream) -> None:
        self.wait_event(other.record_event())

    def is_capturing(self) -> bool:
        """By which optimizers refuse a recording of what is not `capturable`."""
        return self.gpu.tape is not None and self.gpu.tape.stream == self.name

    def synchronize(self) -> None:
        self.gpu.host_waits("stream.synchronize", self.name, noted=False)

    def query(self) -> bool:
        self.gpu.not_while_capturing()
        return self.gpu.order.done(self.gpu.order.at(self.name))


class FakeEvent:
    def __init__(self, gpu: FakeGpu, **_: Any) -> None:
        self.gpu, self.clocks, self.tape = gpu, dict[str, int](), gpu.tape
        self._asked = 0

    def record(self, stream: Any = None) -> None:
        name = self.gpu.stream if stream is None else stream.name
        self.clocks, self.tape, self._asked = self.gpu.order.at(name), self.gpu.tape, 0

    def wait(self, stream: Any = None) -> None:
        FakeStream(self.gpu, self.gpu.stream if stream is None else stream.name).wait_event(self)

    def synchronize(self) -> None:
        self.gpu.not_while_capturing()
        self.gpu.order.waits("host", self.clocks)

    def query(self) -> bool:
        """Not yet, when it is asked for the first time."""
        self.gpu.not_while_capturing()
        self._asked += 1
        if self._asked > 1:
            self.gpu.order.waits("host", self.clocks)
        return self._asked > 1 or self.gpu.order.done(self.clocks)


class FakeGraph:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu, self.tape = gpu, None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        self.tape = self.gpu.begin_capture(pool)  # type: ignore[assignment]

    def capture_end(self) -> None:
        self.gpu.end_capture()

    def replay(self) -> None:
        self.gpu.replay(self.tape)  # type: ignore[arg-type]

    def reset(self) -> None:
        self.tape = None


class _Generator:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu

    def manual_seed(self, seed: int) -> None:
        self._gpu.generator = torch.Generator().manual_seed(seed).get_state()

    def clone_state(self) -> Any:
        return self._gpu.generator.clone()

    def graphsafe_set_state(self, state: Any) -> None:
        self._gpu.generator, self._gpu.generator_broken = state, False


def _module(gpu: FakeGpu, patch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def stream(wanted: Any) -> Iterator[None]:
        before = gpu.stream
        gpu.stream = before if wanted is None else wanted.name
        try:
            yield
        finally:
            gpu.stream = before

    def set_state(state: torch.Tensor, device: Any = 0) -> None:
        if gpu.tape is not None:
            raise torch.AcceleratorError(CAPTURING)
        gpu.generator = state.clone()

    def state(device: Any = 0) -> torch.Tensor:
        if gpu.tape is not None:
            raise torch.AcceleratorError(CAPTURING)
        with _disable_current_modes():
            return gpu.generator.clone()

    names = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "Stream": lambda *_, **__: FakeStream(gpu, f"stream {next(_numbers)}"),
        "Event": lambda *_, **how: FakeEvent(gpu, **how),
        "CUDAGraph": lambda *_, **__: FakeGraph(gpu),
        "graph_pool_handle": lambda: (0, next(_numbers)),
        "stream": stream,
        "set_stream": lambda wanted: setattr(gpu, "stream", wanted.name),
        "current_stream": lambda *_: FakeStream(gpu, gpu.stream),
        "default_stream": lambda *_: FakeStream(gpu, DEFAULT),
        "synchronize": lambda *_: [gpu.host_waits("synchronize", each, noted=False) for each in gpu.order.actors()],
        "empty_cache": lambda: None,
        "is_current_stream_capturing": lambda: gpu.tape is not None,
        "get_sync_debug_mode": lambda: gpu.sync_debug,
        "set_sync_debug_mode": lambda mode: setattr(gpu, "sync_debug", mode),
        "get_rng_state": state,
        "set_rng_state": set_state,
        "get_rng_state_all": lambda: [state()],
        "set_rng_state_all": lambda states: set_state(states[0]),
        "manual_seed": lambda seed: _Generator(gpu).manual_seed(seed),
        "manual_seed_all": lambda seed: _Generator(gpu).manual_seed(seed),
        "default_generators": (_Generator(gpu),),
        "memory_allocated": lambda *_: gpu.allocated,
        "max_memory_allocated": lambda *_: gpu.peak,
        "get_device_properties": lambda *_: SimpleNamespace(
            name="stand-in", major=9, minor=0, total_memory=gpu.memory, multi_processor_count=1
        ),
        "get_device_name": lambda *_: "stand-in",
        "get_device_capability": lambda *_: (9, 0),
        "is_bf16_supported": lambda *_, **__: True,
        "is_tf32_supported": lambda: True,
        "reset_peak_memory_stats": gpu.reset_peaks,
        "memory_reserved": lambda *_: gpu.held + sum(gpu.pools.values()),
        "max_memory_reserved": lambda *_: gpu.peak_held,
        "mem_get_info": lambda *_: (gpu.memory - gpu.allocated, gpu.memory),
    }
    for name, value in names.items():
        patch.setattr(torch.cuda, name, value)
    patch.setattr(torch.version, "cuda", "13.0")
    patch.setattr(torch.backends.cudnn, "is_acceptable", lambda tensor: False)  # of a PyTorch that has it
    optimizer: Any = torch.optim.Optimizer
    grouped = optimizer._group_tensors_by_device_and_dtype

    def by_device(tensors: Any, with_indices: bool = False) -> Any:
        """C++ takes them for the CPU's."""
        found = grouped(tensors, with_indices)
        return {(each[0][0][0].device, dtype): each for (_, dtype), each in found.items()}

    patch.setattr(optimizer, "_group_tensors_by_device_and_dtype", staticmethod(by_device))
    clipping: Any = importlib.import_module("torch.nn.utils.clip_grad")
    patch.setattr(clipping, "_group_tensors_by_device_and_dtype", by_device)
    patch.setattr(torch.accelerator, "is_available", lambda: True)  # by which a DataLoader pins
    patch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda"))
    patch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    patch.setattr(torch.accelerator, "current_stream", lambda *_: FakeStream(gpu, gpu.stream))
    _autocast(patch)


def _autocast(patch: pytest.MonkeyPatch) -> None:
    """The CPU's, by whose rules operations are computed, with a GPU's 16 bits where none are named."""
    enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    patch.setattr(torch, "is_autocast_enabled", lambda kind="cuda": enabled("cpu" if kind == "cuda" else kind))
    patch.setattr(torch, "get_autocast_dtype", lambda kind: dtype("cpu" if kind == "cuda" else kind))
    plain = torch.autocast.__init__

    def begun(self: Any, device_type: str, dtype: Any = None, *args: Any, **how: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        plain(self, device_type, dtype, *args, **how)

    patch.setattr(torch.autocast, "__init__", begun)


def _engine(gpu: FakeGpu, patch: pytest.MonkeyPatch) -> None:
    """A leaf's node of autograd remembers the stream that it was made on, and lives as long as any graph that has it.
    PyTorch 2.13 ends a recording whose backward pass comes to one of another stream."""
    plain = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        for node in _nodes(outputs):
            if not hasattr(node, "variable") or not gpu.has(node.variable):
                continue
            made_on = node.metadata.setdefault("stream", gpu.stream)
            if gpu.tape is not None and made_on == DEFAULT:
                gpu.tape.broken = "a stale reference to the default stream"
                raise RuntimeError(
                    f"autograd node '{node.name()}' has a stale reference to the default stream (stream 0) from warmup."
                )
        return plain(outputs, *args, **kwargs)

    patch.setattr(torch.autograd, "_engine_run_backward", run)


def _nodes(outputs: Any) -> list[Any]:
    waiting = [each.grad_fn for each in outputs if isinstance(each, torch.Tensor) and each.grad_fn is not None]
    seen: dict[Any, None] = {}
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen[node] = None
            waiting += [each for each, _ in node.next_functions if each is not None]
    return list(seen)
