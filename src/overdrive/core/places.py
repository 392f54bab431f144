"""Where files of ours lie that a trial and its parent both use."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def samples_folder() -> Path:
    """Where cached samples are kept: $OVERDRIVE_CACHE, else overdrive/samples in the user's cache folder."""
    if chosen := os.environ.get("OVERDRIVE_CACHE"):
        return Path(chosen)
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a container's user without a name or a home
        return Path(tempfile.gettempdir()) / f"overdrive-{os.getuid()}" / "samples"
    return Path(cache) / "overdrive" / "samples"


def engines_folder() -> Path:
    """Where engines are kept. Within the folder of samples: one place to choose, to empty, and for trials to reach."""
    return samples_folder() / "engines"
