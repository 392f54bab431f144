"""Which numbers of an output are the program's, and which the machine's."""

from __future__ import annotations

import pytest

from overdrive.core.printed import series


def test_numbers_of_lines_that_are_alike_are_series() -> None:
    found = series("epoch 0: accuracy 46.88, loss 1.5e-1\nepoch 1: accuracy 51.25, loss -2\ndone\n")
    assert found == {
        "epoch #: accuracy #, loss #, 1": [0.0, 1.0],
        "epoch #: accuracy #, loss #, 2": [46.88, 51.25],
        "epoch #: accuracy #, loss #, 3": [0.15, -2.0],
    }


@pytest.mark.parametrize(
    "line",
    [
        "took 3.2s",
        "3.2 s",
        "12.5 it/s",
        "1,200 MB".replace(",", ""),
        "elapsed: 17",
        "memory 812",
        "speed 1300 img/s",
        "2026-11-25 00:04:12",
        "resnet18",
        "v1.2.3",
    ],
)
def test_what_the_machine_does_is_no_result(line: str) -> None:
    assert series(line) == {}


def test_of_a_progress_bar_its_end_is_left() -> None:
    found = series("  3%| 1/30 loss=9.5\r100%| 30/30 [00:12<00:00] loss=0.5\n")
    assert [values for name, values in found.items() if "loss" in name] == [[100.0], [30.0], [30.0], [0.5]]


def test_only_so_many_kinds_of_lines_are_kept() -> None:
    assert len(series("\n".join(f"{chr(97 + i % 26)}{chr(97 + i // 26)}x 1" for i in range(500)))) == 64
    assert len(series(" ".join(["1"] * 500))) <= 8


def test_values_that_are_not_finite_are_kept() -> None:
    (values,) = series("loss nan\nloss 1").values()
    assert len(values) == 2 and values[0] != values[0]
