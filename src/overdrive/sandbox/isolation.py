"""Keeps a trial's writes away from the user's files.

A trial runs the user's script in earnest, so it would overwrite checkpoints, grow logs and clear
folders. `isolate` gives the process a view of the disks in which all of that happens, and is
thrown away afterwards. How the two ways work is told in `overlay.py` and `redirect.py`; why there
are two, in `docs/decisions/001-trial-writes.md`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from overdrive.sandbox.lifting import Doorman
from overdrive.sandbox.mounts import OverlayUnavailable
from overdrive.sandbox.overlay import enter_overlay
from overdrive.sandbox.redirect import FOLLOWERS, enter_redirect, redirect_torch

__all__ = ["FOLLOWERS", "Isolation", "isolate", "redirect_torch"]

FORCE = "OVERDRIVE_ISOLATION"


@dataclass(frozen=True)
class Isolation:
    """Which way writes are kept away, and what to tell people about it."""

    kind: str
    """"overlay" (by the kernel, complete) or "redirect" (in Python, with the kernel as a net)."""
    detail: str
    doorman: Doorman | None = None

    def lift(self) -> bool:
        """Have this process write to the real files from here on; False where it cannot be done."""
        return self.doorman is not None and self.doorman.ask()


def isolate(scratch: Path, keep: Sequence[Path], for_good: bool = True) -> Isolation:
    """From here on, writes of this process and its children go to `scratch`.

    Call it while the process has one thread, before the script and torch are imported.

    Args:
        scratch: an existing private folder; take it away afterwards with `core.scratch.discard`.
            Best on a disk, and not in the folder tree that holds the project: then what the
            trial writes need not fit into memory.
        keep: existing folders that stay really writable, such as our own caches. A path that
            does not exist is passed over.
        for_good: whether `Isolation.lift` need not be possible.

    Raises:
        ValueError: `OVERDRIVE_ISOLATION` names something else than "overlay" or "redirect".
        OverlayUnavailable: it asks for "overlay" and this system refuses that.
    """
    forced = os.environ.get(FORCE, "")
    if forced not in ("", "overlay", "redirect"):
        raise ValueError(f"{FORCE} is {forced!r}; set it to 'overlay' or 'redirect', or unset it.")
    scratch = scratch.resolve(strict=True)
    kept = [path.resolve() for path in keep if path.exists()]

    if forced == "redirect":
        why = f"{FORCE}=redirect asks for it"
    else:
        try:
            return Isolation("overlay", *enter_overlay(scratch, kept, for_good))
        except OverlayUnavailable as refusal:
            if forced == "overlay":
                raise
            why = str(refusal)
    return Isolation("redirect", enter_redirect(scratch, kept, why))
