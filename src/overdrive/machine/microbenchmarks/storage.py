"""Storage and pictures: what a data set of files can be read and decoded at."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import time
from pathlib import Path

from overdrive.machine.microbenchmarks.best import Measurements, NotMeasured, best_seconds

_MIB = 1 << 20
_SMALL = 32 * 1024  # bytes; a CIFAR picture as JPEG has 2 kB, one of ImageNet 110 kB
_FREE = 4  # times what is written must be free
_WIDTH, _HEIGHT = 500, 375  # the usual picture of ImageNet


def measure_storage(answer: Measurements, folder: Path) -> None:
    """Puts `storage.write`, `storage.read` (B/s), `files.small_read` and `files.small_read_cached` (files/s)."""
    size = (64 if answer.quick else 256) * _MIB
    count = 200 if answer.quick else 1000

    def large(scratch: Path) -> None:
        block = os.urandom(8 * _MIB)  # random: some file systems compress
        path = scratch / "large"
        began = time.perf_counter()
        with path.open("wb", buffering=0) as file:
            for _ in range(size // len(block)):
                file.write(block)
            os.fsync(file.fileno())
        answer.put(
            "storage.write", size / (time.perf_counter() - began), "B/s", f"{size / _MIB:.0f} MiB and fsync; {where}"
        )
        _forget(path)
        began = time.perf_counter()
        with path.open("rb", buffering=0) as file:
            while file.read(8 * _MIB):
                pass
        how = f"{size / _MIB:.0f} MiB, the kernel's copy dropped before; {where}"
        answer.put("storage.read", size / (time.perf_counter() - began), "B/s", how)
        path.unlink()

    def small(scratch: Path) -> None:
        paths = [scratch / f"{number:05d}" for number in range(count)]
        for path in paths:
            path.write_bytes(os.urandom(_SMALL))
        os.sync()
        for path in paths:
            _forget(path)
        began = time.perf_counter()
        for path in paths:
            path.read_bytes()
        how = f"{count} files of {_SMALL // 1024} KiB, one after the other, by one process"
        rate = count / (time.perf_counter() - began)
        answer.put("files.small_read", rate, "files/s", f"{how}, the kernel's copies dropped before; {where}")

        def again() -> None:
            for path in paths:
                path.read_bytes()

        seconds = best_seconds(again, answer.share)
        answer.put("files.small_read_cached", count / seconds, "files/s", f"{how}, in the kernel's copies")

    where = f"in {_shown(folder)}"
    needed = _FREE * max(size, count * _SMALL)
    if shutil.disk_usage(folder).free < needed:
        raise NotMeasured(f"{_shown(folder)} has less than {needed / _MIB:.0f} MiB free")
    with tempfile.TemporaryDirectory(prefix="limits-", dir=folder) as scratch:
        answer.attempt("storage.read", lambda: large(Path(scratch)))
        answer.attempt("files.small_read", lambda: small(Path(scratch)))


def measure_jpeg(answer: Measurements) -> None:
    """Puts `jpeg.decode`, in images/s of one process."""
    try:
        from PIL import Image
    except ImportError:
        raise NotMeasured("Pillow is not installed") from None
    # Noise in blocks of 8 pixels: as much detail as a photograph has, so that the file has its usual size.
    rough = Image.frombytes("RGB", (_WIDTH // 8, _HEIGHT // 8), os.urandom(_WIDTH // 8 * (_HEIGHT // 8) * 3))
    picture = Image.blend(
        rough.resize((_WIDTH, _HEIGHT), Image.Resampling.BICUBIC),
        Image.frombytes("RGB", (_WIDTH, _HEIGHT), os.urandom(_WIDTH * _HEIGHT * 3)),
        0.12,
    )
    encoded = io.BytesIO()
    picture.save(encoded, "JPEG", quality=90)
    data = encoded.getvalue()
    seconds = best_seconds(lambda: Image.open(io.BytesIO(data)).convert("RGB").load(), answer.share)
    how = f"{_WIDTH} × {_HEIGHT} pixels, {len(data) / 1000:.0f} kB, by Pillow in one process"
    answer.put("jpeg.decode", 1 / seconds, "images/s", how)


def _forget(path: Path) -> None:
    """Ask the kernel to drop its copy of a file; it needs no rights for one's own."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def _shown(folder: Path) -> str:
    """A path with ~ for the home: what is kept names no user."""
    home = os.path.expanduser("~")
    text = str(folder)
    return "~" + text[len(home) :] if home != "/" and text.startswith(home + os.sep) else text
