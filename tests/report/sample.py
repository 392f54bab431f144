"""A result as a tune would write it, made up but with numbers that fit together."""

from __future__ import annotations

import math
import random
from typing import Any

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


def _curve(seed: int, steps: int = 412) -> list[float]:
    rng = random.Random(seed)
    level, curve = 0.0, []
    for step in range(steps):
        level = 0.9 * level + rng.gauss(0, 0.03)
        curve.append(0.95 + 1.4 * math.exp(-step / 110) + level + rng.gauss(0, 0.02))
    return curve


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
        "tuning_seconds": 233.0,
        "break_even_steps": 12500,
        "machine": {"cpu": "AMD EPYC 7B13", "cores": 2, "memory_bytes": 8 * 2**30, "gpus": []},
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
        "losses": {
            "baseline": _curve(0),
            "tuned": _curve(1),
            "seeds": [_curve(seed) for seed in range(2, 5)],
        },
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
        keep = ("contract", "verdict")  # words that are matched, not shown as they come
        return value + HOSTILE if isinstance(value, str) and key not in keep else value

    made: dict[str, Any] = spoil(result())
    made["machine"]["gpus"] = [HOSTILE, {"name": HOSTILE}]
    return made
