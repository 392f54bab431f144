"""Facts of a program, seen while it runs: what techniques judge by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

# What making an item consists of, in this order. "copy" is that to the GPU, 0 without one.
ITEM_PARTS = ("read", "decode", "transform", "collate", "copy")
# The types that models compute in, and what people call them.
FORMATS = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_LEAST_DATA = 0.02  # share of a step that data must take


@dataclass(frozen=True)
class LoaderFacts:
    """One data loader that the program iterated over."""

    batch_size: int | None
    workers: int
    map_style: bool
    length: int | None  # samples; None where the data set does not say
    seconds_per_batch: float  # mean time the program waited for a batch
    prefetch: int = 0  # batches that each worker makes ahead
    batch_bytes: int = 0  # of the largest batch seen, in the main memory; 0 where not known
    own_fetch: bool = True  # batches come straight from the data set, not from what a technique keeps
    # One item by one process: the parts (see ITEM_PARTS; empty where they could not be told apart), and
    # "wait", which is what the program itself waited for an item and no part of their sum.
    seconds_per_item: Mapping[str, float] = field(default_factory=dict)
    not_split: str = ""  # why the parts could not be told apart
    draws: bool | None = None  # whether fetching an item draws random numbers; None where that was not seen

    @property
    def seconds_to_make(self) -> float | None:
        """What one process takes to make one batch; None where it is not known."""
        made = [self.seconds_per_item[part] for part in ITEM_PARTS[:-1] if part in self.seconds_per_item]
        return sum(made) * self.batch_size if made and self.batch_size else None


@dataclass(frozen=True)
class Facts:
    """A program on a machine, as its own steps showed it. Times in seconds, sizes in bytes."""

    framework: str = "torch"
    backend: str = ""  # of Keras: "tensorflow", "torch" or "jax"
    inference: bool = False  # the program trains nothing: its model's calls are its steps
    device: str = "cpu"  # where the parameters live: "cpu" or "cuda"
    cores: int = 1  # cores this process may use
    threads: int = 1  # threads the framework uses
    step_seconds: float = 0.0
    # share of the step's time by part: "data", "forward", "backward", "optimizer", "other"; sums to 1. Where a step
    # runs in a graph and is not taken apart, it is all in "step".
    shares: Mapping[str, float] = field(default_factory=dict)
    samples_per_step: float = 0.0
    noise_scale: float = 0.0  # of the gradient, in samples (see worker.torch.noise_scale); 0: not known
    loaders: tuple[LoaderFacts, ...] = ()
    parameters: int = 0  # count of trained scalars
    parameter_dtypes: tuple[str, ...] = ()
    convolutions: int = 0  # modules with 2-d or 3-d convolution weights among the trained models
    modules: bool = True  # False where parameters belong to no nn.Module
    own_autocast: bool = False
    own_compile: bool = False
    fits: bool = False  # Keras: the program calls fit()
    bf16_fast: bool = False  # the device multiplies bf16 in hardware
    compute_capability: float = 0.0  # of the GPU, 9.0 for Hopper; 0 without one
    shared_memory: int | None = None  # free bytes in /dev/shm; None where there is none
    sets_environment: bool = False  # variables, before it imports the framework
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by technique: what it alone wants to know

    def share(self, *parts: str) -> float:
        """The share of a step spent in these parts together."""
        whole = self.shares.get("step", 0.0) if parts and parts != ("other",) else 0.0  # not taken apart: any of it
        return whole + sum(self.shares.get(part, 0.0) for part in parts)

    def not_on_tensorflow(self) -> str | None:
        """Why what is TensorFlow's own cannot help; None on TensorFlow, and where no backend is known."""
        return None if self.backend in ("", "tensorflow") else f"Keras runs on {self.backend} here"

    def not_in_32_bits(self) -> str | None:
        """Which of the parameters' formats are others; None where there is none."""
        unlike = [name for name in self.parameter_dtypes if name.rpartition(".")[2] != "float32"]
        return f"the parameters are {', '.join(unlike)}, not 32-bit" if unlike else None

    def without_module(self) -> str | None:
        """Why what acts on modules of PyTorch's cannot help; None where there may be some."""
        return None if self.modules else "the trained parameters belong to no nn.Module"

    def without_data(self) -> Facts:
        """The same program if it never waited for data: the other parts of a step are the larger shares then."""
        left = 1 - self.shares.get("data", 0.0)
        if left <= 0:
            return self
        shares = {part: 0.0 if part == "data" else share / left for part, share in self.shares.items()}
        return replace(self, step_seconds=self.step_seconds * left, shares=shares)

    def no_samples_to_gain_by(self) -> str | None:
        """Why nothing can be gained by making map-style samples in less time; None where something may be."""
        if not any(loader.map_style for loader in self.loaders):
            return "the program has no map-style DataLoader"
        if self.taken_by_data() < _LEAST_DATA:
            return f"waiting for data is {self.share('data'):.0%} of a step"
        return None

    def taken_by_data(self) -> float:
        """The share of a step that making samples takes: the program waits for them, or its workers make them on the
        cores that it computes on.

        The loop of a public DCGAN waited for 3 % of a step of 88 ms, and its two workers made a batch in 15 ms, on the
        same two cores.
        """
        waits = self.share("data")
        if self.device != "cpu" or not self.step_seconds:
            return waits
        made = [_seconds_of_step(each, self.samples_per_step) for each in self.loaders if each.map_style]
        return max(waits, max(made, default=0.0) / (self.step_seconds * self.cores))

    def items_draw(self) -> bool | None:
        """Whether the items of the map-style loaders draw random numbers; None where some do, or one was not seen."""
        seen = {loader.draws for loader in self.loaders if loader.map_style}
        return seen.pop() if len(seen) == 1 else None

    def with_costs_of(self, other: Facts) -> Facts:
        """These facts, with the costs of an item from others of the same program, for loaders that lack them."""
        if len(self.loaders) != len(other.loaders):
            return self
        return replace(self, loaders=tuple(map(_with_costs, self.loaders, other.loaders)))


def _seconds_of_step(loader: LoaderFacts, samples: float) -> float:
    """That the loader's workers take for so many samples, of one core; 0 where it has none, or that is not known."""
    seconds = loader.seconds_to_make if loader.workers else None
    return seconds * samples / loader.batch_size if seconds and loader.batch_size else 0.0


def _with_costs(mine: LoaderFacts, others: LoaderFacts) -> LoaderFacts:
    if mine.draws is None:  # whoever serves the items now: the data set is the same
        mine = replace(mine, draws=others.draws)
    known = any(part in mine.seconds_per_item for part in ITEM_PARTS)
    if known or not mine.own_fetch or not others.own_fetch:
        return mine
    return replace(mine, seconds_per_item={**others.seconds_per_item, **mine.seconds_per_item})
