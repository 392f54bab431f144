"""Technique `fast_decode`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from overdrive.contract import Contract
from overdrive.facts import Facts
from overdrive.seams.arrival import Arrival
from overdrive.seams.hub import reason_of
from overdrive.techniques.technique import CannotInstall, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams

_LEAST_SHARE = 0.02
# Pictures of each kind that are decoded in both ways before Pillow is left out; in a trial, which is short, more.
_COMPARED = 16
_COMPARED_IN_TRIALS = 64
# From then on one in so many still is.
_NOW_AND_THEN = 512
_COLOURS = {"RGB": "RGB", "L": "GRAY"}  # Pillow's modes, and what simplejpeg calls them


class FastDecode(Technique):
    """Decodes JPEG files with simplejpeg, straight into the array that the program takes its pixels from.

    What it does: where a JPEG file opened by Pillow is converted to the mode that it has (`.convert("RGB")`) or taken
    as an array, libjpeg-turbo decodes the whole file into an array. Pillow, which decodes into four bytes a pixel,
    copies that and packs it into three again, gets the pixels only where the program asks for more than the array
    (`crop`, `resize`, `getpixel`); the pictures are Pillow's own otherwise. Needs `pip install simplejpeg`.

    When it helps: JPEG files that become tensors as they are, in data sets that `sample_cache` cannot keep. From file
    to array it took 1.2 to 1.6 times less processor time than Pillow, from 32 x 32 to 500 x 375 pixels, on a busy
    machine.

    When it hurts: where Pillow goes on with the picture (crops, resizes) it saves little or loses (1.24 to 0.87
    times): the array is one copy more. Workers that do not live on compare their first pictures anew in every epoch.

    Contract: exact. The first 16 pictures of each kind (colours, sampling, progressive or not, size) are decoded in
    both ways, later one in 512, and at the first difference it is left out. Left to Pillow are files with four
    colours, cut-off files, `draft`, and every file that simplejpeg refuses, so that errors come out the same.

    Source: https://gitlab.com/jfolz/simplejpeg, https://libjpeg-turbo.org/
    """

    name = "fast_decode"
    family = "data"
    contract = Contract.EXACT
    relieves = ("data",)
    usual_saving = 0.3
    order = 8

    def __init__(self) -> None:
        self.decoded = 0  # in the session that came last, by simplejpeg alone, in this process

    def applies(self, facts: Facts) -> str | None:
        if facts.share("data") < _LEAST_SHARE:
            return f"waiting for data is {facts.share('data'):.0%} of a step"
        return _missing()

    def install(self, seams: Seams, settings: Settings) -> None:
        if missing := _missing():
            raise CannotInstall(missing)
        self.decoded = 0
        decoder = _Decoder(self, lambda reason: seams.leave_out(self.name, reason))
        leave: list[Callable[[], None]] = []

        def arrived() -> None:
            try:
                import simplejpeg  # type: ignore[import-not-found,unused-ignore]  # noqa: F401

                from overdrive.seams import pictures

                leave.append(pictures.enter(decoder.decode))
            except Exception as error:  # in the midst of the program's own import
                seams.leave_out(self.name, reason_of(error))

        arrival = Arrival("PIL.JpegImagePlugin", arrived)

        def undo() -> None:
            arrival.stop()
            while leave:
                leave.pop()()

        seams.on_undo(undo)
        arrival.watch()


def _missing() -> str | None:
    if find_spec("simplejpeg") is None:
        return "simplejpeg is not installed (pip install simplejpeg)"
    if find_spec("PIL") is None:
        return "Pillow is not installed, so that no picture is decoded by it"
    return None


class _Decoder:
    def __init__(self, technique: FastDecode, leave_out: Callable[[str], None]) -> None:
        self._technique = technique
        self._leave_out = leave_out
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._compared = _COMPARED_IN_TRIALS if os.environ.get("OVERDRIVE_PREFILL") == "1" else _COMPARED

    def decode(self, image: Any) -> Any:
        """Its pixels, or None where Pillow shall decode it (or has, to be compared with)."""
        from overdrive.seams import pictures

        try:
            data = pictures.read(image)
            pixels = _pixels(data, image) if data is not None else None
            if pixels is None:
                return None
            kind = pictures.kind_of(image)
        except Exception:  # Pillow will say what is wrong with it
            return None
        self._seen[kind] += 1
        if self._seen[kind] > self._compared and self._seen[kind] % _NOW_AND_THEN:
            self._technique.decoded += 1
            return pixels
        if pictures.pixels_of(image) != pixels.tobytes():
            self._leave_out(f"simplejpeg decodes {_told(kind)} to other pixels than Pillow")
        return None


def _pixels(data: bytes, image: Any) -> Any:
    import simplejpeg  # type: ignore[import-not-found,unused-ignore]

    try:
        pixels = simplejpeg.decode_jpeg(data, _COLOURS[image.mode])
    except ValueError:  # it refuses a damaged file, of which Pillow may make something
        return None
    width, height = image.size
    sound = pixels.shape[:2] == (height, width) and pixels.dtype.str == "|u1" and pixels.flags.c_contiguous
    return pixels if sound else None


def _told(kind: tuple[Any, ...]) -> str:
    mode, sampling, progressive, *_ = kind
    return f"a {'progressive ' if progressive else ''}JPEG file ({mode}, sampled {sampling})"
