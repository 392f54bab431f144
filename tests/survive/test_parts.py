"""The parts of a run that survives: journal, snapshots, output, what a program holds."""

from __future__ import annotations

import errno
import functools
import io
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from overdrive.cli.survive import Wish, interval_of
from overdrive.core.program import Program
from overdrive.machine.scheduler import seconds_left
from overdrive.sandbox.mirror import Mirror
from overdrive.sandbox.redirected_files import Redirection
from overdrive.survive import answers, output, snapshot
from overdrive.survive.calls import Calls
from overdrive.survive.folder import RunFolder, Unusable
from overdrive.survive.identity import identity_of
from overdrive.survive.interval import BEFORE_END, FIRST, LONGEST, SnapshotInterval
from overdrive.survive.journal import Damaged, Diverged, Journal
from overdrive.survive.ours import is_redirected
from overdrive.survive.taking import Snapshots
from tests.fakes.cuda import fake_cuda

torch = pytest.importorskip("torch")


@pytest.mark.fault(14)
def test_a_journal_gives_back_every_bit_and_goes_on_after_its_snapshot(tmp_path: Path) -> None:
    numbers = [0.1 + 0.2, 5e-324, -0.0, math.inf]
    journal = Journal(tmp_path / "journal")
    for number in numbers:
        journal.add("value", number)
    kept = journal.flush()
    journal.add("value", "after the snapshot")
    journal.flush()
    again = Journal(tmp_path / "journal")
    again.read(*kept)
    assert [again.next("value", "")[1].hex() for _ in numbers] == [number.hex() for number in numbers]
    with pytest.raises(Diverged):
        again.next("value", "a value")
    again.add("value", "another end")
    length, digest = again.flush()
    third = Journal(tmp_path / "journal")
    third.read(length, digest)
    assert third.to_come[-1] == ["value", "another end"] and len(third.to_come) == len(numbers) + 1
    with pytest.raises(Diverged):
        third.next("model", "a call")
    (tmp_path / "journal").write_bytes((tmp_path / "journal").read_bytes().replace(b"0.3", b"0.4"))
    with pytest.raises(Damaged):
        third.read(length, digest)


@pytest.mark.fault(13)
def test_a_journal_that_could_not_be_written_is_whole_with_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal")
    for number in range(3):
        journal.add("value", number)
        with monkeypatch.context() as failing:
            failing.setattr(os, "fsync", _fails)
            with pytest.raises(OSError):
                journal.flush()
        kept = journal.flush() if number != 1 else None
    again = Journal(tmp_path / "journal")
    assert kept is not None
    again.read(*kept)
    assert list(again.to_come) == [["value", 0], ["value", 1], ["value", 2]]


def _fails(*_: Any) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_function_for_files_that_is_redirected_is_none_of_the_programs(tmp_path: Path) -> None:
    from overdrive.survive import heap

    redirection = Redirection(Mirror(str(tmp_path), []))
    assert is_redirected(redirection.unlink) and is_redirected(redirection._opening(open))
    assert not any(map(is_redirected, (open, os.unlink, tempfile.mkdtemp, tmp_path.exists)))
    module = sys.modules[__name__]
    assert not [path for path, _ in heap.Heap(None).facts if path.startswith(f"{module.__name__}.REDIRECTED")]


REDIRECTED = Redirection._opening(SimpleNamespace(open=os.open), open)  # type: ignore[arg-type]


@pytest.mark.parametrize(("beside", "aside", "told"), [(False, False, "made"), (False, True, "made"), (True, True, 5)])
def test_a_run_that_notes_nothing_more_has_the_times_that_are_made(beside: bool, aside: bool, told: object) -> None:
    """As the run that begins from its start and is compared has them."""
    noted: list[Any] = []
    journal = SimpleNamespace(add=lambda *entry: noted.append(entry))
    asked = {"keeps_samples": False, "replaying": False, "beside": lambda: beside, "aside": lambda: aside}
    calls = Calls(SimpleNamespace(journal=journal, guarded=lambda act: act, **asked))  # type: ignore[arg-type]
    assert calls.times.time(lambda: 5, lambda: "made") == told
    assert noted == ([] if aside else [("time", "made")])


@pytest.mark.parametrize(
    "numbers",
    [
        torch.randperm(20_000).tolist(),
        [(1 << 40) - each for each in range(20_000)],
        [float(each) / 3 for each in range(20_000)] + [math.inf, -0.0],
    ],
)
def test_long_lists_of_numbers_are_kept_as_bytes_and_come_again(numbers: list[Any], tmp_path: Path) -> None:
    """A sampler asks for two of a data set's length in each epoch; as lists they were ten times as much in memory."""
    journal = Journal(tmp_path / "journal")
    for _ in range(20):
        journal.add("value", answers.Told()(numbers))
    length, digest = journal.flush()
    assert length < (6 if numbers[0] < 20_000 and type(numbers[0]) is int else 11) * 20 * len(numbers)
    tracemalloc.start()
    journal.read(length, digest)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2 * length
    for _ in range(20):
        again = answers.given(journal.next("value", "")[1], None, lambda: None)
        assert repr(again) == repr(numbers)


