"""Exports a program's model: has it recorded and made in a trial, and proves what was made in a fresh process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from overdrive.core.installing import pip_install, pip_install_extra
from overdrive.core.json_data import to_json
from overdrive.core.program import Program
from overdrive.core.records import TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.engines.onnx_runtime import OnnxRuntime
from overdrive.engines.openvino import OpenVino
from overdrive.kernels.build import cpp_compiler
from overdrive.targets.fpga.page import readme
from overdrive.targets.fpga.verdict import MARGIN, Designed, verdict
from overdrive.targets.order import (
    FOLDER,
    FPGA,
    OBSERVER,
    SIGNATURE,
    TIMES,
    TRITON,
    Made,
    Order,
    made_in,
    read_made,
    write_order,
)
from overdrive.targets.proving import prove
from overdrive.targets.result import AnswersProof, ShapeLatency, SideLatency
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

PATIENCE = 3600.0  # seconds without any sign of life: exporting and compiling give none
WHOLE_RUN = "whole run"


class CannotExport(Exception):
    """Nothing was written; the message is one sentence for people."""


@dataclass(frozen=True)
class Export:
    """What lies in a scratch folder, proved: `folder` holds artefact, signature and runner."""

    folder: Path
    made: Made
    signature: Mapping[str, Any]
    proof: AnswersProof
    latency: tuple[ShapeLatency, ...]


def _no_compiler() -> str | None:
    if not find_spec("torch"):
        return f"PyTorch is not installed: `{pip_install('torch')}` brings it"
    return None if cpp_compiler() else "AOTInductor needs a C++ compiler, and this machine has none: install g++"


def _no_hls4ml() -> str | None:
    if not find_spec("hls4ml"):
        return f"hls4ml is not installed: `{pip_install_extra('fpga')}` brings it"
    return None if shutil.which("g++") else "hls4ml's emulation needs g++, and this machine has none"


MISSING = {
    "onnx": OnnxRuntime().missing,
    TRITON: OnnxRuntime().missing,
    "openvino": OpenVino().missing,
    "aoti": _no_compiler,
    FPGA: _no_hls4ml,
}


def missing(target: str) -> str | None:
    """What this target needs and is not there, in one sentence with what brings it; None where all is there."""
    return MISSING[target]()


def export(pool: TrialPool, program: Program, order: Order) -> Export:
    """
    Raises:
        CannotExport: the program fails, calls no model, or one that cannot be exported or does not answer the same.
    """
    folder = pool.folder()
    write_order(folder, order)
    made = record(pool, program, folder)
    signature = json.loads((made_in(folder) / SIGNATURE).read_text())
    proof = prove(folder, signature, made.sizes)
    if isinstance(proof, str):
        raise CannotExport(f"{made.model} was exported, and is not proved: {proof}.")
    return Export(made_in(folder), made, signature, proof, _latency(folder))


def export_to_fpga(pool: TrialPool, program: Program, order: Order, place: Path) -> tuple[Path, Designed]:
    """The scratch folder with the project, and what is known of it. `place`: where it will lie.

    Raises:
        CannotExport: as for `export`.
    """
    folder = pool.folder()
    write_order(folder, replace(order, margin=MARGIN))
    made = record(pool, program, folder)
    result = verdict(folder, place, made.model, made.notes, made.versions)
    if isinstance(result, str):
        raise CannotExport(f"{made.model} was converted, and does not answer as the program does: {result}.")
    signature = {"format": 1, "model": made.model, "target": FPGA, "artefact": made.artefact, "versions": made.versions}
    (made_in(folder) / SIGNATURE).write_text(json.dumps(signature, indent=1) + "\n")
    (made_in(folder) / "proof.json").write_text(json.dumps(to_json(result), indent=1) + "\n")
    (made_in(folder) / "README.md").write_text(readme(result, program.command()))
    return made_in(folder), result


def record(pool: TrialPool, program: Program, folder: Path) -> Made:
    """Run the program to its end, or until it has answered for long enough, with the order that lies in the folder.

    Raises:
        CannotExport: it fails, calls no model, or one that is refused.
    """
    environment = {FOLDER: str(folder)}
    spec = TrialSpec(
        program, losses=False, clock=WHOLE_RUN, observers=(OBSERVER,), folder=str(folder), environment=environment
    )
    trial = Trial(pool, spec)
    try:
        trial.first_step()
    except TrialOver as over:
        if not over.exit_reason.by_itself:
            raise CannotExport(f"The program fails by itself ({over.exit_reason}).") from None
        report = over.observed.get(OBSERVER)
    else:
        report = None
    finally:
        trial.stop()
    if report is None:
        raise CannotExport("The program's model could not be recorded.")
    made = read_made(report)
    if made.refused:
        raise CannotExport(made.refused[0].upper() + made.refused[1:] + ".")
    return made


def _latency(folder: Path) -> tuple[ShapeLatency, ...]:
    from overdrive.evidence.latency import percentiles, speedup

    found = []
    for each in json.loads((folder / TIMES).read_text()):
        blocks = each["seconds"]
        told = {
            name: SideLatency(sum(map(len, blocks[name])), *percentiles([(0, block) for block in blocks[name]]))
            for name in ("artefact", "eager")
        }
        found.append(
            ShapeLatency(each["shapes"], each["calls"], speedup=speedup(blocks["eager"], blocks["artefact"]), **told)
        )
    return tuple(found)
