"""What a train function is given."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("keras", reason="needs Keras (pip install overdrive[keras])")

from overdrive.seams.keras.functions import parts_of


def test_the_parts_of_a_batch_are_found_also_where_keras_knows_no_name_for_them() -> None:
    a, b, c, d = (np.full(2, number) for number in range(4))
    assert parts_of((a, b, c)) == ([a], [b, c])
    assert parts_of({"one": a, "other": b}) == ([a, b], [])
    inputs, others = parts_of((a, b, {"c": c}, d))  # of a train_step of the program's own
    assert [each is one for each, one in zip(inputs, (a, b, c, d), strict=True)] == [True] * 4 and others == []
