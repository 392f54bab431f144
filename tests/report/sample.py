"""A result as a tune would write it, made up but with numbers that fit together."""

from __future__ import annotations

import math
import random
from functools import cache
from typing import Any

from rich.console import Console

from overdrive.core.tune_result import TuneResult
from overdrive.report import html, terminal
from overdrive.report.reading import read

HOSTILE = (
    "</script></title></style><script>alert(1);console.error('reached')</script>"
    '<img src=x onerror="alert(2)">\' onload=\'alert(3)" \u2028\u2029\x1b[31mred\x1b]0;title\x07\x00\x9b2J'
    "\u202egnp\ud800 {{ 7*7 }} [bold red]markup[/] :boom: &lt;b&gt; ]]> <!--"
)


def _duel(
    name: str, against: str, verdict: str, low: float, estimate: float, high: float, noise: float = 0.03
) -> dict[str, Any]:
    rng = random.Random(name)
    pairs = []
    for process in range(3):
        shift = rng.gauss(0, noise / 3)
        for _ in range(12):
            b = 0.15 * math.exp(rng.gauss(0, noise))
            pairs.append(
                {
                    "process": process,
                    "steps": 12,
                    "seconds_a": b * estimate * math.exp(shift + rng.gauss(0, noise)),
                    "seconds_b": b,
                    "a_first": rng.random() < 0.5,
                }
            )
    speedup = {"low": low, "estimate": estimate, "high": high}
    return {"name": name, "against": against, "verdict": verdict, "speedup": speedup, "pairs": pairs}


@cache
def _curve(seed: int, steps: int = 412) -> tuple[float, ...]:
    rng = random.Random(seed)
    level, curve = 0.0, []
    for step in range(steps):
        level = 0.9 * level + rng.gauss(0, 0.03)
        curve.append(0.95 + 1.4 * math.exp(-step / 110) + level + rng.gauss(0, 0.02))
    return tuple(curve)


def _factor(low: float, estimate: float, high: float) -> dict[str, float]:
    return {"low": low, "estimate": estimate, "high": high}


def attribution() -> dict[str, Any]:
    """The shares of the sample's three techniques: they multiply to the total."""
    return {
        "method": "full factorial",
        "rounds": 24,
        "total": _factor(5.02, 5.26, 5.51),
        "interaction": _factor(0.90, 0.93, 0.96),
        "shares": [
            {
                "name": "sample_cache",
                "shapley": _factor(3.0, 3.2, 3.4),
                "alone": _factor(3.2, 3.4, 3.6),
                "last": _factor(2.7, 2.9, 3.1),
            },
            {
                "name": "allocator",
                "shapley": _factor(1.36, 1.42, 1.48),
                "alone": _factor(1.33, 1.38, 1.43),
                "last": None,
            },
            {
                "name": "channels_last",
                "shapley": _factor(1.10, 1.1575, 1.22),
                "alone": None,
                "last": _factor(1.08, 1.16, 1.24),
            },
        ],
        "dropped": [
            {"name": "fused_optimizer", "reason": "no measurable effect in the whole plan: 1.00x [0.99, 1.01]"}
        ],
    }


def scaling() -> list[dict[str, Any]]:
    """One process, and two and four ranks of it; of four, weak scaling was not measured."""
    one = {"ranks": 1, "samples_per_s": 2000.0, "seconds_per_step": 0.032, "peak_memory": 500 * 10**6}
    two = {
        "ranks": 2,
        "samples_per_s": 3400.0,
        "seconds_per_step": 0.0188,
        "speedup": _factor(1.62, 1.7, 1.78),
        "efficiency": 0.85,
        "communication": 0.084,
        "by_doctor": 0.077,
        "pool": "pool.json",
        "peak_memory": 380 * 10**6,
        "alone": 0.017,
        "together": 0.0189,
        "weak": _factor(0.87, 0.9, 0.93),
    }
    four = {
        "ranks": 4,
        "samples_per_s": 4800.0,
        "seconds_per_step": 0.0133,
        "speedup": _factor(2.2, 2.4, 2.6),
        "efficiency": 0.6,
        "communication": 0.21,
        "pool": "pool.json",
        "peak_memory": 340 * 10**6,
        "why_not_weak": "a rank by itself is measured on CPUs alone",
    }
    return [one, two, four]


