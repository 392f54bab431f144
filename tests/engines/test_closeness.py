"""What an engine's answer is held to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from overdrive.engines.closeness import close


def row(*values: float) -> Any:
    return np.array(values, np.float32)


@pytest.mark.parametrize("masked", [-1e9, float(np.finfo(np.float32).min), float("-inf")])
def test_what_a_mask_forbids_is_no_measure_of_the_rest(masked: float) -> None:
    mine = row(1, 2, masked)
    assert close(mine, mine) and close(mine, row(1, 2.00001, masked)) and close(row(masked), row(masked))
    assert not close(mine, row(1.5, 2, masked))
    assert not close(mine, row(1, 2, masked / 2 if np.isfinite(masked) else 0))
    assert not close(mine, row(3, 2, masked), narrow=True) and close(mine, row(1.1, 2, masked), narrow=True)


def test_large_answers_are_held_to_their_own_size() -> None:
    assert close(row(1e6, 2e6, 3e6), row(1e6, 2e6 + 1, 3e6)) and not close(row(1e6, 2e6, 3e6), row(1e6, 2.1e6, 3e6))
