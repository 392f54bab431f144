"""What may go wrong with data, on real files: the program meets what it would meet without us, and nothing else.

More of it stands beside what it belongs to: damaged and outdated tables, killed fills and the like in
test_sample_cache.py, killed fillers in test_filling.py, stored tables in tests/datacache/test_store.py.
"""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402

from overdrive.worker.session import Session  # noqa: E402

Image = pytest.importorskip("PIL.Image")

COUNT = 48
DATA = ("sample_cache", "prefix_cache")


class Pictures(Dataset):
    """Image files, as many a script reads them."""

    def __init__(self, root: Path) -> None:
        self.paths = [str(path) for path in sorted(root.glob("*.png"))]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as image:
            pixels = torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8)
        return pixels.view(8, 8, 3).permute(2, 0, 1).float() / 255, index % 10


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OVERDRIVE_PREFILL", raising=False)
    root = tmp_path / "pictures"
    root.mkdir()
    for number in range(COUNT):
        Image.frombytes("RGB", (8, 8), bytes((number * 7 + k) % 256 for k in range(192))).save(
            root / f"{number:02d}.png"
        )
    return root


@pytest.fixture
def filling(any_filling: str) -> str:
    return any_filling


def seen_of(loader: Any, epochs: int = 3, most: int = 1000) -> list[Any]:
    """All batches, errors included: the type, and the message's last line."""
    torch.manual_seed(1)
    seen: list[Any] = []
    for _ in range(epochs):
        iterator = iter(loader)
        for _ in range(most):
            try:
                seen.append(repr([each.tolist() if hasattr(each, "tolist") else each for each in next(iterator)]))
            except StopIteration:
                break
            except Exception as error:
                seen.append((type(error), str(error).splitlines()[-1:]))
        seen.append(torch.get_rng_state().tolist())
    return seen


def compared(make: Any, most: int = 1000) -> dict[str, str]:
    """The same with and without us, by both techniques; returns why they were left out."""
    plain = seen_of(make(), most=most)
    reasons: dict[str, str] = {}
    for name in DATA:
        gc.collect()  # loaders of earlier tests are other loaders of this program
        with Session([(name, {})], on_left_out=reasons.__setitem__):
            assert seen_of(make(), most=most) == plain, name
    return reasons


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_picture_in_the_middle(pictures: Path, workers: int, filling: str) -> None:
    broken = pictures / "23.png"
    broken.write_bytes(broken.read_bytes()[:60])
    reasons = compared(lambda: DataLoader(Pictures(pictures), 4, num_workers=workers))
    assert "sample_cache" not in reasons


def test_a_picture_that_has_gone(pictures: Path, filling: str) -> None:
    """One that the trial does not look at: else nothing is kept."""
    data = Pictures(pictures)
    (pictures / "31.png").unlink()
    assert "sample_cache" not in compared(lambda: DataLoader(data, 4, shuffle=True))


def test_pictures_changed_between_runs_are_read_anew(pictures: Path, filling: str) -> None:
    first = seen_of(DataLoader(Pictures(pictures), 4))
    with Session([("sample_cache", {})]):
        assert seen_of(DataLoader(Pictures(pictures), 4)) == first
    (pictures / "07.png").write_bytes((pictures / "08.png").read_bytes())
    second = seen_of(DataLoader(Pictures(pictures), 4))
    with Session([("sample_cache", {})]):
        assert seen_of(DataLoader(Pictures(pictures), 4)) == second != first


def test_what_was_left_unfinished_of_pictures_that_changed_is_not_gone_on_with(pictures: Path) -> None:
    with Session([("sample_cache", {})]):
        seen_of(DataLoader(Pictures(pictures), 4), epochs=1, most=3)
    (pictures / "01.png").write_bytes((pictures / "20.png").read_bytes())
    second = seen_of(DataLoader(Pictures(pictures), 4))
    with Session([("sample_cache", {})]):
        assert seen_of(DataLoader(Pictures(pictures), 4)) == second