def proof(level: str = "statistical") -> dict[str, Any]:
    """A proof that holds at its level, with something compared at every level."""
    rng = random.Random(level)
    parts = ["losses", "parameters", "buffers", "optimizer state", "random states", "batches"]
    tensors = [f"features.{i}.{part}" for i in (0, 3, 7, 12) for part in ("weight", "bias")]
    steps = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 160, 256, 412]
    names = [
        "steps",
        "samples",
        "batches",
        "inputs of the model",
        "evaluation data",
        "learning rates and weight decay",
        "trained parameters",
        "backward passes",
    ]
    told = [
        "412",
        "26,368",
        "the batches of 412 steps, by checksum",
        "in 412 steps, by checksum or up to rounding",
        "seen after 3 steps, by checksum",
        "in 412 steps, for each group of parameters",
        "10 tensors, 16,618 numbers",
        "as many in every step",
    ]
    return {
        "level": level,
        "sentence": {
            "exact": "412 steps identical bit for bit: losses, parameters, buffers, optimizer and random states",
            "rounding": "16 replayed steps, 48 tensors: rounding, 2.1 bits lost of the original's own distance to fp64",
            "statistical": "training loss of 10 runs each: difference -0.0047, within ±0.03; ±0.0158 would pass too",
        }[level],
        "proxy": level == "statistical",
        "invariants": [{"what": a, "told": b, "same": True} for a, b in zip(names, told, strict=True)],
        "exact": {
            "steps": 412,
            "parts": parts,
            "first_difference": None if level == "exact" else "other parameters in step 3",
        },
        "rounding": None
        if level == "exact"
        else {
            "flag": None,
            "states": len(steps),
            "steps": steps,
            "reference": "fp64",
            "tensors": 48,
            "bits": 2.1,
            "ratio": _factor(0.97, 1.02, 1.07),
            "outside": 0 if level == "rounding" else 3,
            "worst": [
                {"tensor": name, "kind": kind, "ratio": 2.2 / (1 + i / 4), "allowed": 8.0 if "bias" in name else 2.0}
                for i, (name, kind) in enumerate(zip(tensors, ["gradient", "update"] * 4, strict=True))
            ],
            "by_step": [{"step": step, "ratio": math.exp(rng.gauss(0.02, 0.06))} for step in steps],
        },
        "statistical": _arms() if level == "statistical" else None,
    }


def _arms() -> dict[str, Any]:
    rng = random.Random(8)
    original, candidate = ([rng.gauss(0.98, 0.02) for _ in range(10)] for _ in range(2))
    difference = sum(candidate) / 10 - sum(original) / 10
    return {
        "metric": "training loss",
        "horizon": 412,
        "whole": False,
        "margin": 0.03,
        "margin_rule": "1.5 standard deviations over 10 seeds of the original",
        "difference": difference,
        "interval": [difference - 0.0111, difference + 0.0111],
        "smallest_margin": abs(difference) + 0.0111,
        "equivalent": True,
        "alpha": 0.05,
        "looks": [10, 16],
        "runs": [10, 10],
        "not_converged": [0, 0],
        "original": original,
        "candidate": candidate,
        "seeds": {"original": list(range(1, 11)), "candidate": list(range(1001, 1011))},
        "steps_to_target": {"target": 1.1, "original": 181.0, "candidate": 179.5, "reached": [10, 10], "p": 0.71},
        "products": {
            "count": 36,
            "faults": [],
            "doubts": [],
            "differences": [{"name": "entropy (late evaluations)", "mean": -0.03, "spread": 0.06, "p": 1.0}],
        },
        "band": {"step": 118, "difference": 0.011, "low": -0.02, "high": 0.04, "envelope": 0.052, "p": 0.44},
    }


