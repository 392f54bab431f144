"""Where `overdrive run --record` writes: a file, or a tracker of experiments."""

from __future__ import annotations

import re
from pathlib import Path

from overdrive.cli.json_output import JsonPlace
from overdrive.worker.trackers import NAMES, is_tracker


class RecordPlace(JsonPlace):
    """A file, in a folder that the program may have made by then, or `TRACKER:WHERE`."""

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
