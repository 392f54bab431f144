"""Fingerprints: equal for equal data sets, in any process; different after any change that can matter."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
import threading
import tracemalloc
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overdrive.changes.files import Files, _absolute
from overdrive.changes.fingerprint import fingerprint, of_objects
from overdrive.datacache.opened import Opened

FACTOR = 3


class Holder:
    """Holds anything."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def get(self) -> int:
        return FACTOR


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def adding(amount: int) -> Callable[[int], int]:
    return lambda number: number + amount


def digest(*things: Any) -> str:
    return fingerprint(*things).digest


def cyclic(value: int) -> Holder:
    one = Holder(value=value)
    one.me = [one]
    return one


PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "number": (lambda: 1, lambda: 2),
    "kind of number": (lambda: 1, lambda: True),
    "sign of zero": (lambda: 0.0, lambda: -0.0),
    "list": (lambda: [1, [2, (3, "a")]], lambda: [1, [2, [3, "a"]]]),
    "border of texts": (lambda: ["ab", "c"], lambda: ["a", "bc"]),
    "dict": (lambda: {"a": 1}, lambda: {"a": 2}),
    "set": (lambda: {"x", "y"}, lambda: {"x", "z"}),
    "set of objects": (lambda: {Path("x")}, lambda: {Path("y")}),
    "array": (lambda: np.arange(9), lambda: np.arange(9)[::-1].copy()),
    "large array": (lambda: np.zeros(3 << 20), lambda: np.eye(1, 3 << 20, (3 << 20) - 1)[0]),
    "shape": (lambda: np.zeros((2, 3)), lambda: np.zeros((3, 2))),
    "dtype": (lambda: np.zeros(2, np.int32), lambda: np.zeros(2, np.uint32)),
    "array of texts": (lambda: np.array(["a", "b"]), lambda: np.array(["a", "c"])),
    "array of objects": (lambda: np.array([{}, 1], object), lambda: np.array([{}, 2], object)),
    "scalar": (lambda: np.float64(1), lambda: np.float32(1)),
    "attribute": (lambda: Holder(size=1), lambda: Holder(size=2)),
    "nested": (lambda: Holder(inner=Holder(x=[Slotted(1)])), lambda: Holder(inner=Holder(x=[Slotted(2)]))),
    "cycle": (lambda: cyclic(1), lambda: cyclic(2)),
    "closure": (lambda: adding(1), lambda: adding(2)),
    "partial": (lambda: functools.partial(pow, 2), lambda: functools.partial(pow, 3)),
    "method": (lambda: Holder(x=1).get, lambda: Holder(x=2).get),
    "deque": (lambda: deque([1]), lambda: deque([2])),
    "own generator": (lambda: np.random.default_rng(1), lambda: np.random.default_rng(2)),
    "Python's generator": (lambda: random.Random(1), lambda: random.Random(2)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_equal_things_are_equal_and_others_are_not(name: str) -> None:
    one, other = PAIRS[name]
    assert digest(one()) == digest(one())
    assert digest(one()) != digest(other())
    assert fingerprint(one()).hidden is None


def test_tensors_count_by_content_and_kind() -> None:
    torch = pytest.importorskip("torch")
    one = torch.arange(6.0).reshape(2, 3)
    assert digest(one) == digest(one.clone())
    for other in (one + 1, one.double(), one.reshape(3, 2), one.bfloat16()):
        assert digest(one) != digest(other)
    assert digest(torch.nn.Linear(2, 2)) != digest(torch.nn.Linear(2, 2))


def test_globals_that_code_refers_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(Holder())
    assert not before.watch.changed()
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 4)
    assert digest(Holder()) != before.digest
    assert before.watch.changed()


def test_environment_variables_that_code_names_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def size() -> str | None:
        return os.environ.get("SOME_SIZE")

    before = digest(size)
    monkeypatch.setenv("SOME_SIZE", "7")
    assert digest(size) != before


def test_files_count_whose_name_code_puts_behind_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(index: int) -> bytes:
        return Path(f"data/{index}.bin").read_bytes()

    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "1.bin").write_bytes(b"one")
    before = digest(sample)
    assert digest(sample) == before
    (tmp_path / "data" / "1.bin").write_bytes(b"other")
    assert digest(sample) != before


class Seeding:
    """Holds a generator, whose draws are seen."""

    def __init__(self) -> None:
        self.generators = [np.random.default_rng() for _ in range(2)]


class Afresh:
    """Its draws are seen nowhere."""

    def get(self) -> float:
        return float(np.random.default_rng().random())


def test_a_generator_that_seeds_itself_is_said_where_nothing_holds_it() -> None:
    assert fingerprint(Seeding()).hidden_here is None
    assert "seeds itself" in str(fingerprint(Afresh()).hidden_here)


