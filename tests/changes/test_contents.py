"""What many arrays held, looked at together: each byte counts, whether the kernel keeps account of it or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from overdrive.changes import array_content
from overdrive.changes.array_content import Contents

LARGE = 200_003  # bytes: whole pages, and ends that are none


@pytest.mark.parametrize("account", [True, False], ids=["kernel", "no account"])
@pytest.mark.parametrize("place", [0, 1, LARGE // 2, LARGE - 2, LARGE - 1])
@pytest.mark.parametrize("which", range(3))
def test_any_byte_of_any_of_them(which: int, place: int, account: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not account:
        monkeypatch.setattr(array_content.Pages, "of", lambda *_: None)
    memory = np.zeros(LARGE + 9, np.uint8)
    arrays: list[Any] = [np.zeros(7, np.uint8), memory[5 : 5 + LARGE], np.zeros(30_000, np.uint8)]
    contents = Contents(arrays)
    assert not contents.changed() and not contents.changed()
    arrays[which][place % len(arrays[which])] = 1
    assert contents.changed() and contents.changed()


def test_of_none_nothing_changes() -> None:
    assert not Contents([]).changed() and not Contents([np.zeros(0, np.uint8)]).changed()
