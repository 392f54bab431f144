"""PNG files as Pillow opens them.

After the pixels a file may go on with texts and the like, which Pillow reads when it has decoded it; its own code does
that here too.
"""

from __future__ import annotations

from typing import Any

from PIL.PngImagePlugin import PngImageFile

from overdrive.seams.pictures.deferred import Format, deferred, is_plain, size_class, whole_file

# What a picture tells that Pillow decodes in another way; libpng writes a warning to standard error at every profile
# that it does not like.
_OTHERWISE = ("interlace", "transparency", "icc_profile", "chromaticity")


def _read(image: Any) -> bytes | None:
    # Those of 16 bits, or of fewer than 8, have other settings.
    if len(image.tile) != 1 or not is_plain(image, PngImageFile, "zip", image.mode, image.tile[0][2]):
        return None
    if image.is_animated or image.png is None or any(word in image.info for word in _OTHERWISE):
        return None
    return whole_file(image)


def _finish(image: Any) -> None:
    """Reads what follows the pixels, as Pillow does once it has them."""
    image.fp.seek(image.tile[0][2])
    image._PngImageFile__idat = image._PngImageFile__prepare_idat  # of the first chunk's bytes, those not read yet
    while image.load_read(0):
        pass
    image.load_end()


def _kind_of(image: Any) -> tuple[Any, ...]:
    return "PNG", image.mode, size_class(image)


PNG = Format("PNG", PngImageFile, deferred(PngImageFile), _read, _kind_of, _finish)
