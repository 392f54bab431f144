"""torch's compiler, watched: what it compiles and what it fails at, and a sign of life while it does."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo
from torch import fx
from torch._C import _is_tracing

from overdrive.core.progress import progress
from overdrive.seams.points import reason_of

_PULSE_SECONDS = 1.0
_LONGEST_CLAIM = 900.0  # seconds that one compilation may claim to be making progress


class Compiler(torch._TorchCompileInductorWrapper):
    """torch's own compiler; a graph that it fails at runs uncompiled, and the failure is kept to be reported.

    A failing backward graph is compiled, and would fail, inside of the program's `loss.backward()`, where
    nothing else catches it.
    """

    def __init__(self, mode: str, dynamic: bool | None) -> None:
        super().__init__(mode, None, dynamic)  # type: ignore[no-untyped-call]
        self.graphs = 0
        self.seconds = 0.0
        self.failure = ""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def replays_graphs(self) -> bool:
        """Whether what it makes is run as CUDA graphs, whose results are overwritten by their next run."""
        return bool(self.config.get("triton.cudagraphs"))

    def __call__(self, model_: Any, inputs_: Any, *, config_patches: Any = None) -> Any:
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        def inner(graph: Any, inputs: Any, **kwargs: Any) -> Any:
            spare = fx.GraphModule(graph, fx.Graph(graph.graph._tracer_cls))
            spare.graph.output(spare.graph.graph_copy(graph.graph, {}))
            try:
                with self._at_work():
                    return compile_fx_inner(graph, inputs, **kwargs)
            except Exception as error:
                self._note(error)
                return _uncompiled(spare)

        with self._at_work():
            try:
                compiled = compile_fx(
                    model_, inputs_, inner_compile=inner, config_patches={**self.config, **(config_patches or {})}
                )
            except Exception as error:
                self._note(error)
                raise
        self.graphs += 1
        return compiled

    def _note(self, error: BaseException) -> None:
        self.failure = self.failure or reason_of(error)[:300]

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        began = time.monotonic()
        with sign_of_life():
            yield
        self.seconds += time.monotonic() - began


def _uncompiled(graph: fx.GraphModule) -> Callable[..., Any]:
    graph.recompile()

    def run(arguments: list[Any]) -> Any:
        values = list(arguments)
        arguments.clear()  # the caller gives up what it hands over, so that memory can go early
        return graph(*values)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@contextmanager
def sign_of_life() -> Iterator[None]:
    """Tells the watchdog of a trial of each new kernel and file. A compiler that stands still is a hang."""
    over = threading.Event()

    def watch() -> None:
        seen, began = _work_done(), time.monotonic()
        while not over.wait(_PULSE_SECONDS) and time.monotonic() - began < _LONGEST_CLAIM:
            now = _work_done()
            if now != seen:
                seen = now
                progress(0, 0)

    progress(0, 0)
    watcher = threading.Thread(target=watch, name="overdrive-compiling", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _work_done() -> tuple[int, int, int]:
    """What grows while a compiler gets on: kernels generated, graphs traced, and files in its cache."""
    from torch._inductor import metrics
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    files = sum(len(names) for _, _, names in os.walk(cache_dir()))
    return metrics.generated_kernel_count, sum(torch._dynamo.utils.counters["stats"].values()), files


def graph_breaks() -> str:
    """The most frequent reason for which the compiler left something out, or nothing."""
    breaks = torch._dynamo.utils.counters["graph_break"]
    return str(breaks.most_common(1)[0][0]).strip().split("\n", 1)[0][:200] if breaks else ""


class Storm(logging.Filter):
    """Hears torch's compiler say that it gave up on code that it had compiled again and again, and other failures.

    There is no counter for it. What it says stays off the program's screen: it becomes the reason why
    compiling is left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reason = ""
        self.failure = ""
        self._log = logging.getLogger("torch._dynamo.convert_frame")
        self._log.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        if "hit config." in str(record.msg) and isinstance(record.args, tuple) and len(record.args) >= 4:
            _, limit, code, last = record.args[:4]
            self.reason = (
                f"the same code was compiled anew more than {limit} times, at last because of "
                f"{str(last).split(': ', 1)[-1][:160]} in {str(code).split(' (')[0]}"
            )
        elif record.exc_info and record.exc_info[1] is not None:
            self.failure = self.failure or reason_of(record.exc_info[1])[:300]
        return False

    def close(self) -> None:
        self._log.removeFilter(self)


def suppress_errors(suppress: bool) -> bool:
    """Whether what cannot be compiled runs uncompiled instead of failing. Returns what was set before."""
    before = bool(torch._dynamo.config.suppress_errors)
    torch._dynamo.config.suppress_errors = suppress
    return before


def guard_hooks(guarded: bool) -> bool:
    """Whether what was compiled is compiled anew where a hook was put on a module since; PyTorch by itself goes on
    without that hook. Returns what was set before."""
    before = not torch._dynamo.config.skip_nnmodule_hook_guards
    torch._dynamo.config.skip_nnmodule_hook_guards = not guarded
    return before


def compiled_call(module: torch.nn.Module) -> Any:
    """What `Module.compile` has put in place of the module's call, but where the program has it traced: PyTorch refuses
    to trace what is compiled."""
    compiled: Any = module._compiled_call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        return (module._call_impl if _is_tracing() else compiled)(*args, **kwargs)

    return call


def set_compiled_call(module: torch.nn.Module, call: Any) -> None:
    module._compiled_call_impl = call
