"""Pictures that are arrays, until the program asks Pillow for more than the array.

Pillow decodes into memory of its own, four bytes a pixel; `convert("RGB")` copies that, and an array is a copy again,
three bytes a pixel. A picture decoded elsewhere is an array already: it is given to Pillow only where the program asks
for more. `DeferredImage` is such a picture; once Pillow has its pixels it is what it would have been.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageFile

COLOURS = {"L": 1, "RGB": 3}

# Given a picture that nobody has decoded yet: its pixels, or None where Pillow shall decode it.
Decode = Callable[[Any], Any]


@dataclass(frozen=True)
class Format:
    """A kind of files, as Pillow opens them."""

    name: str
    file: type[ImageFile.ImageFile]
    deferred: type[_Deferred]  # what such a file is, decoded elsewhere, until Pillow has its pixels
    read: Callable[[Any], bytes | None]
    """The whole file of a picture that nobody has decoded yet; None where it is not a plain one, which Pillow reads."""
    kind_of: Callable[[Any], tuple[Any, ...]]
    """What decides on the way in which such a file is decoded, and about its size; in words where it is shown."""
    finish: Callable[[Any], None]
    """What Pillow does with the file once its pixels are decoded."""


def enter(format: Format, decode: Decode) -> Callable[[], None]:
    """Ask `decode` wherever such a file is converted to its own mode, or taken as an array; returns what ends that.

    Raises:
        CannotDefer: this Pillow is of another make.
    """
    if not isinstance(getattr(Image.Image, "im", None), property) or not hasattr(ImageFile, "_Tile"):
        raise CannotDefer(f"Pillow {getattr(Image, '__version__', '')} keeps its pixels in another way")

    # What the program puts in the place of one of these is to be called as without us.
    known: list[tuple[Any, str, Any]] = []

    def decoded(self: Any) -> Any:
        return decode(self) if all(vars(kind).get(name) is held for kind, name, held in known) else None

    def convert(self: Any, mode: str | None = None, *args: Any, **kwargs: Any) -> Any:
        pixels = decoded(self) if mode == self.mode and not args and not kwargs else None
        if pixels is not None and _hand_over(self, pixels, format):
            return _copy_of(self, pixels)
        return Image.Image.convert(self, mode, *args, **kwargs)

    def array_interface(self: Any) -> Any:
        pixels = decoded(self)
        if pixels is not None and _hand_over(self, pixels, format):
            return self.__array_interface__
        return Image.Image.__array_interface__.fget(self)  # type: ignore[attr-defined]

    ours = {"convert": convert, "__array_interface__": property(array_interface)}
    before = {name: vars(format.file).get(name) for name in ours}
    if any(before.values()):
        raise CannotDefer(f"Pillow's {format.name} files convert in a way of their own")
    for name, value in ours.items():
        setattr(format.file, name, value)
    known += [(kind, name, vars(kind).get(name)) for kind in format.file.__mro__[:-1] for name in _DECODING]

    def leave() -> None:
        for name, value in ours.items():
            if vars(format.file).get(name) is value:
                delattr(format.file, name)

    return leave


# Methods of Pillow's that decode a picture, or hand its pixels on.
_DECODING = ("convert", "__array_interface__", "load", "load_prepare", "load_end", "tobytes")


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
        shape = (height, width) if self.mode == "L" else (height, width, COLOURS[self.mode])
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


def deferred(file: type[ImageFile.ImageFile]) -> type[_Deferred]:
    """The class of a file, of Pillow's class `file`, whose picture has been decoded elsewhere."""
    return type(f"Deferred{file.__name__}", (_Deferred, file), {"overdrive_becomes": file})


def pixels_of(image: Any) -> bytes:
    """As Pillow decodes them: a row after the other."""
    return Image.Image.tobytes(image)


def size_class(image: Any) -> str:
    """The longer side, to the next power of two."""
    return f"under {1 << max(image.size).bit_length()} pixels"


def whole_file(image: Any) -> bytes:
    """Everything in the file of `image`, which stays where it was."""
    place = image.fp.tell()
    image.fp.seek(0)
    data: bytes = image.fp.read()
    image.fp.seek(place)
    return data


def is_plain(image: Any, format: type[ImageFile.ImageFile], codec: str, settings: Any, offset: int) -> bool:
    """Whether a file is of just that class, not decoded yet, and Pillow would decode all of it in one piece."""
    return (
        type(image) is format
        and image._im is None
        and image.mode in COLOURS
        and not image.decoderconfig
        and image.tile == [ImageFile._Tile(codec, (0, 0, *image.size), offset, settings)]
        and image.fp is not None
        and not ImageFile.LOAD_TRUNCATED_IMAGES
    )


def _hand_over(image: Any, pixels: Any, format: Format) -> bool:
    """Let `image` be decoded: to these pixels. Its file is let go of, as Pillow does after loading."""
    try:
        format.finish(image)
        if image._exclusive_fp and image._close_exclusive_fp_after_loading:
            image.fp.close()
    except Exception:  # Pillow decodes it then
        return False
    image.fp = None
    image.tile = []
    image.readonly = 0
    image.overdrive_pixels = pixels
    image.__class__ = format.deferred
    return True


def _copy_of(image: Any, pixels: Any) -> Image.Image:
    """A picture of these pixels, as `image.copy()` gives it."""
    new = DeferredImage()
    new.overdrive_pixels = pixels
    new._mode = image.mode
    new._size = image.size
    new.info = {key: value.copy() if isinstance(value, list) else value for key, value in image.info.items()}
    return new
