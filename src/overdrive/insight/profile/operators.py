"""Operators and modules of a step: time, operations, bytes, and how far from the roof of this machine they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from overdrive.core.bounds import positive, text
from overdrive.core.facts import FORMATS

_ENGINE = "autograd engine"  # as worker.profiling.torch.spans has it, which imports torch
_LIBRARIES = (
    ("mkldnn", "oneDNN"),
    ("cudnn", "cuDNN"),
    ("cutlass", "CUTLASS"),
    ("flash", "FlashAttention"),
    ("triton", "Triton"),
    ("gemm", "cuBLAS"),
)
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot")


@dataclass(frozen=True)
class Roof:
    """What the machine can do at best, measured; for the device and threads that the program uses."""

    flops: float = 0.0  # operations a second, in the number format of the program
    bytes: float = 0.0  # a second, from memory
    cache_bytes: float = 0.0  # a second, from the cores' own caches; 0.0 where not known
    format: str = text(20)  # "fp32"
    device: str = text(40)
    busy_share: float = 0.0  # of its cores, used by others just before it was measured: it is too low by about as much
    # Of a GPU, in tf32, for programs in fp32: PyTorch's convolutions are computed in it unless the program forbids it,
    # products of matrices where it asks for that. 0.0 where there is none.
    tf32_flops: float = 0.0

    @property
    def headroom(self) -> float:
        """How many times as many operations a second an operator of the program may do as `flops` says."""
        return max(1.0, self.tf32_flops / self.flops) if self.flops > 0 else 1.0

    def arithmetic(self, operator: str, flops: float) -> float:
        """The least time in seconds that these operations would take."""
        return flops / self.flops / (self.headroom if "convolution" in operator else 1.0)


@dataclass(frozen=True)
class ProfileRow:
    """Sums of a step, and where they stand under the roof: see `positioned`. Of its longest part: `operator`, `shapes`,
    `kernel` and `library`."""

    operator: str = text(80)
    calls: float = 0.0
    seconds: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    shapes: str = text(200)
    kernel: str = text(200)
    library: str = text(40)
    intensity: float | None = positive()
    flops_per_second: float | None = positive()
    of_roof: float | None = positive()
    bound: str = text(20)


@dataclass(frozen=True)
class OperatorRow(ProfileRow):
    phase: str = text(40)


@dataclass(frozen=True)
class ModuleRow(ProfileRow):
    """`forward` and `backward`: seconds; `evaluation`: of calls without gradients."""

    module: str = text(120)
    forward: float = 0.0
    backward: float = 0.0
    evaluation: float = 0.0


def number_format(kinds: Mapping[str, float]) -> str:
    """The one in which most operations are made, as limits name it."""
    kind = max(kinds, key=lambda each: kinds[each], default="float32")
    return FORMATS.get(kind, "fp32")


def cells(details: Mapping[str, Any], device: str) -> list[dict[str, Any]]:
    """What was recorded of every operator in every module and phase, with what was counted of it."""
    counted = {
        (each["phase"], each["module"], each["operator"]): each for each in details.get("counts", {}).get("cells", ())
    }
    unknown = set(details.get("counts", {}).get("unknown", ()))
    blas = details.get("operators", {}).get("blas", "")
    found = []
    recorded = details.get("operators", {}).get("cells", ())
    elsewhere = _elsewhere(counted, {(cell["phase"], cell["module"], cell["operator"]) for cell in recorded})
    for cell in recorded:
        count = counted.get((cell["phase"], cell["module"], cell["operator"]))
        count = count or elsewhere.get((cell["phase"], cell["operator"]), {})
        calls = count.get("calls", 0)
        # Counted in another step: an evaluation in only one of them must not change what a call comes to.
        each = cell["calls"] / calls if calls else 0.0
        found.append(
            {
                **{name: cell[name] for name in ("phase", "module", "operator", "calls", "shapes", "kernel")},
                "seconds": cell["device_seconds"] if device == "cuda" else cell["seconds"],
                "flops": count.get("flops", 0.0) * each,
                "bytes": count.get("bytes", 0.0) * each,
                # The engine's own time is named after the operator whose gradient it makes.
                "library": "" if cell["operator"] == _ENGINE else library_of(cell["kernel"], blas),
                "uncounted": cell["operator"] in unknown,
            }
        )
    return found


def _elsewhere(
    counted: Mapping[tuple[str, str, str], Mapping[str, Any]], recorded: set[tuple[str, str, str]]
) -> dict[tuple[str, str], dict[str, float]]:
    """What was counted in a module in which nothing was recorded, by phase and operator: gradients that autograd adds
    up are recorded within the node that gave the last one, and counted within none."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for key in counted.keys() - recorded:
        phase, _, operator = key
        into = found.setdefault((phase, operator), dict.fromkeys(("calls", "flops", "bytes"), 0.0))
        for amount in into:
            into[amount] += counted[key][amount]
    return found


