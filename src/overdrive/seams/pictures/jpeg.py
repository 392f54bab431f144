"""JPEG files as Pillow opens them."""

from __future__ import annotations

from typing import Any

from PIL.JpegImagePlugin import JpegImageFile

from overdrive.seams.pictures.deferred import COLOURS, Format, deferred, is_plain, size_class, whole_file

_END = b"\xff\xd9"  # of a whole file; what is cut short is left to Pillow, errors included


def _read(image: Any) -> bytes | None:
    # A draft, which decodes to another size, has settings of its own.
    if not is_plain(image, JpegImageFile, "jpeg", (image.mode, ""), 0):
        return None
    if image.layers != COLOURS[image.mode] or image.bits != 8:
        return None
    data = whole_file(image)
    return data if data.endswith(_END) else None


def _kind_of(image: Any) -> tuple[Any, ...]:
    """Colours and their sampling, passes, about the size."""
    sampling = tuple((across, down) for _, across, down, _ in image.layer)
    passes = "progressive" if image.info.get("progressive") else "baseline"
    return "JPEG", image.mode, sampling, passes, image.info.get("adobe_transform"), size_class(image)


def _finish(image: Any) -> None:
    """Nothing: Pillow reads no further either."""


JPEG = Format("JPEG", JpegImageFile, deferred(JpegImageFile), _read, _kind_of, _finish)
