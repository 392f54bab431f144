"""Finds out what a training step needs of its machine, for `overdrive doctor --for`. Runs inside a trial.

Counted from the shapes and types of some steps that are really made: nothing here is measured but the
memory that the process held before, and on a CPU the time of each operator.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overdrive.forks.forked import in_children
from overdrive.forks.layout import Unfit
from overdrive.seams.answering import AnsweringModel
from overdrive.seams.parameters import parameters_of
from overdrive.seams.step_counter import Iterations

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams

# The first two steps make what the others find: gradients, the optimizer's state, plans of the libraries.
FIRST = 2
COUNTED = 3
_RANKS = 2  # over which it is tried how layers are divided
_PATIENCE = 600.0  # seconds, for that


def make_observer() -> NeedsObserver:
    return NeedsObserver()


class NeedsObserver:
    """An observer; reports what steps 3 to 5 need."""

    def __init__(self) -> None:
        self._report: dict[str, Any] | None = None
        self._iterations = Iterations()
        self._optimizers: list[Any] = []
        self._models: dict[int, Any] = {}
        self._program = 0  # bytes of the process between two steps, without its tensors
        self._mode: Any = None
        self._memory: Any = None
        self._hooks: list[Any] = []
        self._activations = 0  # working bytes alive when a backward pass begins
        self._left = 0  # and when an optimizer's step does
        self._closures = False  # the program's passes are within its steps
        self._steps: list[list[dict[str, Any]]] = []
        self._divided: list[list[int]] = []
        self._tried: set[int] = set()  # ids of models

    def __call__(self, seams: Seams) -> None:
        seams.optimizer_made.subscribe(self.made)
        seams.model_called.subscribe(self.called)
        seams.batch_fetched.subscribe(self.fetched)
        seams.loss_backward.subscribe(self.backward_begins)
        seams.step_begins.subscribe(self.step_begins)
        seams.step_ends.subscribe(self.stepped)

    def report(self) -> dict[str, Any] | None:
        return self._report

    def made(self, optimizer: Any, models: list[Any]) -> None:
        self._optimizers.append(optimizer)
        self._models.update((id(model), model) for model in models)

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._memory is None:
            self._models.setdefault(id(model), model)
            if model.training and self._optimizers and id(model) not in self._tried:
                self._tried.add(id(model))
                with contextlib.suppress(Unfit):
                    self._divided += _divided(model, self._optimizers, call, args, kwargs)
        return call(*args, **kwargs)

    def fetched(self, iterator: Any, batch: Any, seconds: float) -> None:
        if self._mode is not None:
            self._mode.drop_since(time.perf_counter() - seconds)

    def backward_begins(self, loss: Any) -> Any:
        if self._mode is not None:
            self._activations = max(self._activations, self._memory.now["working"])
            self._closures |= self._memory.in_step
            self._memory.in_step = False
        return loss

    def step_begins(self, optimizer: Any) -> None:
        if self._mode is not None and not isinstance(optimizer, AnsweringModel):  # whose step is a call
            self._left = max(self._left, self._memory.now["working"])
            self._memory.in_step = True

    def stepped(self, optimizer: Any) -> None:
        if self._mode is not None:
            self._memory.in_step = False
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
        if not self._iterations.over(optimizer, alone=len(self._optimizers) == 1):
            return
        steps = self._iterations.clock.steps
        if steps == FIRST:
            self._begin()
        elif self._mode is not None:
            self._mark_states()
            self._steps.append(_grouped(self._mode.calls))
            self._mode.calls.clear()
            if steps >= FIRST + COUNTED:
                self._end()

    def _begin(self) -> None:
        import torch

        from overdrive.worker.live_memory import LiveMemory
        from overdrive.worker.operators import Operators
        from overdrive.worker.profiling.recorder import NotHere

        if not all(_is_torchs(each) for each in self._optimizers):
            raise NotHere("only those of PyTorch are, and this program is Keras's (`overdrive profile` tells of it)")
        held = resident()  # without PyTorch's compiler, which most programs never load, and what follows does
        torch.compiler.set_stance("force_eager")  # compiled code hides its operators
        parameters = list(self._parameters())
        devices = [parameter.device.type for parameter in parameters]
        self._memory = LiveMemory(max(set(devices), key=devices.count) if devices else "cpu")
        for model in self._models.values():
            for tensor in (*model.parameters(), *model.buffers()):
                self._memory.know(tensor, "parameters")
        for parameter in parameters:
            self._memory.know(parameter, "parameters")
            self._note_gradient(parameter)
            if parameter.requires_grad and parameter.is_leaf:
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._note_gradient))
        self._mark_states()
        here = sum(self._memory.now.values()) if self._memory.device == "cpu" else 0
        self._program = max(0, held - here)
        self._mode = Operators(self._memory)
        self._mode.__enter__()

    def _end(self) -> None:
        import torch

        self._mode.__exit__(None, None, None)
        torch.compiler.set_stance("default")
        for hook in self._hooks:
            hook.remove()
        memory, self._mode = self._memory, None
        passes, step = memory.peaks[False], _parts(memory.peaks[True], self._left)
        if self._closures:
            passes, step = max(memory.peaks.values(), key=lambda peak: sum(peak.values())), {}
        self._report = {
            "device": memory.device,
            "threads": torch.get_num_threads(),
            "memory": _parts(passes, self._activations),
            "step": step,
            "program": self._program,
            "divided": self._divided,
            "layers": [held for model in self._models.values() for held in _layers(model)],
            "units": [held for model in self._models.values() for held in _units(model)],
            "largest": max((each.nbytes for each in self._parameters()), default=0),
            "steps": self._steps,
        }

    def _note_gradient(self, parameter: Any) -> None:
        if parameter.grad is not None:
            self._memory.know(parameter.grad, "gradients")

    def _mark_states(self) -> None:
        from torch.utils._pytree import tree_leaves

        for optimizer in self._optimizers:
            for state in optimizer.state.values():
                for each in tree_leaves(state):
                    if hasattr(each, "untyped_storage"):
                        self._memory.know(each, "optimizer")

    def _parameters(self) -> Iterator[Any]:
        for optimizer in self._optimizers:
            yield from parameters_of(optimizer)


def _parts(peak: Mapping[str, int], kept: int) -> dict[str, int]:
    """`kept`: working bytes that were there before, the rest being alive for a moment."""
    working = peak["working"]
    return {
        "parameters": peak["parameters"],
        "gradients": peak["gradients"],
        "optimizer states": peak["optimizer"],
        "activations": min(working, kept),
        "workspace": working - min(working, kept),
    }


def _divided(model: Any, optimizers: list[Any], call: Callable[..., Any], args: Any, kwargs: Any) -> list[list[int]]:
    """Weights that two ranks can divide: what their count must divide (0: any will do), and bytes.

    Found out in a process of its own: what is loaded for it is not the program's.
    """
    from overdrive.model_state.trial_call import may_fork_with
    from overdrive.techniques.parallel.tensor_parallel.finding import found

    if not may_fork_with(model):
        return []
    (told,) = in_children([lambda tick: found(model, optimizers, call, args, kwargs, _RANKS)], patience=_PATIENCE)
    weights = dict(model.named_parameters())
    cuts = [(weights[name].nbytes, segments) for name, (_, segments) in told["cuts"].items()]
    return [[0 if any(each % _RANKS for each in segments) else gcd(*segments), size] for size, segments in cuts]


def _layers(model: Any) -> list[int]:
    """Bytes of the parameters that would be in one stage, were the model to be cut into stages."""
    from overdrive.techniques.parallel.pipeline_parallel.uses import layers_of

    parameters, sizes = dict(model.named_parameters()), Counter[Any]()
    for name, layer in layers_of(model).items():
        sizes[layer] += parameters[name].nbytes
    return [*sizes.values()]


def _units(model: Any) -> list[int]:
    """Bytes of the parameters that would be whole at the same time, were each rank to keep its share of all."""
    from overdrive.model_state.sharded.units import units

    return [sum(each.nbytes for each in unit) for unit in units(model)]


def _is_torchs(optimizer: Any) -> bool:
    """Whether it is an optimizer of PyTorch's, or stands in for one."""
    return hasattr(optimizer, "param_groups") and getattr(optimizer, "framework", "torch") == "torch"


def _grouped(calls: list[Any]) -> list[dict[str, Any]]:
    """Alike calls together: a step makes thousands."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for call in calls:
        key = (call.name, call.dtype, call.elements, call.flops, call.bytes)
        group = groups.setdefault(
            key,
            {
                "name": call.name,
                "dtype": call.dtype,
                "elements": call.elements,
                "flops": call.flops,
                "bytes": call.bytes,
                "calls": 0,
                "seconds": 0.0,
            },
        )
        group["calls"] += 1
        group["seconds"] += call.seconds
    return list(groups.values())


def resident() -> int:
    """Bytes of memory that this process needs now; 0 where the system does not tell.

    The C library keeps blocks that were freed, as many again as are in use (seen of a ResNet-18): it is asked to
    give them back first, which glibc does, and others may not.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
