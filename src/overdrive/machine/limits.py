"""What this machine can do at best, measured once in a process of its own and kept: the roofs of its roofline.

    limits = measured_limits()                   # reads what is kept, or measures for less than a minute
    limits.roofline().peak_flops["bf16"]         # FLOP/s of the device that training would run on
    limits.roofline("cpu", threads=1)            # of one thread, beside that of one for each granted core
    limits.measures["files.small_read"].value    # see `Measure`; what is not there is in `limits.missing`

Nothing here imports a framework: `overdrive.machine.microbenchmarks` measures, and answers in JSON.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from overdrive.core.atomic_file import write_atomically
from overdrive.core.ledger import default_path
from overdrive.core.scratch import passing
from overdrive.machine.inventory import fingerprint

_VERSION = 2  # of what is kept; another one is measured again: the first had a thread for each hardware thread
_MOST_SECONDS = 120.0  # the child is to answer within one minute, and is given up after two


class LimitsUnavailable(Exception):
    """They could not be measured; the message is one sentence for people."""


@dataclass(frozen=True)
class Measure:
    """One limit: the best that was seen, never an average."""

    value: float
    unit: str  # "FLOP/s" ("OP/s" of whole numbers), "B/s", "s", "files/s" or "images/s"
    how: str  # sizes, threads, what was counted


@dataclass(frozen=True)
class Roofline:
    """What a device can do: its matrix products by number format, and its memory."""

    device: str  # "cpu" or "cuda"
    threads: int  # of the CPU; 0 for a GPU
    peak_flops: Mapping[str, float]  # FLOP/s by "fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"
    memory_bytes_per_second: float  # the better of copy and triad, in arrays no cache holds; 0.0 where not measured
    cache_bytes_per_second: float  # triad in arrays that fit the cores' own caches; 0.0 where not measured


@dataclass(frozen=True)
class Limits:
    """All that was measured. Names: "cpu.matmul.fp32", "cpu.1.memory.triad" (one thread), "cuda.launch", …"""

    measures: Mapping[str, Measure] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)  # what could not be measured, by name, and why
    fingerprint: str = ""  # of the machine, see `machine.inventory`
    threads: int = 0  # of the CPU, where a name says nothing else: one for each granted core (`cpu.computing_cores`)
    gpu: str = ""  # the GPU's name; "" without one
    seconds: float = 0.0  # that measuring took
    when: float = 0.0  # seconds since 1970
    busy_share: float = 0.0  # of its cores, used by other programs just before: limits are too low by about as much
    quick: bool = False  # fewer repetitions and smaller files
    notes: tuple[str, ...] = ()
    fresh: bool = field(default=False, compare=False)  # measured just now; not kept

    @property
    def device(self) -> str:
        """The device that training would run on: "cuda" where there is a GPU, else "cpu"."""
        return "cuda" if self.gpu else "cpu"

    def roofline(self, device: str = "", threads: int = 0) -> Roofline:
        """The roofline of `device` ("": that of training); `threads`: of a CPU; 0 for one on each granted core.

        Only one thread and all were measured; what lies between is taken to grow evenly, and beyond that nothing does.
        """
        device = device or self.device
        if device != "cpu":
            return self._roofline(device, f"{device}.", 0)
        most = self._roofline("cpu", "cpu.", self.threads)
        one = self._roofline("cpu", "cpu.1.", 1) if self.threads > 1 else most
        if threads in (0, self.threads) or self.threads <= 1:
            return _better(most, one)
        share = (min(threads, self.threads) - 1) / (self.threads - 1)

        def between(low: float, high: float) -> float:
            return low + share * (high - low) if low and high else 0.0

        return Roofline(
            "cpu",
            threads,
            {
                name: between(one.peak_flops[name], most.peak_flops[name])
                for name in one.peak_flops.keys() & most.peak_flops
            },
            between(one.memory_bytes_per_second, most.memory_bytes_per_second),
            between(one.cache_bytes_per_second, most.cache_bytes_per_second),
        )

    def _roofline(self, device: str, prefix: str, threads: int) -> Roofline:
        def value(name: str) -> float:
            return self.measures[prefix + name].value if prefix + name in self.measures else 0.0

        products = f"{prefix}matmul."
        return Roofline(
            device,
            threads,
            {name[len(products) :]: each.value for name, each in self.measures.items() if name.startswith(products)},
            max(value("memory.copy"), value("memory.triad")),
            value("cache.triad"),
        )

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "version": _VERSION}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Limits:
        """
        Raises:
            ValueError, KeyError, TypeError, AttributeError: it is not what `to_dict` gave.
        """
        if data["version"] != _VERSION:
            raise ValueError("kept by another version of Overdrive")
        measures = {
            str(name): Measure(_positive(each["value"]), str(each["unit"]), str(each["how"]))
            for name, each in data["measures"].items()
        }
        return cls(
            measures=measures,
            missing={str(name): str(reason) for name, reason in data["missing"].items()},
            fingerprint=str(data["fingerprint"]),
            threads=int(data["threads"]),
            gpu=str(data["gpu"]),
            seconds=float(data["seconds"]),
            when=float(data["when"]),
            busy_share=float(data["busy_share"]),
            quick=bool(data["quick"]),
            notes=tuple(map(str, data["notes"])),
        )


def _better(most: Roofline, one: Roofline) -> Roofline:
    """What all threads can do is no less than what one of them can: seen otherwise where others use the cores."""
    flops = {name: max(value, one.peak_flops.get(name, 0.0)) for name, value in most.peak_flops.items()}
    return Roofline(
        most.device,
        most.threads,
        flops,
        max(most.memory_bytes_per_second, one.memory_bytes_per_second),
        max(most.cache_bytes_per_second, one.cache_bytes_per_second),
    )


def measured_limits(quick: bool = False, fresh: bool = False, folder: Path | None = None) -> Limits:
    """The limits of this machine: those that are kept, or else measured now, in less than a minute.

    Args:
        quick: within some 15 seconds; what was measured at length before is as good.
        fresh: measure again, whatever is kept.
        folder: where they are kept; by default beside the ledger, in the user's state folder.

    Raises:
        LimitsUnavailable: no torch is installed here, or measuring failed.
    """
    mine = fingerprint()
    folder = folder or default_path().parent / "limits"
    if not fresh:
        for name in (False, True) if quick else (False,):
            if kept := _kept(_place(folder, mine, name), mine):
                return kept
    limits = _measure(mine, quick)
    with contextlib.suppress(OSError):  # they are measured again next time
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(_place(folder, mine, quick), json.dumps(limits.to_dict(), indent=1) + "\n")
    return limits


def _place(folder: Path, mine: str, quick: bool) -> Path:
    return folder / f"{mine[:32]}{'.quick' if quick else ''}.json"


def _kept(path: Path, mine: str) -> Limits | None:
    try:
        limits = Limits.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # not there, or damaged
        return None
    return limits if limits.fingerprint == mine else None


def _measure(mine: str, quick: bool) -> Limits:
    began = time.monotonic()
    with passing("overdrive-limits-") as scratch:
        answer = scratch / "answer.json"
        command = [
            sys.executable,
            "-m",
            "overdrive.machine.microbenchmarks",
            str(answer),
            *(["quick"] if quick else []),
        ]
        environment = {**os.environ, "OVERDRIVE_LIMITS_FOLDER": _disk(scratch)}
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_MOST_SECONDS, env=environment
            )
            measured = json.loads(answer.read_text())
        except subprocess.TimeoutExpired:
            raise LimitsUnavailable(f"The limits were not measured after {_MOST_SECONDS:.0f} s.") from None
        except OSError:  # no answer was written, or no process could be started
            lines = done.stderr.decode(errors="replace").strip().splitlines() if "done" in locals() else []
            reason = lines[-1][:200] if lines else "the measuring process ended without a word"
            raise LimitsUnavailable(f"The limits could not be measured: {reason}.") from None
        except ValueError:
            raise LimitsUnavailable("The limits could not be measured: the answer is damaged.") from None
    measured.update(version=_VERSION, fingerprint=mine, seconds=time.monotonic() - began, when=time.time(), quick=quick)
    try:
        return Limits.from_dict(measured)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LimitsUnavailable(f"The limits could not be measured: the answer is damaged ({error}).") from None


def _disk(otherwise: Path) -> str:
    """A folder of the user's own, on the disk where caches are kept; files are made there and removed again."""
    place = default_path().parent
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(place, os.W_OK):
            return str(place)
    return str(otherwise)


def _positive(value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{value!r} is no measure")
    return number
