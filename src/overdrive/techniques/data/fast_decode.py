"""Technique `fast_decode`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.installing import pip_install
from overdrive.datacache.switch import SharedFlag
from overdrive.seams.arrival import Arrival
from overdrive.seams.hub import Handle
from overdrive.seams.points import reason_of
from overdrive.techniques.technique import CannotInstall, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams
    from overdrive.seams.pictures.deferred import Format

_LEAST_SHARE = 0.02
# Pictures of each kind that are decoded in both ways before Pillow is left out; in a trial, which is short, more.
_COMPARED = 16
_COMPARED_IN_TRIALS = 64
# From then on one in so many still is.
_NOW_AND_THEN = 512


class FastDecode(Technique):
    """Decodes JPEG and PNG files with faster libraries, straight into the array that is taken of them.

    What it does: where a JPEG or PNG file opened by Pillow is converted to the mode that it has (`.convert("RGB")`) or
    taken as an array, libjpeg-turbo or libpng decodes the whole file into an array. Pillow, which decodes into four
    bytes a pixel, copies that and packs it into three again, gets the pixels only where the program asks for more than
    the array (`crop`, `resize`, `getpixel`); the pictures are Pillow's own otherwise. Needs `pip install simplejpeg` or
    `pip install imagecodecs`; files whose decoder is missing are left to Pillow.

    When it helps: files that become tensors as they are, in data sets that `sample_cache` cannot keep. From file to
    array it took 1.4 to 1.6 times less processor time than Pillow 13 for JPEG, from 32 x 32 to 500 x 375 pixels, and
    1.3 to 1.5 times less for PNG.

    When it hurts: where Pillow goes on with the picture (crops, resizes) it saves little or loses (1.24 to 0.87
    times): the array is one copy more. Workers that do not live on compare their first pictures anew in every epoch.

    What it watches: each picture: its kind, how its file is read, whether the decoder refuses it; and one picture in
    512 of a kind, which both decode; and whether the program has replaced a method by which Pillow decodes: then its
    own is called. What would escape: one among the other 511 pictures that comes out otherwise.

    Contract: exact. The first 16 pictures of each kind (colours, sampling, progressive or not, size) are decoded in
    both ways, later one in 512, and at the first difference it is left out. Left to Pillow are files with four
    colours, of other than 8 bits, with a palette or a transparent colour, interlaced or animated; cut-off files and
    those whose checksums are wrong; `draft`; and every file that the decoder refuses, so that errors come out the same.

    Others were left out: `torchvision.io` decodes JPEG with the same libjpeg-turbo; nvJPEG and DALI decode on the
    GPU, where other rounding gives other pixels, and the program wants each picture in main memory.

    Source: https://gitlab.com/jfolz/simplejpeg, https://libjpeg-turbo.org/, https://www.cgohlke.com/imagecodecs
    """

    name = "fast_decode"
    programs = ("training", "inference")
    contract = Contract.EXACT
    computes = False
    targets = ("data",)
    expected_saving = 0.3
    survives = True
    order = 8
    switchable = True

    def applies(self, facts: Facts) -> str | None:
        if facts.share("data") < _LEAST_SHARE:
            return f"waiting for data is {facts.share('data'):.0%} of a step"
        return _missing()

    def install(self, seams: Seams, settings: Settings) -> Handle:
        if missing := _missing():
            raise CannotInstall(missing)
        handle = Decoding(seams)
        leave: list[Callable[[], None]] = []

        def arrived(library: Library) -> None:
            try:
                from overdrive.seams.pictures import deferred

                format, decode = library.decoder()
                leave_out = partial(seams.leave_out, self.name)
                decoder = _Decoder(handle, format, decode, library.module, leave_out)
                leave.append(deferred.enter(format, decoder.decode))
            except Exception as error:  # in the midst of the program's own import
                seams.leave_out(self.name, reason_of(error))

        arrivals = [
            Arrival(library.plugin, partial(arrived, library))
            for library in LIBRARIES.values()
            if find_spec(library.module)
        ]

        def undo() -> None:
            for arrival in arrivals:
                arrival.stop()
            while leave:
                leave.pop()()

        seams.on_undo(undo)
        for arrival in arrivals:
            arrival.watch()
        return handle


class Decoding(Handle):
    """While it is off, Pillow decodes, in workers that were forked before as well."""

    def __init__(self, seams: Seams) -> None:
        self.decoded = 0  # pictures, without Pillow, in this process
        self.switch = SharedFlag()
        super().__init__(seams, self.switch.on, self.switch.off)


def _missing() -> str | None:
    if not any(find_spec(library.module) for library in LIBRARIES.values()):
        names = [library.package for library in LIBRARIES.values()]
        return f"no decoder is installed that is faster than Pillow's ({pip_install(*names)})"
    if find_spec("PIL") is None:
        return "Pillow is not installed, so that no picture is decoded by it"
    return None


def _jpeg() -> tuple[Format, Callable[[bytes, str], Any]]:
    import simplejpeg

    from overdrive.seams.pictures.jpeg import JPEG

    colours = {"RGB": "RGB", "L": "GRAY"}
    return JPEG, lambda data, mode: simplejpeg.decode_jpeg(data, colours[mode])


def _png() -> tuple[Format, Callable[[bytes, str], Any]]:
    import imagecodecs

    from overdrive.seams.pictures.png import PNG

    decode = imagecodecs.png_decode  # which is what loads libpng
    return PNG, lambda data, mode: decode(data)


@dataclass(frozen=True)
class Library:
    """Decodes the files that one of Pillow's plugins opens."""

    module: str
    package: str  # how pip names it
    plugin: str
    decoder: Callable[[], tuple[Format, Callable[[bytes, str], Any]]]
    """How the files are reached, and what gives the pixels of one: from the whole file and the picture's mode, an array
    of bytes, height by width by colours. What it refuses, by any error, Pillow decodes."""


