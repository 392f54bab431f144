"""What a trial learns of a Keras program besides its speed: what it is made of, how it trains, how long a step takes.

A step runs within one call of a graph, so that its time is not taken apart: `Facts.shares` has it as "step".
"""

from __future__ import annotations

import math
import time
from typing import Any

from overdrive.core.facts import Facts, LoaderFacts
from overdrive.machine.cpu import cpu, granted_cores
from overdrive.machine.shared_memory import free_shared_memory
from overdrive.seams.hub import Seams
from overdrive.seams.keras.control import backend, gpus, threads
from overdrive.seams.keras.internals import layers_of, trained_variables
from overdrive.seams.keras.step_log import unwrapped
from overdrive.worker.recording import Recorder


class Probe:
    """An observer."""

    def __init__(self, hashed_steps: int) -> None:
        self.batch_hashes: list[str] = []  # none: in a graph a checksum costs time, and digest logs compare batches
        self._models: dict[int, Any] = {}
        self._fits: dict[int, Any] = {}  # those whose fit() was called
        self._data: list[Any] = []  # of fit(): its epoch iterators
        self._inference = False
        self._profiling = False
        self._began = 0.0
        self._seconds = 0.0
        self._steps_at_start = 0
        self._steps = 0
        self._profile_steps = 0

    def __call__(self, seams: Seams) -> None:
        seams.model_compiled.subscribe(self._compiled)
        seams.fit_called.subscribe(self._fit)
        seams.data_opened.subscribe(self._opened)
        self._inference = seams.inference
        if self._inference:
            seams.answer_called.subscribe(self._answered)

    def _compiled(self, model: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        self._models[id(model)] = model
        return call(*args, **kwargs)

    def _fit(self, model: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        self._fits[id(model)] = model
        return call(*args, **kwargs)

    def _answered(self, subject: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        self._models[id(subject[0])] = subject[0]
        return call(*args, **kwargs)

    def _opened(self, data: Any) -> None:
        if self._fits and len(self._data) < 4:
            self._data.append(data)

    def stepped(self, steps: int) -> None:
        self._steps = steps

    def start_profile(self) -> None:
        self._profiling = True
        self._began, self._steps_at_start = time.perf_counter(), self._steps

    def end_profile(self) -> None:
        if self._profiling:
            self._profiling = False
            self._seconds += time.perf_counter() - self._began
            self._profile_steps += self._steps - self._steps_at_start

    def facts(self, recorder: Recorder, costs: bool = False) -> Facts:
        models = list(self._models.values())
        if self._inference:
            variables = [each for model in models for each in model.trainable_variables]
        else:
            variables = trained_variables(unwrapped(each) for each in recorder.optimizers)
        layers = layers_of(models)
        device = "cuda" if gpus() else "cpu"
        return Facts(
            framework="keras",
            backend=backend(),
            inference=self._inference,
            device=device,
            cores=granted_cores(),
            threads=threads(),
            step_seconds=self._seconds / max(1, self._profile_steps),
            shares={"step": 1.0} if self._profile_steps else {},
            samples_per_step=recorder.samples / max(1, recorder.clock.steps),
            loaders=tuple(map(_loader_facts, self._data[:1])),
            parameters=sum(math.prod(each.shape) for each in variables),
            parameter_dtypes=tuple(sorted({getattr(each.dtype, "name", str(each.dtype)) for each in variables})),
            convolutions=sum("Conv" in type(layer).__name__ for layer in layers),
            modules=bool(models),
            fits=bool(self._fits),
            own_compile=any(model.jit_compile is True for model in models),
            own_autocast=any("mixed" in layer.dtype_policy.name for layer in layers),
            bf16_fast=device == "cpu" and bool({"avx512_bf16", "amx_bf16", "bf16"} & set(cpu().get("features", ()))),
            shared_memory=free_shared_memory(),
        )


def _loader_facts(data: Any) -> LoaderFacts:
    batches, size = data.num_batches, _of_adapter(data, "batch_size")
    partial = _of_adapter(data, "partial_batch_size") or size
    length = (batches - 1) * size + partial if batches and size else None
    return LoaderFacts(batch_size=size, workers=0, map_style=False, length=length, seconds_per_batch=0.0)


def _of_adapter(data: Any, name: str) -> Any:
    """None of batches that the program puts together itself: a `PyDataset` does not tell."""
    try:
        return getattr(data.data_adapter, name)
    except NotImplementedError:
        return None
