"""The catalogue of GPUs that a step's time is predicted for, from `gpus.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tomlkit


@dataclass(frozen=True)
class Gpu:
    """A GPU by its maker's data sheet."""

    name: str
    match: str  # a part of the name by which a driver knows it
    memory: float  # bytes
    bandwidth: float  # B/s
    peak: Mapping[str, float]  # FLOP/s of dense products by number format
    source: str

    def rate(self, dtype: str, convolution: bool, half: bool) -> float:
        """FLOP/s at best of a product of that type, as PyTorch computes it by default, or with `half` under autocast.

        By default products of 32-bit matrices are computed in fp32, and convolutions in tf32.
        """
        if half and dtype in ("float32", "bfloat16", "float16"):
            return self.peak.get("bf16") or self.peak["fp16"]
        if dtype == "float64":
            return self.peak["fp64"]
        if dtype in ("bfloat16", "float16"):
            return self.peak.get("bf16" if dtype == "bfloat16" else "fp16", self.peak["fp32"])
        if dtype.startswith("float8"):
            return self.peak.get("fp8", self.peak["fp32"])
        return self.peak.get("tf32", self.peak["fp32"]) if convolution else self.peak["fp32"]


@cache
def gpus() -> tuple[Gpu, ...]:
    """The GPUs in the order of the file: the larger first."""
    text = (Path(__file__).parent / "gpus.toml").read_text()
    return tuple(
        Gpu(
            name=each["name"],
            match=each["match"],
            memory=each["memory"] * 1e9,
            bandwidth=each["bandwidth"] * 1e9,
            peak={name: float(value) * 1e12 for name, value in each["peak"].items()},
            source=each["source"],
        )
        for each in tomlkit.parse(text).unwrap()["gpu"]
    )


def known(name: str) -> Gpu | None:
    """The one that a driver calls so; None where it is not in the catalogue."""
    return next((each for each in gpus() if each.match in name), None)
