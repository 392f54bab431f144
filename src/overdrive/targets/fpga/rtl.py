"""The design in Verilog, by da4ml: simulated cycle by cycle by Verilator, and held to the emulation bit for bit."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.core.installing import pip_install_extra
from overdrive.engines.runtime import NoEngine
from overdrive.targets.fpga.logic import logic

CLOCK = 200e6  # Hz, assumed: no place and route has shown it
_STAGE = 5  # additions one after the other within a cycle, by which da4ml cuts the logic into stages
_MORE = 64  # cycles that are waited for the last answer
_NEWER = "WIDTHTRUNC"  # a warning that da4ml's files name, and Debian's Verilator (5.006) does not know
_PATIENCE = 1800.0  # seconds, for Verilator and the compiler
_NAME = "model"  # the top module

Array = Any  # of NumPy


def missing() -> str | None:
    """What this takes and is not there, in one sentence with what brings it."""
    if not find_spec("da4ml"):
        return f"da4ml is not installed: `{pip_install_extra('fpga')}` brings it"
    for tool in ("verilator", "make", "g++"):
        if not shutil.which(tool):
            return f"{tool} is not installed: `apt-get install {tool}` brings it"
    return None


def verilog(graph: Any, inputs: Array, emulated: Array, place: Path, scratch: Path) -> dict[str, Any]:
    """Leaves the project in `place`, and tells what it costs, in clock cycles as simulated.

    Args:
        graph: of hls4ml, compiled.
        inputs: rows of numbers; `emulated`: what hls4ml's emulation answers to each.

    Raises:
        NoEngine: it has no form in Verilog, or is not the same; then `place` holds nothing of use.
    """
    from da4ml.codegen import RTLModel

    made = logic(graph)
    with contextlib.redirect_stdout(io.StringIO()):
        project = RTLModel(
            made, _NAME, place, "verilog", latency_cutoff=_STAGE, print_latency=False, clock_period=1e9 / CLOCK
        )
        project.write()
    for each in ("sim", "model"):  # a simulator of its own, which takes the latency for granted
        shutil.rmtree(place / each)
    (place / "sim").mkdir()
    shutil.copyfile(Path(__file__).with_name("bench.cpp"), place / "sim" / "bench.cpp")
    known = json.loads((place / "metadata.json").read_text())
    cycles = len(inputs) + known["latency"] + _MORE
    answers = _unpacked(_simulated(place, _packed(inputs, made), cycles, scratch), made)
    return {
        "inputs": len(inputs),
        "latency": _latency(answers, emulated),
        "interval": 1,  # an input was given at each cycle, and each was answered
        "clock": CLOCK,
        "luts": round(known["cost"]),
        "registers": int(known["reg_bits"]),
        "verilator": subprocess.run(["verilator", "--version"], capture_output=True, text=True).stdout.split()[1],
    }


def _latency(answers: Array, emulated: Array) -> int:
    """Cycles between the one that takes an input and the one that has its answer: for all inputs, and all bits."""
    count = len(emulated)
    waits = range(len(answers) - count + 1)
    wrong = [int((answers[wait : wait + count] != emulated).any(axis=1).sum()) for wait in waits]
    right = [wait for wait, each in zip(waits, wrong, strict=True) if not each]
    if not right:
        raise NoEngine(f"its simulation differs from the emulation in {min(wrong):,} of {count:,} inputs")
    if len(right) > 1:
        raise NoEngine("all inputs have the same answer, so that no latency can be measured")
    return right[0]


def _simulated(place: Path, inputs: Array, cycles: int, scratch: Path) -> Array:
    """What the design gives after each cycle: words of 32 bits, a row for each."""
    scratch.mkdir()
    command = ["verilator", "--cc", "--exe", "--build", "-O3", "--top-module", _NAME, "--Mdir", str(scratch / "obj")]
    for each in ("OPT_FAST", "OPT_GLOBAL"):  # some thousand cycles: compiling would take minutes, running seconds
        command += ["-MAKEFLAGS", f"{each}=-O0"]
    command += ["-j", "0", "-Wno-fatal", f"-Wfuture-{_NEWER}", f"-I{place / 'src'}", f"-I{place / 'src' / 'static'}"]
    _run([*command, str(place / "src" / f"{_NAME}.v"), str(place / "sim" / "bench.cpp")], scratch)
    given, found = scratch / "inputs.bin", scratch / "answers.bin"
    inputs.tofile(given)
    _run([str(scratch / "obj" / f"V{_NAME}"), str(given), str(found), str(cycles)], place / "src" / "memfiles")
    return np.fromfile(found, np.uint32).reshape(cycles, -1)


def _run(command: list[str], folder: Path) -> None:
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise NoEngine(f"{name} was not done after {_PATIENCE:.0f} s") from None
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise NoEngine(f"{name} failed ({said[0][:200] if said else f'exit code {done.returncode}'})")


def _packed(rows: Array, made: Any) -> Array:
    """Rows as the design's input has them: cut to its type, as hls4ml does; all their bits, in whole words of 32."""
    signed, before, after = (each.astype(np.int64) for each in made.inp_kifs)
    whole = np.floor(rows.reshape(len(rows), -1) * 2.0**after)
    end = 2.0 ** (before + after)
    whole = np.clip(whole, -end * signed, end - 1).astype(np.int64)
    widths = signed + before + after
    columns = [(whole[:, place] >> bit) & 1 for place, width in enumerate(widths) for bit in range(width)]
    columns += [np.zeros(len(rows), np.int64)] * (-len(columns) % 32)
    return np.packbits(np.stack(columns, axis=1).astype(np.uint8), axis=1, bitorder="little").view(np.uint32)


def _unpacked(words: Array, made: Any) -> Array:
    """Numbers, of the design's output in whole words of 32 bits."""
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little").astype(np.int64)
    numbers, place = [], 0
    for signed, before, after in made.out_kifs.T.astype(np.int64):
        width = int(signed + before + after)
        weights = 2 ** np.arange(width, dtype=np.int64)
        if signed:
            weights[-1] *= -1
        numbers.append(bits[:, place : place + width] @ weights * 2.0**-after)
        place += width
    return np.stack(numbers, axis=1)
