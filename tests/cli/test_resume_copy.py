"""What `overdrive verify --resume` copies of a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

from overdrive.cli.resume_copy import copy_folder, size_of_copy


def git(*words: str, folder: Path) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_a_virtual_environment_is_linked_and_what_runs_kept_is_left_out(tmp_path: Path) -> None:
    root, into = tmp_path / "root", tmp_path / "copy"
    for name in (".venv/pyvenv.cfg", ".venv/lib/big", "train.survive/run.json", "a/b.pyc", "a/data", "objects/list"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("12345")
    copy_folder(root, into, [root])
    assert sorted(path.name for path in into.iterdir()) == [".venv", "a", "objects"]
    assert (into / ".venv").readlink() == root / ".venv"
    assert [path.name for path in (into / "a").iterdir()] == ["data"]
    assert (into / "objects" / "list").read_text() == "12345"
    assert size_of_copy(root, [root]) == 10


def test_a_program_within_an_environment_is_copied_all_the_same(tmp_path: Path) -> None:
    root, into = tmp_path / "root", tmp_path / "copy"
    work = root / "env" / "work"
    work.mkdir(parents=True)
    (root / "env" / "pyvenv.cfg").touch()
    (work / "train.py").write_text("12345")
    copy_folder(root, into, [work])
    assert not (into / "env").is_symlink() and (into / "env" / "work" / "train.py").read_text() == "12345"
    assert size_of_copy(root, [work]) == 5


def test_a_copy_of_a_repository_knows_its_commits_and_gives_it_none(tmp_path: Path) -> None:
    root, into = tmp_path / "root", tmp_path / "copy"
    root.mkdir()
    git("init", "-q", folder=root)
    (root / "train.py").write_text("pass")
    git("add", ".", folder=root)
    git("commit", "-qm", "first", folder=root)
    copy_folder(root, into, [root])
    assert git("rev-parse", "HEAD", folder=into) == git("rev-parse", "HEAD", folder=root)
    assert git("show", "HEAD:train.py", folder=into) == "pass" and not git("status", "--porcelain", folder=into)
    objects = [path.name for path in (into / ".git" / "objects").rglob("*") if path.is_file()]
    assert objects == ["alternates"]
    before = sorted((root / ".git").rglob("*"))
    (into / "train.py").write_text("print()")
    git("commit", "-qam", "second", folder=into)
    assert len(git("log", "--oneline", folder=into).splitlines()) == 2
    assert sorted((root / ".git").rglob("*")) == before
