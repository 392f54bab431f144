"""What the screenings of the public programs measured, as the prior that is shipped with Overdrive.

python benchmarks/public/gains.py   writes src/overdrive/evidence/screening/gains.json from results/public.json

Of each program one tune counts: the latest of those that measured most candidates. All of them ran on CPUs.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "public.json"
SHIPPED = ROOT / "src" / "overdrive" / "evidence" / "screening" / "gains.json"
_NORMAL = 1.96  # half-widths of a 95 % interval in standard errors


def gain(interval: dict[str, float]) -> tuple[float, float]:
    """The logarithm of a speedup and its standard error."""
    error = math.log(interval["high"] / interval["low"]) / (2 * _NORMAL)
    return round(math.log(interval["estimate"]), 4), round(error, 4)


def gains(parts: dict[str, Any]) -> dict[str, tuple[float, float]]:
    tunes = [part["gains"] for part in parts.values() if part.get("gains")]
    best = max(reversed(tunes), key=len, default={})
    told = {name: each for name, each in best.items() if each["low"] > 0 and math.isfinite(each["high"])}
    return {name: gain(each) for name, each in sorted(told.items())}


def main() -> None:
    programs = {name: found for name, parts in json.loads(RESULTS.read_text()).items() if (found := gains(parts))}
    SHIPPED.write_text(json.dumps({"cpu": programs}, indent=1) + "\n")
    print(f"{len(programs)} programs: {SHIPPED.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
