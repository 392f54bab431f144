"""What used to be one disk is several overlays, between which nothing can be renamed: there it is copied."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from typing import Any

from overdrive.sandbox.patches import Patches


def bridge_renames() -> Patches:
    """Let os.rename and os.replace copy where the kernel answers EXDEV.

    What used to be one disk is several overlays now, and an overlay doesn't rename folders of its
    lower layer for ordinary users. On the real disk those calls would have worked.
    """
    patches = Patches()
    for name in ("rename", "replace"):
        patches.set_os(name, _bridged(getattr(os, name)))
    return patches


def _bridged(rename: Callable[..., None]) -> Callable[..., None]:
    def bridged(src: Any, dst: Any, **folders: Any) -> None:
        try:
            return rename(src, dst, **folders)
        except OSError as refusal:
            if refusal.errno != errno.EXDEV or folders:
                raise
        if os.path.isdir(src) and not os.path.islink(src):
            if os.path.lexists(dst):
                os.rmdir(dst)  # as rename(2) does, which only replaces an empty folder
            shutil.copytree(src, dst, symlinks=True)
            shutil.rmtree(src)
        else:
            beside = f"{os.fsdecode(dst)}.{os.getpid()}.moving"
            shutil.copy2(src, beside, follow_symlinks=False)
            rename(beside, dst)
            os.unlink(src)

    return bridged
