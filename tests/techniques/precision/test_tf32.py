"""`tf32` allows it where the program has said nothing, and puts PyTorch's own settings back.

What it computes is seen on a GPU only (tests/gpu/test_precision.py); here, the device is said to be able to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from overdrive.core.facts import Facts
from overdrive.seams.torch.control import set_product_precision
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.precision import tf32
from overdrive.worker.session import Session

DEFAULT = ["none", "none", "none", "none"]


@pytest.fixture(autouse=True)
def settings_put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tf32, "_not_here", lambda precision, device: None)
    assert tf32._state() == DEFAULT
    yield
    torch.set_float32_matmul_precision("highest")
    for place in tf32._PLACES:
        set_product_precision(*place, "none")


def optimizer() -> Any:
    return torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)


def in_force(precision: str = "tf32", before: Callable[[], Any] = lambda: None) -> tuple[list[str], dict[str, str]]:
    with Session([("tf32", {"precision": precision})]) as session:
        before()
        optimizer()
        return tf32._state(), dict(session.seams.left_out)


def test_matrices_are_multiplied_in_tf32_and_older_code_can_ask() -> None:
    with Session([("tf32", {})]) as session:
        assert tf32._state() == DEFAULT, "before the program had its say"
        optimizer(), optimizer()
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.get_float32_matmul_precision() == "high" and torch.backends.cuda.matmul.allow_tf32
        assert not session.seams.left_out
    assert tf32._state() == DEFAULT and torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32


def test_on_a_cpu_everything_of_onednn_is_bf16() -> None:
    state, left_out = in_force("bf16")
    assert state[1:] == ["bf16"] * 3 and not left_out
    assert tf32._state() == DEFAULT


@pytest.mark.parametrize(
    "setting",
    [
        lambda: torch.set_float32_matmul_precision("highest"),
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "ieee"),
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    ],
    ids=["highest", "high", "newer", "allow"],
)
def test_what_the_program_sets_itself_is_left_alone(setting: Callable[[], Any]) -> None:
    setting()
    own = tf32._state()
    state, left_out = in_force(before=setting)
    assert state == own and "itself" in left_out["tf32"]
    assert tf32._state() == own


def test_a_later_change_by_the_program_stands() -> None:
    with Session([("tf32", {})]) as session:
        optimizer()
        torch.set_float32_matmul_precision("highest")
        optimizer()
        assert "itself" in session.seams.left_out["tf32"]
    assert tf32._state()[0] == "ieee"


def test_is_left_out_where_the_device_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    state, left_out = in_force("tf32")
    assert state == DEFAULT and "which has no TF32" in left_out["tf32"]


def test_says_where_it_cannot_help() -> None:
    reason = catalogue()["tf32"].applies
    single = {"parameter_dtypes": ("torch.float32",)}
    assert "7.5" in str(reason(Facts(device="cuda", compute_capability=7.5, **single)))
    assert reason(Facts(device="cuda", compute_capability=8.0, **single)) is None
    assert "neither" in str(reason(Facts(**single)))
    assert reason(Facts(bf16_fast=True, **single)) is None
    assert "not 32-bit" in str(reason(Facts(device="cuda", parameter_dtypes=("torch.float64",))))
    assert catalogue()["tf32"].candidates(Facts(device="cuda", **single)) == [{"precision": "tf32"}]
