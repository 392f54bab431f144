"""Where `overdrive run --record` writes: a file, or a tracker of experiments."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

from overdrive.cli.json_output import STDOUT, JsonPlace
from overdrive.worker.trackers import NAMES, is_tracker


class RecordPlace(JsonPlace):
    """A file, in a folder that the program may have made by then, or `TRACKER:WHERE`. A place is looked for from this
    command's folder, though the program goes to another one."""

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Path:
        path = super().convert(value, param, context)
        name, _, where = str(path).partition(":")
        if is_tracker(str(path)):
            return Path(f"{name}:{os.path.abspath(where)}") if where and name == "tensorboard" else path
        return path if path == STDOUT else path.absolute()

    def refused(self, path: Path) -> str:
        place = str(path)
        if is_tracker(place):
            return ""
        if re.match(r"[A-Za-z_]+:", place):
            name = place.partition(":")[0]
            return f"there is no tracker {name}, only {', '.join(NAMES)} (a file of that name is ./{place})"
        if path.parent.exists() or path.is_dir():
            return super().refused(path)
        return ""
