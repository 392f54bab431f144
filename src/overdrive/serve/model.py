"""The model of an exported folder, as its own runner loads it, once or more, and inputs that are made up for it."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.targets.order import FPGA, SIGNATURE

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
    """

    name: str
    signature: Mapping[str, Any]
    answer: Answer
    checked: Callable[[Mapping[str, Any]], Sequence[Any]]
    together: str
    others: tuple[Answer, ...] = ()

    def rows(self, inputs: Mapping[str, Any]) -> int:
        """How many are asked for in one request; 1 where that cannot be told."""
        return len(next(iter(inputs.values()))) if self.together else 1

    def kind(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """What is equal of inputs that can be put together."""
        return tuple(each.shape[1:] for each in inputs.values())

    def made_up(self, rows: int, chance: np.random.Generator) -> Arrays:
        """Inputs that the signature takes: normal numbers; of whole ones, which may be places in a table, 0 and 1."""
        sizes = {name: each["min"] for name, each in self.signature["dimensions"].items()}
        if self.together:
            sizes[self.together] = max(rows, sizes[self.together])
        return {
            each["name"]: _drawn([sizes.get(size, size) for size in each["shape"]], np.dtype(each["dtype"]), chance)
            for each in self.signature["inputs"]
        }


def load(folder: Path, instances: int = 1, threads: int = 0) -> ServedModel:
    """
    Args:
        threads: that each instance may use; 0: as many as the engine takes.

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
        answer, *others = (runpy.run_path(str(folder / "run.py"), run_name="run")["answer"] for _ in range(instances))
    except CannotServe:
        raise
    except Exception as error:
        raise CannotServe(f"{folder}/run.py cannot be loaded ({type(error).__name__}: {str(error)[:200]})") from None
    return ServedModel(signature["model"], signature, answer, checks.checked, _together(signature), tuple(others))


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


def _drawn(shape: Sequence[int], dtype: np.dtype[Any], chance: np.random.Generator) -> Any:
    if dtype.kind in "fc":
        return chance.standard_normal(shape).astype(dtype)
    return chance.integers(0, 2, shape).astype(dtype)
