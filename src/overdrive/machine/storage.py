"""The file systems and disks of the program's files. How fast they are, machine.limits measures."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overdrive.machine.reading import ROOT, known, number, text

# By the kernel's names; FUSE file systems name themselves after the dot.
PARALLEL = frozenset({"lustre", "gpfs", "beegfs", "panfs", "wekafs", "ceph", "orangefs", "pvfs2", "dfuse", "juicefs"})
PARALLEL |= {"glusterfs", "quobyte", "mfs", "cvmfs2"}
NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "afpfs", "9p", "sshfs", "s3fs", "gcsfuse"})
NETWORK |= {"goofys", "rclone", "blobfuse", "blobfuse2", "mount-s3", "davfs"}
_MEMORY = frozenset({"tmpfs", "ramfs"})
_ESCAPED = re.compile(r"\\([0-7]{3})")  # a blank in a path is "\040" in the kernel's tables


def storage(root: Path = ROOT, environment: Mapping[str, str] | None = None) -> list[Any]:
    """For the working folder, temporary files and Overdrive's own: kind, type and free bytes.

    Names no folder of the user's: only the mount point.
    """
    environment = os.environ if environment is None else environment
    home = environment.get("HOME", "")
    places = {
        "working folder": os.getcwd() if root == ROOT else "/",
        "temporary files": environment.get("TMPDIR") or "/tmp",
        "Overdrive's cache": environment.get("OVERDRIVE_CACHE")  # as `core.places` has it
        or environment.get("XDG_CACHE_HOME")
        or (os.path.join(home, ".cache") if home else ""),
    }
    found = []
    for use, place in places.items():
        if place and (mount := mount_of(place, root)):
            found.append({"use": use, **_described(mount, root)})
    return found


def mounts(root: Path = ROOT) -> list[dict[str, str]]:
    """All mounts that this process sees, as /proc/self/mountinfo (proc(5)) tells; [] where there is none."""
    found = []
    for line in text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if len(left) >= 6 and len(right) >= 2:
            place = _ESCAPED.sub(lambda match: chr(int(match.group(1), 8)), left[4])
            options = ",".join([left[5], *right[2:]])
            found.append({"number": left[2], "place": place, "type": right[0], "source": right[1], "options": options})
    return found


def mount_of(place: str, root: Path = ROOT) -> dict[str, str] | None:
    """The mount that this path lies on: the deepest, and of several at one place the last."""
    place = os.path.realpath(place) if root == ROOT else place
    found = None
    for mount in mounts(root) or _by_psutil(root):
        top = mount["place"].rstrip("/")
        inside = place == top or place.startswith(top + "/")
        if inside and (found is None or len(top) >= len(found["place"].rstrip("/"))):
            found = mount
    return found


def size_option(options: str) -> int | None:
    """Bytes from a tmpfs's option such as size=65536k."""
    found = re.search(r"(?:^|,)size=(\d+)([kmg]?)(?:,|$)", options.lower())
    return int(found.group(1)) * 1024 ** " kmg".index(found.group(2) or " ") if found else None


def _by_psutil(root: Path) -> list[dict[str, str]]:
    """The mounts where there is no /proc, as on macOS."""
    if root != ROOT:
        return []
    try:
        import psutil

        parts = psutil.disk_partitions(all=True)
    except Exception:  # of a foreign system's call, anything
        return []
    return [{"number": "", "place": p.mountpoint, "type": p.fstype, "source": p.device, "options": ""} for p in parts]


def _described(mount: Mapping[str, str], root: Path) -> dict[str, object]:
    kind = mount["type"].removeprefix("fuse.").lower()
    found: dict[str, object] = {"mount": mount["place"], "type": mount["type"], "kind": _kind(kind, mount, root)}
    if root == ROOT:
        with contextlib.suppress(OSError):
            stat = os.statvfs(mount["place"])
            found["bytes"] = stat.f_blocks * stat.f_frsize
            found["free_bytes"] = stat.f_bavail * stat.f_frsize
    return known(found)


def _kind(type_: str, mount: Mapping[str, str], root: Path) -> str:
    if type_ in PARALLEL:
        return "parallel file system"
    if type_ in NETWORK:
        return "network file system"
    if type_ in _MEMORY:
        return "memory"
    if type_ in ("overlay", "overlayfs", "fuse-overlayfs", "aufs"):
        return "container's layer"
    device = root / "sys/dev/block" / mount["number"]
    spins = number(device / "queue/rotational")
    if spins is None:  # a partition has no queue of its own; it lies in the disk's folder
        with contextlib.suppress(OSError):
            spins = number(device.resolve().parent / "queue/rotational")
    name = mount["source"].rpartition("/")[2]
    if name.startswith("nvme"):
        return "NVMe disk"
    if re.match(r"(vd|xvd|sr)", name):
        return "virtual disk"
    return "local disk" if spins is None else "spinning disk" if spins else "solid-state disk"