def devices() -> list[dict[str, Any]]:
    """The same script on both."""
    return [
        {"device": "CPU", "samples_per_s": 2450.0, "seconds_per_step": 0.026, "setup_seconds": 3.1},
        {"device": "GPU", "samples_per_s": 61_500.0, "seconds_per_step": 0.00104, "setup_seconds": 5.2},
    ]


def result(**changes: Any) -> dict[str, Any]:
    """The sample, with parts of it replaced."""
    made: dict[str, Any] = {
        "program": "cifar_cnn.py --epochs 3",
        "contract": "statistical",
        "verdict": "FASTER",
        "speedup": {"low": 4.9, "estimate": 5.2, "high": 5.5},
        "noise_floor": 0.021,
        "baseline": {
            "samples_per_s": 2450.0,
            "seconds_per_step": 0.026,
            "shares": {"data": 0.71, "forward": 0.10, "backward": 0.15, "optimizer": 0.01, "other": 0.03},
            "setup_seconds": 3.1,
        },
        "tuned": {
            "samples_per_s": 12740.0,
            "seconds_per_step": 0.005,
            "shares": {"data": 0.04, "forward": 0.35, "backward": 0.51, "optimizer": 0.04, "other": 0.06},
            "setup_seconds": 4.4,
        },
        "loaders": [
            {
                "batch_size": 64,
                "workers": 0,
                "samples": 50000,
                "batch_bytes": 64 * 3 * 224 * 224 * 4,
                "seconds_per_item": {
                    "read": 0.00002,
                    "decode": 0.00021,
                    "transform": 0.00004,
                    "collate": 0.000012,
                    "copy": 0.0,
                    "wait": 0.00029,
                },
                "not_split": "",
            },
            {
                "batch_size": 256,
                "workers": 2,
                "samples": None,
                "batch_bytes": 0,
                "seconds_per_item": {"wait": 0.0001},
                "not_split": "its data set is a stream",
            },
        ],
        "tuned_loaders": [
            {
                "batch_size": 64,
                "workers": 0,
                "samples": 50000,
                "batch_bytes": 64 * 3 * 224 * 224 * 4,
                "seconds_per_item": {"wait": 0.000003},
                "not_split": "its batches do not come straight from its data set",
            },
        ],
        "techniques": [
            {
                "name": "sample_cache",
                "settings": {"limit_bytes": 1_073_741_824},
                "contract": "exact",
                "verdict": "FASTER",
                "speedup": {"low": 3.2, "estimate": 3.4, "high": 3.6},
                "check": "412 losses and 16,618 parameters identical bit for bit.",
            },
            {
                "name": "allocator",
                "settings": {"mmap_threshold": 1_073_741_824, "trim_threshold": 4_294_967_296},
                "contract": "exact",
                "verdict": "FASTER",
                "speedup": {"low": 1.33, "estimate": 1.38, "high": 1.43},
                "check": "412 losses and 16,618 parameters identical bit for bit.",
            },
            {
                "name": "channels_last",
                "settings": {},
                "contract": "statistical",
                "verdict": "FASTER",
                "speedup": {"low": 1.09, "estimate": 1.14, "high": 1.19},
                "check": "Final loss of 3 seeds each within ±0.03 (TOST, p = 0.008), a margin set beforehand.",
            },
        ],
        "rejected": [
            {
                "name": "compile",
                "settings": {"mode": "default"},
                "reason": "slower: 0.62x [0.60, 0.65]",
                "speedup": {"low": 0.60, "estimate": 0.62, "high": 0.65},
                "verdict": "SLOWER",
            },
            {
                "name": "threads",
                "settings": {"count": 1},
                "reason": "same speed",
                "speedup": {"low": 0.985, "estimate": 1.003, "high": 1.018},
                "verdict": "SAME",
            },
            {
                "name": "autocast_bf16",
                "settings": {},
                "reason": "not applicable: this CPU has no bf16 arithmetic",
                "speedup": None,
                "verdict": None,
            },
        ],
        "precision": [
            {"format": "fp64", "told": "not tried: no technique makes a program slower on purpose"},
            {
                "format": "fp32",
                "technique": "",
                "told": "the program as it is",
                "seconds_per_step": 0.026,
                "peak_memory": 512 * 2**20,
                "error": 1.2e-7,
                "learns": None,
            },
            {"format": "tf32", "told": "not tried: tf32: this processor multiplies neither TF32 nor bf16 in hardware"},
            {
                "format": "bf16",
                "technique": "autocast",
                "settings": {"dtype": "bfloat16"},
                "told": "late loss 1.31 against 1.30 over 412 steps",
                "speedup": {"low": 1.41, "estimate": 1.5, "high": 1.58},
                "against": "plain",
                "seconds_per_step": 0.017,
                "peak_memory": 384 * 2**20,
                "error": 3.4e-3,
                "learns": True,
            },
            {
                "format": "bf16",
                "technique": "bf16_weights",
                "settings": {},
                "told": "slower: 0.81x [0.79, 0.83]",
                "speedup": {"low": 0.79, "estimate": 0.81, "high": 0.83},
                "against": "plain + allocator",
                "seconds_per_step": 0.03,
                "peak_memory": None,
                "error": None,
                "learns": None,
            },
            {"format": "fp16", "told": "not tried: autocast: no candidate here"},
            {"format": "fp8", "told": "not tried: fp8: it needs a GPU with fp8 arithmetic"},
        ],
        "tuning_seconds": 233.0,
        "break_even_steps": 12500,
        "machine": {"cpu": "AMD EPYC 7B13", "cores": 2, "memory_bytes": 8 * 2**30, "gpus": [], "os": "Debian 12"},
        "versions": {"overdrive": "0.1.0", "python": "3.11.7", "torch": "2.13.0+cpu", "numpy": "2.3.1"},
        "duels": [
            _duel("control (A/A)", "plain", "SAME", 0.982, 0.998, 1.014),
            _duel("sample_cache", "plain", "FASTER", 3.2, 3.4, 3.6, 0.05),
            _duel("compile", "plain + sample_cache", "SLOWER", 0.60, 0.62, 0.65),
            _duel("allocator", "plain + sample_cache", "FASTER", 1.33, 1.38, 1.43),
            _duel("threads", "plain + sample_cache + allocator", "SAME", 0.985, 1.003, 1.018),
            _duel("channels_last", "plain + sample_cache + allocator", "FASTER", 1.09, 1.14, 1.19, 0.04),
            _duel("confirmation", "plain", "FASTER", 4.9, 5.2, 5.5, 0.05),
        ],
        "scaling": scaling(),
        "losses": {
            "baseline": list(_curve(0)),
            "tuned": list(_curve(1)),
            "seeds": [list(_curve(seed)) for seed in range(2, 5)],
        },
        "attribution": attribution(),
        "proof": proof(),
        "proxy": True,
        "plan": "cifar_cnn.overdrive.toml",
        "date": "2026-11-21",
        "notes": ["The machine was shared while this was measured: another process used 12 % of one core."],
    }
    made.update(changes)
    return made


def hostile() -> dict[str, Any]:
    """The sample with every string and every key of a free-form mapping made hostile."""

    def spoil(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            free = key in ("settings", "versions")
            return {(k + HOSTILE if free else k): spoil(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [spoil(item, key) for item in value]
        keep = ("contract", "verdict", "level")  # words that are matched, not shown as they come
        return value + HOSTILE if isinstance(value, str) and key not in keep else value

    made: dict[str, Any] = spoil(result())
    made["machine"]["gpus"] = [HOSTILE, {"name": HOSTILE}]
    return made


def page(found: object) -> str:
    """The page of a result as it may lie in a file."""
    return html.page(read(TuneResult, found))


def table(found: object, console: Console, everything: bool = False) -> None:
    terminal.table(read(TuneResult, found), console, everything)
