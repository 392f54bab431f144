"""One piece of GPU work as a CUDA graph. The only file here that needs a GPU; tests put a stand-in for it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

import torch

from overdrive.core.silence import overheard
from overdrive.seams.torch.internals import give_up_pool

DEVICE = "cuda"  # the type of device whose work is recorded
Work: TypeAlias = Callable[[], Sequence[Any]]  # gives the tensors (or None) that it made


class Failures:
    """How many recordings have failed in this process. Each gives the GPU's random generator a new state, to which
    older recordings do not listen: they would draw what the program draws as well, and must be made anew.

    The graphs stay: the allocator of page-locked memory believes that they are being recorded for as long as the
    process lives, and asks them for whom."""

    count = 0
    graphs: ClassVar[list[Any]] = []


class CapturedGraph(Protocol):
    def record(self, work: Work) -> list[Any]:
        """Record `work`, which is not carried out by that. What it gives is filled by each replay."""

    def replay(self) -> None: ...


class GraphPool(Protocol):
    """Makes captured graphs that share memory, recorded in the order in which they will be replayed. Where one fails
    to be recorded, none is after it: PyTorch believes that the failed one is still being recorded there."""

    def captured(self) -> CapturedGraph: ...

    def watched(self) -> contextlib.AbstractContextManager[list[str]]:
        """Within it, what keeps work from being recorded is noted in the list."""

    def stream(self) -> Any:
        """On which the program is at work."""

    def random_state(self) -> Any: ...

    def set_random_state(self, state: Any) -> None: ...


class CudaCapturedGraph:
    def __init__(self, pool: Any, stream: torch.cuda.Stream) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._pool, self._stream = pool, stream

    def record(self, work: Work) -> list[Any]:
        device = self._stream.device
        generator = torch.cuda.default_generators[device.index]
        spare = generator.clone_state()
        torch.cuda.synchronize(device)
        gc.collect()  # what dies in the midst of a recording may end it
        torch.cuda.empty_cache()
        collecting = gc.isenabled()
        gc.disable()
        try:
            # Not torch.cuda.graph: where ending a failed recording fails as well, that leaves its stream current.
            with torch.cuda.stream(self._stream):
                # Other threads (pinning memory, say) go on with their own work.
                self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    made = list(work())
                except BaseException:
                    with contextlib.suppress(Exception):
                        self._graph.capture_end()
                    raise
                self._graph.capture_end()
        except BaseException:
            Failures.count += 1
            Failures.graphs.append(self._graph)
            with contextlib.suppress(Exception):
                self._graph.reset()
            with contextlib.suppress(Exception):
                give_up_pool(device, self._pool)
            with contextlib.suppress(Exception):
                generator.graphsafe_set_state(spare)  # the old one may still believe that it is recorded
            with contextlib.suppress(Exception):
                torch.cuda.synchronize(device)
            raise
        finally:
            if collecting:
                gc.enable()
        return made

    def replay(self) -> None:
        self._graph.replay()


class CudaGraphPool:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def captured(self) -> CudaCapturedGraph:
        return CudaCapturedGraph(self._pool, self._stream)

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[str]]:
        noted: list[str] = []
        before = torch.cuda.get_sync_debug_mode()
        with overheard("synchronizing CUDA operation") as told:
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield noted
            finally:
                torch.cuda.set_sync_debug_mode(before)
        noted += ["a value is read on the CPU"] * len(told)

    def stream(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def random_state(self) -> Any:
        return torch.cuda.get_rng_state(self._device)

    def set_random_state(self, state: Any) -> None:
        torch.cuda.set_rng_state(state, self._device)
