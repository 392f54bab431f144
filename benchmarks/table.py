"""Prints parts of benchmarks/results/cpu.json as tables, for README.md and docs/measured.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "cpu.json"


def times(interval: dict[str, float] | None) -> str:
    if interval is None:
        return "–"
    return f"{interval['estimate']:.2f}× [{interval['low']:.2f}, {interval['high']:.2f}]"


def main() -> None:
    results: dict[str, Any] = json.loads(RESULTS.read_text())
    if part := results.get("cifar"):
        print("| how | samples/s | against plain |\n|---|---|---|")
        print(f"| plain: `python` | {part['samples_per_s']['plain']:,.0f} | 1 |")
        for name, interval in part["speedup"].items():
            print(f"| {name} | {part['samples_per_s'][name]:,.0f} | {times(interval)} |")
        for contract, found in part["tunes"].items():
            names = ", ".join(each["name"] for each in found["techniques"])
            print(
                f"\n`tune --contract {contract}`: {times(found['speedup'])} in {found['wall_seconds']:.0f} s: {names}"
            )
    if part := results.get("mnist"):
        print("\nMNIST")
        for name, interval in part["speedup"].items():
            print(f"| {name} | {times(interval)} |")
        for contract, found in part["tunes"].items():
            names = ", ".join(each["name"] for each in found["techniques"])
            print(f"`tune --contract {contract}`: {times(found['speedup'])} in {found['wall_seconds']:.0f} s: {names}")
    if part := results.get("whole"):
        print(
            f"\nwhole runs {times(part['whole_runs'])}, stated {part['stated']:.2f}x: {part['whole_over_stated']:.3f}"
        )
    if part := results.get("overhead"):
        print(f"\noverhead of a step {times(part['step_cost'])}, at the start {part['start_seconds']}")
    if part := results.get("programs"):
        print("\n| program | verdict | speedup | techniques |\n|---|---|---|---|")
        for name, each in part.items():
            if isinstance(each, dict) and "verdict" in each:
                print(f"| {name} | {each['verdict']} | {times(each['speedup'])} | {', '.join(each['techniques'])} |")


if __name__ == "__main__":
    main()