def test_lists_of_other_things_stay_what_they_are() -> None:
    for value in ([1] * 9000 + [2.0], [True] * 9000, [1 << 70] * 9000, [[1]] * 9000):
        assert answers.Told()(value) == {"plain": value}


def test_arrays_go_into_the_journal_until_they_are_too_much() -> None:
    """A sheet of images now and then is none; every batch's is."""
    told = answers.Told()
    sheet = np.arange(1 << 21, dtype=np.uint8).reshape(2, -1)
    again = answers.given(json.loads(json.dumps(told(sheet))), None, lambda: np.zeros_like(sheet))
    assert (again == sheet).all() and again.shape == sheet.shape
    with pytest.raises(answers.TooMuch, match="takes 8,388,608 bytes at once"):
        told(np.zeros(1 << 23, np.uint8))
    for _ in range(100_000):
        told._take(100)
    with pytest.raises(answers.TooMuch, match="more than 134,217,728 bytes"):
        for _ in range(100):
            told._take(1 << 21)


_CALLS = ("open", "fsync", "replace", "write", "unlink")  # of `os`, of which each may be the last


@pytest.mark.fault(11)
def test_killed_at_any_call_that_writes_a_snapshot_the_one_before_is_whole(tmp_path: Path) -> None:
    """In a copy of this process that ends at its n-th call to the system, for every n."""
    blocks = [np.full(100_000, 7, np.uint8)]
    for last in range(100):
        folder = tmp_path / str(last)
        folder.mkdir()
        for step in (1, 2):
            snapshot.write(folder / "candidate", {"step": step}, blocks)
            snapshot.keep(folder / "candidate", folder, step)
        copy = os.fork()
        if copy == 0:
            _killed_at(last)
            snapshot.write(folder / "candidate", {"step": 3}, blocks)
            snapshot.keep(folder / "candidate", folder, 3)
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
        newest = snapshot.read(snapshot.found(folder)[0])  # raises where it is not whole
        assert newest.header["step"] in (2, 3) and bytes(newest.block(0)) == blocks[0].tobytes()
        assert len(snapshot.found(folder)) >= 2
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert last >= 4 and newest.header["step"] == 3


def _killed_at(last: int) -> None:
    calls = 0

    def dies(plain: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > last:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(*args, **kwargs)

        return counted

    for name in _CALLS:
        setattr(os, name, dies(getattr(os, name)))


@pytest.mark.fault(12, 24)
@pytest.mark.parametrize("place", [0, 9, 30, -40, -1])
def test_any_changed_byte_of_a_snapshot_is_seen(place: int, tmp_path: Path) -> None:
    path = tmp_path / "step-000000001.snapshot"
    snapshot.write(path, {"step": 1}, [np.arange(10, dtype="uint8"), np.zeros(0, "uint8"), np.ones(3, "uint8")])
    found = snapshot.read(path)
    assert bytes(found.block(0)) == bytes(range(10)) and bytes(found.block(2)) == b"\1\1\1"
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)
    with pytest.raises(Damaged):
        snapshot.read(path)
    path.write_bytes(data[:place])
    with pytest.raises(Damaged):
        snapshot.read(path)


def test_to_go_on_takes_the_memory_of_a_snapshot_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As to record it does: where a program of that size runs, it goes on, too."""
    from overdrive.survive import names
    from overdrive.survive.optimizer_states import OptimizerStates
    from overdrive.survive.state import Taking, put_back

    monkeypatch.setattr(names, "_is_programs", lambda module: getattr(module, "__name__", "") == __name__)
    taken = Taking(held(torch.ones(1 << 21), 3, shared=True), OptimizerStates())
    now, size = held(torch.zeros(1 << 21), 3, shared=True), 1 << 23  # bytes
    snapshot.write(tmp_path / "candidate", {"step": 1, **taken.header}, taken.blocks)
    tracemalloc.start()
    try:
        found = snapshot.read(tmp_path / "candidate")
        assert tracemalloc.get_traced_memory()[1] < 1.2 * size
        tracemalloc.reset_peak()
        put_back(now, found.header, found.block)
        assert tracemalloc.get_traced_memory()[1] < 1.2 * size
    finally:
        tracemalloc.stop()
    assert now.tensors[0][1].eq(1).all()


def test_two_snapshots_are_kept(tmp_path: Path) -> None:
    for step in (3, 20, 100):
        snapshot.write(tmp_path / "candidate", {"step": step}, [])
        snapshot.keep(tmp_path / "candidate", tmp_path, step)
    assert [snapshot.read(path).header["step"] for path in snapshot.found(tmp_path)] == [100, 20]


@pytest.mark.parametrize("cut", [0, 1, 4, 9, 10, 14, 18])
def test_what_was_printed_is_not_printed_again(cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever in a line it was killed, and though a line has another length than before."""
    text = b"one\n\nthree 1\nfour 4"
    kept = tmp_path / "output"
    kept.write_bytes(text[:cut])
    printed: list[bytes] = []
    plain = output._write
    monkeypatch.setattr(
        output, "_write", lambda handle, data: printed.append(data) if handle == 1 else plain(handle, data)
    )
    stream = output._Counted(kept)
    for part in (b"one", b"\n", b"\nthree", b" 1\nfo", b"ur 4"):
        assert stream.write(part) == len(part)
    assert b"".join(printed) == text[cut:]
    assert kept.read_bytes() == text
    stream.close()


