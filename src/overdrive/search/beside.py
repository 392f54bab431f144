"""What a program is beside its script and its words: files of settings, modules of its own, variables that it asks for.

A search goes on with runs of the same program alone. `Program.identity` knows the Python files below its folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from overdrive.core.hyperparameters import ENVIRONMENT
from overdrive.core.program import Program
from overdrive.search.listing import ParameterList


def beside(program: Program, found: ParameterList) -> str:
    """The sizes and times of these files, and the variables' values."""
    first = [each.places[0] for each in found.parameters]
    variables = sorted((place.name, place.value) for place in first if place.kind == ENVIRONMENT)
    return repr((variables, list(_files(program, found))))


def _files(program: Program, found: ParameterList) -> Iterator[tuple[str, int, int]]:
    for path in found.read:
        # JSON is what data is kept in, too, of which a run reads what it draws.
        if path.endswith(".json") and not any(os.path.basename(path) in word for word in program.arguments):
            continue
        with contextlib.suppress(OSError):  # the trial had made it
            status = os.stat(path)
            yield path, status.st_size, status.st_mtime_ns
