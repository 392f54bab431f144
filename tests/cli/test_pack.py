"""`overdrive pack`, and `packed_files`, which reads what it wrote: the same bytes, or the files themselves."""

from __future__ import annotations

import builtins
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overdrive.commands.pack import CannotPack, write_pack
from overdrive.datacache import shards
from overdrive.datacache.shards import File, PackError, look_at, pack
from overdrive.samples.packed.reading import Packed, plain_path
from overdrive.seams.hub import Seams
from overdrive.worker.session import Session
from tests.conftest import Run

Write = Callable[[str], Path]

TRAIN = """
import sys
from pathlib import Path
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

class Folder(Dataset):
    def __init__(self, root):
        self.paths = sorted(path for path in Path(root).rglob("*.*"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        image = torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1).float() / 255
        return image, int(path.parent.name)

def main(workers):
    torch.manual_seed(0)
    train = DataLoader(Folder("data/train"), 8, shuffle=True, num_workers=workers)
    test = DataLoader(Folder("data/test"), 8, num_workers=workers)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 16 * 3, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for images, labels in train:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            print(f"{loss.item():.9f}")
    print(sum((model(images).argmax(1) == labels).sum().item() for images, labels in test))

main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


def make_images(folder: Path, train: int = 40, test: int = 12) -> None:
    from PIL import Image

    draw = np.random.default_rng(0)
    for part, count in (("train", train), ("test", test)):
        for number in range(count):
            place = folder / part / str(number % 4)
            place.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{number:04d}.{'jpg' if number % 2 else 'png'}")


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def project(script: Write) -> Path:
    pytest.importorskip("torch")
    folder = script(TRAIN).parent
    make_images(folder / "data")
    return folder


@pytest.fixture
def files(tmp_path: Path) -> list[File]:
    """Forty files of 1 to 3 kB."""
    draw = random.Random(0)
    for number in range(40):
        path = tmp_path / "data" / str(number % 3) / f"{number:03d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(draw.randrange(1000, 3000)))
    return look_at(sorted(map(str, (tmp_path / "data").rglob("*.bin"))))[0]


@pytest.fixture
def packed(files: list[File], tmp_path: Path) -> Path:
    pack(files, tmp_path / "packed", 16_000, {})
    return tmp_path / "packed"


class Reading:
    """A session with the technique: who read what from a shard, and what was said."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.from_shards = 0
        self.session = Session([("packed_files", {"index": str(folder / "index.json")})])
        real = Packed.content

        def counted(pack: Packed, number: int) -> bytes | None:
            content = real(pack, number)
            self.from_shards += content is not None
            return content

        monkeypatch.setattr(Packed, "content", counted)

    def __enter__(self) -> Reading:
        self.session.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.session.__exit__(None, None, None)

    @property
    def reason(self) -> str:
        return self.session.seams.left_out["packed_files"]


def names_in(tar: Path) -> list[str]:
    with tarfile.open(tar) as archive:
        return archive.getnames()


def read_all(files: list[File]) -> list[bytes]:
    contents = []
    for file in files:
        with open(file.path, "rb") as opened:
            contents.append(opened.read())
    return contents


# -- the whole way --------------------------------------------------------------------------------


def test_a_packed_program_is_the_same_program(project: Path, python: Run, overdrive: Run, tmp_path: Path) -> None:
    before = snapshot(project / "data")
    made = overdrive("pack", "--shard-size", "8k", "train.py", cwd=project)
    assert made.returncode == 0, made.stderr
    assert "52 files" in made.stdout
    folder = project / "train.packed"
    assert len(list(folder.glob("shard-*.tar"))) > 3
    packed = sorted(name for tar in folder.glob("*.tar") for name in names_in(tar))
    assert len(packed) == 52 and packed[0].startswith("test/")
    assert snapshot(project / "data") == before

    plain = python("train.py", cwd=project)
    hashes = []
    for words in (("--no-plan", "train.py"), ("train.py",), ("train.py", "2")):
        record = tmp_path / "record.json"
        plan = () if words[0] == "--no-plan" else ("--plan", str(folder / "plan.toml"))
        done = overdrive("run", "--record", str(record), *plan, *words, cwd=project)
        assert done.stdout == plain.stdout and done.returncode == 0, done.stderr
        assert done.stderr.count("\n") == 1
        told = json.loads(record.read_text())
        assert told["techniques"] == (["packed_files"] if plan else [])
        hashes.append(told["parameters"])
    assert len(set(hashes)) == 1
    assert snapshot(project / "data") == before

    again = overdrive("pack", "--shard-size", "8k", "train.py", "2", cwd=project)
    total = len(list(folder.glob("*.tar")))
    assert f"{total} of which were there" in again.stdout


