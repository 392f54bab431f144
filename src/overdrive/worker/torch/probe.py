"""What a trial learns of its program besides its speed: which batches it saw, and where a step's time goes."""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Iterable
from typing import Any

from overdrive.core.facts import Facts, LoaderFacts
from overdrive.core.progress import progress
from overdrive.datacache.cost.fetching import Fetching, Served, bytes_in
from overdrive.datacache.cost.parts import examine
from overdrive.forks.layout import Unfit
from overdrive.machine.cpu import cpu, granted_cores
from overdrive.machine.shared_memory import free_shared_memory
from overdrive.seams.batches import leading_size
from overdrive.seams.hub import Seams
from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch.iterators import dataset_of, items_of_batch, pins, prefetch_of, samples_in, workers_of
from overdrive.seams.torch.modules import first_parameter
from overdrive.worker.recording import Recorder
from overdrive.worker.torch.checksums import checksum
from overdrive.worker.torch.noise_scale import NoiseScale

# Loaders whose items are taken apart, the most waited for first: each takes up to five seconds.
_MOST_EXAMINED = 3
_MOST_OPTIMIZERS = 8


class Probe:
    """An observer. Hashes batches for the first steps, and takes a step apart while a profile is on."""

    def __init__(self, hashed_steps: int) -> None:
        self.batch_hashes: list[str] = []
        self._hashing = hashed_steps
        self._profiling = False
        self._seconds = dict.fromkeys(("data", "forward", "backward", "optimizer"), 0.0)
        self._profile_began = 0.0
        self._profile_seconds = 0.0
        self._profile_steps = 0
        self._mark = 0.0
        self._steps_seen = 0
        self._loaders: dict[int, dict[str, Any]] = {}
        self._models: dict[int, Any] = {}
        self._called_models: dict[int, weakref.ref[Any]] = {}
        self._optimizers_made = 0
        self._own_autocast = False
        self._call_samples = {"model": 0.0, "loss": 0.0}
        self._noise = NoiseScale()
        self._seams: Seams | None = None

    def __call__(self, seams: Seams) -> None:
        self._seams = seams
        seams.batch_fetched.subscribe(self._fetched)
        seams.model_called.subscribe(self._called)
        seams.optimizer_made.subscribe(self._made)
        seams.autocast_entered.subscribe(self._autocast_entered)
        if seams.inference:  # a call is all that there is of a step
            return
        seams.loss_backward.subscribe(self._backward_begins)
        seams.backward_done.subscribe(lambda _: self._add("backward"))
        seams.step_begins.subscribe(self._step_begins)
        seams.step_ends.subscribe(lambda _: self._add("optimizer"))

    def stepped(self, steps: int) -> None:
        """A training step is complete."""
        self._steps_seen = steps
        if self._profiling:
            self._profile_steps += 1
        elif steps == self._hashing and self._seams:
            self._seams.model_called.unsubscribe(self._called)  # nothing more to see: no cost while timed

    def start_profile(self) -> None:
        self._profiling = True
        if self._seams:
            self._seams.model_called.unsubscribe(self._called)
            self._seams.model_called.subscribe(self._called)
        _synchronize()
        self._profile_began = time.perf_counter()

    def end_profile(self) -> None:
        if self._profiling:
            _synchronize()
            self._profile_seconds += time.perf_counter() - self._profile_began
            self._profiling = False
            if self._seams:
                self._seams.model_called.unsubscribe(self._called)

    def _made(self, optimizer: Any, models: list[Any]) -> None:
        self._optimizers_made += 1
        if self._optimizers_made <= _MOST_OPTIMIZERS:  # to find an optimizer's models takes about 0.1 s
            self._models.update((id(model), model) for model in models)

    def _step_begins(self, optimizer: Any) -> None:
        if self._profiling:
            _synchronize()
            began = time.perf_counter()
            self._noise.add(optimizer)
            _synchronize()
            self._profile_began += time.perf_counter() - began  # looking at gradients is no part of a step
        self._begin()

    def _autocast_entered(self, autocast: Any) -> None:
        self._own_autocast = True

    def _begin(self) -> None:
        if self._profiling:
            _synchronize()
            self._mark = time.perf_counter()

    def _add(self, part: str) -> None:
        if self._profiling:
            _synchronize()
            self._seconds[part] += time.perf_counter() - self._mark

    def _backward_begins(self, loss: Any) -> Any:
        self._begin()
        return loss

    def _fetched(self, iterator: Any, batch: Any, seconds: float) -> None:
        if self._steps_seen < self._hashing:
            self.batch_hashes.append(f"{checksum(batch):08x}")
        known = self._loaders.setdefault(
            id(dataset_of(iterator)),
            {"iterator": iterator, "batches": 0, "seconds": 0.0, "size": 0, "bytes": 0, "pinned": False},
        )
        known["batches"] += 1
        known["seconds"] += seconds
        known["size"] = max(known["size"], items_of_batch(iterator, samples_in(iterator, batch)))
        if self._profiling or self._steps_seen < self._hashing:
            known["bytes"] = max(known["bytes"], bytes_in(batch))
            known["pinned"] = pins(iterator)
        if self._profiling:
            self._seconds["data"] += seconds

    def _called(self, module: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        hashing = self._steps_seen < self._hashing
        if hashing:
            if not self._loaders:  # a program with no loader: what it gives its model is its batch
                self.batch_hashes.append(f"{checksum([*args, *kwargs.values()]):08x}")
            self._own_autocast |= torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
            # A loss function's rows are no samples: a sequence model hands it one for each element.
            kind = "model" if first_parameter(module) is not None else "loss"
            if kind == "model":  # what wraps one that is compiled, too
                self._called_models[id(module)] = weakref.ref(module)
            self._call_samples[kind] = max(self._call_samples[kind], leading_size([*args, *kwargs.values()]))
        if not self._profiling or not (torch.is_grad_enabled() or (self._seams and self._seams.inference)):
            return call(*args, **kwargs)
        self._begin()
        result = call(*args, **kwargs)
        self._add("forward")
        return result

    def _own_compile(self) -> bool:
        """Whether any part of the models that were trained, or called, is compiled by now."""
        from torch.nn import Module

        from overdrive.seams.torch.tracing import compiled

        called = (each() for each in self._called_models.values())
        models = [*self._models.values(), *(each for each in called if each is not None)]
        return any(compiled(module) for model in models for module in Module.modules(model))

    def facts(self, recorder: Recorder, costs: bool = False) -> Facts:
        """`costs`: also find out what the loaders' items cost, which takes seconds."""
        import torch
        from torch.nn import Module

        step = self._profile_seconds / max(1, self._profile_steps)
        shares = {
            part: min(1.0, seconds / self._profile_seconds) if self._profile_seconds else 0.0
            for part, seconds in self._seconds.items()
        }
        shares["other"] = max(0.0, 1.0 - sum(shares.values()))
        parameters = [parameter for optimizer in recorder.optimizers for parameter in parameters_of(optimizer)]
        modules: list[Any] = [each for model in self._models.values() for each in Module.modules(model)]
        device = parameters[0].device.type if parameters else "cpu"
        loaders = _by_kind(self._loaders.values())
        waited = sorted(loaders, key=lambda known: known["seconds"], reverse=True)
        examined = [id(known) for known in waited[: _MOST_EXAMINED if costs else 0]]
        samples = recorder.samples / max(1, recorder.clock.steps) or self._call_samples["model"]
        samples = samples or self._call_samples["loss"]
        return Facts(
            device=device,
            cores=granted_cores(),
            threads=torch.get_num_threads(),
            step_seconds=step,
            shares=shares,
            samples_per_step=samples,
            noise_scale=self._noise.samples(samples),
            loaders=tuple(_loader_facts(known, id(known) in examined, device) for known in loaders),
            parameters=sum(parameter.numel() for parameter in parameters),
            parameter_dtypes=tuple(sorted({str(parameter.dtype) for parameter in parameters})),
            convolutions=sum(
                isinstance(getattr(module, "weight", None), torch.Tensor) and module.weight.dim() in (4, 5)
                for module in modules
                if "Conv" in type(module).__name__
            ),
            modules=bool(self._models),
            own_autocast=self._own_autocast,
            own_compile=self._own_compile(),
            bf16_fast=_bf16_fast(device),
            inference=bool(self._seams and self._seams.inference),
            compute_capability=_compute_capability(device),
            shared_memory=free_shared_memory(),
        )


def _by_kind(loaders: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of one kind together: a program may make its data set and loader anew for each epoch."""
    kinds: dict[Any, dict[str, Any]] = {}
    for known in loaders:
        dataset = dataset_of(known["iterator"])
        kind = (type(dataset), _length(dataset), known["size"], workers_of(known["iterator"]))
        if kind not in kinds:
            kinds[kind] = dict(known)
            continue
        one = kinds[kind]
        one.update({part: one[part] + known[part] for part in ("batches", "seconds")})
        one.update({part: max(one[part], known[part]) for part in ("bytes", "pinned")})
    return list(kinds.values())


def _length(dataset: Any) -> int | None:
    from torch.utils.data import IterableDataset

    return len(dataset) if hasattr(dataset, "__len__") and not isinstance(dataset, IterableDataset) else None


def _loader_facts(known: dict[str, Any], examined: bool, device: str) -> LoaderFacts:
    from torch.utils.data import IterableDataset

    iterator = known["iterator"]
    dataset = dataset_of(iterator)
    map_style = not isinstance(dataset, IterableDataset)
    waited = known["seconds"] / max(1, known["batches"])
    costs, not_split, own_fetch, draws = {"wait": waited / max(1, known["size"])}, "", True, None
    try:
        fetching = Fetching.by_iterator(iterator)
        if examined:
            item = examine(fetching, lambda _: progress(0, known["size"]))
            costs, draws = costs | item.seconds, item.draws
            costs["copy"] = _seconds_to_copy(known["bytes"], known["pinned"], device) / max(1, known["size"])
    except Served as reason:
        own_fetch, not_split = False, str(reason)
    except Unfit as reason:
        not_split = str(reason)
    return LoaderFacts(
        batch_size=known["size"] or None,
        workers=workers_of(iterator),
        map_style=map_style,
        length=_length(dataset),
        seconds_per_batch=waited,
        prefetch=prefetch_of(iterator),
        batch_bytes=known["bytes"],
        own_fetch=own_fetch,
        seconds_per_item=costs,
        not_split=not_split,
        draws=draws,
    )


def _seconds_to_copy(size: int, pinned: bool, device: str) -> float:
    """To the GPU, so many bytes: not the batch itself, which is gone, but memory of the same kind."""
    if device != "cuda" or not size:
        return 0.0
    import torch

    with contextlib.suppress(RuntimeError):  # out of memory
        there = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        seconds = []
        for _ in range(4):  # the first touches the memory
            torch.cuda.synchronize()
            began = time.perf_counter()
            there.to(device)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        return min(seconds)
    return 0.0


def _bf16_fast(device: str) -> bool:
    import torch

    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(cpu().get("features", ())))


def _compute_capability(device: str) -> float:
    import torch

    if device != "cuda":
        return 0.0
    major, minor = torch.cuda.get_device_capability()
    return major + minor / 10


def _synchronize() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
