"""The technique `fast_decode` on real JPEG and PNG files: Pillow's own pixels, errors and objects, and no trace."""

from __future__ import annotations

import copy
import io
import pickle
import struct
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")
from PIL import ImageFile, JpegImagePlugin, PngImagePlugin  # noqa: E402

from overdrive.core.facts import Facts  # noqa: E402
from overdrive.seams.pictures.jpeg import JPEG  # noqa: E402
from overdrive.seams.pictures.png import PNG  # noqa: E402
from overdrive.techniques.catalogue import catalogue  # noqa: E402
from overdrive.techniques.data import fast_decode  # noqa: E402
from overdrive.worker.session import Session  # noqa: E402

NAME = "fast_decode"
JpegImageFile = JpegImagePlugin.JpegImageFile
PngImageFile = PngImagePlugin.PngImageFile
KNOWN: dict[bytes, Any] = {}  # what the stand-in decodes: files with Pillow's pixels


def saved(
    format: str = "JPEG", size: tuple[int, int] = (40, 30), mode: str = "RGB", seed: int = 0, **how: Any
) -> bytes:
    """A file with some structure and some noise."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 255, (6, 6, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    pixels = np.asarray(coarse).astype(int) + random.integers(-12, 12, (size[1], size[0], 3))
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert(mode).save(file, format, **how)
    data = file.getvalue()
    if mode in ("RGB", "L"):
        KNOWN[data] = np.array(Image.open(io.BytesIO(data)))
    return data


def _known(data: bytes) -> Any:
    if data not in KNOWN:
        raise ValueError("corrupt")
    return KNOWN[data].copy()


def _decode_jpeg(data: bytes, colorspace: str) -> Any:
    pixels = _known(data)
    return pixels.reshape(*pixels.shape[:2], -1)


STAND_INS = {"JPEG": (JPEG, _decode_jpeg), "PNG": (PNG, lambda data, mode: _known(data))}


@pytest.fixture(params=["stand-in", "real"], autouse=True)
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("OVERDRIVE_PREFILL", raising=False)
    monkeypatch.setattr(fast_decode, "_COMPARED", 2)
    for name, stand_in in STAND_INS.items():
        library = fast_decode.LIBRARIES[name]
        if request.param == "real":
            pytest.importorskip(library.module)
            continue
        there = replace(library, module=f"stand_in_for_{library.module}", decoder=partial(tuple, stand_in))
        module = ModuleType(there.module)
        module.__spec__ = ModuleSpec(there.module, None)
        monkeypatch.setitem(sys.modules, there.module, module)
        monkeypatch.setitem(fast_decode.LIBRARIES, name, there)
    return str(request.param)


def technique() -> fast_decode.FastDecode:
    found = catalogue()[NAME]
    assert isinstance(found, fast_decode.FastDecode)
    return found


def compared(data: bytes) -> None:
    """The comparisons that come before it acts."""
    for _ in range(2):
        Image.open(io.BytesIO(data)).convert(Image.open(io.BytesIO(data)).mode)


def told(picture: Any) -> list[Any]:
    """All that can be seen of a picture."""
    array = np.asarray(picture)
    return [
        (array.shape, array.dtype.str, array.strides, array.flags.writeable, array.tobytes()),
        (picture.size, picture.mode, picture.format, picture.info, picture.getbands(), picture.readonly),
        (picture.tobytes(), picture.getpixel((3, 2)), picture.getextrema()),
    ]


TEXTS = PngImagePlugin.PngInfo()
TEXTS.add_text("before", "the pixels")
TEXTS.add_text("after", "the pixels", zip=True)
TEXTS.add(b"tIME", bytes(7), after_idat=True)
TEXTS.add(b"tEXt", b"behind\0the pixels", after_idat=True)
TEXTS.add(b"prVt", b"of one's own", after_idat=True)

KINDS: dict[str, dict[str, Any]] = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "coarse": {"quality": 10},
    "fine": {"quality": 100},
    "progressive": {"progressive": True},
    "gray": {"mode": "L"},
    "odd sizes": {"size": (37, 23)},
    "one row": {"size": (33, 4)},
    "large": {"size": (301, 255)},
    "turned": {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"},
    "optimised, with a comment": {"optimize": True, "comment": b"a comment", "dpi": (72, 72)},
    "PNG": {"format": "PNG"},
    "PNG, gray": {"format": "PNG", "mode": "L"},
    "PNG, one row": {"format": "PNG", "size": (33, 4)},
    "PNG, of several chunks": {"format": "PNG", "size": (301, 255)},
    "PNG, hardly packed": {"format": "PNG", "compress_level": 1, "dpi": (72, 72)},
    "PNG, with texts": {"format": "PNG", "pnginfo": TEXTS},
}


@pytest.mark.parametrize("name", KINDS)
def test_pictures_are_the_same_in_every_byte(name: str) -> None:
    files = [saved(seed=seed, **KINDS[name]) for seed in range(6)]
    mode = Image.open(io.BytesIO(files[0])).mode
    plain = [told(Image.open(io.BytesIO(file)).convert(mode)) for file in files]
    plain += [told(Image.open(io.BytesIO(file))) for file in files]
    with Session([(NAME, {})]) as session:
        seen = [told(Image.open(io.BytesIO(file)).convert(mode)) for file in files]
        seen += [told(Image.open(io.BytesIO(file))) for file in files]
    assert seen == plain and not session.seams.left_out
    assert session.handles[NAME].decoded == 10


def test_switched_off_pillow_decodes_everything() -> None:
    data = [saved(seed=seed) for seed in range(24)]
    plain = [told(Image.open(io.BytesIO(file)).convert("RGB")) for file in data]
    with Session([(NAME, {})]) as session:
        handle = session.handles[NAME]
        compared(data[0])
        for number, file in enumerate(data):
            before = handle.decoded
            assert told(Image.open(io.BytesIO(file)).convert("RGB")) == plain[number]
            assert handle.decoded - before == handle.active
            if number % 2:
                (handle.off if handle.active else handle.on)()
    assert not session.seams.left_out


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "crop": lambda picture: picture.crop((2, 3, 20, 21)),
    "resize": lambda picture: picture.resize((17, 11)),
    "flip": lambda picture: picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "gray": lambda picture: picture.convert("L"),
    "colours": lambda picture: picture.convert("HSV"),
    "copy": lambda picture: picture.copy(),
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
    "pickled": lambda picture: pickle.loads(pickle.dumps(picture)),
    "split": lambda picture: picture.split()[1],
    "rotated": lambda picture: picture.rotate(10),
    "made smaller": lambda picture: picture.thumbnail((9, 9)) or picture,
    "written to": lambda picture: picture.putpixel((0, 0), (1, 2, 3)) or picture,
    "pasted into": lambda picture: picture.paste((9, 9, 9), (0, 0, 5, 5)) or picture,
    "loaded": lambda picture: picture.load() and picture,
    "tensor of bytes": lambda picture: Image.frombytes(picture.mode, picture.size, picture.tobytes()),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("converted", [True, False])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_whatever_is_done_to_a_picture_comes_to_the_same(name: str, converted: bool, format: str) -> None:
    data = saved(format)

    def made() -> Any:
        picture = Image.open(io.BytesIO(data))
        picture = picture.convert("RGB") if converted else picture
        array = np.asarray(picture)
        before = array.copy()
        first, second = (OPERATIONS[name](picture) for _ in range(2))
        assert (array == before).all()  # an array stays what it was
        return told(first), told(second), told(picture), type(first), type(picture)

    plain = made()
    with Session([(NAME, {})]):
        compared(data)
        assert made() == plain


@pytest.mark.parametrize(("format", "file"), [("JPEG", JpegImageFile), ("PNG", PngImageFile)])
def test_what_was_taken_as_an_array_is_of_pillows_class_once_pillow_has_it(format: str, file: type) -> None:
    data = saved(format)
    with Session([(NAME, {})]):
        compared(data)
        opened = Image.open(io.BytesIO(data))
        picture = opened.convert("RGB")
        assert type(picture) is not Image.Image and isinstance(picture, Image.Image)
        assert isinstance(opened, file)
        assert picture == Image.open(io.BytesIO(data)).convert("RGB")
        assert type(picture) is Image.Image and repr(picture).startswith("<PIL.Image.Image image mode=RGB")
    assert opened.getpixel((1, 1)) == picture.getpixel((1, 1)) and type(opened) is file
    opened.close()
    with pytest.raises(ValueError, match="closed image"):
        np.asarray(opened)


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_files_are_let_go_of_as_pillow_does(tmp_path: Path, format: str) -> None:
    data = saved(format)
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    with Session([(NAME, {})]):
        compared(data)
        picture = Image.open(path)
        file = picture.fp
        picture.convert("RGB")
        assert file.closed and picture.fp is None
        with open(path, "rb") as own, Image.open(own) as picture:
            picture.convert("RGB")
            assert not own.closed
        assert picture.resize((4, 4)).size == (4, 4)


def _cmyk() -> bytes:
    return saved(mode="CMYK")


def _cut(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


@pytest.mark.parametrize("broken", ["cut", "cut by a byte", "header only", "flipped bits", "CMYK", "rubbish behind"])
def test_what_only_pillow_can_judge_is_left_to_it(broken: str, decoder: str) -> None:
    whole = saved()
    middle = len(whole) // 2
    files = {
        "cut": _cut(whole),
        "cut by a byte": whole[:-1],
        "header only": whole[:200],
        "flipped bits": whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 8]) + whole[middle + 8 :],
        "CMYK": _cmyk(),
        "rubbish behind": whole + b"rubbish",
    }

    def outcome() -> Any:
        try:
            picture = Image.open(io.BytesIO(files[broken]))
            return told(picture.convert(picture.mode))
        except Exception as error:
            return type(error), str(error)

    plain = outcome()
    with Session([(NAME, {})]) as session:
        compared(whole)
        assert outcome() == plain and outcome() == plain
    assert decoder == "simplejpeg" or not session.seams.left_out


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Of a PNG file: names and contents."""
    found, place = [], 8
    while place < len(data):
        (length,) = struct.unpack_from(">I", data, place)
        found.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + length]))
        place += length + 12
    return found