def test_packed_files_and_the_sample_cache_get_along(
    project: Path, python: Run, overdrive: Run, tmp_path: Path
) -> None:
    files, _ = look_at(sorted(map(str, (project / "data").rglob("*.*"))))
    pack(files, tmp_path / "packed", 16_000, {})
    plan, record = tmp_path / "both.toml", tmp_path / "record.json"
    plan.write_text(
        'overdrive = 1\nprogram = "train.py"\ncontract = "exact"\n[[technique]]\nname = "sample_cache"\n'
        '[[technique]]\nname = "packed_files"\n'
        f'settings = {{ index = "{tmp_path / "packed" / "index.json"}" }}\n'
    )
    plain = python("train.py", cwd=project)
    for _ in range(2):
        done = overdrive("run", "--record", str(record), "--plan", str(plan), "train.py", cwd=project)
        assert done.stdout == plain.stdout, done.stderr
        assert sorted(json.loads(record.read_text())["techniques"]) == ["packed_files", "sample_cache"]


@pytest.mark.parametrize("kind", ["handles", "np.load", "in C", "no loader", "no step", "fails"])
def test_a_program_that_cannot_be_packed_is_told_why(
    kind: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from overdrive.core.program import Program

    head, tail = TRAIN.split("main(int", 1)[0], "\nmain(0)\n"
    texts = {
        "handles": (
            head.replace("Image.open(path)", "Image.open(os.fdopen(os.open(path, os.O_RDONLY), 'rb'))")
            .replace("import sys", "import os, sys") + tail,
            "no file that could be packed",
        ),
        "np.load": (
            head.replace('np.array(Image.open(path).convert("RGB"))', 'np.load(str(path).replace("data", "arrays"))')
            + tail,
            "no file that could be packed",
        ),
        "in C": (
            head.replace('np.array(Image.open(path).convert("RGB"))', "np.zeros((16, 16, 3), dtype=np.uint8)").replace(
                "return image,", "torch.from_file(str(path), size=9, dtype=torch.uint8)\n        return image,"
            )
            + tail,
            "no file that could be packed",
        ),
        "no loader": (
            "import torch\nw = torch.nn.Linear(2, 1)\no = torch.optim.SGD(w.parameters(), lr=0.1)\n"
            "w(torch.ones(1, 2)).sum().backward()\no.step()\n",
            "opens no DataLoader",
        ),
        "no step": ("import torch\n", "no training step"),
        "fails": ("raise ValueError('mine')\n", "fails by itself (exception: ValueError: mine)"),
    }  # fmt: skip
    text, says = texts[kind]
    (project / "train.py").write_text(text)
    for path in (project / "data").rglob("*.*") if kind == "np.load" else ():
        place = project / "arrays" / path.relative_to(project / "data")
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place, "wb") as file:
            np.save(file, np.zeros((16, 16, 3), dtype=np.uint8))
    monkeypatch.chdir(project)
    with pytest.raises(CannotPack, match=says.replace("(", r"\(").replace(")", r"\)")):
        write_pack(Program("train.py"), project / "out", 1_000_000)
    assert not (project / "out").exists()
    said = capsys.readouterr().out
    assert ("in a way that cannot be redirected" in said) == (kind == "handles")
    assert ("asks its files for their handles" in said) == (kind == "np.load")
    assert ("opens no file through Python's open()" in said) == (kind == "in C")


