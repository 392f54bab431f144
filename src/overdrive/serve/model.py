"""The model of an exported folder, as its own runner loads it, once or more, and inputs that are made up for it."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.machine.cpu import fewer_cores
from overdrive.targets.order import FPGA, LATENCY, SIGNATURE

Arrays = dict[str, Any]
Answer = Callable[[Mapping[str, Any]], Arrays]


class CannotServe(Exception):
    """The message is one sentence for people."""


@dataclass(frozen=True)
class ServedModel:
    """
    Attributes:
        answer: the runner's own; ValueError where the signature wants other inputs.
        checked: what it holds inputs to first.
        together: the name of the dimension along which inputs can be put together; "" where there is none.
        others: as `answer`, of further instances. Each can be asked while others are at work.
        usual: sizes of dimensions that vary, of the calls that the program made most.
    """

    name: str
    signature: Mapping[str, Any]
    answer: Answer
    checked: Callable[[Mapping[str, Any]], Sequence[Any]]
    together: str
    others: tuple[Answer, ...] = ()
    usual: Mapping[str, int] = field(default_factory=dict)

    def rows(self, inputs: Mapping[str, Any]) -> int:
        """How many are asked for in one request; 1 where that cannot be told."""
        return len(next(iter(inputs.values()))) if self.together else 1

    def kind(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """What is equal of inputs that can be put together."""
        return tuple(each.shape[1:] for each in inputs.values())

    def made_up(self, rows: int, chance: np.random.Generator) -> Arrays:
        """Inputs that the signature takes: normal numbers; of whole ones, which may be places in a table, 0 and 1,
        or the first that were proved. None is beyond what was proved.

        As long as the program's own: at a length of 1 there is nothing in a sequence that could be mixed up.
        """
        dimensions = self.signature["dimensions"]
        sizes = {name: max(self.usual.get(name, 0), each["min"]) for name, each in dimensions.items()}
        if self.together:
            sizes[self.together] = max(rows, dimensions[self.together]["min"])
        values = self.signature.get("values", {})
        return {
            each["name"]: _drawn(
                [sizes.get(size, size) for size in each["shape"]],
                np.dtype(each["dtype"]),
                values.get(each["name"], {}),
                chance,
            )
            for each in self.signature["inputs"]
        }


def within(array: Any, proved: Mapping[str, Any]) -> Any:
    """With what is beyond the ends that were proved, where there are any, at these."""
    return np.clip(array, proved.get("min", -np.inf), proved.get("max", np.inf))


def load(folder: Path, instances: int = 1, threads: int = 0) -> ServedModel:
    """
    Args:
        threads: that each instance may use; 0: as many as the engine takes, where all cores are granted.

    Raises:
        CannotServe: it holds no export that answers, or its engine is not there.
    """
    try:
        signature = json.loads((folder / SIGNATURE).read_text())
        target = signature["target"]
    except (OSError, ValueError, KeyError, TypeError):
        raise CannotServe(f"{folder} holds no export: `overdrive export --to onnx SCRIPT` makes one") from None
    if target == FPGA:
        raise CannotServe(f"{folder} holds a design for an FPGA, which answers nothing here")
    sys.path.insert(0, str(folder.resolve()))
    try:
        import checks

        if threads:
            _give(threads, checks, folder, target)
        elif not getattr(checks, "THREADS", 1):
            checks.THREADS = fewer_cores()  # an export's own look at them may be an older one
        answer, *others = (runpy.run_path(str(folder / "run.py"), run_name="run")["answer"] for _ in range(instances))
    except CannotServe:
        raise
    except Exception as error:
        raise CannotServe(f"{folder}/run.py cannot be loaded ({type(error).__name__}: {str(error)[:200]})") from None
    together, usual = _together(signature), _usual(folder, signature)
    return ServedModel(signature["model"], signature, answer, checks.checked, together, tuple(others), usual)


def _usual(folder: Path, signature: Mapping[str, Any]) -> dict[str, int]:
    """Sizes by dimension; nothing where the folder does not tell them."""
    try:
        shapes = json.loads((folder / LATENCY).read_text())[0]["shapes"]
        return {
            name: int(size)
            for each in signature["inputs"]
            for name, size in zip(each["shape"], shapes[each["name"]], strict=True)
            if isinstance(name, str)
        }
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _give(threads: int, checks: Any, folder: Path, target: str) -> None:
    """Have the runner that is loaded next take so many.

    Raises:
        CannotServe: it takes none.
    """
    if target == "aoti":
        raise CannotServe("AOTInductor compiles the number of threads in: instances are for ONNX and OpenVINO")
    if not hasattr(checks, "THREADS"):
        raise CannotServe(f"{folder} was exported before its runner could be given threads: export it again")
    checks.THREADS = threads


def _together(signature: Mapping[str, Any]) -> str:
    first = {each["shape"][0] if each["shape"] else None for side in ("inputs", "outputs") for each in signature[side]}
    name = first.pop()
    return name if not first and isinstance(name, str) else ""


def _drawn(shape: Sequence[int], dtype: np.dtype[Any], proved: Mapping[str, Any], chance: np.random.Generator) -> Any:
    if dtype.kind in "fc":
        return within(chance.standard_normal(shape).astype(dtype), proved)
    first = max(0, proved.get("min", 0))
    return chance.integers(first, min(first + 1, proved.get("max", first + 1)) + 1, shape).astype(dtype)
