"""Where a command is to write: checked before anything is started."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from overdrive.cli.json_output import STDOUT
from overdrive.core.atomic_file import is_stream
from overdrive.core.program import Program


class CannotWrite(Exception):
    """Nothing was started; the message is one sentence for people."""


def check_places(program: Program, places: Mapping[str, Path | None]) -> None:
    """
    Args:
        places: by the option that names it; None where it was not given.

    Raises:
        CannotWrite: one is the script, or another's place, or a folder, or cannot be written to.
    """
    named = {} if program.module else {os.path.realpath(program.target): "the script itself"}
    for option, path in places.items():
        if path is None or path == STDOUT or is_stream(path):
            continue
        real = os.path.realpath(path)
        if real in named:
            raise CannotWrite(f"{option} {path} is {named[real]}: choose another file.")
        if os.path.isdir(real):
            raise CannotWrite(f"{option} {path} is a folder: name a file.")
        named[real] = f"already that of {option}"
        try:
            tempfile.TemporaryFile(dir=path.parent).close()
        except OSError as error:
            again = option if option.startswith("-") else "-o"  # the report lies beside the plan
            raise CannotWrite(
                f"Cannot write into the folder {path.parent} ({error.strerror}): choose another place with {again}."
            ) from None