def test_files_that_no_attribute_names_are_found_by_fetching(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from overdrive.core.program import Program

    text = TRAIN.replace('self.paths = sorted(path for path in Path(root).rglob("*.*"))', "self.root = root")
    text = text.replace("len(self.paths)", "12").replace(
        "path = self.paths[index]", 'path = next((Path(self.root) / str(index % 4)).glob(f"{index:04d}.*"))'
    )
    (project / "train.py").write_text(text)
    monkeypatch.chdir(project)
    assert write_pack(Program("train.py"), project / "out", 1_000_000) == 0
    names = names_in(project / "out" / "shard-000000.tar")
    expected = [f"{part}/{n % 4}/{n:04d}.{'jpg' if n % 2 else 'png'}" for part in ("train", "test") for n in range(12)]
    assert sorted(names) == sorted(expected)
    assert names[0].endswith("0000.png") and names[1].endswith("0001.jpg")  # in the order of the samples


def test_bad_words_are_answered_in_one_sentence(project: Path, overdrive: Run) -> None:
    for words in (("pack",), ("pack", "nope.py"), ("pack", "--shard-size", "many", "train.py")):
        done = overdrive(*words, cwd=project)
        assert done.returncode == 2 and "Traceback" not in done.stderr, words
    (project / "full").mkdir()
    (project / "full" / "mine.txt").write_text("mine")
    done = overdrive("pack", "-o", "full", "train.py", cwd=project)
    assert done.returncode == 1 and "holds other things (mine.txt)" in done.stderr
    done = overdrive("pack", "-o", "data/here", "train.py", cwd=project)
    assert done.returncode == 1 and "lies among the files themselves" in done.stderr
    assert not (project / "data" / "here").exists()


# -- writing --------------------------------------------------------------------------------------


def test_shards_are_plain_tars_of_the_very_same_files(files: list[File], packed: Path) -> None:
    found = {}
    for tar in sorted(packed.glob("*.tar")):
        with tarfile.open(tar) as archive:
            for member in archive.getmembers():
                extracted = archive.extractfile(member)
                assert extracted is not None
                found[member.name] = (extracted.read(), member.mtime)
        assert tar.stat().st_size % tarfile.RECORDSIZE == 0
    root = Path(shards.common_root(files))
    assert found == {
        str(Path(file.path).relative_to(root)): (Path(file.path).read_bytes(), file.modified // 10**9) for file in files
    }


def test_webdataset_reads_the_shards(files: list[File], packed: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    tars = [str(tar) for tar in sorted(packed.glob("*.tar"))]
    samples = list(webdataset.WebDataset(tars, shardshuffle=False))
    assert [sample["bin"] for sample in samples] == read_all(files)


KILLED = """
import os, signal, sys
from pathlib import Path
from overdrive.datacache.shards import look_at, pack
files = look_at(sorted(map(str, Path(sys.argv[1]).rglob("*.bin"))))[0]
def on_shard(done, total):
    if done == 2:
        os.kill(os.getpid(), signal.SIGKILL)
pack(files, Path(sys.argv[2]), 16_000, {}, on_shard)
"""


def test_a_pack_that_was_killed_goes_on_after_its_last_whole_shard(files: list[File], tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "data"), str(folder)])
    assert done.returncode == -signal.SIGKILL
    assert not (folder / "index.json").exists()
    with pytest.raises(PackError, match="no whole pack"):
        shards.shards_of(folder / "index.json")
    (folder / ".partial-shard-000002.tar").write_bytes(b"half")
    (folder / "shard-000002.tar").write_bytes(b"whole, but its index was not written any more")
    before = {path.name: path.stat().st_ino for path in folder.glob("shard-00000[01].*")}
    assert len(before) == 4

    packing = pack(files, folder, 16_000, {})
    assert packing.found == 2 and packing.shards > 4 and packing.files == 40
    assert before == {path.name: path.stat().st_ino for path in folder.glob("shard-00000[01].*")}
    assert not list(folder.glob(".partial-*"))
    held = [entry for tar in shards.shards_of(folder / "index.json") for entry in shards.entries_of(tar)]
    assert [entry.path for entry in held] == [file.path for file in files]


def test_a_full_disk_loses_nothing(files: list[File], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = shards._append, []

    def full(*args: Any) -> Any:
        calls.append(args)
        if len(calls) > 20:
            raise OSError(28, "No space left on device")
        return real(*args)

    monkeypatch.setattr(shards, "_append", full)
    with pytest.raises(OSError, match="No space left"):
        pack(files, tmp_path / "packed", 16_000, {})
    assert not list((tmp_path / "packed").glob(".partial-*")) and not (tmp_path / "packed" / "index.json").exists()
    monkeypatch.setattr(shards, "_append", real)
    assert pack(files, tmp_path / "packed", 16_000, {}).found > 0


def test_no_room_is_told_before_anything_is_written(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from overdrive.commands import pack
    from overdrive.core.program import Program

    monkeypatch.chdir(project)
    paths = sorted(map(str, (project / "data").rglob("*.*")))
    found = [{"data_set": "Folder", "files": paths, "reason": ""}]
    monkeypatch.setattr(pack, "_found", lambda program: found)
    usage = shutil.disk_usage(project)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=1000))
    with pytest.raises(CannotPack, match="GB free"):
        write_pack(Program("train.py"), project / "out", 1_000_000)
    assert not (project / "out").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)

    def full(*args: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shards, "_append", full)
    with pytest.raises(CannotPack, match=r"The disk is full: the shards in .* that are whole stay"):
        write_pack(Program("train.py"), project / "out", 1_000_000)


