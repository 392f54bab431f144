"""Gives this process a copy-on-write view of every disk, with Linux mount namespaces.

The script sees its usual paths. Each folder tree it could write to is an overlay: reads come from
the user's files, writes go to an upper layer in the scratch folder. It holds for every program the
script starts, in whatever language, because the kernel does it.

Order matters in three places. All sources are opened before anything is mounted, because an
overlay hides what was at its path. What stays writable is bound through before the rest is made
read-only, because a bind copies the state of its source. And the working directory is entered
anew at the end, because a process stands in a folder and not at a path.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from overdrive.sandbox.foreign import likely_folders, prepare_foreign_folders, refuse_foreign_files
from overdrive.sandbox.lifting import Doorman, Layer
from overdrive.sandbox.mounts import (
    Mount,
    OverlayUnavailable,
    bind,
    dress,
    drop_capabilities,
    is_within,
    make_read_only,
    make_writable,
    mount_overlay,
    mount_tmpfs,
    new_namespace,
    overlay_works,
    unmount,
    visible_mounts,
)
from overdrive.sandbox.renames import bridge_renames

# The kernel's own trees and the devices stay the real ones.
KERNEL_TREES = ("/proc", "/sys", "/dev")

# Sockets of running services: an overlay would cut the connection to them. Read-only is enough.
SERVICES = "/run"

# Container runtimes mount single driver files into these. An overlay for each of their hundreds
# of subfolders would cost tens of milliseconds, for trees that no training script writes to.
NOT_SPLIT = ("/boot", "/etc", "/lib", "/lib64", "/sbin", "/bin", "/usr")

MOST_ENDPOINTS = 200


def enter_overlay(scratch: Path, keep: Sequence[Path], for_good: bool) -> tuple[str, Doorman | None]:
    """Give this process its copy-on-write view; returns a sentence on how, and who takes it away again, if not
    `for_good`.

    A forked child tries first: a refusal half-way would leave this process in a namespace with
    some of the mounts, from which there is no way back.

    Raises:
        OverlayUnavailable: and nothing has changed for this process.
    """
    refusal = _refusal_in_child(scratch / "overlay-rehearsal", scratch, keep)
    if refusal:
        raise OverlayUnavailable(refusal)
    entered = _enter(scratch / "overlay", scratch, keep, for_good)
    bridge_renames()
    return entered


def _refusal_in_child(layers: Path, scratch: Path, keep: Sequence[Path]) -> str:
    """Why a rehearsal in a child process failed; empty when it went well."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _enter(layers, scratch, keep, for_good=True)
            answer = "ok"
        except BaseException as refusal:  # the child must end here, whatever happened
            answer = str(refusal) or repr(refusal)
        os.write(writer, answer.encode(errors="replace"))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        answer = pipe.read()
    _pid, status = os.waitpid(child, 0)
    if answer == "ok":
        return ""
    return answer or f"the attempt ended with {os.waitstatus_to_exitcode(status)}"


def _enter(layers: Path, scratch: Path, keep: Sequence[Path], for_good: bool) -> tuple[str, Doorman | None]:
    folder = os.getcwd()
    owns_namespace = new_namespace()
    if owns_namespace:
        refuse_foreign_files(folder)
    with contextlib.ExitStack() as cleanup:
        view = _View(layers, [str(scratch), *map(str, keep)], owns_namespace, cleanup)
        view.cover_everything()
        view.make_rest_read_only()
        view.check()
    doorman = None if for_good else Doorman(view.take_away, view.layers())
    if owns_namespace:
        drop_capabilities()
    os.chdir(folder)
    return view.describe(scratch), doorman