# Another library is another line here, and nothing else.
LIBRARIES = {
    "JPEG": Library("simplejpeg", "simplejpeg", "PIL.JpegImagePlugin", _jpeg),
    "PNG": Library("imagecodecs", "imagecodecs", "PIL.PngImagePlugin", _png),
}


class _Decoder:
    """Of the files of one format."""

    def __init__(
        self,
        handle: Decoding,
        format: Format,
        decode: Callable[[bytes, str], Any],
        library: str,
        leave_out: Callable[[str], None],
    ) -> None:
        self._handle = handle
        self._format = format
        self._decode = decode
        self._library = library
        self._leave_out = leave_out
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._compared = _COMPARED_IN_TRIALS if os.environ.get("OVERDRIVE_PREFILL") == "1" else _COMPARED

    def decode(self, image: Any) -> Any:
        """Its pixels, or None where Pillow shall decode it (or has, to be compared with)."""
        if not self._handle.switch:
            return None
        from overdrive.seams.pictures.deferred import pixels_of

        try:
            data = self._format.read(image)
            if data is None:
                return None
            pixels = self._decode(data, image.mode)
            kind = self._format.kind_of(image)
        except Exception:  # it refuses a damaged file, of which Pillow may make something, or say what is wrong with it
            return None
        width, height = image.size
        if pixels.shape[:2] != (height, width) or pixels.dtype.str != "|u1" or not pixels.flags.c_contiguous:
            return None
        self._seen[kind] += 1
        if self._seen[kind] > self._compared and self._seen[kind] % _NOW_AND_THEN:
            self._handle.decoded += 1
            return pixels
        if pixels_of(image) != pixels.tobytes():
            file = " ".join(str(word) for word in kind if word is not None)
            self._leave_out(f"{self._library} decodes a file ({file}) to other pixels than Pillow")
        return None
