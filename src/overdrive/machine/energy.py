"""What the machine's own counters say it has used: RAPL's of processor packages, NVML's of GPUs.

Nothing is reckoned from ratings or from how busy a part was. Where a counter cannot be read (RAPL's are root's on many
machines, and no virtual machine has them), that part is not named; where none can be, nothing is said.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overdrive.machine.command import in_python, start_of
from overdrive.machine.gpu import gpus
from overdrive.machine.nvml import read as all_of
from overdrive.machine.reading import ROOT, folders, number, text

_WAIT_SECONDS = 20.0  # as `machine.nvml`: a driver may never answer
_ZONES = "sys/class/powercap"
_START = start_of("overdrive.machine.energy")
PACKAGES, GPUS = "the processor's packages", "the GPUs"

Counted = Mapping[str, float]  # joules since some moment, by counter; the name begins with what it is of


class EnergyMeter:
    """Reads all counters at once. GPUs are asked in a process that stays, since a broken driver may never answer."""

    def __init__(self, root: Path = ROOT, with_gpus: bool = True) -> None:
        # A laptop tells of one package twice, as intel-rapl-mmio:0 and as intel-rapl:0, which comes later: powerstat
        # had counted both (github.com/ColinIanKing/powerstat/issues/4).
        named = {text(zone / "name"): zone for zone in folders(root / _ZONES)}
        self._zones = [zone for name, zone in named.items() if name.startswith("package-")]
        self._child = _started() if with_gpus and gpus() else None
        first = self.read()
        self.parts = tuple(part for part in (PACKAGES, GPUS) if any(name.startswith(part) for name in first))

    def __enter__(self) -> EnergyMeter:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def read(self) -> Counted:
        found = {}
        for zone in self._zones:
            if (joules := number(zone / "energy_uj")) is not None:
                found[f"{PACKAGES} {zone.name}"] = joules / 1e6
        return {**found, **self._of_gpus()}

    def between(self, before: Counted, after: Counted) -> float | None:
        """Joules of all parts together; None where a counter is missing in either, or there is none."""
        if not before or before.keys() != after.keys():
            return None
        return sum(self._risen(name, after[name] - before[name]) for name in before)

    def _risen(self, name: str, joules: float) -> float:
        """RAPL's counters begin again at 0 beyond a range, which is some minutes of full power."""
        if joules >= 0:
            return joules
        most = next((number(zone / "max_energy_range_uj") for zone in self._zones if name.endswith(zone.name)), None)
        return joules + (most or 0) / 1e6

    def _of_gpus(self) -> dict[str, float]:
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            return {}
        try:
            child.stdin.write(b"\n")
            child.stdin.flush()
            if not select.select([child.stdout], [], [], _WAIT_SECONDS)[0]:
                raise OSError
            told: Mapping[str, float] = json.loads(child.stdout.readline())
        except (OSError, ValueError):
            self._end()
            return {}
        return {f"{GPUS} {name}": joules for name, joules in told.items()}

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in a broken driver, it cannot be killed
                self._child.communicate(timeout=1)
            self._child = None


def _started() -> subprocess.Popen[bytes] | None:
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
        return subprocess.Popen(in_python(_START), stdin=pipe, stdout=pipe, stderr=null, start_new_session=True)
    except OSError:
        return None


def main() -> None:
    """In a process of its own: a line with all that GPUs have used for each line that comes in."""
    import pynvml

    pynvml.nvmlInit()
    used = sorted({gpu for gpu, _ in all_of(pynvml)["visible"]})
    for _ in sys.stdin:
        print(json.dumps(of_gpus(pynvml, used)), flush=True)


def of_gpus(library: Any, numbers: list[int]) -> dict[str, float]:
    """Joules since the driver was loaded, by GPU; one that does not count (before Volta) is not there."""
    found = {}
    for gpu in numbers:
        with contextlib.suppress(library.NVMLError, AttributeError):
            handle = library.nvmlDeviceGetHandleByIndex(gpu)
            found[str(gpu)] = library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
    return found