def test_a_method_of_a_class_of_c_is_code() -> None:
    """One of the class, too: in a run of all tests `sample_cache` left itself out for one."""
    seen = fingerprint(Holder(of_class=vars(dict)["fromkeys"], of_object=vars(dict)["get"]))
    assert seen.hidden is None and seen.digest != fingerprint(Holder(of_class=1, of_object=vars(dict)["get"])).digest


@pytest.mark.parametrize("thing", [(number for number in ()), memoryview(b"")])
def test_state_that_cannot_be_seen_is_said(thing: Any) -> None:
    seen = fingerprint(Holder(x=[thing]))
    assert "state cannot be seen" in str(seen.hidden) and "state cannot be seen" in str(seen.hidden_here)


def test_a_large_table_of_arrows_is_not_copied() -> None:
    arrow = pytest.importorskip("pyarrow")
    small, large = (arrow.table({"x": arrow.array(range(count))}) for count in (1000, 2 << 20))
    assert digest(Holder(x=small)) != digest(Holder(x=small.slice(1)))
    tracemalloc.start()
    try:
        seen = fingerprint(Holder(x=large.slice(1), parts=large.to_batches(1000)))
        assert seen.hidden_here and tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_a_lock_is_no_state_here_but_another_process_would_need_its_own(make: Any) -> None:
    seen = fingerprint(Holder(x=[make()]))
    assert seen.hidden == "it holds a lock" and seen.hidden_here is None


def test_a_function_of_cs_is_what_its_name_says() -> None:
    assert fingerprint(Holder(x=open)).hidden is None


def test_open_files_are_said(tmp_path: Path) -> None:
    with open(tmp_path / "x", "w") as file:
        found = fingerprint(Holder(file=file))
        assert found.written_file and not found.open_file and not found.hidden
    for mode in ("r", "r+"):
        with open(tmp_path / "x", mode) as file:
            found = fingerprint(Holder(file=file))
            assert found.open_file and found.hidden and not found.written_file


