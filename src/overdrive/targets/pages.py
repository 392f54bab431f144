"""What people read of an export, and its proof and latency as files of the folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.core.installing import package_of
from overdrive.core.interval import Interval
from overdrive.core.json_data import finite, to_json
from overdrive.core.units import listed_some, several
from overdrive.targets.order import LATENCY, TRITON
from overdrive.targets.result import Exported, ShapeLatency, SideLatency

RUNTIMES = {"onnx": "onnxruntime", "triton": "onnxruntime", "openvino": "openvino", "aoti": "torch"}

_BY_TRITON = (
    "Served by Triton: `tritonserver --model-repository=repository`. Its server looks at names, types and numbers of "
    "dimensions. What was proved of sizes and values it does not hold requests to: `run.py` does."
)


def write_pages(result: Exported, folder: Path, command: str) -> None:
    """`proof.json`, `latency.json`, an example of zeros and `README.md`. `command`: the program's."""
    for name, data in (("proof.json", result.proof), (LATENCY, result.latency)):
        (folder / name).write_text(json.dumps(finite(to_json(data)), indent=1, allow_nan=False) + "\n")
    np.savez(folder / "example.npz", **_example(result.signature))
    (folder / "README.md").write_text(readme(result, command))


def _example(signature: Mapping[str, Any]) -> dict[str, Any]:
    least = {name: each["min"] for name, each in signature["dimensions"].items()}
    values = signature.get("values", {})
    return {
        each["name"]: np.full(
            [least.get(size, size) for size in each["shape"]],
            _nearest_to_zero(values.get(each["name"], {})),
            each["dtype"],
        )
        for each in signature["inputs"]
    }


def _nearest_to_zero(proved: Mapping[str, Any]) -> float:
    least: float = max(0, proved.get("min", 0))
    most: float = proved.get("max", least)
    return min(least, most)


def readme(result: Exported, command: str) -> str:
    signature, proof, (runtime, _) = result.signature, result.proof, package_of(RUNTIMES[result.target])
    known = signature["versions"].get(runtime, "").partition("+")[0]
    lines = [
        f"# {result.model}, for {result.target}",
        "",
        f"Exported by `overdrive export --to {result.target} {command}`.",
        "",
        "```",
        f"pip install numpy {runtime}{known and f'=={known}'}",
        "python run.py example.npz answers.npz",
        "```",
        "",
        "Or from Python, in this folder: `from run import answer; answer({name: array, ...})`.",
        "`example.npz` holds zeros, or the numbers nearest to them that are taken.",
        *(["", _BY_TRITON] if result.target == TRITON else []),
        "",
        "| | name | shape | type |",
        "|---|---|---|---|",
        *(
            f"| {side} | {each['name']} | {' × '.join(map(str, each['shape'])) or 'a number'} | {each['dtype']} |"
            for side in ("inputs", "outputs")
            for each in signature[side]
        ),
        "",
        *_dimensions(result),
        "## Proof",
        "",
        f"At `{proof.level}`: {proof.sentence}.",
        f"Inputs: {_counted(proof.inputs)}; the exporter saw none of them.",
        "",
        "## Latency",
        "",
        "A call, in milliseconds, with 95 % intervals: by `run.answer`, and the program's own, in turns.",
        "",
        "| inputs | sent | side | calls | p50 | p99 |",
        "|---|---|---|---|---|---|",
        *(row for each in result.latency for row in _rows(each)),
        "",
        *(f"- {each}." for each in remarks(result)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def remarks(result: Exported) -> list[str]:
    """What is to be known of it, sentences without their full stop."""
    said = list(result.notes)
    if "instructions" in result.signature:
        what = "run.py refuses one that lacks any of the instructions in signature.json"
        said.append(f"{result.artefact} is compiled for the processor of this machine: {what}")
    if result.other_models:
        names = listed_some([f"{name} ({several(count, 'call')})" for name, count in result.other_models.items()])
        said.append(f"the program calls other models too: {names}; `--model NAME` exports another")
    said += [f"{_unanswered(count)}: {why}" for why, count in result.left.items()]
    return said


def _unanswered(calls: int) -> str:
    return f"{several(calls, 'call')} of the program's {'has' if calls == 1 else 'have'} no answer here"


def _dimensions(result: Exported) -> list[str]:
    sizes = result.proof.sizes
    told = []
    for name, each in result.signature["dimensions"].items():
        compared = ", ".join(map(str, sizes.get(name, ())))
        told.append(f"`{name}` may vary from {each['min']} to {each['max']}; compared were {compared}.")
    return [*(told or ["All shapes are fixed."]), ""]


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _rows(each: ShapeLatency) -> list[str]:
    shapes = ", ".join(f"{name} {' × '.join(map(str, shape))}" for name, shape in each.shapes.items())
    sides: tuple[tuple[str, SideLatency], ...] = (("artefact", each.artefact), ("the program", each.eager))
    return [
        f"| {shapes} | {each.sent:,} | {name} | {side.calls} | {milliseconds(side.p50)} | {milliseconds(side.p99)} |"
        for name, side in sides
    ]


def milliseconds(interval: Interval | None) -> str:
    """`0.212 [0.208, 0.219]`."""
    if interval is None:
        return "too few calls"
    return f"{interval.estimate * 1e3:.3g} [{interval.low * 1e3:.3g}, {interval.high * 1e3:.3g}]"
