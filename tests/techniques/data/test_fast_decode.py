"""The technique `fast_decode` on real JPEG files: Pillow's own pixels, errors and objects, and no trace."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")
from PIL import ImageFile, JpegImagePlugin  # noqa: E402

from overdrive.facts import Facts  # noqa: E402
from overdrive.session import Session  # noqa: E402
from overdrive.techniques.catalogue import catalogue  # noqa: E402
from overdrive.techniques.data import fast_decode  # noqa: E402

NAME = "fast_decode"
JpegImageFile = JpegImagePlugin.JpegImageFile
KNOWN: dict[bytes, Any] = {}  # what the stand-in decodes: files with Pillow's pixels


def jpeg(size: tuple[int, int] = (40, 30), mode: str = "RGB", seed: int = 0, **how: Any) -> bytes:
    """A file with some structure and some noise."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 255, (6, 6, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    pixels = np.asarray(coarse).astype(int) + random.integers(-12, 12, (size[1], size[0], 3))
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert(mode).save(file, "JPEG", **how)
    data = file.getvalue()
    picture = Image.open(io.BytesIO(data))
    if mode in ("RGB", "L"):
        KNOWN[data] = np.array(picture).reshape(size[1], size[0], -1)
    return data


def _decode_jpeg(data: bytes, colorspace: str) -> Any:
    if data not in KNOWN:
        raise ValueError("corrupt")
    return KNOWN[data].copy()


@pytest.fixture(params=["stand-in", "simplejpeg"], autouse=True)
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("OVERDRIVE_PREFILL", raising=False)
    monkeypatch.setattr(fast_decode, "_COMPARED", 2)
    if request.param == "simplejpeg":
        pytest.importorskip("simplejpeg")
    else:
        module = ModuleType("simplejpeg")
        module.decode_jpeg = _decode_jpeg  # type: ignore[attr-defined]
        module.__spec__ = type("Spec", (), {"name": "simplejpeg"})()  # type: ignore[assignment]
        monkeypatch.setitem(sys.modules, "simplejpeg", module)
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
}


@pytest.mark.parametrize("name", KINDS)
def test_pictures_are_the_same_in_every_byte(name: str) -> None:
    files = [jpeg(seed=seed, **KINDS[name]) for seed in range(6)]
    mode = Image.open(io.BytesIO(files[0])).mode
    plain = [told(Image.open(io.BytesIO(file)).convert(mode)) for file in files]
    plain += [told(Image.open(io.BytesIO(file))) for file in files]
    with Session([(NAME, {})]) as session:
        seen = [told(Image.open(io.BytesIO(file)).convert(mode)) for file in files]
        seen += [told(Image.open(io.BytesIO(file))) for file in files]
    assert seen == plain and not session.seams.left_out
    assert technique().decoded == 10


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
def test_whatever_is_done_to_a_picture_comes_to_the_same(name: str, converted: bool) -> None:
    data = jpeg()

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


def test_what_was_taken_as_an_array_is_of_pillows_class_once_pillow_has_it() -> None:
    data = jpeg()
    with Session([(NAME, {})]):
        compared(data)
        opened = Image.open(io.BytesIO(data))
        picture = opened.convert("RGB")
        assert type(picture) is not Image.Image and isinstance(picture, Image.Image)
        assert isinstance(opened, JpegImageFile)
        assert picture == Image.open(io.BytesIO(data)).convert("RGB")
        assert type(picture) is Image.Image and repr(picture).startswith("<PIL.Image.Image image mode=RGB")
    assert opened.getpixel((1, 1)) == picture.getpixel((1, 1)) and type(opened) is JpegImageFile
    opened.close()
    with pytest.raises(ValueError, match="closed image"):
        np.asarray(opened)


def test_files_are_let_go_of_as_pillow_does(tmp_path: Path) -> None:
    data = jpeg()
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
    return jpeg(mode="CMYK")


def _cut(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


@pytest.mark.parametrize("broken", ["cut", "cut by a byte", "header only", "flipped bits", "CMYK", "rubbish behind"])
def test_what_only_pillow_can_judge_is_left_to_it(broken: str, decoder: str) -> None:
    whole = jpeg()
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


def test_cut_files_are_read_where_the_program_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = jpeg()
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    plain = told(Image.open(io.BytesIO(_cut(whole))).convert("RGB"))
    with Session([(NAME, {})]):
        compared(whole)
        assert told(Image.open(io.BytesIO(_cut(whole))).convert("RGB")) == plain
    assert technique().decoded == 0


def test_a_draft_is_decoded_by_pillow() -> None:
    data = jpeg(size=(160, 120))

    def drafted() -> Any:
        picture = Image.open(io.BytesIO(data))
        picture.draft("RGB", (40, 30))
        return told(picture.convert("RGB"))

    plain = drafted()
    with Session([(NAME, {})]):
        for _ in range(4):
            assert drafted() == plain
    assert technique().decoded == 0


def test_it_is_left_out_at_the_first_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    data = jpeg()
    plain = told(Image.open(io.BytesIO(data)).convert("RGB"))
    real = sys.modules["simplejpeg"].decode_jpeg if "simplejpeg" in sys.modules else None

    def other(data: bytes, colorspace: str) -> Any:
        pixels = (real or _decode_jpeg)(data, colorspace)
        pixels[7, 5, 1] ^= 1
        return pixels

    monkeypatch.setattr("simplejpeg.decode_jpeg", other)
    with Session([(NAME, {})]) as session:
        assert all(told(Image.open(io.BytesIO(data)).convert("RGB")) == plain for _ in range(3))
        assert "to other pixels than Pillow" in session.seams.left_out[NAME]
        assert "convert" not in vars(JpegImageFile)


def test_each_kind_is_compared_by_itself() -> None:
    kinds = [jpeg(**KINDS[name]) for name in ("4:4:4", "4:2:0", "gray", "progressive", "large")]
    with Session([(NAME, {})]):
        for _ in range(2):
            for data in kinds:
                Image.open(io.BytesIO(data)).convert(Image.open(io.BytesIO(data)).mode)
        assert technique().decoded == 0


def test_it_leaves_no_trace() -> None:
    before = dict(vars(JpegImageFile))
    with Session([(NAME, {})]):
        assert dict(vars(JpegImageFile)) != before
    assert dict(vars(JpegImageFile)) == before


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_decode, "find_spec", lambda name: None if name == "simplejpeg" else object())
    with Session([(NAME, {})]) as session:
        assert "pip install simplejpeg" in session.seams.left_out[NAME]
    assert "pip install simplejpeg" in (technique().applies(Facts(shares={"data": 0.5})) or "")


def test_a_program_that_never_opens_a_jpeg_does_not_pay_for_pillow() -> None:
    program = """
        import sys
        from importlib.machinery import ModuleSpec
        from types import ModuleType
        simplejpeg = sys.modules["simplejpeg"] = ModuleType("simplejpeg")
        simplejpeg.__spec__ = ModuleSpec("simplejpeg", None)
        from overdrive.session import Session
        with Session([("fast_decode", {})]) as session:
            assert "PIL" not in sys.modules and "torch" not in sys.modules
            from PIL import Image, JpegImagePlugin
            assert not session.seams.left_out and "convert" in vars(JpegImagePlugin.JpegImageFile)
            assert "torch" not in sys.modules
        assert "convert" not in vars(JpegImagePlugin.JpegImageFile)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