def _png(chunks: list[tuple[bytes, bytes]]) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks
    )


def _with_pixels(content: bytes) -> bytes:
    return _png([(name, content if name == b"IDAT" else each) for name, each in _chunks(saved("PNG"))])


def _otherwise(name: str) -> bytes:
    """PNG files that a decoder may take for good ones, or for bad ones, where Pillow does not."""
    whole = saved("PNG")
    pixels = dict(_chunks(whole))[b"IDAT"]
    rows = zlib.decompress(pixels)
    middle = len(whole) // 2
    animated = io.BytesIO()
    frames = [Image.open(io.BytesIO(saved("PNG", seed=seed))) for seed in (1, 2)]
    frames[0].save(animated, "PNG", save_all=True, append_images=frames[1:])
    sixteen, palette, transparent, alpha = io.BytesIO(), io.BytesIO(), io.BytesIO(), io.BytesIO()
    Image.fromarray((np.arange(400).reshape(20, 20) * 100).astype(np.uint16)).save(sixteen, "PNG")
    frames[0].quantize(8).save(palette, "PNG")
    frames[0].save(transparent, "PNG", transparency=(1, 2, 3))
    frames[0].convert("RGBA").save(alpha, "PNG")
    return {
        "cut": _cut(whole),
        "cut by a byte": whole[:-1],
        "no end": whole[:-12],
        "header only": whole[:41],
        "flipped bits": whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 8]) + whole[middle + 8 :],
        "rubbish behind": whole + b"rubbish",
        "wrong sum of the chunk": whole[:-13] + bytes([whole[-13] ^ 1]) + whole[-12:],
        "wrong sum of the rows": _with_pixels(pixels[:-1] + bytes([pixels[-1] ^ 1])),
        "without the rows' sum": _with_pixels(pixels[:-4]),
        "a row too few": _with_pixels(zlib.compress(rows[:-121])),
        "a byte too few": _with_pixels(zlib.compress(rows[:-1])),
        "a row too many": _with_pixels(zlib.compress(rows + rows[:121])),
        "rubbish behind the pixels": _with_pixels(pixels + b"rubbish"),
        "no such filter": _with_pixels(zlib.compress(b"\x07" + rows[1:])),
        "a chunk of nothing": _png([(b"IHDR", dict(_chunks(whole))[b"IHDR"]), (b"IDAT", b""), *_chunks(whole)[1:]]),
        "pixels in two places": _png(
            [*_chunks(whole)[:1], (b"IDAT", pixels[:200]), (b"tEXt", b"a\0b"), (b"IDAT", pixels[200:]), (b"IEND", b"")]
        ),
        "a broken text": _png([*_chunks(whole)[:-1], (b"zTXt", b"a\0\0broken"), (b"IEND", b"")]),
        "a cut chunk behind": _png([*_chunks(whole)[:-1], (b"gAMA", b"a"), (b"IEND", b"")]),
        "gamma": _png([*_chunks(whole)[:1], (b"gAMA", struct.pack(">I", 100_000)), *_chunks(whole)[1:]]),
        "profile": _png([*_chunks(whole)[:1], (b"iCCP", b"p\0\0" + zlib.compress(bytes(200))), *_chunks(whole)[1:]]),
        "bits that count": _png([*_chunks(whole)[:1], (b"sBIT", b"\5\6\5"), *_chunks(whole)[1:]]),
        "animated": animated.getvalue(),
        "16 bits": sixteen.getvalue(),
        "palette": palette.getvalue(),
        "transparent": transparent.getvalue(),
        "with opacity": alpha.getvalue(),
    }[name]