def test_files_count_by_size_and_time(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    file = tmp_path / "sub" / "image.jpg"
    file.write_bytes(b"1")
    for thing in (str(file), str(tmp_path), tmp_path, [str(file)], [(str(file), 1)], {"a": {"b": str(file)}}):
        os.utime(file, ns=(1, 1))
        file.write_bytes(b"1")
        os.utime(file, ns=(1, 1))
        before = digest(Holder(x=thing))
        assert digest(Holder(x=thing)) == before
        os.utime(file, ns=(1, 2))
        assert digest(Holder(x=thing)) != before
        file.write_bytes(b"22")
        os.utime(file, ns=(1, 1))
        assert digest(Holder(x=thing)) != before


def test_files_may_be_taken_for_what_they_were(tmp_path: Path) -> None:
    file, other = tmp_path / "a.jpg", tmp_path / "b.jpg"
    for path in (file, other):
        path.write_bytes(b"1")
        os.utime(path, ns=(1, 1))
    data = Holder(x=[str(file)])
    before = fingerprint(data)
    os.utime(file, ns=(1, 2))
    assert fingerprint(data, earlier=before).digest == before.digest
    assert fingerprint(data).digest != before.digest
    assert fingerprint(data).of_objects == of_objects(data) == before.of_objects
    data.x.append(str(other))  # is no file of the earlier one: both are looked at
    assert fingerprint(data, earlier=before).digest == fingerprint(data).digest
    assert of_objects(data) != before.of_objects


def test_our_own_cache_is_nobodys_data(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    before = fingerprint(str(tmp_path), besides=str(cache)).digest
    (cache / "x").write_text("")
    assert fingerprint(str(tmp_path), besides=str(cache)).digest == before


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_another_process_finds_the_same(tmp_path: Path, seed: str) -> None:
    script = tmp_path / "data.py"
    script.write_text(
        "from overdrive.changes.fingerprint import fingerprint\n"
        "class Data:\n"
        "    kinds = frozenset(('a', 'b', 'c'))\n"
        "    def __init__(self): self.x = {'u', 'v', 'w'}; self.y = {'k': [1.5, None]}\n"
        "    def __getitem__(self, i): return i in {'p', 'q', 'r'} or [lambda: self.x]\n"
        "found = fingerprint(Data())\n"
        "print(found.digest, found.hidden)\n"
    )
    os.utime(script, (1e9, 1e9))

    def run(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.check_output([sys.executable, str(script)], text=True, env=environment)

    assert run(seed) == run("5")
    assert run(seed).endswith("None\n")


def test_a_source_that_was_edited_since_the_process_began_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fresh_module.py").write_text("class Data: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import fresh_module  # type: ignore[import-not-found]

    assert "newer than this process" in str(fingerprint(fresh_module.Data()).hidden)


def calls(function: Callable[[], Any]) -> int:
    """How many functions it calls, Python's and C's: the work it does, on any machine."""
    count = 0

    def counting(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counting)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_fifty_thousand_paths_and_files_take_a_few_calls_each(tmp_path: Path) -> None:
    for folder in range(50):
        (tmp_path / str(folder)).mkdir()
        for number in range(1000):
            os.close(os.open(tmp_path / str(folder) / f"{number}.jpg", os.O_CREAT | os.O_WRONLY))
    files = Files("")
    assert calls(lambda: files.note(str(tmp_path))) < 7 * 50_000
    assert calls(files.text) < 3 * 50_000

    data = Holder(samples=[(f"{tmp_path}/{k % 50}/{k // 50}.jpg", k % 10) for k in range(50_000)])
    seen = fingerprint(data)
    assert calls(seen.watch.changed) < 200  # and not one for each path
    assert not seen.watch.changed()
    data.samples[31_234] = ("other", 3)
    assert seen.watch.changed()


CHANGES: dict[str, Callable[[Holder], None]] = {
    "attribute": lambda data: setattr(data, "size", 2),
    "new attribute": lambda data: setattr(data, "more", 2),
    "inner attribute": lambda data: setattr(data.inner, "size", 2),
    "list": lambda data: data.names.append("z"),
    "list in a list": lambda data: data.nested[1].append(5),
    "list in a tuple": lambda data: data.mixed[0][1].append(5),
    "list of objects": lambda data: data.objects.reverse(),
    "dict": lambda data: data.table.update(a=2),
    "set": lambda data: data.kinds.add("w"),
    "deque": lambda data: data.queue.append(3),
    "array": lambda data: data.array.__setitem__(70, 1),
    "bytes": lambda data: data.bytes.append(3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_seen_quickly(name: str) -> None:
    data = Holder(
        size=1,
        inner=Holder(size=1),
        names=["x", "y"],
        nested=[1, [2, 3]],
        mixed=[("a", [1])],
        objects=[Holder(x=1), Holder(x=2)],
        table={"a": 1},
        kinds={"u", "v"},
        queue=deque([1]),
        array=np.zeros((10, 10), np.uint8).reshape(-1),
        bytes=bytearray(b"12"),
    )
    seen = fingerprint(data)
    seen.watch.seal()
    assert not seen.watch.changed() and not seen.watch.touched()
    CHANGES[name](data)
    assert seen.watch.changed()
    assert fingerprint(data).digest != seen.digest


def test_writing_to_a_tensor_is_seen_at_once() -> None:
    torch = pytest.importorskip("torch")
    data = Holder(x=torch.zeros(4))
    seen = fingerprint(data)
    data.x[1] = 1
    assert seen.watch.touched()


def test_opened_files_are_heard_inside_only(tmp_path: Path) -> None:
    inside, outside, written = tmp_path / "in", tmp_path / "out", tmp_path / "written"
    inside.write_text("")
    outside.write_text("")
    opened = Opened()
    with opened:
        inside.read_text()
        written.write_text("")
    outside.read_text()
    with opened:
        (tmp_path / "link").symlink_to(outside)
        os.close(os.open(tmp_path / "link", os.O_RDONLY))
    # What leads to a file is watched too.
    assert opened.paths() == {str(inside.resolve()), str(outside.resolve()), str(tmp_path / "link")}


def test_a_file_that_was_named_in_another_way_is_covered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, linked, other = (tmp_path / name for name in ("plain", "linked", "other"))
    for path in (plain, linked, other):
        path.write_text("the same size and, perhaps, time")
        os.utime(path, (1, 1))
    (tmp_path / "link").symlink_to(linked)
    monkeypatch.chdir(tmp_path)
    for names in (("plain", "link"), ("./plain", f"{tmp_path}//link"), (str(plain), f"{tmp_path}/./link")):
        files = Files("")
        files.note_all(list(names))
        asked = {str(each.resolve()) for each in (plain, linked, other)} | {"/not/there"}
        assert files.uncovered(asked) == ["/not/there", str(other.resolve())]


@pytest.mark.parametrize("odd", ["./a", "a/./b", "a/../b", "a//b", "a/", "a/..", "/a/.", "../a", "a", ".a", "/a/.b/c"])
def test_paths_are_made_absolute_as_python_does_it(odd: str) -> None:
    paths = ["/plain", odd, "/plain/too"]
    assert _absolute(paths) == [os.path.abspath(each) for each in paths]
