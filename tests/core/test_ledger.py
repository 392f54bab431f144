"""The ledger keeps what it was told through kills, damage, full disks and company; it never raises."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

from overdrive.core.ledger import Ledger, default_path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "overdrive" / "ledger.sqlite"


def child(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys\nfrom pathlib import Path\nfrom overdrive.core.ledger import Ledger\n" + code,
        ]
        + [str(argument) for argument in arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def filled(path: Path, rows: int = 100) -> None:
    with Ledger.open(path) as ledger:
        for row in range(rows):
            ledger.remember("tune", "duel", f"row {row}", {"row": row, "text": "x" * 200})


def still_works(ledger: Ledger) -> None:
    """Whatever happened to the file, the tune can go on."""
    ledger.remember("another", "duel", "a", {"value": 1})
    ledger.remember("another", "duel", "a", {"value": 2})
    assert ledger.recall("another", "duel") == {"a": {"value": 2}}
    ledger.forget("another")
    assert ledger.recall("another", "duel") == {}


def test_what_is_remembered_is_recalled_in_another_process_in_order(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.remember("tune", "duel", "b", {"seconds": [0.25, 1e-9], "verdict": None})
        ledger.remember("tune", "duel", "a", {"é\x1b\udce9": "\u2028"})
        ledger.remember("tune", "duel", "b", {"seconds": [0.5]})
        ledger.remember("tune", "proof", "b", {})
        ledger.remember("other", "duel", "c", {"n": np.int64(3), "x": np.float64(0.5)})
    with Ledger.open(path) as ledger:
        assert ledger.notice is None
        recalled = ledger.recall("tune", "duel")
        assert recalled == {"b": {"seconds": [0.5]}, "a": {"é\x1b\udce9": "\u2028"}}
        assert list(recalled) == ["b", "a"]
        assert ledger.recall("tune", "proof") == {"b": {}}
        assert ledger.recall("other", "duel") == {"c": {"n": 3, "x": 0.5}}
        assert ledger.recall("unknown", "duel") == {}


def test_what_is_forgotten_is_gone_and_nothing_else(path: Path) -> None:
    with Ledger.open(path) as ledger:
        for key in ("one", "two"):
            ledger.remember(key, "duel", "a", {"key": key})
            ledger.remember(key, "proof", "a", {"key": key})
        ledger.forget("one")
    with Ledger.open(path) as ledger:
        assert ledger.recall("one", "duel") == ledger.recall("one", "proof") == {}
        assert ledger.recall("two", "duel") == ledger.recall("two", "proof") == {"a": {"key": "two"}}


def test_the_folder_is_the_users_own(path: Path) -> None:
    Ledger.open(path).close()
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.fault(9)
def test_a_killed_process_loses_nothing_that_it_was_told_is_kept(path: Path) -> None:
    process = child(
        "ledger = Ledger.open(Path(sys.argv[1]))\n"
        "for row in range(100000):\n"
        "    ledger.remember('tune', 'duel', str(row), {'row': row})\n"
        "    print(row, flush=True)",
        path,
    )
    assert process.stdout is not None
    for _ in range(25):
        last = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().split("\n")[:-1]
    process.wait()
    process.stdout.close()
    with Ledger.open(path) as ledger:
        assert ledger.notice is None
        assert len(ledger.recall("tune", "duel")) >= int(rest[-1] if rest else last) + 1
        still_works(ledger)


@pytest.mark.fault(15)
def test_processes_that_begin_and_write_at_once_all_keep_their_rows(path: Path) -> None:
    writers = [
        child(
            "ledger = Ledger.open(Path(sys.argv[1]))\n"
            "for row in range(40):\n"
            "    ledger.remember('tune', 'duel', f'{sys.argv[2]} {row}', {'row': row})\n"
            "print(ledger.notice)",
            path,
            writer,
        )
        for writer in range(4)
    ]
    assert [process.communicate()[0] for process in writers] == ["None\n"] * 4
    with Ledger.open(path) as ledger:
        assert len(ledger.recall("tune", "duel")) == 160


def test_threads_may_share_a_ledger(path: Path) -> None:
    with Ledger.open(path) as ledger:

        def write(thread: int) -> None:
            for row in range(20):
                ledger.remember("tune", "duel", f"{thread} {row}", {"row": row})

        threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ledger.notice is None
        assert len(ledger.recall("tune", "duel")) == 80


def random_bytes(path: Path) -> None:
    path.write_bytes(np.random.default_rng(1).bytes(20_000))


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def cut_to_half_a_header(path: Path) -> None:
    os.truncate(path, 50)


def zeroed_in_the_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:12288] = bytes(8192)
    path.write_bytes(data)


def overwritten_by_a_text(path: Path) -> None:
    path.write_text("not a database\n" * 100)


@pytest.mark.parametrize(
    "damage", [random_bytes, truncated, cut_to_half_a_header, zeroed_in_the_middle, overwritten_by_a_text]
)
@pytest.mark.fault(14)
def test_a_damaged_file_is_set_aside_and_a_new_one_begun(path: Path, damage: object) -> None:
    filled(path)
    damage(path)  # type: ignore[operator]
    harmed = path.read_bytes()
    with Ledger.open(path) as ledger:
        assert ledger.notice is not None and "damaged" in ledger.notice
        assert ledger.recall("tune", "duel") == {}
        ledger.remember("tune", "duel", "new", {})
    (aside,) = path.parent.glob("ledger.sqlite.damaged-*")
    assert aside.read_bytes() == harmed
    with Ledger.open(path) as ledger:
        assert ledger.notice is None
        assert ledger.recall("tune", "duel") == {"new": {}}


def test_a_second_damaged_file_does_not_overwrite_the_first(path: Path) -> None:
    for _ in range(3):
        filled(path, 1)
        random_bytes(path)
        Ledger.open(path).close()
    assert len(list(path.parent.glob("ledger.sqlite.damaged-*"))) == 3


@pytest.mark.fault(14)
def test_no_flipped_bit_in_the_header_stops_a_tune(path: Path) -> None:
    filled(path, 20)
    whole = path.read_bytes()
    for position in range(100):
        for leftover in path.parent.iterdir():
            leftover.unlink()
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        with Ledger.open(path) as ledger:
            recalled = ledger.recall("tune", "duel")
            assert len(recalled) == 20 or ledger.notice is not None, position
            still_works(ledger)


@pytest.mark.fault(14)
def test_a_flipped_bit_in_a_value_is_found_and_the_value_left_out(path: Path) -> None:
    filled(path, 20)
    path.write_bytes(path.read_bytes().replace(b'{"row": 7,', b'{"row": 6,'))
    with Ledger.open(path) as ledger:
        recalled = ledger.recall("tune", "duel")
        assert "row 7" not in recalled
        assert len(recalled) == 19
        assert ledger.notice is not None and "measured again" in ledger.notice
        still_works(ledger)


def test_a_newer_versions_ledger_is_left_alone(path: Path) -> None:
    filled(path, 1)
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 99")
    file.close()
    before = path.read_bytes()
    with Ledger.open(path) as ledger:
        assert ledger.notice is not None and "not made by this version" in ledger.notice
        still_works(ledger)
    assert path.read_bytes() == before


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.sqlite"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE theirs (a)")
    file.close()
    with Ledger.open(path) as ledger:
        assert ledger.notice is not None
        still_works(ledger)
    with sqlite3.connect(path) as file:
        assert [name for (name,) in file.execute("SELECT name FROM sqlite_master")] == ["theirs"]
    file.close()


@pytest.mark.fault(13)
def test_a_disk_that_fills_up_midway_is_told_once_and_the_tune_goes_on(path: Path) -> None:
    process = child(
        "import resource\n"
        "ledger = Ledger.open(Path(sys.argv[1]))\n"
        "ledger.remember('tune', 'duel', 'early', {})\n"
        "ledger.remember('gone', 'duel', 'early', {})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000))\n"
        "for row in range(100):\n"
        "    ledger.remember('tune', 'duel', str(row), {'text': 'x' * 2000})\n"
        "assert ledger.notice and 'cannot be written' in ledger.notice and ledger.notice.count('.') == 1\n"
        "assert list(ledger.recall('tune', 'duel')) == ['early', *map(str, range(100))]\n"
        "ledger.remember('tune', 'duel', 'early', {'new': 1})\n"
        "assert ledger.recall('tune', 'duel')['early'] == {'new': 1}\n"
        "ledger.forget('gone')\n"
        "assert ledger.recall('gone', 'duel') == {}\n"
        "ledger.close()\n"
        "print('done')",
        path,
    )
    assert process.communicate()[0] == "done\n"
    with Ledger.open(path) as ledger:
        assert ledger.notice is None
        recalled = ledger.recall("tune", "duel")
        assert 2 < len(recalled) < 101
        assert list(recalled) == ["early", *map(str, range(len(recalled) - 1))]


@pytest.mark.fault(13)
def test_a_disk_that_is_full_from_the_start_means_memory(path: Path) -> None:
    process = child(
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "ledger = Ledger.open(Path(sys.argv[1]))\n"
        "ledger.remember('tune', 'duel', 'a', {'value': 1})\n"
        "assert ledger.recall('tune', 'duel') == {'a': {'value': 1}}\n"
        "print(ledger.notice)",
        path,
    )
    assert "cannot be used" in process.communicate()[0]


@pytest.mark.fault(13, 27)
def test_a_folder_or_file_that_must_not_be_written_means_memory() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        filled(folder / "ledger.sqlite", 3)
        folder.chmod(0o555)
        for file in folder.iterdir():
            file.chmod(0o444)
        if os.getuid() == 0:  # root may write anywhere, so the child becomes nobody
            for place in (folder, *folder.iterdir()):
                os.chown(place, 65534, 65534)
        process = child(
            "if os.getuid() == 0: os.setuid(65534)\n"
            "for name in ('ledger.sqlite', 'new.sqlite', 'folder/new.sqlite'):\n"
            "    ledger = Ledger.open(Path(sys.argv[1]) / name)\n"
            "    ledger.remember('tune', 'duel', 'a', {'value': 1})\n"
            "    assert ledger.recall('tune', 'duel') == {'a': {'value': 1}}, name\n"
            "    assert ledger.notice and 'nothing is kept' in ledger.notice, name\n"
            "print('done')",
            folder,
        )
        assert process.communicate()[0] == "done\n"
        folder.chmod(0o755)


@pytest.mark.parametrize("where", ["/proc/overdrive/ledger.sqlite", "/dev/null/ledger.sqlite", "/dev/full", "/"])
@pytest.mark.fault(13)
def test_a_place_that_is_no_place_for_a_file_means_memory(where: str) -> None:
    with Ledger.open(Path(where)) as ledger:
        assert ledger.notice is not None and "nothing is kept" in ledger.notice
        still_works(ledger)


@pytest.mark.fault(15)
def test_a_ledger_that_another_program_has_locked_means_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path, 1)
    monkeypatch.setattr("overdrive.core.ledger._WAIT_SECONDS", 0.05)
    hog = sqlite3.connect(path, isolation_level=None)
    hog.execute("BEGIN IMMEDIATE")
    with Ledger.open(path) as ledger:
        assert ledger.notice is not None and "locked" in ledger.notice
        still_works(ledger)
    hog.execute("ROLLBACK")
    hog.close()


@pytest.mark.fault(15)
def test_a_lock_that_lasts_midway_means_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.core.ledger._WAIT_SECONDS", 0.05)
    with Ledger.open(path) as ledger:
        ledger.remember("tune", "duel", "a", {"value": 1})
        hog = sqlite3.connect(path, isolation_level=None)
        hog.execute("BEGIN IMMEDIATE")
        ledger.remember("tune", "duel", "b", {"value": 2})
        assert ledger.recall("tune", "duel") == {"a": {"value": 1}, "b": {"value": 2}}
        assert ledger.notice is not None and "locked" in ledger.notice
        hog.execute("ROLLBACK")
        hog.close()


def test_on_a_network_folder_no_shared_memory_is_needed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.core.ledger._on_network", lambda path: True)
    filled(path, 3)
    with sqlite3.connect(path) as file:
        assert file.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    file.close()
    with Ledger.open(path) as ledger:
        assert len(ledger.recall("tune", "duel")) == 3


def test_the_default_place_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path() == tmp_path / "overdrive" / "ledger.sqlite"
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".local" / "state" / "overdrive" / "ledger.sqlite"

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert default_path().name == "ledger.sqlite"


def test_a_value_that_json_cannot_hold_is_the_callers_error(path: Path) -> None:
    with Ledger.open(path) as ledger, pytest.raises(TypeError, match="cannot keep a set"):
        ledger.remember("tune", "duel", "a", {"value": {1}})
