"""A guard for training scripts in a project's tests: a step must not get slower, nor compute something else.

    def test_training(training_guard):
        training_guard("train.py", "--epochs", "1", against="main")

`against` is a revision of the script's git repository, or another script.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from overdrive.insight.guard import Compared

Guard = Callable[..., "Compared"]


@pytest.fixture
def training_guard(tmp_path: Path) -> Iterator[Guard]:
    """`training_guard(script, *arguments, against, slower=0.1, same=True, budget=60.0)` fails the test where a step of
    `script` takes longer than one of `against` by more than the share `slower` (as far as that is established: what the
    noise hides does not fail), or does not compute the same, bit for bit. `budget`: seconds.
    """
    worktrees: list[tuple[Path, Path]] = []

    def guard(
        script: str | Path,
        *arguments: str,
        against: str | Path,
        slower: float = 0.1,
        same: bool = True,
        budget: float = 60.0,
    ) -> Compared:
        from overdrive.core.program import Program
        from overdrive.insight.guard import CannotGuard, compare

        path = Path(script).resolve()
        old = Path(against).resolve() if Path(against).is_file() else _at(path, str(against), tmp_path, worktrees)
        try:
            found = compare(Program(str(old), arguments), Program(str(path), arguments), budget, same)
        except CannotGuard as error:
            pytest.fail(f"{path.name}: {error}", pytrace=False)
        if found.difference:
            pytest.fail(f"{path.name} does not compute what {against} does: {found.difference}", pytrace=False)
        if found.slower_than(slower):
            assert found.speed is not None
            speed = found.speed.as_speedup()
            pytest.fail(f"{path.name} is slower than {against}: a step is {speed} times as fast", pytrace=False)
        return found

    yield guard
    for top, folder in worktrees:
        _git(top, "worktree", "remove", "--force", str(folder))


def _at(script: Path, revision: str, place: Path, worktrees: list[tuple[Path, Path]]) -> Path:
    """The script as it was at a revision, among the files of that revision."""
    top = Path(_git(script.parent, "rev-parse", "--show-toplevel"))
    folder = place / f"overdrive-{len(worktrees)}"
    _git(top, "worktree", "add", "--detach", str(folder), revision)
    worktrees.append((top, folder))
    old = folder / script.relative_to(top.resolve())
    if not old.is_file():
        pytest.fail(f"{script.name} is not in {revision}", pytrace=False)
    return old


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"git {' '.join(words[:2])}: {done.stderr.strip()}", pytrace=False)
    return done.stdout.strip()
