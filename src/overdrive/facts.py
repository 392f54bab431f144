"""What a program shows of itself while it runs: the facts that techniques judge by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class LoaderFacts:
    """One data loader that the program iterated over."""

    batch_size: int | None
    workers: int
    map_style: bool
    length: int | None  # samples; None where the data set does not say
    seconds_per_batch: float  # mean time the program waited for a batch


@dataclass(frozen=True)
class Facts:
    """A program on a machine, as its own steps showed it. Times in seconds, sizes in bytes."""

    framework: str = "torch"
    device: str = "cpu"  # where the parameters live: "cpu" or "cuda"
    cores: int = 1  # cores this process may use
    threads: int = 1  # threads the framework uses
    step_seconds: float = 0.0
    # share of the step's time by part: "data", "forward", "backward", "optimizer", "other"; sums to 1
    shares: Mapping[str, float] = field(default_factory=dict)
    samples_per_step: float = 0.0
    loaders: tuple[LoaderFacts, ...] = ()
    optimizers: tuple[str, ...] = ()  # class names
    parameters: int = 0  # count of trained scalars
    parameter_dtypes: tuple[str, ...] = ()
    convolutions: int = 0  # modules with 2-d or 3-d convolution weights among the trained models
    modules: bool = True  # False where parameters belong to no nn.Module
    own_autocast: bool = False
    own_compile: bool = False
    memory_available: int = 0
    bf16_fast: bool = False  # the device multiplies bf16 in hardware
    gpu_name: str = ""

    def share(self, *parts: str) -> float:
        """The share of a step spent in these parts together."""
        return sum(self.shares.get(part, 0.0) for part in parts)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Facts:
        fields = dict(data)
        fields["loaders"] = tuple(LoaderFacts(**loader) for loader in fields.get("loaders", ()))
        for name in ("optimizers", "parameter_dtypes"):
            fields[name] = tuple(fields.get(name, ()))
        return cls(**fields)
