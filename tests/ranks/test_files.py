"""The order in which ranks change folders."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.ranks.files import FileOrder


class Gone:
    """A store whose keeper has ended."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("Broken pipe")


@pytest.mark.parametrize("rank", [0, 1])
def test_what_the_program_does_with_a_file_stands_though_other_ranks_are_gone(rank: int, tmp_path: Path) -> None:
    group: Any = SimpleNamespace(store=Gone(), mine=lambda: True)
    child = os.fork()  # for good
    if not child:
        try:
            FileOrder(rank, 2, lambda: group)
            os.mkdir(tmp_path / "made")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and (tmp_path / "made").is_dir()
