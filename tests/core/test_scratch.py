"""Folders of processes that were killed are swept; those that somebody uses, or was told of, are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from overdrive.core import scratch

# Prints the folder's name, then waits to be killed.
MAKER = """
import os, sys, time
from overdrive.core import scratch
folder = scratch.made("overdrive-test-")
deep = folder / "work" / "deep"
deep.mkdir(parents=True)
(deep / "file").write_text("x")
deep.parent.chmod(0)
{more}
print(folder, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def maker(more: str = "") -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", MAKER.format(more=more)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def test_the_folder_of_a_killed_process_is_swept_and_that_of_a_living_one_is_not() -> None:
    process, folder = maker()
    scratch.sweep()
    assert (folder / "work").exists()
    killed(process)
    scratch.sweep()
    assert not folder.exists()


def test_the_folder_is_in_use_while_a_fork_of_its_maker_or_another_holder_lives() -> None:
    process, folder = maker(
        "child = os.fork()\nif not child: time.sleep(600)\n(folder / 'child').write_text(str(child))"
    )
    fork = int((folder / "child").read_text())
    killed(process)
    scratch.sweep()
    assert folder.exists()
    scratch.hold(folder)
    os.kill(fork, signal.SIGKILL)
    scratch.sweep()
    assert folder.exists()
    scratch.discard(folder)
    assert not folder.exists()


def test_what_its_maker_starts_does_not_keep_it() -> None:
    process, folder = maker(
        "import subprocess\nchild = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL, close_fds=False)\n"
        "(folder / 'child').write_text(str(child.pid))"
    )
    child = int((folder / "child").read_text())
    killed(process)
    try:
        scratch.sweep()
        assert not folder.exists()
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    "undo",
    ["scratch.keep(folder)", "(folder / '.in-use').write_text('another start of another machine')"],
    ids=["people were told of it", "made elsewhere"],
)
def test_a_folder_whose_makers_are_not_known_to_be_gone_stays(undo: str) -> None:
    process, folder = maker(undo)
    killed(process)
    scratch.sweep()
    assert (folder / "work").exists()


def test_folders_without_a_lock_and_links_stay(tmp_path: Path) -> None:
    process, folder = maker()
    killed(process)
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    (tmp_path / "overdrive-link").symlink_to(elsewhere)
    (tmp_path / "overdrive-of-before").mkdir()
    scratch.sweep()
    assert elsewhere.exists()
    assert (tmp_path / "overdrive-of-before").exists()


MOUNTS = """
import os, subprocess
from overdrive.core import scratch
folder = scratch.made("overdrive-test-")
(folder / "view").mkdir()
subprocess.run(["mount", "-t", "tmpfs", "none", folder / "view"], check=True)
(folder / "more").mkdir()
scratch.discard(folder)
print(folder)
"""


def test_what_its_maker_could_not_remove_itself_is_swept(tmp_path: Path) -> None:
    """As of a rank that a launcher started: it looks at what is mounted there to its end."""
    got = subprocess.run(["unshare", "-rm", sys.executable, "-c", MOUNTS], capture_output=True, text=True)
    if "unshare" in got.stderr or "mount" in got.stderr:
        pytest.skip(f"nothing can be mounted here: {got.stderr}")
    folder = Path(got.stdout.strip())
    assert [path.name for path in tmp_path.glob("*/*") if path.name != ".in-use"] == ["view"], got.stderr
    scratch.sweep()
    assert not folder.exists()