def test_what_is_printed_goes_into_no_file_of_a_program_that_has_closed_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon does; what it opens next has the number that ours had."""
    printed: list[bytes] = []
    monkeypatch.setattr(output, "_write", _to_list_or_file(printed))
    counted = output._Counted(tmp_path / "kept")
    counted.write(b"first\n")
    os.close(counted._handle)
    own = os.open(tmp_path / "own.log", os.O_RDWR | os.O_CREAT)
    assert own == counted._handle
    counted.write(b"second\n")
    assert (tmp_path / "kept").read_bytes() == b"first\nsecond\n" == b"".join(printed)
    assert (tmp_path / "own.log").read_bytes() == b"" and counted.failure is None
    os.close(counted._handle)
    counted.close()
    os.fstat(own)  # still open
    os.close(own)


def _to_list_or_file(printed: list[bytes]) -> Any:
    return lambda handle, data: printed.append(data) if handle == 1 else os.write(handle, data)


def test_what_a_loaders_worker_prints_takes_no_line_of_the_programs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where it was counted, as many of the program's own lines were taken for printed when the run went on."""
    stream = output._Counted(tmp_path / "output")
    stream.write(b"one\n")
    worker = os.fork()
    if not worker:
        stream.write(b"from a worker\n")
        os._exit(0)
    os.waitpid(worker, 0)
    stream.write(b"two\n")
    stream.close()
    assert capfd.readouterr().out == "one\nfrom a worker\ntwo\n"
    again = output._Counted(tmp_path / "output")
    for line in (b"one\n", b"two\n", b"three\n"):
        again.write(line)
    again.close()
    assert capfd.readouterr().out == "three\n"


def test_a_run_that_is_broken_off_keeps_nothing_more_of_what_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stream = output._Counted(tmp_path / "output")
    stream.write(b"one\n")
    stream.over = True
    stream.write(b"bye\n")
    stream.close()
    assert capfd.readouterr().out == "one\nbye\n" and (tmp_path / "output").read_bytes() == b"one\n"


def test_a_files_mode_is_put_back_with_it_and_one_that_was_left_to_be_read_only_is_written_again(
    tmp_path: Path,
) -> None:
    from overdrive.survive.files import Files

    (tmp_path / "run").mkdir()
    (path := tmp_path / "model.pt").write_text("first")
    path.chmod(0o640)
    files = Files(tmp_path / "run")
    files.noting = True
    files.note(str(path))
    path.chmod(0o600)
    then = files.states()
    path.write_text("later")
    path.chmod(0o444)
    for states, text, mode in ((then, "first", 0o600), ({}, "first", 0o640)):
        files.put_back(states)
        assert path.read_text() == text and path.stat().st_mode & 0o777 == mode
        path.chmod(0o444)