_OTHERWISE = """cut|cut by a byte|no end|header only|flipped bits|rubbish behind|wrong sum of the chunk|
wrong sum of the rows|without the rows' sum|a row too few|a byte too few|a row too many|rubbish behind the pixels|
no such filter|a chunk of nothing|pixels in two places|a broken text|a cut chunk behind|gamma|profile|bits that count|
animated|16 bits|palette|transparent|with opacity""".replace("\n", "")


@pytest.mark.parametrize("name", _OTHERWISE.split("|"))
def test_png_files_that_are_not_as_they_should_be_are_what_they_are_to_pillow(name: str, decoder: str) -> None:
    data = _otherwise(name)

    def outcome() -> Any:
        picture: Any = None
        try:
            picture = Image.open(io.BytesIO(data))
            converted = picture.convert(picture.mode)
            return told(converted), told(picture), picture.text, converted.info
        except Exception as error:
            return type(error), str(error), picture and picture.size

    plain = outcome()
    with Session([(NAME, {})]) as session:
        compared(saved("PNG"))
        assert [outcome() for _ in range(3)] == [plain] * 3
        assert not session.seams.left_out


def test_what_stands_behind_a_pngs_pixels_is_known_once_they_are_taken() -> None:
    data = saved("PNG", pnginfo=TEXTS)

    def known() -> Any:
        picture = Image.open(io.BytesIO(data))
        converted = picture.convert("RGB")
        return picture.text, picture.info, picture.private_chunks, picture.png, converted.info, picture.getexif()

    plain = known()
    assert plain[0]["behind"] == plain[4]["behind"] == "the pixels"
    with Session([(NAME, {})]) as session:
        compared(data)
        assert known() == plain
        assert session.handles[NAME].decoded == 1


