"""Unpacks the trees in `fixtures`, and stands for nvidia-smi there. They are synthesised: see their README."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from overdrive.machine.survey import survey

FIXTURES = Path(__file__).parent / "fixtures"
MACHINES = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())
_ANSWERS = {
    "-q -x": "nvidia-smi.xml",
    "topo -m": "topology.txt",
    "nvlink -s": "nvlink.txt",
    "--query-gpu=compute_cap --format=csv,noheader": "capabilities.txt",
}


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


def smi(
    name: str, change: Callable[[str, str], str] = lambda file, text: text
) -> Callable[[Sequence[str]], str | None]:
    """An `ask` that answers as nvidia-smi would there; `change(file, text)` alters what it says."""

    def ask(words: Sequence[str]) -> str | None:
        file = FIXTURES / name / _ANSWERS.get(" ".join(words[1:]), "no such answer")
        return change(file.name, file.read_text()) if words[0] == "nvidia-smi" and file.is_file() else None

    return ask


def look(
    name: str,
    root: Path,
    environment: Mapping[str, str] | None = None,
    change: Callable[[str, str], str] = lambda file, text: text,
) -> dict[str, Any]:
    """The survey of that machine; what is installed is that of no machine, and no framework is loaded."""
    found = survey(unpack(name, root), environment or {}, smi(name, change), load=False)
    found["software"] = {"versions": {"python": "3.11.7"}, "libraries": {}, "mismatched": []}
    return found


def command(name: str, folder: Path) -> str:
    """A PATH on which nvidia-smi is a script that answers as on that machine."""
    lines = [f"'{words}') exec cat '{FIXTURES / name / file}' ;;" for words, file in _ANSWERS.items()]
    script = folder / "nvidia-smi"
    script.write_text('#!/bin/sh\ncase "$*" in\n' + "\n".join(lines) + "\n*) exit 6 ;;\nesac\n")
    script.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