@pytest.mark.fault(15)
def test_a_folder_is_one_runs_and_one_process(tmp_path: Path) -> None:
    first = RunFolder(tmp_path / "run", {"script": "a", "versions": {"torch": "1"}}, fresh=False)
    again = (
        "import sys, pathlib; from overdrive.survive.folder import RunFolder\n"
        "RunFolder(pathlib.Path(sys.argv[1]), {'script': 'a', 'versions': {'torch': '1'}}, fresh=False)"
    )
    words = [sys.executable, "-c", again, str(tmp_path / "run")]
    assert "this run is under way already" in subprocess.run(words, capture_output=True, text=True).stderr
    first.close()
    assert subprocess.run(words).returncode == 0
    with pytest.raises(Unusable, match=r"torch .*1, and now 2.*--fresh"):
        other = {"script": "a", "versions": {"torch": "2"}}
        RunFolder(tmp_path / "run", other, fresh=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(Unusable, match="no folder of a run"):
        RunFolder(tmp_path / "mine", {}, fresh=True)
    assert (tmp_path / "mine" / "thesis.tex").exists()


def _killed_holder(folder: Path, seconds: float) -> int:
    """A process has had `folder`, and was killed; the number of its fork, which lives on for so long."""
    into, out = os.pipe()
    holder = os.fork()
    if holder == 0:
        RunFolder(folder, {"script": "a"}, fresh=False)
        fork = os.fork()
        if fork == 0:
            time.sleep(seconds)
            os._exit(0)
        os.write(out, str(fork).encode())
        time.sleep(600)
    fork = int(os.read(into, 20))
    os.close(into)
    os.close(out)
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    return fork


def test_forks_of_a_run_that_was_killed_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader's workers, say, which look every five seconds whether their parent lives."""
    _killed_holder(tmp_path / "run", 1.0)
    RunFolder(tmp_path / "run", {"script": "a"}, fresh=False).close()
    monkeypatch.setattr("overdrive.survive.folder._PATIENCE", 0.2)
    fork = _killed_holder(tmp_path / "run", 600)
    try:
        with pytest.raises(Unusable, match="processes that an earlier run has started"):
            RunFolder(tmp_path / "run", {"script": "a"}, fresh=False)
    finally:
        os.kill(fork, signal.SIGKILL)


def test_a_run_that_was_killed_before_it_had_written_anything_begins(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run", {"script": "a"}, fresh=False).close()
    (tmp_path / "run" / "run.json").unlink()
    again = RunFolder(tmp_path / "run", {"script": "a"}, fresh=False)
    assert again.is_new
    again.close()


def test_a_run_that_was_killed_while_its_folder_was_made_begins_in_it(tmp_path: Path) -> None:
    """One of 300 that were killed in their first second had "no folder of a run", and its command was refused."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    for name in ("lock", "process", ".run.json.0a1b2c3d.tmp"):
        (folder / name).touch()
    again = RunFolder(folder, {"script": "a"}, fresh=False)
    again.close()
    assert again.is_new and not list(folder.glob(".*")) and (folder / "run.json").exists()


@pytest.mark.fault("others", 24)
def test_a_folder_that_others_may_have_written_to_is_refused(tmp_path: Path) -> None:
    """What lies there would become the user's files."""
    (tmp_path / "by-hand").mkdir()
    (tmp_path / "by-hand").chmod(0o777)
    RunFolder(tmp_path / "by-hand", {"script": "a"}, fresh=False).close()
    assert (tmp_path / "by-hand").stat().st_mode & 0o777 == 0o700
    (tmp_path / "by-hand").chmod(0o770)
    for fresh in (False, True):
        with pytest.raises(Unusable, match="others may write to it: name another folder"):
            RunFolder(tmp_path / "by-hand", {"script": "a"}, fresh=fresh)


@pytest.mark.fault("others", 24)
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunFolder(tmp_path / "run", {"script": "a"}, fresh=False).close()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(Unusable, match="belongs to another user"):
        RunFolder(tmp_path / "run", {"script": "a"}, fresh=False)


def held(weight: Any, count: Any, shared: bool) -> Any:
    """A program's heap, in a thread of its own: the test's own calls are not below it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_held, weight, count, shared).result()


def _held(weight: Any, count: Any, shared: bool) -> Any:
    from overdrive.survive.heap import Heap

    def program() -> Any:
        model = {"weight": weight, "view": weight[1:] if shared else weight[1:].clone()}
        waiting = (value for value in [model, count])
        next(waiting)
        return Heap(sys._getframe())

    return program()


def test_what_a_program_holds_is_put_back_or_the_first_difference_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from overdrive.survive import names
    from overdrive.survive.optimizer_states import OptimizerStates
    from overdrive.survive.state import OtherState, Taking, put_back

    # Other tests of this process, as modules, would be the program's too.
    monkeypatch.setattr(names, "_is_programs", lambda module: getattr(module, "__name__", "") == __name__)
    then = held(torch.arange(4.0), 3, shared=True)
    taken = Taking(then, OptimizerStates())
    blocks = [bytearray(each) for each in taken.blocks]
    now = held(torch.zeros(4), 3, shared=True)
    put_back(now, taken.header, blocks.__getitem__)
    assert [tensor.tolist() for _, tensor in now.tensors] == [[0, 1, 2, 3], [1, 2, 3]]
    for other in (held(torch.zeros(4), 4, shared=True), held(torch.zeros(5), 3, shared=True)):
        with pytest.raises(OtherState, match="at the snapshot"):
            put_back(other, taken.header, blocks.__getitem__)
    with pytest.raises(OtherState, match="view"):
        put_back(held(torch.zeros(4), 3, shared=False), taken.header, blocks.__getitem__)


def _buffer(content: float) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(torch.full((8,), content), buffer)
    return buffer


def _cached(content: float) -> Any:
    @functools.lru_cache(maxsize=4)
    def cached(number: int) -> Any:
        return torch.full((8,), content)

    cached(1)
    return cached


def test_weights_in_a_buffer_or_a_cache_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of the best epoch, loaded at the end: there are zeros in them when the run is made again."""
    from overdrive.survive import names
    from overdrive.survive.optimizer_states import OptimizerStates
    from overdrive.survive.state import OtherState, Taking, put_back

    monkeypatch.setattr(names, "_is_programs", lambda module: getattr(module, "__name__", "") == __name__)
    one = torch.zeros(2)
    then = Taking(held(one, _buffer(3.0), shared=True), OptimizerStates())
    put_back(held(one, _buffer(3.0), shared=True), then.header, then.blocks.__getitem__)
    with pytest.raises(OtherState, match=r"count.*at the snapshot"):
        put_back(held(one, _buffer(0.0), shared=True), then.header, then.blocks.__getitem__)
    then = Taking(held(one, _cached(3.0), shared=True), OptimizerStates())
    put_back(held(one, now := _cached(0.0), shared=True), then.header, then.blocks.__getitem__)
    assert now(1).tolist() == [3.0] * 8 and now.cache_info().misses == 1


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_matrix_is_put_back_as_what_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    from overdrive.survive import names
    from overdrive.survive.optimizer_states import CannotTake, OptimizerStates
    from overdrive.survive.state import OtherState, Taking, put_back

    monkeypatch.setattr(names, "_is_programs", lambda module: getattr(module, "__name__", "") == __name__)
    one = torch.zeros(2)

    def graph(value: float, **about: Any) -> Any:
        return torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.tensor([value, 2.0]), (2, 2), **about)

    for kind in (torch.Tensor.clone, torch.Tensor.coalesce, torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_csc):
        then = Taking(held(one, kind(graph(1.0)), shared=True), OptimizerStates())
        put_back(held(one, now := kind(graph(0.0)), shared=True), then.header, then.blocks.__getitem__)
        assert now.layout is kind(graph(1.0)).layout and now.to_dense().tolist() == [[0, 1], [2, 0]]
        other = torch.Tensor.to_sparse_csr if now.layout is torch.sparse_coo else torch.Tensor.coalesce
        with pytest.raises(OtherState, match="at the snapshot"):
            put_back(held(one, other(graph(1.0)), shared=True), then.header, then.blocks.__getitem__)
    with pytest.raises(CannotTake, match="unusual kind"):
        Taking(held(one, graph(1.0, requires_grad=True), shared=True), OptimizerStates())


def test_an_array_that_lies_in_a_tensors_memory_is_put_back_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """PPO writes its next values into the tensor, which are zeros while the run is made again."""
    from overdrive.survive import names
    from overdrive.survive.optimizer_states import OptimizerStates
    from overdrive.survive.state import OtherState, Taking, put_back

    monkeypatch.setattr(names, "_is_programs", lambda module: getattr(module, "__name__", "") == __name__)

    def views(tensor: Any, alone: bool = False) -> Any:
        return [tensor, tensor.clone().numpy() if alone else tensor.reshape(-1).numpy()[1:]]

    one = torch.zeros(2)
    then = Taking(held(one, views(torch.ones(2, 2)), shared=True), OptimizerStates())
    put_back(held(one, now := views(torch.zeros(2, 2)), shared=True), then.header, then.blocks.__getitem__)
    assert now[0].tolist() == [[1, 1], [1, 1]] and now[1].tolist() == [1, 1, 1]
    with pytest.raises(OtherState):
        put_back(held(one, views(torch.ones(2, 2), alone=True), shared=True), then.header, then.blocks.__getitem__)
    with pytest.raises(OtherState):  # one of its own is compared
        then = Taking(held(one, np.ones(3), shared=True), OptimizerStates())
        put_back(held(one, np.zeros(3), shared=True), then.header, then.blocks.__getitem__)


def test_tensors_that_are_only_in_a_set_cannot_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from overdrive.survive import names
    from overdrive.survive.optimizer_states import CannotTake, OptimizerStates
    from overdrive.survive.state import Taking

    monkeypatch.setattr(names, "_is_programs", lambda module: getattr(module, "__name__", "") == __name__)
    weight = torch.zeros(2)
    for harmless in ({weight}, {(1, 2), "a", Path("b")}, {SimpleNamespace, print}, {frozenset({weight})}):
        Taking(held(weight, harmless, shared=True), OptimizerStates())
    for hidden in ({torch.ones(1)}, {("best", torch.ones(1))}, [{frozenset({torch.ones(1)})}]):
        with pytest.raises(CannotTake, match=r"count.* is a set"):
            Taking(held(weight, hidden, shared=True), OptimizerStates())


def _of_thread() -> Any:
    """Found from the very thread that has it."""
    local = threading.local()
    local.best = torch.full((4,), 3.0)
    return _held(torch.zeros(2), local, shared=True)


def test_tensors_behind_weak_keys_and_of_the_thread_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from overdrive.survive import names
    from overdrive.survive.optimizer_states import OptimizerStates
    from overdrive.survive.state import OtherState, Taking, put_back

    monkeypatch.setattr(names, "_is_programs", lambda module: getattr(module, "__name__", "") == __name__)
    key, one = torch.nn.Identity(), torch.zeros(2)

    def weakly(value: float, size: int = 4) -> Any:
        return weakref.WeakKeyDictionary({key: {"best": torch.full((size,), value)}})

    then = Taking(held(one, weakly(3.0), shared=True), OptimizerStates())
    put_back(held(one, now := weakly(0.0), shared=True), then.header, then.blocks.__getitem__)
    assert now[key]["best"].tolist() == [3.0] * 4
    with pytest.raises(OtherState, match=r"count.*at the snapshot"):
        put_back(held(one, weakly(0.0, size=5), shared=True), then.header, then.blocks.__getitem__)
    with ThreadPoolExecutor(1) as pool:
        then, found = Taking(pool.submit(_of_thread).result(), OptimizerStates()), pool.submit(_of_thread).result()
    (best,) = [tensor.zero_() for path, tensor in found.tensors if path.endswith(".best")]
    put_back(found, then.header, then.blocks.__getitem__)
    assert best.tolist() == [3.0] * 4


def test_tensors_that_are_only_in_a_queue_of_c_or_a_result_to_come_cannot_be_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from overdrive.survive import names
    from overdrive.survive.optimizer_states import CannotTake, OptimizerStates
    from overdrive.survive.state import Taking

    monkeypatch.setattr(names, "_is_programs", lambda module: getattr(module, "__name__", "") == __name__)
    weight = torch.zeros(2)

    def queued(thing: Any) -> Any:
        queue: SimpleQueue[Any] = SimpleQueue()
        queue.put(thing)
        return queue

    def done(thing: Any) -> Any:
        future: Future[Any] = Future()
        future.set_result(thing)
        return future

    for harmless in (queued(weight), queued(3), done([weight]), Future(), SimpleQueue()):
        Taking(held(weight, harmless, shared=True), OptimizerStates())
    told = r"count.* is a (SimpleQueue|Future), and some tensors are in nothing else"
    for hidden in (queued(torch.ones(1)), queued(("best", torch.ones(1))), done([torch.ones(1)])):
        with pytest.raises(CannotTake, match=told):
            Taking(held(weight, hidden, shared=True), OptimizerStates())


def test_when_a_variable_was_first_looked_at_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes many snapshots; the one that is made again is looked at once, when all its variables are there."""
    from overdrive.survive import heap, names

    monkeypatch.setattr(names, "_is_programs", lambda module: False)

    def main(looks: tuple[int, ...]) -> Any:
        device = "cpu"
        for step in (1, 2):
            if step == 2:
                return heap.Heap(sys._getframe()).facts
            if step in looks:
                heap.Heap(sys._getframe())
            loss = (lambda: device)()
        assert loss == device

    with ThreadPoolExecutor(1) as pool:
        often, once = (pool.submit(main, looks).result() for looks in ((1, 2), (2,)))
    assert "main().loss" in dict(once)
    assert [path for path, _ in often] == [path for path, _ in once]


def test_a_result_that_looks_like_an_earlier_one_is_told_as_it_would_be_anew() -> None:
    from overdrive.survive import structure
    from overdrive.survive.results import Results

    x, known = torch.zeros(4, 3), Results()
    graph = (torch.ones(2, requires_grad=True) * 2).clone()
    results = [
        None, x, x[1:], (x[0], x), x.clone(), x.clone().t(), torch.zeros(3, 4), torch.zeros(3, 4).t(), [x.clone()],
        (x.clone(), None), (x.clone(), (x.clone(), x.clone())), {"a": x.clone()}, (x.clone(), 2.0), (x.clone(), -0.0),
        (x.clone(), 0.0), graph, graph.detach(), torch.zeros(4, 3, dtype=torch.float64), torch.zeros(1).expand(3),
        torch.zeros(0), torch.zeros(12).as_strided((2, 6), (1, 1), 5), torch.nn.Parameter(x.clone()),
    ]  # fmt: skip
    shared = x.clone()
    results += [(shared, shared), (shared, shared.view(3, 4)), (shared, shared.clone())]
    for given in [((x,), {}), (([x, 3],), {"y": (shared, None)}), ((object(), {"a": x}), {})]:
        for result in [*results, *results]:
            assert known.told(result, given) == structure.told(result, given)
            assert repr(known.told(result, given)) == repr(structure.told(result, given))


class Kept:
    """As a cache of transformers: made of tensors, of other such objects, and of a kind of data."""

    def __init__(self, tensor: Any, *layers: Any) -> None:
        self.keys, self.layers = tensor, list(layers)
        self.dtype, self.device, self.makes = tensor.dtype, tensor.device, Kept


def test_an_object_that_is_what_its_attributes_are_is_returned_again() -> None:
    from overdrive.survive import structure

    x = torch.ones(4, 3)
    told = json.loads(json.dumps(structure.told((x, Kept(x, Kept(x[1:]))), (x,))))
    same, kept = structure.made(told, (x,), lambda: None)
    assert same is x and kept.keys is x and type(kept) is Kept
    (layer,) = kept.layers
    assert layer.keys.shape == (3, 3) and layer.keys.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert (layer.dtype, layer.device, layer.makes, layer.layers) == (torch.float32, x.device, Kept, [])


def test_an_object_that_the_call_was_given_or_that_is_more_than_that_cannot_be_told() -> None:
    """One that was given may have been changed; one in two places would be two."""
    from overdrive.survive import structure

    class Local(Kept):
        """Is found by no name."""

    kept = Kept(torch.zeros(2))
    kept.layers.append(kept)
    for result, given in ((kept, ()), (Kept(torch.zeros(2)),) * 2, (Local(torch.zeros(2)), ()), (iter([1]), ())):
        with pytest.raises(structure.CannotTell):
            structure.told(result, (given,))


def test_what_is_called_within_a_transform_of_torch_func_cannot_be_told() -> None:
    """It is said as a reason; an error would end all that watches the program."""
    from overdrive.survive import structure

    def called(x: Any) -> Any:
        with pytest.raises(structure.CannotTell, match="transform of"):
            structure.told(x * 2, (x,))
        return (x * 2).sum()

    torch.func.grad(called)(torch.ones(3))


def test_what_sqlite_keeps_beside_a_database_goes_with_it(tmp_path: Path) -> None:
    """A journal that a killed process has left is rolled back into whatever database lies beside it."""
    from overdrive.survive.files import Files

    (tmp_path / "run").mkdir()
    (kept := tmp_path / "kept.db").write_text("before")
    files = Files(tmp_path / "run")
    files.noting = True
    files._hear("sqlite3.connect", (kept,))
    kept.write_text("half of a transaction")
    (journal := tmp_path / "kept.db-journal").write_text("how to undo it")
    files.put_back({})
    assert kept.read_text() == "before" and not journal.exists()


def test_a_link_leads_where_it_led(tmp_path: Path) -> None:
    """As `latest` does, which a program sets anew at each checkpoint."""
    from overdrive.survive.files import Files

    (tmp_path / "run").mkdir()
    (latest := tmp_path / "latest").symlink_to("epoch-1")
    files = Files(tmp_path / "run")
    files.noting = True
    files.note(str(latest))
    then = files.states()
    latest.unlink()
    latest.symlink_to("epoch-2")
    files.put_back(then)
    assert os.readlink(latest) == "epoch-1"


MAKE: dict[str, tuple[Any, Any]] = {
    "random.Random": (lambda: random.Random(5), lambda generator: generator.gauss(0, 1)),
    "numpy.Generator": (lambda: np.random.default_rng(5), lambda generator: float(generator.random(dtype="float32"))),
    "numpy.Philox": (lambda: np.random.Generator(np.random.Philox(5)), lambda generator: generator.normal()),
    "numpy.RandomState": (lambda: np.random.RandomState(5), lambda generator: generator.normal()),
    "torch.Generator": (
        lambda: torch.Generator().manual_seed(5),
        lambda generator: torch.rand((), generator=generator).item(),
    ),
}


@pytest.mark.parametrize(("make", "draw"), MAKE.values(), ids=MAKE)
def test_a_generator_of_the_programs_own_goes_on_where_it_was(
    make: Any, draw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that drew from it in its calls would draw the same once more: these are skipped when it is made again."""
    from overdrive.survive import names
    from overdrive.survive.optimizer_states import OptimizerStates
    from overdrive.survive.state import Taking, put_back

    monkeypatch.setattr(names, "_is_programs", lambda module: getattr(module, "__name__", "") == __name__)
    then, now = make(), make()
    draw(then)
    header = json.loads(json.dumps(Taking(held(torch.zeros(2), then, shared=True), OptimizerStates()).header))
    block = [bytearray(8)].__getitem__
    put_back(held(torch.zeros(2), now, shared=True), header, block)
    assert [draw(now) for _ in range(3)] == [draw(then) for _ in range(3)]


def test_snapshots_are_as_seldom_as_is_best_with_what_one_costs_and_how_often_a_run_fails() -> None:
    """The square root of 2 C M; never for more than 0.5 % of the run; as was asked for, where it was."""
    day = SnapshotInterval(None)
    assert day.seconds == FIRST  # what one costs is not known yet
    day.took(0.5)
    assert day.seconds == pytest.approx((2 * 0.5 * 86_400) ** 0.5)
    often = SnapshotInterval(None, mtbf=600.0)
    often.took(0.5)
    assert often.seconds == pytest.approx(0.5 / 0.005)  # Young's 24 s would take 2 % of the run
    seldom = SnapshotInterval(None, mtbf=1e9)
    seldom.took(0.5)
    assert seldom.seconds == LONGEST
    asked = SnapshotInterval(0.25)
    asked.took(100.0)
    assert asked.seconds == 0.25


@pytest.mark.fault(10)
def test_the_last_snapshot_comes_before_the_end_of_what_was_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two minutes before: Slurm leaves 30 seconds from its SIGTERM on, in which many a snapshot is not on disk."""
    granted = SnapshotInterval(600.0, end=4000.0)
    assert granted.due_after(0.0) == 600.0 and granted.due_after(3279.0) == 3879.0
    assert granted.due_after(3281.0) == 4000.0 - BEFORE_END
    assert granted.due_after(3880.0) == 4480.0  # it was taken
    assert SnapshotInterval(600.0).due_after(5000.0) == 5600.0
    assert seconds_left({}) is None and seconds_left({"SLURM_JOB_END_TIME": "unknown"}) is None
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 1000))
    of_the_command = interval_of(Wish("", 3600.0, None, fresh=False))
    assert 700 < of_the_command.due_after(time.monotonic()) - time.monotonic() <= 1000 - BEFORE_END


def test_a_snapshot_tells_what_it_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk, and the processor time of the thread that writes."""
    monkeypatch.setattr(snapshot, "write", lambda *_: sum(range(200_000)) and time.sleep(0.05))
    monkeypatch.setattr(snapshot, "keep", lambda *_: None)
    snapshots, optimizer = Snapshots(tmp_path), object()
    empty: Any = SimpleNamespace(tensors=(), header={}, blocks=[])
    snapshots.take(empty, optimizer, {"step": 7}, empty)
    snapshots.stepped(optimizer)
    snapshots.stepped(optimizer)
    assert snapshots.kept == 7 and snapshots.cost >= 0.04


@pytest.mark.fault(13)
def test_a_snapshot_that_cannot_be_given_its_name_is_none_and_the_next_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots, optimizer = Snapshots(tmp_path), object()
    empty: Any = SimpleNamespace(tensors=(), header={}, blocks=[])
    for step in (7, 9):
        snapshots.take(empty, optimizer, {"step": step}, empty)
        with monkeypatch.context() as failing:
            if step == 7:
                failing.setattr(snapshot, "keep", _fails)
            snapshots.stepped(optimizer)
            snapshots.stepped(optimizer)
        assert (snapshots.kept, snapshots.failure is None) == ((0, False) if step == 7 else (9, True))
    assert snapshot.steps_of(tmp_path) == [9]


@pytest.mark.parametrize("trains", ["fit", "a loop of its own"])
def test_a_program_that_trains_in_keras_is_told_so_at_once(trains: str, tmp_path: Path) -> None:
    """As its seams tell of it; PyTorch's steps beside it are no sign of that."""
    from overdrive.seams.hub import Seams
    from overdrive.survive.ending import Ending
    from overdrive.survive.output import UnsavedOutput
    from overdrive.survive.survivor import Survivor
    from overdrive.survive.under_plan import UnderPlan

    said: list[str] = []
    folder = RunFolder(tmp_path / "run", {}, fresh=False)
    anew: Any = pytest.fail
    survivor = Survivor(folder, UnsavedOutput(), SnapshotInterval(None), Ending(None), said.append, anew, UnderPlan())
    seams = Seams()
    survivor(seams)
    seams.frameworks.append("keras")
    seams.framework_arrived.publish()
    seams.step_ends.publish(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    assert not said
    for _ in range(2):
        if trains == "fit":
            assert seams.fit_called.run("a model", lambda epochs: f"{epochs} epochs", 3) == "3 epochs"
        else:
            seams.step_ends.publish(SimpleNamespace())
    assert said == [
        "this program cannot be gone on with in its middle: it trains in Keras, whose steps cannot be skipped "
        "(keras.callbacks.BackupAndRestore in the program goes on from the end of an epoch). Killed, it begins from "
        "its start"
    ]
    assert folder.read_notes()["no more snapshots"].startswith("it trains in Keras")
    folder.close()


def test_where_samples_are_kept_is_no_file_of_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is the folder itself, which may be made while it runs; and one that is no longer empty is left."""
    from overdrive.survive.file_states import remove
    from overdrive.survive.files import Files

    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path / "kept"))
    (tmp_path / "run").mkdir()
    files = Files(tmp_path / "run")
    assert not files.counts(str(tmp_path / "kept")) and not files.counts(str(tmp_path / "kept" / "table"))
    assert not files.counts(str(tmp_path / "run" / "journal")) and files.counts(str(tmp_path / "kept.csv"))
    (tmp_path / "made" / "by others").mkdir(parents=True)
    remove(str(tmp_path / "made"))
    assert (tmp_path / "made" / "by others").is_dir()


def test_a_model_whose_random_numbers_nobody_can_save_is_known() -> None:
    """cuDNN keeps those of dropout between an RNN's layers to itself."""
    from torch import nn

    from overdrive.survive.state import keeps_draws_to_itself

    with fake_cuda():
        model = nn.Sequential(nn.LSTM(4, 4, 2, dropout=0.2))
        assert not keeps_draws_to_itself(model)
        assert keeps_draws_to_itself(model.cuda())
        assert not keeps_draws_to_itself(model.eval())
        assert not any(keeps_draws_to_itself(each.cuda()) for each in (nn.GRU(4, 4, 2), nn.LSTM(4, 4, 1)))


def test_other_gpus_are_no_other_run_and_another_number_of_them_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is queued again is given whichever are free."""

    def environment(visible: str) -> object:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return identity_of(Program("train.py"))["environment"]

    assert environment("0,1") == environment("3,2") == environment("GPU-1a,GPU-2b")
    assert len({str(environment(visible)) for visible in ("", "0", "0,1")}) == 3
