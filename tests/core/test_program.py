"""A program as the words of a command line."""

from __future__ import annotations

import shlex

import pytest

from overdrive.core.program import Program


@pytest.mark.parametrize("module", [False, True])
def test_the_command_that_is_shown_can_be_typed(module: bool) -> None:
    words = ("my train.py", "--prompt", "a red dog", "--cfg", '{"lr": 0.1}', "sizes=[1,2]", "")
    program = Program(words[0], words[1:], module=module)
    assert shlex.split(program.command()) == [*(("-m",) if module else ()), *words]


def test_plain_words_stand_as_they_were_typed() -> None:
    words = ("src/train.py", "--epochs", "3", "--out=runs/1")
    assert Program(words[0], words[1:]).command() == " ".join(words)
