"""What a trial learns of its program besides its speed: which batches it saw, and where a step's time goes."""

from __future__ import annotations

import sys
import time
import zlib
from typing import Any

from overdrive.facts import Facts, LoaderFacts
from overdrive.machine.cpu import cpu, granted_cores
from overdrive.machine.memory import available_memory
from overdrive.recording import Recorder, leading_size
from overdrive.seams.hub import Seams

_MOST_BYTES_HASHED = 1 << 20  # of each tensor: 1 MiB takes about 1 ms


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
        self._optimizers: list[str] = []
        self._own_autocast = False
        self._call_samples = 0.0
        self._seams: Seams | None = None

    def __call__(self, seams: Seams) -> None:
        self._seams = seams
        seams.batch_fetched.subscribe(self._fetched)
        seams.model_called.subscribe(self._called)
        seams.optimizer_made.subscribe(self._made)
        seams.loss_backward.subscribe(self._backward_begins)
        seams.backward_done.subscribe(lambda _: self._add("backward"))
        seams.step_begins.subscribe(lambda _: self._begin())
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
        self._optimizers.append(type(optimizer).__name__)
        self._models.update((id(model), model) for model in models)

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
            id(iterator._dataset), {"iterator": iterator, "batches": 0, "seconds": 0.0, "size": 0}
        )
        known["batches"] += 1
        known["seconds"] += seconds
        known["size"] = max(known["size"], leading_size(batch))
        if self._profiling:
            self._seconds["data"] += seconds

    def _called(self, module: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        hashing = self._steps_seen < self._hashing
        if hashing:
            if not self._loaders:  # a program with no loader: what it gives its model is its batch
                self.batch_hashes.append(f"{checksum([*args, *kwargs.values()]):08x}")
            self._own_autocast |= torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
            self._call_samples = max(self._call_samples, leading_size([*args, *kwargs.values()]))
        if not self._profiling or not torch.is_grad_enabled():
            return call(*args, **kwargs)
        self._begin()
        result = call(*args, **kwargs)
        self._add("forward")
        return result

    def facts(self, recorder: Recorder) -> Facts:
        import torch

        step = self._profile_seconds / max(1, self._profile_steps)
        shares = {
            part: min(1.0, seconds / self._profile_seconds) if self._profile_seconds else 0.0
            for part, seconds in self._seconds.items()
        }
        shares["other"] = max(0.0, 1.0 - sum(shares.values()))
        parameters = [
            parameter
            for optimizer in recorder.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        modules = [module for model in self._models.values() for module in model.modules()]
        device = parameters[0].device.type if parameters else "cpu"
        return Facts(
            device=device,
            cores=granted_cores(),
            threads=torch.get_num_threads(),
            step_seconds=step,
            shares=shares,
            samples_per_step=recorder.samples / max(1, recorder.clock.steps) or self._call_samples,
            loaders=tuple(map(_loader_facts, self._loaders.values())),
            optimizers=tuple(dict.fromkeys(self._optimizers)),
            parameters=sum(parameter.numel() for parameter in parameters),
            parameter_dtypes=tuple(sorted({str(parameter.dtype) for parameter in parameters})),
            convolutions=sum(
                getattr(module, "weight", None) is not None and module.weight.dim() in (4, 5)
                for module in modules
                if "Conv" in type(module).__name__
            ),
            modules=bool(self._models),
            own_autocast=self._own_autocast,
            own_compile=any(type(module).__name__ == "OptimizedModule" for module in modules),
            memory_available=available_memory(),
            bf16_fast=_bf16_fast(device),
            gpu_name=torch.cuda.get_device_name() if device == "cuda" else "",
        )


def checksum(thing: Any, crc: int = 0) -> int:
    """crc32 over the tensors and numbers of a batch, in logical order whatever their memory format."""
    if hasattr(thing, "detach"):
        import torch

        flat = thing.detach().contiguous().reshape(-1)
        head = flat[: _MOST_BYTES_HASHED // max(1, flat.element_size())].cpu()
        crc = zlib.crc32(f"{thing.dtype}{tuple(thing.shape)}".encode(), crc)
        return zlib.crc32(head.view(torch.uint8).numpy().tobytes(), crc)
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, (list, tuple)):
        for each in thing:
            crc = checksum(each, crc)
        return crc
    if isinstance(thing, (int, float, str, bool)):
        return zlib.crc32(repr(thing).encode(), crc)
    return crc


def _loader_facts(known: dict[str, Any]) -> LoaderFacts:
    from torch.utils.data import IterableDataset

    iterator = known["iterator"]
    dataset = iterator._dataset
    map_style = not isinstance(dataset, IterableDataset)
    return LoaderFacts(
        batch_size=known["size"] or None,
        workers=getattr(iterator, "_num_workers", 0),
        map_style=map_style,
        length=len(dataset) if map_style and hasattr(dataset, "__len__") else None,
        seconds_per_batch=known["seconds"] / max(1, known["batches"]),
    )


def _bf16_fast(device: str) -> bool:
    import torch

    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(cpu().get("features", ())))


def _synchronize() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
