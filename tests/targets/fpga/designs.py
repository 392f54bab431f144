"""What an export to an FPGA told of its design."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import Run
from tests.schemas import held


def design_of(folder: Path, run: Run) -> dict[str, Any]:
    """Of `train.py` there."""
    done = run("export", "--to", "fpga", "--json", "told.json", "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads((folder / "told.json").read_text())
    held("design", told)
    return told


def widths(told: dict[str, Any]) -> list[int]:
    """Of each layer's results, in bits."""
    return [int(each["result"].split("<")[1].split(",")[0]) for each in told["layers"]]
