"""Operators and modules of a step: time, operations, bytes, and how far from the roof of this machine they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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

    flops: float  # operations a second, in the number format of the program
    bytes: float  # a second, from memory
    cache_bytes: float  # a second, from the cores' own caches; 0.0 where not known
    format: str  # "fp32"
    device: str
    busy_share: float = 0.0  # of all cores, used by others just before it was measured: it is too low by about as much

    @property
    def ridge(self) -> float:
        """Operations a byte above which an operator is bound by arithmetic."""
        return self.flops / self.bytes

    def seconds(self, flops: float, moved: float) -> float:
        """The least time that the machine would take, all bytes coming from memory."""
        return max(flops / self.flops, moved / self.bytes)


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


def by_operator(found: Iterable[Mapping[str, Any]], roof: Roof | None) -> list[dict[str, Any]]:
    return _grouped(found, lambda cell: (cell["operator"], cell["phase"]), ("operator", "phase"), roof)


def by_module(found: Iterable[Mapping[str, Any]], roof: Roof | None) -> list[dict[str, Any]]:
    """Sums by module, without those of its children; forward and backward together."""
    inside = [cell for cell in found if cell["module"]]
    rows = _grouped(inside, lambda cell: (cell["module"],), ("module",), roof)
    for row in rows:
        for phase in ("forward", "backward"):
            row[phase] = sum(c["seconds"] for c in inside if c["module"] == row["module"] and c["phase"] == phase)
    return rows


def _grouped(
    found: Iterable[Mapping[str, Any]],
    key: Callable[[Mapping[str, Any]], tuple[str, ...]],
    names: tuple[str, ...],
    roof: Roof | None,
) -> list[dict[str, Any]]:
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for cell in found:
        groups.setdefault(key(cell), []).append(cell)
    rows = []
    for words, group in groups.items():
        longest = max(group, key=lambda cell: cell["seconds"])
        row: dict[str, Any] = dict(zip(names, words, strict=True))
        row |= {amount: sum(cell[amount] for cell in group) for amount in ("calls", "seconds", "flops", "bytes")}
        row |= {name: longest[name] for name in ("operator", "shapes", "kernel", "library")}
        # Without its arithmetic nothing can be said of what bounds an operator.
        rows.append(row | positioned(row, None if any(cell["uncounted"] for cell in group) else roof))
    return sorted(rows, key=lambda row: -float(row["seconds"]))


def positioned(row: Mapping[str, Any], roof: Roof | None) -> dict[str, Any]:
    """Operations a byte, a second, and the share of what the machine could do; None where it was not counted.

    A share above 1 is no error: bytes that are still in a cache come faster than from memory.
    """
    flops, moved, seconds = row["flops"], row["bytes"], row["seconds"]
    intensity = flops / moved if flops and moved else None
    rate = flops / seconds if flops and seconds else None
    if roof is None or not moved or not seconds:
        return {"intensity": intensity, "flops_per_second": rate, "of_roof": None, "bound": ""}
    bound = "arithmetic" if flops / roof.flops > moved / roof.bytes else "memory"
    return {
        "intensity": intensity,
        "flops_per_second": rate,
        "of_roof": roof.seconds(flops, moved) / seconds,
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