def test_two_packs_do_not_write_to_one_folder(files: list[File], tmp_path: Path) -> None:
    def on_shard(done: int, total: int) -> None:
        if done == 1:
            with pytest.raises(PackError, match="Another"):
                pack(files, tmp_path / "packed", 16_000, {})

    assert pack(files, tmp_path / "packed", 16_000, {}, on_shard).files == 40


def test_a_changed_set_of_files_is_packed_anew_and_leaves_no_old_shard(files: list[File], packed: Path) -> None:
    count = len(list(packed.glob("*.tar")))
    packing = pack(files[: len(files) // 2], packed, 16_000, {})
    assert packing.found > 0 and len(list(packed.glob("*.tar"))) == packing.shards < count
    assert len(list(packed.glob("shard-*.json"))) == packing.shards


def test_a_file_that_changes_while_it_is_packed_is_left_out(files: list[File], tmp_path: Path) -> None:
    stale = [*files[:5], files[5]._replace(size=files[5].size + 1), files[6]._replace(modified=time.time_ns() + 10**9)]
    packing = pack(stale, tmp_path / "packed", 16_000, {})
    assert packing.changed == 2 and packing.files == 5


# -- reading --------------------------------------------------------------------------------------


def test_files_come_from_the_shards_and_no_trace_is_left(
    files: list[File], packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, before = read_all(files), (builtins.open, io.open)
    with Reading(packed, monkeypatch) as reading:
        assert builtins.open is io.open is not before[0]
        assert read_all(files) == plain and reading.from_shards == 40
        assert Path(files[0].path).read_bytes() == plain[0] and reading.from_shards == 41
        kept = builtins.open
        lazy = open(files[1].path, "rb")  # noqa: SIM115
    assert (builtins.open, io.open) == before
    with lazy, kept(files[2].path, "rb") as late:
        assert lazy.read() == plain[1] and late.read() == plain[2]
        assert type(late.raw) is io.FileIO


def test_more_shards_than_may_stay_open_are_opened_anew(
    files: list[File], packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda which: (8, 8))
    plain, before = read_all(files), len(os.listdir("/proc/self/fd"))
    with Reading(packed, monkeypatch) as reading:
        assert read_all(files) == plain and reading.from_shards == len(files)
        assert len(os.listdir("/proc/self/fd")) == before + 2
    assert len(os.listdir("/proc/self/fd")) == before


def every_way(path: str) -> Iterator[Any]:
    """What can be done with an opened file, and what comes of it."""
    with open(path, "rb") as file:
        yield type(file), file.name, file.mode, file.readable(), file.writable(), file.seekable(), file.isatty()
        yield repr(file), file.raw.mode, file.closed, file.tell()
        yield file.read(10), file.peek(5)[:5], file.tell(), file.read1(7), file.readline(), file.tell()
        yield file.seek(-20, 2), file.read(), file.read(), file.read(1)
        yield file.seek(3), file.seek(2, 1), file.read(4)
        buffer = bytearray(50)
        yield file.readinto(buffer), bytes(buffer), file.seek(10**6), file.read()
        for wrong, given in ((file.write, (b"x",)), (file.truncate, ()), (file.seek, (-1,)), (file.seek, (0, 9))):
            try:
                yield wrong(*given)
            except (OSError, ValueError) as error:
                yield type(error), str(error)
        file.seek(0)
        yield list(file)[:2]
    try:
        file.read()
    except ValueError as error:
        yield str(error), file.closed
    with open(path, "rb") as file:
        file.read(10)
        yield os.fstat(file.fileno()).st_size, os.lseek(file.fileno(), 0, 1) > 0, file.read(5), file.tell()
    with open(path, mode="rb") as file:
        yield np.fromfile(file, dtype=np.uint8, count=7).tolist(), file.tell(), file.read(3)
    yield np.fromfile(path, dtype=np.uint8, count=7).tolist()
    yield np.memmap(path, mode="r")[5:9].tolist()


def test_an_opened_file_is_what_the_real_one_is(
    files: list[File], packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = list(every_way(files[3].path))
    with Reading(packed, monkeypatch) as reading:
        assert list(every_way(files[3].path)) == plain
    assert reading.from_shards


def test_other_ways_to_open_go_to_the_file(files: list[File], packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = files[0].path
    with Reading(packed, monkeypatch) as reading:
        with open(path, "rb", buffering=0) as raw, open(path, encoding="latin-1") as text, open(path, "r+b") as both:
            assert isinstance(raw, io.FileIO) and isinstance(text, io.TextIOWrapper)
            assert isinstance(both, io.BufferedRandom)
        with open(os.open(path, os.O_RDONLY), "rb") as handle:
            assert handle.read() == Path(path).read_bytes()
        for wrong in ((), (path, "rb", 3, 4, 5, 6, 7, 8, 9), (path, 5), (None, "rb"), ("no such file", "rb")):
            with pytest.raises((TypeError, FileNotFoundError)):
                open(*wrong)  # noqa: SIM115
    assert reading.from_shards <= 1


def test_any_spelling_of_a_path_is_known(
    files: list[File], packed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.path.relpath(files[0].path, tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "data" / "1")
    spellings = [name, f"./{name}", f"data//../{name}", os.fsencode(name), Path(name), f"link/../../{name}"]
    with Reading(packed, monkeypatch) as reading:
        for spelling in spellings:
            with open(spelling, "rb") as file:
                assert file.read() == Path(files[0].path).read_bytes() and file.name == spelling
    assert reading.from_shards >= len(spellings)
    assert plain_path("link/../0") == str(tmp_path / "data" / "0")


def test_a_flipped_bit_is_read_from_the_file_itself(
    files: list[File], packed: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tar = packed / "shard-000001.tar"
    data = bytearray(tar.read_bytes())
    for place in range(700, 3000):  # more than one file
        data[place] ^= 1
    tar.write_bytes(data)
    with Reading(packed, monkeypatch) as reading:
        assert read_all(files) == [Path(file.path).read_bytes() for file in files]
        assert read_all(files) == [Path(file.path).read_bytes() for file in files]
    assert 40 < reading.from_shards < 160
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "shard-000001.tar is damaged" in said

    assert pack(files, packed, 16_000, {}).found == len(list(packed.glob("*.tar"))) - 1  # mended


def test_a_truncated_shard_is_left_out_in_one_sentence(
    files: list[File], packed: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tars = sorted(packed.glob("*.tar"))
    os.truncate(tars[0], 2000)
    with Reading(packed, monkeypatch) as reading:
        assert read_all(files) == [Path(file.path).read_bytes() for file in files]
        os.truncate(tars[1], 2000)  # and one that breaks while it is read
        assert read_all(files) == [Path(file.path).read_bytes() for file in files]
    assert reading.from_shards
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "shard-000000.tar is not whole" in said
    for tar in tars:
        os.truncate(tar, 10)
    with Reading(packed, monkeypatch) as reading:
        assert "is not whole; run `overdrive pack` again" in reading.reason
        assert read_all(files) == [Path(file.path).read_bytes() for file in files]


def test_a_damaged_index_is_found_out(files: list[File], packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = packed / "shard-000000.json"
    text = place.read_text()
    lies = [text[:100], "[]", text.replace(', "entries": [\n[', ', "entries": [\n[5, '), "\xff"]
    first = json.loads(text)["entries"][0]
    lies.append(text.replace(f"{first[1]}, {first[2]}", f"{first[1]}, {10**9}", 1))
    lies.append(text.replace(f"{first[1]}, {first[2]}", f"-5, {first[2]}", 1))
    for lie in lies:
        place.write_bytes(lie.encode("latin-1"))
        with Reading(packed, monkeypatch):
            assert read_all(files) == [Path(file.path).read_bytes() for file in files]
    # An index that names the place of another file: its own crc32 is right, but then so are size and time.
    for text in ("{", '{"format": 1}', '{"format": 99, "shards": []}', '{"format": 1, "shards": []}'):
        (packed / "index.json").write_text(text)
        with Reading(packed, monkeypatch) as reading:
            assert reading.reason


@pytest.mark.parametrize(
    "how", ["written before", "touched", "removed", "open", "replaced", "folder moved", "unlinked"]
)
def test_a_changed_file_is_read_from_its_own_place(
    how: str, files: list[File], packed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = Path(files[0].path)
    new = path.read_bytes()[::-1]
    if how == "written before":
        path.write_bytes(new)
    elif how == "touched":
        os.utime(path)
        new = path.read_bytes()
    elif how == "removed":
        path.unlink()
    with Reading(packed, monkeypatch) as reading:
        others = [file for file in files if Path(file.path).parent != path.parent]
        assert read_all(others) == [Path(file.path).read_bytes() for file in others]
        if how in ("open", "replaced", "folder moved", "unlinked"):
            assert path.read_bytes() != new
        if how == "open":
            status = path.stat()
            path.write_bytes(new)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        elif how == "replaced":
            (tmp_path / "new").write_bytes(new)
            os.replace(tmp_path / "new", path)
        elif how == "folder moved":
            path.parent.rename(tmp_path / "away")
            path.parent.mkdir()
            path.write_bytes(new)
        elif how == "unlinked":
            shutil.rmtree(path.parent)
        if how in ("removed", "unlinked"):
            with pytest.raises(FileNotFoundError):
                open(path, "rb")  # noqa: SIM115
        else:
            assert path.read_bytes() == new
        served = reading.from_shards
        assert read_all(others) and reading.from_shards == served + len(others)


def test_forked_workers_read_from_the_shards_and_share_what_is_known(
    files: list[File], packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from overdrive.datacache.forked import in_child

    with Reading(packed, monkeypatch) as reading:

        def work(tick: Any) -> list[Any]:
            Path(files[1].path).write_bytes(b"changed by a worker")
            return [[content.hex() for content in read_all(files)], reading.from_shards]

        contents, served = in_child(work)
        assert served == 39
        assert [bytes.fromhex(each) for each in contents] == read_all(files)


def test_the_technique_is_left_out_where_there_is_no_pack_of_ones_own(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session([("packed_files", {})]) as session:
        assert "names no index" in session.seams.left_out["packed_files"]
    with Reading(tmp_path / "nowhere", monkeypatch) as reading:
        assert "no whole pack" in reading.reason
    packed.chmod(0o777)
    with Reading(packed, monkeypatch) as reading:
        assert "others may write to it" in reading.reason


def test_an_answer_that_fails_does_not_fail_the_program(tmp_path: Path) -> None:
    from overdrive.seams.files import answer_opens

    (tmp_path / "file").write_bytes(b"content")
    seams = Seams()
    seams.on_undo(answer_opens(lambda path: 1 / 0))
    try:
        assert (tmp_path / "file").read_bytes() == b"content"
    finally:
        seams.close()
