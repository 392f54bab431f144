"""Holds a model's files, and what it is given, to `signature.json`, which lies beside this file. Needs NumPy alone."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
SIGNATURE = json.loads((HERE / "signature.json").read_text())
Arrays = dict[str, Any]


def fewer_cores(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that this process may use, where its container, job or affinity has fewer than the machine; else 0.

    An engine takes as many threads as the machine has cores: those that are too many spin in the time of the others.
    """
    cores = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        try:
            quota, period = map(int, " ".join((groups / name).read_text() for name in names).split())
        except (OSError, ValueError):  # there is none, or it is "max"
            continue
        if quota > 0 and period > 0:
            allowed = min(allowed, max(1, quota // period))
    return allowed if allowed < cores else 0


THREADS = int(os.environ.get("OVERDRIVE_THREADS") or fewer_cores())  # of a call; 0: as many as the engine takes


def lacking(about: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Instructions that the model may be compiled to, and that this processor does not have: it would be killed by
    them. Nothing where the system does not tell."""
    try:
        lines = about.read_text().splitlines()
    except OSError:
        return []
    known = {word for each in lines if each.startswith(("flags", "Features")) for word in each.split()}
    return [each for each in SIGNATURE.get("instructions", []) if known and each not in known]


def artefact() -> str:
    """The model's file.

    Raises:
        ValueError: it, or what lies beside it, is not what was proved: of another export, or not whole; or it is
            compiled for another processor.
    """
    if missing := lacking():
        raise ValueError(
            f"{SIGNATURE['artefact']} is compiled for a processor with {', '.join(missing)}, which this one does not "
            "have: export it again on a machine like this one"
        )
    for name, digest in SIGNATURE["files"].items():
        found = hashlib.sha256()
        with open(HERE / name, "rb") as file:
            while part := file.read(1 << 20):
                found.update(part)
        if found.hexdigest() != digest:
            raise ValueError(f"{name} is not the file that was proved: it is of another export, or not whole")
    return str(HERE / SIGNATURE["artefact"])


def checked(inputs: Mapping[str, Any]) -> list[Any]:
    """The inputs as arrays in order.

    Raises:
        ValueError: one is missing, or has another type or shape than the signature says, or values that were not
            proved.
    """
    wanted = {each["name"]: each for each in SIGNATURE["inputs"]}
    if set(inputs) != set(wanted):
        raise ValueError(f"the inputs are {', '.join(wanted)}; given are {', '.join(map(str, inputs)) or 'none'}")
    sizes: dict[str, int] = {}
    arrays = []
    for name, each in wanted.items():
        array = np.ascontiguousarray(inputs[name]) if np.ndim(inputs[name]) else np.asarray(inputs[name])
        if str(array.dtype) != each["dtype"]:
            raise ValueError(f"{name} is of type {array.dtype}; {each['dtype']} is wanted")
        if len(array.shape) != len(each["shape"]) or not all(map(_fits(sizes), each["shape"], array.shape)):
            raise ValueError(f"{name} has the shape {list(array.shape)}; {_told(each['shape'], sizes)}")
        _hold_values(name, array, SIGNATURE.get("values", {}).get(name, {}))
        arrays.append(array)
    return arrays


def _hold_values(name: str, array: Any, proved: Mapping[str, Any]) -> None:
    """An engine may answer others, with numbers that look as any: where the model would raise, or answer NaN."""
    if proved.get("finite"):
        with np.errstate(over="ignore", invalid="ignore"):  # a sum takes a quarter of the time, or less
            finite = np.isfinite(array.sum()) or np.isfinite(array).all()
        if not finite:
            raise ValueError(f"{name} holds NaN or infinity, which was not proved: all that the program gave is finite")
    for end, beyond in (("min", np.less), ("max", np.greater)):
        if end in proved and (wrong := array[beyond(array, proved[end])]).size:
            kind = "numbers" if array.dtype.kind == "f" else "whole numbers"
            words = {"from": "min", "to": "max"}.items()
            ends = " ".join(f"{word} {proved[each]}" for word, each in words if each in proved)
            raise ValueError(f"{name} holds {wrong.flat[0]}; proved are {kind} {ends}")


def _fits(sizes: dict[str, int]) -> Callable[[Any, int], bool]:
    def fits(wanted: Any, size: int) -> bool:
        if isinstance(wanted, int):
            return size == wanted
        return sizes.setdefault(wanted, size) == size and _within(wanted, size)

    return fits


def _within(name: str, size: int) -> bool:
    ends = SIGNATURE["dimensions"][name]
    return bool(ends["min"] <= size <= ends.get("max", size))


def _told(shape: Sequence[Any], sizes: Mapping[str, int]) -> str:
    """The shape that is wanted, with what is known of its names: ends that were missed, or sizes that came before."""
    wanted = f"[{', '.join(str(each) for each in shape)}]"
    for name, size in sizes.items():
        if not _within(name, size):
            ends = SIGNATURE["dimensions"][name]
            return f"{wanted} is wanted, {name} from {ends['min']} " + (f"to {ends['max']}" if "max" in ends else "on")
    return wanted + (f" with {sizes}" if sizes else "") + " is wanted"


def named(outputs: Sequence[Any]) -> Arrays:
    """The answers by the names of the signature."""
    return {each["name"]: value for each, value in zip(SIGNATURE["outputs"], outputs, strict=True)}


def main(answer: Callable[[Mapping[str, Any]], Arrays]) -> None:
    """`run.py INPUTS.npz ANSWERS.npz [INPUTS.npz ANSWERS.npz]...`: arrays by name from a file into another."""
    files = sys.argv[1:]
    if not files or len(files) % 2:
        sys.exit("run.py: give a file of inputs and one for the answers: python run.py INPUTS.npz ANSWERS.npz")
    try:
        for source, place in zip(files[::2], files[1::2], strict=True):
            with np.load(source, allow_pickle=False) as inputs:
                np.savez(place, **answer(dict(inputs)))
    except (OSError, ValueError) as error:
        sys.exit(f"run.py: {error}")
