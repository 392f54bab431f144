"""What a program's training step needs, or a call of its model where it trains nothing, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

PARTS = ("parameters", "gradients", "optimizer states", "activations", "workspace")


@dataclass(frozen=True)
class Operator:
    """Alike calls of one operator in a step."""

    name: str
    dtype: str
    elements: int  # of its largest tensor
    flops: int  # of one call: products and convolutions only, a product and a sum being two
    bytes: int  # of one call: what it has to read and write
    calls: int
    seconds: float = 0.0  # of all calls, where they were timed: on a CPU

    @property
    def is_convolution(self) -> bool:
        return "conv" in self.name


@dataclass(frozen=True)
class Needs:
    """Counted from shapes and types in some steps of a trial, and measured in another trial that nothing watched."""

    device: str  # where it was counted: "cpu" or "cuda"
    threads: int
    memory: Mapping[str, int]  # bytes at the peak of a pass, by part (see PARTS); the batch is among the activations
    program: int  # bytes of the process between two steps, without these tensors: libraries, data; measured
    operators: tuple[Operator, ...]  # of one step
    samples: float = 0.0  # of one step
    step_seconds: float = 0.0  # measured: of the quickest steps
    usual_seconds: float = 0.0  # measured: of a step in the mean
    data_seconds: float = 0.0  # of it, waiting for data; measured
    measured_peak: int = 0  # bytes; measured: of the process with freed blocks given back, or of the GPU's tensors
    kept_peak: int = 0  # bytes; measured: of the process as it is, where the C library keeps freed blocks
    notes: tuple[str, ...] = field(default=())
    inference: bool = False  # it trains nothing: a step is a call of its model
    divided: tuple[tuple[int, int], ...] = ()  # of each weight that ranks can divide: a multiple of their number, bytes
    layers: tuple[int, ...] = ()  # bytes of parameters that are in one stage, in the model's order
    units: tuple[int, ...] = ()  # bytes of parameters that are used together, and whole together if they are divided
    largest: int = 0  # bytes of the largest parameter
    step: Mapping[str, int] = field(default_factory=dict)  # as `memory`, within an optimizer's step

    @property
    def parts(self) -> tuple[str, ...]:
        """Those that such a program has: without a backward pass all that lives for a call is one."""
        return ("parameters", "workspace") if self.inference else PARTS

    @property
    def at_peak(self) -> Mapping[str, int]:
        """By part, of whichever takes more: a pass, or an optimizer's step."""
        return max(self.memory, self.step, key=lambda parts: sum(parts.values()))

    @property
    def tensors(self) -> int:
        """Bytes of all tensors together at the peak: what a GPU must hold besides its own context."""
        return sum(self.at_peak.values())

    @property
    def estimated_peak(self) -> int:
        """What `measured_peak` ought to be."""
        return self.tensors + (self.program if self.device == "cpu" else 0)

    @property
    def flops(self) -> int:
        return sum(each.flops * each.calls for each in self.operators)

    @property
    def bytes(self) -> int:
        return sum(each.bytes * each.calls for each in self.operators)

    @property
    def calls(self) -> int:
        return sum(each.calls for each in self.operators)

    @property
    def host_seconds(self) -> float:
        """Seconds of a step in no operator and not waiting for data: Python's. 0 where operators were not timed."""
        inside = sum(each.seconds for each in self.operators)
        return max(0.0, self.step_seconds - self.data_seconds - inside) if inside else 0.0

    def largest_batch(self, memory: float) -> int:
        """Samples of a step that `memory` bytes hold, if activations and workspace grow with them; 0: not one.

        Of an optimizer's step what is left of a pass grows, and not what it needs for a moment.
        """
        most = self._most(memory, self.memory, ("activations", "workspace"))
        if not self.step or most is None:
            return most or 0
        in_step = self._most(memory, self.step, ("activations",))
        return most if in_step is None else min(most, in_step)

    def _most(self, memory: float, held: Mapping[str, int], growing: tuple[str, ...]) -> int | None:
        """Samples with which that is no more; None: any number, as nothing grows and the rest fits."""
        per_sample = sum(held[part] for part in growing) / self.samples if self.samples else 0.0
        left = memory - sum(size for part, size in held.items() if part not in growing)
        if not per_sample:
            return None if left >= 0 else 0
        return max(0, int(left / per_sample))

    @classmethod
    def from_report(cls, report: Mapping[str, Any], **measured: Any) -> Needs:
        """Needs from what the trial wrote, by the counted step that took least, which has no evaluation in it."""
        steps = [tuple(Operator(**each) for each in step) for step in report["steps"]]
        least = min(steps, key=lambda step: (sum(each.flops * each.calls for each in step), _seconds(step)))
        needs = cls(
            device=report["device"],
            threads=report["threads"],
            memory={part: int(report["memory"][part]) for part in PARTS},
            step={part: int(held) for part, held in report.get("step", {}).items()},
            program=int(report["program"]),
            operators=_fastest(least, steps),
            divided=tuple((multiple, held) for multiple, held in report.get("divided", ())),
            layers=tuple(report.get("layers", ())),
            units=tuple(report.get("units", ())),
            largest=int(report.get("largest", 0)),
        )
        return replace(needs, **measured)


def _seconds(step: tuple[Operator, ...]) -> float:
    return sum(each.seconds for each in step)


def _fastest(least: tuple[Operator, ...], steps: list[tuple[Operator, ...]]) -> tuple[Operator, ...]:
    """Each operator with the shortest time it took in any of the steps: what disturbs only ever adds."""
    found: dict[tuple[Any, ...], float] = {}
    for step in steps:
        for each in step:
            key = (each.name, each.dtype, each.elements, each.flops, each.bytes, each.calls)
            found[key] = min(found.get(key, each.seconds), each.seconds)
    return tuple(
        replace(each, seconds=found[(each.name, each.dtype, each.elements, each.flops, each.bytes, each.calls)])
        for each in least
    )