@pytest.mark.fault(13)
def test_the_disk_fills_up(pictures: Path, filling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are taken before the first sample is written, so it is then, or at the end, that none are left."""
    real, calls = os.posix_fallocate, []

    def full(file: int, offset: int, size: int) -> None:
        calls.append(size)
        if len(calls) == 2:  # the labels' file: the pictures' is there already
            raise OSError(28, "No space left on device")
        real(file, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert "sample_cache" not in compared(lambda: DataLoader(Pictures(pictures), 4, shuffle=True))
    assert len(calls) >= 2 and not list((pictures.parent / "cache").glob("partial-*"))


@pytest.mark.fault(13)
def test_the_disk_is_full_when_the_manifest_is_written(
    pictures: Path, filling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.write_text

    def full(self: Path, text: str, *more: Any) -> int:
        if self.name == "manifest.json":
            raise OSError(28, "No space left on device")
        return real(self, text, *more)

    monkeypatch.setattr(Path, "write_text", full)
    assert "sample_cache" not in compared(lambda: DataLoader(Pictures(pictures), 4, shuffle=True))
    assert list((pictures.parent / "cache").iterdir()) == []


@pytest.mark.parametrize("technique", ["sample_cache", "prefix_cache"])
@pytest.mark.fault(8)
def test_a_worker_killed_while_it_fills(technique: str, pictures: Path) -> None:
    """torch's own error, as without us; and the next run is none the worse."""

    def error_of(loader: Any) -> str:
        with pytest.raises(RuntimeError, match=r"killed by signal|exited unexpectedly") as caught:
            batches = iter(loader)
            next(batches)
            os.kill(batches._workers[0].pid, signal.SIGKILL)
            list(batches)
        return type(caught.value).__name__

    class Slow(Pictures):
        def __getitem__(self, index: int) -> Any:
            time.sleep(0.005)
            pixels, label = super().__getitem__(index)
            if technique == "prefix_cache":
                pixels = pixels + torch.rand(1)
            return pixels, label

    plain = error_of(DataLoader(Slow(pictures), 4, num_workers=1))
    whole = seen_of(DataLoader(Slow(pictures), 4, num_workers=1), epochs=1)
    with Session([(technique, {})]) as session:
        assert error_of(DataLoader(Slow(pictures), 4, num_workers=1)) == plain
        assert seen_of(DataLoader(Slow(pictures), 4, num_workers=1), epochs=1) == whole
        assert not session.seams.left_out
    with Session([(technique, {})]) as session:
        assert seen_of(DataLoader(Slow(pictures), 4, num_workers=1), epochs=1) == whole
        assert not session.seams.left_out


class Infinite(IterableDataset):
    def __iter__(self) -> Any:
        number = 0
        while True:
            yield torch.tensor([number])
            number += 1


class Mixed(Pictures):
    def __getitem__(self, index: int) -> Any:
        pixels, label = super().__getitem__(index)
        return pixels, f"picture {label}", [label, None if index < 0 else 2.5]


class Shapes(Pictures):
    def __getitem__(self, index: int) -> Any:
        pixels, label = super().__getitem__(index)
        return (pixels if index < 20 else pixels[:, :4]), label


class Writing(Pictures):
    """A side effect: each fetch counts in a file."""

    def __getitem__(self, index: int) -> Any:
        counter = Path(self.paths[0]).with_suffix(".count")
        number = int(counter.read_text()) if counter.exists() else 0
        counter.write_text(str(number + 1))
        return super().__getitem__(index)[0] + number * 0, number


class Noting(Pictures):
    """A side effect that no sample shows: what was made of a picture is written down beside it, once."""

    def __init__(self, folder: Path, named: bool) -> None:
        super().__init__(folder)
        self.notes = [Path(path).with_suffix(".note") for path in self.paths]
        self.last = folder / "last.txt"
        self.known = [str(self.last), *self.paths] if named else str(folder)

    def __getitem__(self, index: int) -> Any:
        note = self.last if isinstance(self.known, list) else self.notes[index]
        if note is self.last or not note.exists():
            note.write_text(str(index))
        return super().__getitem__(index)


class Stateful(Pictures):
    last = -1

    def __getitem__(self, index: int) -> Any:
        self.last, last = index, self.last
        return super().__getitem__(index)[0], last


REFUSED: dict[str, tuple[Any, int, str]] = {
    "a stream without end": (lambda root: DataLoader(Infinite(), 4), 9, "stream"),
    "a state": (lambda root: DataLoader(Stateful(root), 4), 99, "changes the data set"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_technique_can_serve_is_left_out_with_the_reason(name: str, pictures: Path) -> None:
    make, most, reason = REFUSED[name]
    reasons = compared(lambda: make(pictures), most=most)
    assert sorted(reasons) == sorted(DATA)
    assert re.search(reason, reasons["sample_cache"]), reasons


@pytest.mark.parametrize("kind", [Mixed, Shapes])
def test_texts_and_shapes_come_as_they_are(kind: Any, pictures: Path) -> None:
    reasons = compared(lambda: DataLoader(kind(pictures), 4), most=99)
    assert list(reasons) == ["prefix_cache"]


def test_a_counter_in_a_file_is_left_to_the_program(pictures: Path) -> None:
    reasons: dict[str, str] = {}
    with Session([("sample_cache", {})], on_left_out=reasons.__setitem__):
        labels = [labels for _, labels in DataLoader(Writing(pictures), 4)]
    assert "opens a file for writing" in reasons["sample_cache"]
    assert torch.cat(labels).tolist() == list(range(COUNT))


@pytest.mark.parametrize("named", [True, False], ids=["a file", "a folder"])
def test_a_fetch_that_writes_to_the_files_of_the_data_set_is_seen(pictures: Path, named: bool) -> None:
    (pictures / "last.txt").write_text("")
    reasons: dict[str, str] = {}
    with Session([("sample_cache", {})], on_left_out=reasons.__setitem__):
        ours = seen_of(DataLoader(Noting(pictures, named), 4))
    assert ours == seen_of(DataLoader(Noting(pictures, named), 4))
    assert "opens a file for writing" in reasons["sample_cache"], reasons


RANK = """
    import json, os, sys, time, zlib, torch
    from pathlib import Path
    from torch.utils.data import DataLoader, Dataset
    from overdrive.datacache import filler
    from overdrive.worker.session import Session
    from overdrive.datacache.manager import shared

    class Files(Dataset):
        def __init__(self, root):
            self.root, self.names = root, sorted(os.listdir(root))
        def __len__(self):
            return len(self.names)
        def __getitem__(self, index):
            with open(os.path.join(self.root, self.names[index]), "rb") as file:
                data = file.read()
            time.sleep(0.01)
            return torch.frombuffer(bytearray(data), dtype=torch.uint8)[:70] * 1, index

    if __name__ == "__main__":
        root, meeting, rank = sys.argv[1:4]
        killed = sys.argv[4:] == ["killed"]
        filler.WORTH_FILLING_BESIDE = 1e9 if killed else 0.0
        left_out, crcs, epochs = [], [], []
        with Session([("sample_cache", {})], on_left_out=lambda *why: left_out.append(why)) as session:
            loader = DataLoader(Files(root), 4, shuffle=True)
            for epoch in range(4):
                torch.manual_seed(epoch)
                crc = 0
                for number, (x, y) in enumerate(loader):
                    crc = zlib.crc32(x.numpy().tobytes(), crc)
                    if epoch == number == 0:
                        # Both have opened their table before either goes on.
                        Path(meeting, rank).touch()
                        while len(os.listdir(meeting)) < 2:
                            time.sleep(0.01)
                    (mine,) = shared(session.seams, 0.5).kept
                    if killed and epoch == 0 and number == 3:
                        if mine.filler.joined:
                            break
                        Path(meeting, "dying").touch()
                        os.kill(os.getpid(), 9)
                crcs.append(crc)
                mine.table.count_present()
                epochs.append([mine.filler.joined, mine.table.complete])
                if mine.filler.joined and epoch == 0:
                    time.sleep(1.0)  # by now the other one has filled it, or is dead
        print(json.dumps({"left_out": left_out, "crcs": crcs, "epochs": epochs}))
"""


def ranks(folder: Path, pictures: Path, *arguments: str) -> list[dict[str, Any] | None]:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(RANK))
    os.utime(script, (1e9, 1e9))
    meeting = folder / "meeting"
    meeting.mkdir()
    command = [sys.executable, str(script), str(pictures), str(meeting)]
    together = [
        subprocess.Popen([*command, str(rank), *arguments], stdout=subprocess.PIPE, text=True) for rank in (0, 1)
    ]
    outputs = [each.communicate(timeout=200)[0] for each in together]
    return [json.loads(output) if output else None for output in outputs]


@pytest.mark.fault(15)
def test_two_processes_fill_one_table(pictures: Path, tmp_path: Path) -> None:
    one, other = ranks(tmp_path, pictures)
    assert one is not None and other is not None
    assert one["crcs"] == other["crcs"] and one["left_out"] == other["left_out"] == []
    joined = [[each[0] for each in rank["epochs"]] for rank in (one, other)]
    assert sorted(joined) == [[False] * 4, [True] * 4]  # one table on disk, and no other one anywhere
    assert one["epochs"][-1][1] and other["epochs"][-1][1]
    names = [each.name for each in (tmp_path / "cache").iterdir()]
    assert len(names) == 1 and not names[0].startswith("partial")


@pytest.mark.fault(9)
def test_the_other_one_goes_on_where_one_is_killed_and_nothing_is_kept(pictures: Path, tmp_path: Path) -> None:
    rest = [each for each in ranks(tmp_path, pictures, "killed") if each is not None]
    (tmp_path / "meeting" / "dying").unlink()
    assert len(rest) == 1 and rest[0]["left_out"] == []
    assert rest[0]["epochs"] == [[True, False], [True, True], [True, True], [True, True]]
    assert list((tmp_path / "cache").iterdir()) == []
