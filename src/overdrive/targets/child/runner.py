"""The runner that is put beside an artefact, as who deploys it will use it."""

from __future__ import annotations

import hashlib
import json
import runpy
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from overdrive.targets import runners
from overdrive.targets.order import SIGNATURE, TRITON

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]
_SOURCES = Path(runners.__file__).parent


def placed(target: str, folder: Path, signature: Mapping[str, Any]) -> Answer:
    """Put it and the signature into the artefact's folder, and load it from there."""
    shutil.copyfile(_SOURCES / "checks.py", folder / "checks.py")
    shutil.copyfile(_SOURCES / f"{'onnx' if target == TRITON else target}.py", folder / "run.py")
    write_signature(folder, signature)
    before, sys.path[:] = sys.path[:], [str(folder), *sys.path]
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # the folder is the user's
    sys.modules.pop("checks", None)  # of a first try
    try:
        answer: Answer = runpy.run_path(str(folder / "run.py"), run_name="run")["answer"]
    finally:
        sys.path[:], sys.dont_write_bytecode = before, writes
    return answer


def digests(folder: Path) -> dict[str, str]:
    """sha256 of each file that was made, by its place in the folder, as the runner holds them to it."""
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    return {str(each.relative_to(folder)): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


def write_signature(folder: Path, signature: Mapping[str, Any]) -> None:
    (folder / SIGNATURE).write_text(json.dumps(signature, indent=1) + "\n")