class _View:
    """The mounts of this process, while they are being rearranged."""

    def __init__(self, layers: Path, kept: Sequence[str], locked: bool, cleanup: contextlib.ExitStack) -> None:
        os.mkdir(layers, 0o700)
        self._locked = locked  # a user namespace may not look underneath the mounts it found
        self._folder = str(layers)
        self._kept = kept
        self._cleanup = cleanup
        self._disk = self._open(self._folder)  # its path will lead into an overlay before long
        self._mounts = visible_mounts()
        self._covered: dict[str, str] = {}  # folder -> where its upper layer is
        self._mounted: list[str] = []  # over what was there, in this order
        self._read_only: list[Mount] = []
        self._on_disk = overlay_works(self._disk)
        self._memory = ""

    def _open(self, path: str) -> str:
        """A name for what is at `path` now, whatever is mounted there later."""
        handle = os.open(path, os.O_PATH | os.O_NOFOLLOW)
        self._cleanup.callback(os.close, handle)
        return f"/proc/self/fd/{handle}"

    def cover_everything(self) -> None:
        """Overlay what can be overlaid, then put back what must stay the real thing."""
        sources = {mount.point: self._open(mount.point) for mount in self._mounts}
        real = [(path, self._open(path)) for path in self._kept]
        for path in _endpoints("/tmp"):
            with contextlib.suppress(FileNotFoundError):
                real.append((path, self._open(path)))
        for mount in self._mounts:
            if self._stays_real(mount):
                continue
            source = sources[mount.point]
            if is_within(mount.point, self._covered):
                self._bind(source, mount.point)
            if mount.writable and stat.S_ISDIR(mount.mode) and not _is_service(mount):
                self._cover(source, mount.point)
        for folder in _subfolders("/dev/shm"):  # its plain files are how processes talk
            self._cover(folder, folder)
        for path, source in real:
            try:
                self._bind(source, path)
            except FileNotFoundError:  # another program's socket, gone in the meantime
                if path in self._kept:
                    raise

    def _stays_real(self, mount: Mount) -> bool:
        return is_within(mount.point, (*KERNEL_TREES, *self._kept))

    def _cover(self, source: str, point: str) -> None:
        """Overlay `point`; or its subfolders, where the kernel refuses that because of what is
        mounted inside."""
        if point in (*KERNEL_TREES, SERVICES) or not os.access(source, os.X_OK):
            return
        inside = {mount.point for mount in self._mounts if is_within(mount.point, [point])} - {point}
        if point != "/" and not (inside and self._locked) and self._overlay(source, point):
            return
        if not inside or point in NOT_SPLIT:
            return
        # One that may not be listed, as a /home of mode 0711, has at least those that the program is known to use.
        used = {os.path.relpath(path, point).split("/")[0] for path in likely_folders() if is_within(path, [point])}
        for name in {*map(os.path.basename, _subfolders(source)), *used} - {"."}:
            folder = os.path.join(source, name)
            path = os.path.join(point, name)
            if path not in inside:  # a mount has its own turn
                self._cover(folder, path)

    def _overlay(self, source: str, point: str) -> bool:
        for place in self._places(point):
            layer = f"{place}/{len(self._covered)}"
            upper, work = f"{layer}/upper", f"{layer}/work"
            os.makedirs(upper, 0o700)
            os.mkdir(work, 0o700)
            try:
                dress(upper, source)
                if self._locked:
                    prepare_foreign_folders(source, upper, point)
                mount_overlay(source, upper, work, point)
            except OSError:
                shutil.rmtree(layer)
                continue
            self._covered[point] = place
            self._mounted.append(point)
            return True
        return False

    def _places(self, point: str) -> Iterator[str]:
        """Where an upper layer for `point` may live, best first."""
        # Overlayfs refuses an upper layer inside its own lower one.
        if self._on_disk and not is_within(self._folder, [point]):
            yield self._disk
        if not self._memory:
            point = f"{self._disk}/memory"
            os.mkdir(point)
            mount_tmpfs(point)
            self._memory = self._open(point)
            if not overlay_works(self._memory):
                raise OverlayUnavailable("overlayfs does not work on a tmpfs here")
        yield self._memory

    def make_rest_read_only(self) -> None:
        """What is neither covered nor kept answers a write with EROFS."""
        if not any(mount.point == "/dev" for mount in self._mounts):
            self._bind("/dev", "/dev")  # a plain folder here, which must not go with the rest of /
        for mount in self._mounts:
            if mount.writable and mount.point not in self._covered and not self._stays_real(mount):
                make_read_only(mount)
                self._read_only.append(mount)

    def _bind(self, source: str, point: str) -> None:
        bind(source, point)
        self._mounted.append(point)

    def take_away(self) -> None:
        """All paths lead to the real files again, for each process of this namespace."""
        for point in reversed(self._mounted):
            with contextlib.suppress(OSError):  # gone with what it was mounted in
                unmount(point)
        for mount in self._read_only:
            with contextlib.suppress(OSError):
                make_writable(mount)

    def layers(self) -> list[Layer]:
        """Where is what was written, by the folder that it was written to."""
        places = {self._disk: self._folder, self._memory: f"{self._folder}/memory"}
        return [
            Layer(point, f"{places[place]}/{number}/upper")
            for number, (point, place) in enumerate(self._covered.items())
        ]

    def check(self) -> None:
        """Look at the result, and refuse it when some real file is still writable."""
        for mount in visible_mounts():
            holds_files = stat.S_ISDIR(mount.mode) or stat.S_ISREG(mount.mode)
            safe = mount.point in self._covered or self._stays_real(mount)
            if mount.writable and holds_files and not safe:
                raise OverlayUnavailable(f"{mount.point} would have stayed writable")

    def describe(self, scratch: Path) -> str:
        """One sentence for people."""
        in_memory = sorted(path for path, place in self._covered.items() if place == self._memory)
        note = f" (to memory for {', '.join(in_memory)})" if in_memory else ""
        return (
            f"the script sees copy-on-write views of {len(self._covered)} folder trees; "
            f"what it writes goes to {scratch}{note} and is thrown away"
        )


def _is_service(mount: Mount) -> bool:
    # Other file systems beneath /run are disks, which desktops mount at /run/media.
    return mount.filesystem == "tmpfs" and is_within(mount.point, [SERVICES])


def _subfolders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _endpoints(folder: str) -> list[str]:
    """Sockets and pipes up to one level down, such as those of the CUDA MPS server; first those that are listened at.

    Through an overlay nobody would be listening at them: the kernel finds the other end by the
    file itself, and an overlay shows another one.
    """
    found = []
    for place in [folder, *_subfolders(folder)]:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                    found.append(entry.path)
    # Of ended processes many may be left: a /tmp was seen with 1,002 of workers that PyTorch had killed.
    bound = _bound()
    found.sort(key=lambda path: path not in bound)
    return found[:MOST_ENDPOINTS]


def _bound() -> set[str]:
    """Paths of sockets that a process of this network namespace holds."""
    with contextlib.suppress(OSError), open("/proc/net/unix", encoding="utf-8", errors="replace") as lines:
        return {parts[7].rstrip("\n") for line in lines if len(parts := line.split(maxsplit=7)) == 8}
    return set()
