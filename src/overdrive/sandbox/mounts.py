"""The kernel calls behind `overlay.py`: namespaces, mounts, and what is mounted where."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
CAPABILITY_VERSION_3 = 0x20080522

# A remount must repeat these or the kernel takes it for an attempt to lift them. Those about
# access times it keeps by itself.
_KEPT_FLAGS = {"nosuid": MS_NOSUID, "nodev": MS_NODEV, "noexec": MS_NOEXEC}


class OverlayUnavailable(OSError):
    """This system refuses the namespace or the mounts, or they would not do; says why."""


@dataclass(frozen=True)
class Mount:
    """One line of /proc/self/mountinfo that can be reached by its path."""

    point: str
    filesystem: str
    options: tuple[str, ...]
    writable: bool
    mode: int
    """`st_mode` of what is mounted: container runtimes mount single files, too."""


def is_within(path: str, folders: Iterable[str]) -> bool:
    """Whether `path` is one of `folders` or lies beneath one."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def visible_mounts() -> list[Mount]:
    """All mounts that a path leads to, outer ones first; not those another one hides."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        lines = [line.split() for line in table]
    for fields in lines:
        number, point, options = fields[0], _unescape(fields[4]), fields[5].split(",")
        filesystem, _source, super_options = fields[fields.index("-") + 1 :][:3]
        try:
            handle = os.open(point, os.O_PATH | os.O_NOFOLLOW)
        except OSError:
            continue  # not reachable for the script, either
        try:
            if _mount_number(handle) == number:
                writable = "rw" in options and "rw" in super_options.split(",")
                mode = os.fstat(handle).st_mode
                found.append(Mount(point, filesystem, tuple(options), writable, mode))
        finally:
            os.close(handle)
    return sorted(found, key=lambda mount: mount.point.rstrip("/").count("/"))


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


def _mount_number(handle: int) -> str:
    with open(f"/proc/self/fdinfo/{handle}") as info:
        return next(line.split()[1] for line in info if line.startswith("mnt_id:"))


def new_namespace() -> bool:
    """Move this process into a mount namespace of its own; True if that took a user namespace.

    Real root needs no user namespace, and is better off without: in one, it would lose its rights
    over other users' files.
    """
    user, group = os.geteuid(), os.getegid()
    owns_namespace = True
    if user == 0:
        with contextlib.suppress(OSError):
            _check(_libc.unshare(CLONE_NEWNS), "unshare(CLONE_NEWNS)")
            owns_namespace = False
    if owns_namespace:
        _check(_libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare(CLONE_NEWUSER)")
        # The kernel asks for this before an unprivileged process may map its group.
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    # Nothing we mount may travel back to the rest of the system.
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    return owns_namespace


def drop_capabilities() -> None:
    """Give up the powers that come with a user namespace: the script shall run as it always does,
    and not, say, read its own files of mode 000. Root stays root, as it always was."""
    if os.geteuid() == 0:
        return
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(header, nothing), "capset")


def bind(source: str, point: str) -> None:
    """Show `source`, with what is mounted inside, at `point` as well."""
    _mount(source, point, None, MS_BIND | MS_REC)


def make_read_only(mount: Mount) -> None:
    """From here on, a write through this mount fails with EROFS; one that is gone by now takes none."""
    flags = sum(_KEPT_FLAGS.get(option, 0) for option in mount.options)
    with contextlib.suppress(FileNotFoundError):
        _mount(None, mount.point, None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags)


def make_writable(mount: Mount) -> None:
    """The other way round."""
    flags = sum(_KEPT_FLAGS.get(option, 0) for option in mount.options)
    _mount(None, mount.point, None, MS_REMOUNT | MS_BIND | flags)


def unmount(point: str) -> None:
    """With all that is mounted inside; who stands in it or has files of it open goes on with them."""
    _check(_libc.umount2(os.fsencode(point), MNT_DETACH), "umount")


def mount_tmpfs(point: str) -> None:
    """A file system in memory; the kernel's default limit is half of the machine's."""
    _mount("tmpfs", point, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0700")


def mount_overlay(lower: str, upper: str, work: str, point: str) -> None:
    """Overlay `lower` with `upper`, and show that at `point`."""
    with contextlib.ExitStack() as cleanup:

        def by_handle(path: str) -> str:
            # Paths in mount options would need escapes for commas and colons, and must all fit
            # into one page.
            handle = os.open(path, os.O_PATH | os.O_DIRECTORY)
            cleanup.callback(os.close, handle)
            return f"/proc/self/fd/{handle}"

        options = f"lowerdir={by_handle(lower)},upperdir={by_handle(upper)},workdir={by_handle(work)}"
        # Root may let folders be renamed, which is refused with EXDEV otherwise. A user
        # namespace has only the extended attributes that belong to users.
        variants = ["redirect_dir=on"] if os.geteuid() == 0 else []
        for variant in variants:
            with contextlib.suppress(OSError):
                return _mount("overlay", point, "overlay", 0, f"{options},{variant}")
        _mount("overlay", point, "overlay", 0, f"{options},userxattr")


def overlay_works(place: str) -> bool:
    """Whether upper layers may live in the folder `place`.

    The kernel accepts some file systems and only fails later, when a folder that was removed is made
    again: that takes extended attributes, which a tmpfs before Linux 6.6 doesn't have for users.
    """
    probe = os.path.join(place, "probe")
    lower, upper, work = (os.path.join(probe, name) for name in ("lower", "upper", "work"))
    os.makedirs(os.path.join(lower, "folder", "inner"))
    os.mkdir(upper)
    os.mkdir(work)
    try:
        mount_overlay(lower, upper, work, lower)
        shutil.rmtree(os.path.join(lower, "folder"))
        os.mkdir(os.path.join(lower, "folder"))
        works = not os.listdir(os.path.join(lower, "folder"))
        _check(_libc.umount2(os.fsencode(lower), 0), "umount")
    except OSError:
        return False
    return works


def dress(folder: str, model: str) -> None:
    """Give `folder` the owner and permissions of `model`, as far as this user may."""
    wanted = os.stat(model)
    mode = stat.S_IMODE(wanted.st_mode)
    with contextlib.suppress(OSError):
        os.chown(folder, wanted.st_uid, wanted.st_gid)
    if os.stat(folder).st_uid != wanted.st_uid and not os.access(model, os.W_OK):
        # It belongs to us now, and must not look writable for that.
        mode &= ~0o222
    os.chmod(folder, mode)


def _mount(source: str | None, point: str, filesystem: str | None, flags: int, options: str = "") -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, point, filesystem)]
    result = _libc.mount(*encoded, ctypes.c_ulong(flags), os.fsencode(options) or None)
    _check(result, f"mount of {filesystem or 'bind'} at {point}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what} was refused: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
