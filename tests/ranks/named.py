"""The programs and defects of this folder by name, read from their text."""

from __future__ import annotations

import re
from pathlib import Path

_HERE = Path(__file__).parent

NAMES = tuple(re.findall(r"^@program\ndef (\w+)", (_HERE / "small_programs.py").read_text(), re.MULTILINE))
_found = re.findall(r'^@defect\("(\w+)"(?:, (\w+))?\)\ndef (\w+)', (_HERE / "defects.py").read_text(), re.MULTILINE)
DEFECTS = {name: program for program, _, name in _found}
TRIED = tuple(name for _, found, name in _found if found == "TRIED")  # found by the trial of a model's call
STOPPED = tuple(name for _, found, name in _found if found == "STOPPED")  # by the lockstep