R = TypeVar("R", bound=ProfileRow)


def by_operator(found: Iterable[Mapping[str, Any]], roof: Roof | None) -> list[OperatorRow]:
    groups = _grouped(found, ("operator", "phase"))
    return _sorted(OperatorRow(**_sums(group, roof), phase=phase) for (_, phase), group in groups.items())


def by_module(found: Iterable[Mapping[str, Any]], roof: Roof | None) -> list[ModuleRow]:
    """Sums by module, without those of its children; forward, backward and evaluation together."""
    groups = _grouped((cell for cell in found if cell["module"]), ("module",))

    def seconds(group: Sequence[Mapping[str, Any]], phase: str) -> float:
        return sum((float(cell["seconds"]) for cell in group if cell["phase"] == phase), 0.0)

    return _sorted(
        ModuleRow(
            **_sums(group, roof),
            module=module,
            forward=seconds(group, "forward"),
            backward=seconds(group, "backward"),
            evaluation=seconds(group, "evaluation"),
        )
        for (module,), group in groups.items()
    )


def _grouped(
    found: Iterable[Mapping[str, Any]], names: tuple[str, ...]
) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for cell in found:
        groups.setdefault(tuple(cell[name] for name in names), []).append(cell)
    return groups


def _sums(group: Sequence[Mapping[str, Any]], roof: Roof | None) -> dict[str, Any]:
    """The fields of a `ProfileRow`."""
    longest = max(group, key=lambda cell: cell["seconds"])
    sums = {amount: sum(cell[amount] for cell in group) for amount in ("calls", "seconds", "flops", "bytes")}
    named = {name: longest[name] for name in ("operator", "shapes", "kernel", "library")}
    if any(cell["uncounted"] for cell in group):
        roof = None  # without its arithmetic nothing can be said of what bounds an operator
    arithmetic = sum(roof.arithmetic(cell["operator"], cell["flops"]) for cell in group) if roof else 0.0
    return sums | named | positioned(sums, roof, arithmetic)


def _sorted(rows: Iterable[R]) -> list[R]:
    return sorted(rows, key=lambda row: -row.seconds)


def positioned(sums: Mapping[str, float], roof: Roof | None, arithmetic: float) -> dict[str, Any]:
    """Operations a byte, a second, and the share of what the machine could do; None where it was not counted.

    `arithmetic`: the least time for it under this roof; that for the bytes is as if all came from memory.

    A share above 1 is no error: bytes that are still in a cache come faster than from memory.
    """
    flops, moved, seconds = sums["flops"], sums["bytes"], sums["seconds"]
    intensity = flops / moved if flops and moved else None
    rate = flops / seconds if flops and seconds else None
    if roof is None or not moved or not seconds:
        return {"intensity": intensity, "flops_per_second": rate, "of_roof": None, "bound": ""}
    least = moved / roof.bytes
    bound = "arithmetic" if arithmetic > least else "memory"
    return {
        "intensity": intensity,
        "flops_per_second": rate,
        "of_roof": max(arithmetic, least) / seconds,
        "bound": bound,
    }


def library_of(kernel: str, blas: str) -> str:
    """The library of an innermost span or GPU kernel, by its name; "" where it does not tell."""
    lower = kernel.lower()
    for sign, library in _LIBRARIES:
        if sign in lower:
            return library
    if not kernel.startswith("aten::"):
        return ""
    plain = kernel.removeprefix("aten::").rstrip("_")
    if plain in _PRODUCTS:
        return blas
    return "" if "convolution" in plain else "ATen"  # on a CPU it may hand on to oneDNN, and does not tell
