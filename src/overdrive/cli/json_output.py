"""Where `--json` writes: a file, or standard output with nothing else on it."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from overdrive.cli.lasting_stream import LastingStream
from overdrive.core.atomic_file import is_stream, write_atomically
from overdrive.core.json_data import finite

if TYPE_CHECKING:
    from rich.console import Console


class JsonPlace(click.ParamType):  # type: ignore[type-arg]
    """A file, or STDOUT."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Path:
        if str(value).endswith(".py"):
            self.fail(f"{value} is a script; name a file for the JSON, or - for standard output", param, context)
        path = Path(value)
        if path != STDOUT and (wrong := self.refused(path)):  # now, and not when hours of work are to be written
            self.fail(wrong, param, context)
        return path

    def refused(self, path: Path) -> str:
        """Why nothing can be written there; ""."""
        if is_stream(path):
            return ""
        if path.is_dir():
            return f"{path} is a folder; name a file"
        if not path.parent.is_dir():
            return f"there is no folder {path.parent}"
        return "" if os.access(path.parent, os.W_OK) else f"the folder {path.parent} cannot be written to"


STDOUT = Path("-")

json_option = click.option(
    "--json",
    "json_path",
    type=JsonPlace(),
    metavar="FILE",
    help="Write the result as JSON to FILE; with - to standard output, which then holds nothing else.",
)


def console_beside(json_path: Path | None, lasts: bool = False, **options: Any) -> Console:
    """For what people read: on standard error where standard output is for the JSON. What a stream has no character for
    is a question mark there, such as a file's name that is no text.

    Where colour is asked for without a terminal (FORCE_COLOR, which notebooks and CI set), it has colour, and no line
    is written over: a notebook showed each of the hundreds of pictures of a tune, one below the other.

    Args:
        lasts: of a command that writes files: it outlives the stream.
    """
    from rich.console import Console  # 0.05 s, which `overdrive run` has no use for

    stream = sys.stderr if json_path == STDOUT else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    if os.environ.get("FORCE_COLOR") and stream and not stream.isatty():
        options = {"force_terminal": False, "color_system": "standard", **options}
    if lasts and stream:
        options = {"file": cast(IO[str], LastingStream(stream)), **options}
    return Console(stderr=json_path == STDOUT, highlight=False, **options)


def write_json(json_path: Path | None, data: Any) -> None:
    """
    Raises:
        OSError: the file cannot be written.
    """
    if json_path is None:
        return
    text = json.dumps(finite(data), indent=1, allow_nan=False) + "\n"
    if json_path == STDOUT:
        click.echo(text, nl=False)
    else:
        write_atomically(json_path, text)
