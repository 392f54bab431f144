"""Points of a session's hub, as the program's calls pass through them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from overdrive.seams import points
from overdrive.seams.hub import Seams
from overdrive.seams.points import reason_of


class Activations:
    """What a call holds."""


@pytest.fixture
def nothing_collected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("nothing_collected")
@pytest.mark.parametrize("name", ["model_called", "optimizer_called"])
def test_a_call_that_fails_holds_nothing_once_its_error_is_gone(name: str) -> None:
    """As a program expects that tries again with smaller batches where memory did not suffice."""
    seams, held = Seams(), []

    def call(*given: Any) -> None:
        activations = Activations()
        held.append(weakref.ref(activations))
        raise RuntimeError("out of memory")

    with seams.owned_by("a technique"):
        for _ in range(2):
            getattr(seams, name).subscribe(lambda subject, call, *given: call(*given))
    with pytest.raises(RuntimeError, match="out of memory") as caught:
        getattr(seams, name).run("a model", call, 1)
    del caught
    assert held[0]() is None and not seams.left_out


def test_who_makes_its_answer_of_others_has_those_that_are_asked_after_it() -> None:
    seams, asked = Seams(), []
    point = seams.random_drawn

    def answering(name: str, answer: Any) -> None:
        def act(*subject: Any) -> Any:
            asked.append(name)
            return answer(*subject) if callable(answer) else answer

        with seams.owned_by(name):
            point.subscribe(act)

    answering("before", None)
    answering("one", lambda *subject: (point.ask_others("one", *subject), "of one"))
    answering("silent", None)
    answering("last", "of the last")
    assert point.ask("rand") == ("of the last", "of one")
    assert asked == ["before", "one", "silent", "last"]
    assert point.ask_others("last", "rand") is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("no room\nat line 3", "ValueError: no room"),
        ("Could not run it. Only there for: [" + "CPU, " * 100 + "]", "ValueError: Could not run it"),
        ("x" * 300, "ValueError: " + "x" * 199 + "…"),
    ],
    ids=["the first line", "the first sentences of a long one", "a long one without an end"],
)
def test_an_error_is_told_in_one_short_line(message: str, reason: str) -> None:
    assert reason_of(ValueError(message)) == reason


def test_an_error_by_which_a_framework_ends_a_call_passes_and_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Enough(Exception):
        pass

    monkeypatch.setattr(points, "ENDS_A_CALL", {Enough})
    seams = Seams()

    def answering(*_: Any) -> None:
        raise Enough

    with seams.owned_by("a technique"):
        seams.loss_computed.subscribe(answering)
    with pytest.raises(Enough):
        seams.loss_computed.ask("mse_loss", None, (), {})
    assert not seams.left_out
