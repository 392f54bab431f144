"""Unpacks the trees in `fixtures`, and surveys them. They are synthesised: see their README."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overdrive.machine.survey import survey
from tests.machine.recorded_nvml import FIXTURES, Change, recorded

MACHINES = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())


def unpack(name: str, root: Path) -> Path:
    path, lines = "", [""]

    def write() -> None:
        row = re.search(r"\{(\d+)-(\d+)\}", path)
        numbers = range(int(row.group(1)), int(row.group(2)) + 1) if row else [0]
        for place, number in enumerate(numbers):
            file = root / (path[: row.start()] + str(number) + path[row.end() :] if row else path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("\n".join(lines).replace("{i}", str(place)) + "\n")

    for line in (FIXTURES / name / "tree.txt").read_text().splitlines():
        if line.startswith(("== ", "-> ")):
            if path:
                write()
            path, lines = line[3:] if line.startswith("== ") else "", []
            if not path:
                link, target = line[3:].split()
                (root / link).parent.mkdir(parents=True, exist_ok=True)
                (root / link).symlink_to(target)
        else:
            lines.append(line)
    if path:
        write()
    return root


def look(
    name: str,
    root: Path,
    environment: Mapping[str, str] | None = None,
    change: Change = lambda told: None,
) -> dict[str, Any]:
    """The survey of that machine; what is installed is that of no machine, and no framework is loaded."""
    found = survey(unpack(name, root), environment or {}, load=False, ask_nvml=lambda: recorded(name, change))
    found["software"] = {"versions": {"python": "3.11.7"}, "libraries": {}, "mismatched": []}
    return found
