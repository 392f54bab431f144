"""What is silenced or overheard is not shown, and the program's own warnings are not shown once more because of it."""

from __future__ import annotations

import warnings

import pytest

from overdrive.core.silence import overheard, silenced
from overdrive.forks.forked import in_child


def outdated() -> None:
    warnings.warn("outdated", stacklevel=1)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a program shows of its warnings, each once for each place, as Python does by default."""
    found: list[str] = []
    with warnings.catch_warnings():
        warnings.resetwarnings()
        monkeypatch.setattr(warnings, "showwarning", lambda message, *_: found.append(str(message)))
        yield found


def test_what_is_said_inside_is_not_shown(shown: list[str]) -> None:
    before = list(warnings.filters)
    with silenced():
        outdated()
    assert not shown and list(warnings.filters) == before
    outdated()
    assert shown == ["outdated"]


def test_a_warning_that_was_shown_is_not_shown_again(shown: list[str]) -> None:
    outdated()
    with silenced():
        pass
    outdated()
    assert shown == ["outdated"]


def test_nor_after_a_fork_of_ours(shown: list[str]) -> None:
    outdated()
    in_child(lambda tick: None)
    outdated()
    assert shown == ["outdated"]


def test_what_is_overheard_is_not_shown_and_the_rest_is_as_ever(shown: list[str]) -> None:
    outdated()
    before = list(warnings.filters)
    for _ in range(2):
        with overheard("value is read") as heard:
            for _ in range(3):
                warnings.warn("a value is read", stacklevel=1)
                outdated()
        assert heard == ["a value is read"] * 3
    assert shown == ["outdated"] and list(warnings.filters) == before
    warnings.warn("a value is read", stacklevel=1)
    assert shown == ["outdated", "a value is read"]