def test_cut_files_are_read_where_the_program_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = saved()
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    plain = told(Image.open(io.BytesIO(_cut(whole))).convert("RGB"))
    with Session([(NAME, {})]) as session:
        compared(whole)
        assert told(Image.open(io.BytesIO(_cut(whole))).convert("RGB")) == plain
    assert session.handles[NAME].decoded == 0


def test_a_draft_is_decoded_by_pillow() -> None:
    data = saved(size=(160, 120))

    def drafted() -> Any:
        picture = Image.open(io.BytesIO(data))
        picture.draft("RGB", (40, 30))
        return told(picture.convert("RGB"))

    plain = drafted()
    with Session([(NAME, {})]) as session:
        for _ in range(4):
            assert drafted() == plain
    assert session.handles[NAME].decoded == 0


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_it_is_left_out_at_the_first_difference(monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    data = saved(format)
    plain = told(Image.open(io.BytesIO(data)).convert("RGB"))
    library = fast_decode.LIBRARIES[format]
    files, real = library.decoder()

    def other(*call: Any) -> Any:
        pixels = real(*call)
        pixels[7, 5, 1] ^= 1
        return pixels

    monkeypatch.setitem(fast_decode.LIBRARIES, format, replace(library, decoder=lambda: (files, other)))
    with Session([(NAME, {})]) as session:
        assert all(told(Image.open(io.BytesIO(data)).convert("RGB")) == plain for _ in range(3))
        assert f"{library.module} decodes a file ({format} RGB" in session.seams.left_out[NAME]
        assert "to other pixels than Pillow" in session.seams.left_out[NAME]
        assert "convert" not in vars(JpegImageFile) and "convert" not in vars(PngImageFile)


def test_each_kind_is_compared_by_itself() -> None:
    kinds = [saved(**KINDS[name]) for name in ("4:4:4", "4:2:0", "gray", "progressive", "large", "PNG", "PNG, gray")]
    with Session([(NAME, {})]) as session:
        for _ in range(2):
            for data in kinds:
                Image.open(io.BytesIO(data)).convert(Image.open(io.BytesIO(data)).mode)
        assert session.handles[NAME].decoded == 0


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
@pytest.mark.parametrize("kind", [Image.Image, ImageFile.ImageFile])
def test_what_the_program_puts_in_the_place_of_a_method_of_pillows_is_called(
    monkeypatch: pytest.MonkeyPatch, format: str, kind: Any
) -> None:
    data, name = saved(format), "convert" if kind is Image.Image else "load"
    real, called = getattr(kind, name), []
    monkeypatch.setattr(fast_decode, "_COMPARED", 0)
    with Session([(NAME, {})]) as session:
        Image.open(io.BytesIO(data)).convert("RGB")
        before = session.handles[NAME].decoded
        monkeypatch.setattr(kind, name, lambda *args, **kwargs: called.append(name) or real(*args, **kwargs))
        Image.open(io.BytesIO(data)).convert("RGB")
        assert before == session.handles[NAME].decoded == 1 and called


@pytest.mark.parametrize("file", [JpegImageFile, PngImageFile])
def test_it_leaves_no_trace(file: type) -> None:
    before = dict(vars(file))
    with Session([(NAME, {})]):
        assert dict(vars(file)) != before
    assert dict(vars(file)) == before


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_decode, "find_spec", lambda name: object() if name == "PIL" else None)
    with Session([(NAME, {})]) as session:
        packages = " ".join(library.package for library in fast_decode.LIBRARIES.values())
        assert f"pip install {packages}" in session.seams.left_out[NAME]
    assert "pip install" in (technique().applies(Facts(shares={"data": 0.5})) or "")


