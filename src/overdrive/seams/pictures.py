"""Seam *picture decoded*: Pillow decodes a JPEG file whose pixels the program then takes as an array.

Pillow decodes into memory of its own, four bytes a pixel; `convert("RGB")` copies that, and an array is a copy again,
three bytes a pixel. A picture decoded elsewhere is an array already: it is given to Pillow only where the program asks
for more than the array. `DeferredImage` is such a picture; once Pillow has its pixels it is what it would have been.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile

_COLOURS = {"L": 1, "RGB": 3}
_END = b"\xff\xd9"  # of a whole JPEG file; what is cut short is left to Pillow, errors included

# Given a picture that nobody has decoded yet: its pixels, or None where Pillow shall decode it.
Decode = Callable[[Any], Any]


def enter(decode: Decode) -> Callable[[], None]:
    """Ask `decode` wherever a JPEG file is converted to its own mode, or taken as an array; returns what ends that.

    Raises:
        CannotDefer: this Pillow is of another make.
    """
    if not isinstance(getattr(Image.Image, "im", None), property) or not hasattr(ImageFile, "_Tile"):
        raise CannotDefer(f"Pillow {getattr(Image, '__version__', '')} keeps its pixels in another way")

    def convert(self: Any, mode: str | None = None, *args: Any, **kwargs: Any) -> Any:
        pixels = decode(self) if mode == self.mode and not args and not kwargs else None
        if pixels is not None and _hand_over(self, pixels):
            return _copy_of(self, pixels)
        return Image.Image.convert(self, mode, *args, **kwargs)

    def array_interface(self: Any) -> Any:
        pixels = decode(self)
        if pixels is not None and _hand_over(self, pixels):
            return self.__array_interface__
        return Image.Image.__array_interface__.fget(self)  # type: ignore[attr-defined]

    ours = {"convert": convert, "__array_interface__": property(array_interface)}
    before = {name: vars(JpegImageFile).get(name) for name in ours}
    if any(before.values()):
        raise CannotDefer("Pillow's JPEG files convert in a way of their own")
    for name, value in ours.items():
        setattr(JpegImageFile, name, value)

    def leave() -> None:
        for name, value in ours.items():
            if vars(JpegImageFile).get(name) is value:
                delattr(JpegImageFile, name)

    return leave


class CannotDefer(Exception):
    """The message says why."""


class _Deferred(Image.Image):
    """Pixels as an array, until Pillow needs them. Then the object becomes of the class that it stands for."""

    overdrive_pixels: Any = None
    overdrive_becomes: type[Image.Image] = Image.Image

    @property
    def im(self) -> Any:
        if self._im is None:
            pixels, self.overdrive_pixels = self.overdrive_pixels, None
            self._im = Image.frombuffer(self.mode, self.size, pixels, "raw", self.mode, 0, 1).im
        self._become()
        return Image.Image.im.fget(self)  # type: ignore[attr-defined]

    @im.setter
    def im(self, im: Any) -> None:
        self._im = im
        self._become()

    def _become(self) -> None:
        self.__dict__.pop("overdrive_pixels", None)
        self.__class__ = self.overdrive_becomes  # type: ignore[assignment]

    def load(self) -> Any:
        if self._im is None:
            _ = self.im
        else:
            self._become()
        return self.load()

    def close(self) -> None:
        self._become()
        self.close()

    def tobytes(self, encoder_name: str = "raw", *args: Any) -> bytes:
        if self._im is None and encoder_name == "raw" and not args:
            return bytes(self.overdrive_pixels.tobytes())
        self.load()
        return self.tobytes(encoder_name, *args)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self._im is not None:
            self._become()
            return self.__array_interface__
        width, height = self.size
        shape = (height, width) if self.mode == "L" else (height, width, _COLOURS[self.mode])
        # Not to be written to, as Pillow's bytes.
        data = memoryview(self.overdrive_pixels).toreadonly()
        return {"version": 3, "shape": shape, "typestr": "|u1", "data": data}

    def __eq__(self, other: object) -> bool:
        for each in (self, other):
            if isinstance(each, _Deferred):
                each.load()
        return self == other

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.load()
        return self.__reduce_ex__(protocol)

    def __repr__(self) -> str:
        self.load()
        return repr(self)


class DeferredImage(_Deferred):
    """What `convert` gives."""


class DeferredJpeg(_Deferred, JpegImageFile):
    """A file whose picture has been decoded."""

    overdrive_becomes = JpegImageFile


def kind_of(image: Any) -> tuple[Any, ...]:
    """What decides on the way in which a JPEG file is decoded: colours and their sampling, passes, about the size."""
    sampling = tuple((across, down) for _, across, down, _ in image.layer)
    passes, adobe = bool(image.info.get("progressive")), image.info.get("adobe_transform")
    return image.mode, sampling, passes, adobe, max(image.size).bit_length()


def pixels_of(image: Any) -> bytes:
    """As Pillow decodes them: a row after the other."""
    return Image.Image.tobytes(image)


def read(image: Any) -> bytes | None:
    """The whole file of a JPEG picture that nobody has decoded yet; None where it is not a plain one."""
    plain = (
        type(image) is JpegImageFile
        and image._im is None
        and image.mode in _COLOURS
        and image.layers == _COLOURS[image.mode]
        and image.bits == 8
        and not image.decoderconfig  # no draft, which decodes to another size
        and image.tile == [ImageFile._Tile("jpeg", (0, 0, *image.size), 0, (image.mode, ""))]
        and image.fp is not None
        and not ImageFile.LOAD_TRUNCATED_IMAGES
    )
    if not plain:
        return None
    place = image.fp.tell()
    image.fp.seek(0)
    data = image.fp.read()
    image.fp.seek(place)
    return data if data.endswith(_END) else None


def _hand_over(image: Any, pixels: Any) -> bool:
    """Let `image` be decoded: to these pixels. Its file is let go of, as Pillow does after loading."""
    try:
        if image._exclusive_fp and image._close_exclusive_fp_after_loading:
            image.fp.close()
    except Exception:  # Pillow decodes it then
        return False
    image.fp = None
    image.tile = []
    image.readonly = 0
    image.overdrive_pixels = pixels
    image.__class__ = DeferredJpeg
    return True


def _copy_of(image: Any, pixels: Any) -> Image.Image:
    """A picture of these pixels, as `image.copy()` gives it."""
    new = DeferredImage()
    new.overdrive_pixels = pixels
    new._mode = image.mode
    new._size = image.size
    new.info = {key: value.copy() if isinstance(value, list) else value for key, value in image.info.items()}
    return new
