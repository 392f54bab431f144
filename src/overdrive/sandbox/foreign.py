"""Files of other users and groups under an overlay, which a user namespace can't copy.

Before it changes a file, an overlay copies the file and the folders above it into its upper layer,
with their owner and group. An ordinary user's namespace knows one user and one group; for
anything else the copy fails with EOVERFLOW. Folders can be helped by making them in the upper
layer beforehand. Files can't.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator

from overdrive.sandbox.mounts import OverlayUnavailable, dress, is_within

# Deep enough for /var/tmp/someone and /data/shared/lab, and few enough to take a few milliseconds.
DEPTH = 2
MOST_FOLDERS = 500
MOST_FILES = 1000

# Nobody but root writes there.
SYSTEM = ("/bin", "/boot", "/etc", "/lib", "/lib64", "/sbin", "/usr", "/var/lib")


def prepare_foreign_folders(lower: str, upper: str, point: str) -> None:
    """Make folders of others in the `upper` layer of the overlay that will be at `point`."""
    names = [os.path.relpath(path, point) for path in likely_folders() if is_within(path, [point])]
    if not is_within(point, SYSTEM):
        names += [name for name, _ in zip(_shallow(lower, point), range(MOST_FOLDERS), strict=False)]
    for name in names:
        made = ""
        for part in name.split("/"):
            made = os.path.join(made, part)
            model, target = os.path.join(lower, made), os.path.join(upper, made)
            with contextlib.suppress(OSError):
                if stat.S_ISDIR(os.lstat(model).st_mode) and not os.path.isdir(target):
                    os.mkdir(target)
                    dress(target, model)


def likely_folders() -> list[str]:
    """Folders that scripts write to."""
    script = os.path.dirname(sys.argv[0]) if sys.argv else ""
    wanted = (os.getcwd(), os.path.expanduser("~"), os.environ.get("TMPDIR", ""), script)
    return [os.path.realpath(path) for path in wanted if path]


def _shallow(lower: str, point: str) -> Iterator[str]:
    """Folders of others up to `DEPTH` levels down, by their name in `lower`."""
    waiting = [""]
    for name in waiting:
        with contextlib.suppress(OSError), os.scandir(os.path.join(lower, name)) as entries:
            for entry in entries:
                inner = os.path.join(name, entry.name)
                if not entry.is_dir(follow_symlinks=False) or not _is_foreign(entry.stat()):
                    continue
                if is_within(os.path.join(point, inner), SYSTEM):
                    continue
                yield inner
                if inner.count("/") + 1 < DEPTH:
                    waiting.append(inner)


def refuse_foreign_files(folder: str) -> None:
    """Refuse overlays where the script may want to change files of others in its `folder`.

    Raises:
        OverlayUnavailable: there are such files, which this user may write to.
    """
    seen = 0
    for place, _folders, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(path)
                is_file = stat.S_ISREG(status.st_mode)
                if is_file and _is_foreign(status) and os.access(path, os.W_OK):
                    raise OverlayUnavailable(f"{path} belongs to another user or group, so an overlay can't copy it")
        seen += len(names)
        if seen > MOST_FILES:
            return


def _is_foreign(status: os.stat_result) -> bool:
    # A namespace shows whom it doesn't know as nobody, who is not us, either.
    return (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid())