@pytest.mark.parametrize(("format", "file"), [("JPEG", JpegImageFile), ("PNG", PngImageFile)])
def test_files_of_which_the_decoder_is_missing_are_pillows(
    monkeypatch: pytest.MonkeyPatch, format: str, file: type
) -> None:
    missing = fast_decode.LIBRARIES[format].module
    monkeypatch.setattr(fast_decode, "find_spec", lambda name: None if name == missing else object())
    with Session([(NAME, {})]) as session:
        assert not session.seams.left_out
        seamed = {each for each in (JpegImageFile, PngImageFile) if "convert" in vars(each)}
        assert seamed == {JpegImageFile, PngImageFile} - {file}


def test_a_program_that_never_opens_a_jpeg_does_not_pay_for_pillow() -> None:
    program = """
        import sys
        from importlib.machinery import ModuleSpec
        from unittest.mock import MagicMock
        from overdrive.techniques.data.fast_decode import LIBRARIES
        for library in LIBRARIES.values():
            sys.modules[library.module] = MagicMock(__spec__=ModuleSpec(library.module, None))
        from overdrive.worker.session import Session
        with Session([("fast_decode", {})]) as session:
            assert "PIL" not in sys.modules and "torch" not in sys.modules
            from PIL import Image, JpegImagePlugin
            assert not session.seams.left_out and "convert" in vars(JpegImagePlugin.JpegImageFile)
            assert "PIL.PngImagePlugin" not in sys.modules
            from PIL import PngImagePlugin
            assert not session.seams.left_out and "convert" in vars(PngImagePlugin.PngImageFile)
            assert "torch" not in sys.modules
        assert "convert" not in vars(JpegImagePlugin.JpegImageFile)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
