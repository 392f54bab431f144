"""The folder of an export: written beside its place and renamed, so that it is there whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from overdrive.core.atomic_file import sync_folder
from overdrive.targets.order import SIGNATURE


def why_not(place: Path, force: bool) -> str:
    """Why nothing can be written there, in one sentence; empty where it can."""
    if not os.path.lexists(place):
        parent = place.parent
        if not parent.is_dir():
            return f"There is no folder {parent}: make it, or choose another place with -o."
        return "" if os.access(parent, os.W_OK) else f"Cannot write into {parent}: choose another place with -o."
    if not place.is_dir() or place.is_symlink():
        return f"{place} is no folder: choose another place with -o."
    if not force:
        return f"{place} is there already: --force replaces it, -o chooses another place."
    if os.listdir(place) and not (place / SIGNATURE).is_file():
        return f"{place} holds no export: choose another place with -o."
    return ""


def put(source: Path, place: Path) -> None:
    """Have `place` hold what `source` holds; what it held before is gone.

    Raises:
        OSError: it cannot be written; what was there is there still, and nothing else is left.
    """
    token = secrets.token_hex(4)
    new, old = (place.with_name(f".{place.name[:100]}.{token}.{what}") for what in ("tmp", "old"))
    try:
        shutil.copytree(source, new)
        if os.path.lexists(place):
            os.rename(place, old)
            try:
                os.rename(new, place)
            except OSError:
                os.rename(old, place)
                raise
        else:
            os.rename(new, place)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    sync_folder(place.parent)
