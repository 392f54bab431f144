"""Where commands may write: what is asked before they begin."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from overdrive.cli.group import cli
from overdrive.cli.line import typed
from overdrive.cli.places import CannotWrite, check_places
from overdrive.core.program import Program


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    made = tmp_path / "kept" / "pipe"
    made.parent.mkdir()
    os.mkfifo(made)
    return made


def test_what_is_no_file_may_be_written_to_by_all_options(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made in its folder, as nobody makes files in /dev."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != pipe.parent)  # root may write anywhere
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: pytest.fail("a file was made beside it"))
    check_places(Program("train.py"), {"-o": pipe, "--json": pipe})


def test_a_file_is_no_place_of_two_options(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match="is already that of -o"):
        check_places(Program("train.py"), {"-o": tmp_path / "x", "--json": tmp_path / "x"})


def test_options_are_typed_again_as_they_were() -> None:
    command = cli.get_command(click.Context(cli), "tune")
    assert command is not None
    words = [
        "--metric",
        "Accuracy",
        "--budget=5m",
        "--margin=0.5",
        "--force",
        "-o",
        "fast.toml",
        "train.py",
        "--runs",
        "3",
    ]
    context = command.make_context("tune", words)
    again = typed(context, ("metric", "margin", "output", "force", "runs"))
    assert again == ("--metric", "Accuracy", "--margin=0.5", "--force", "-o", "fast.toml")


def test_json_goes_into_a_pipe(pipe: Path) -> None:
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        done = CliRunner().invoke(cli, ["techniques", "--json", str(pipe)])
        assert done.exit_code == 0, done.output
        assert os.read(reader, 1) in b"{[" and pipe.is_fifo()
    finally:
        os.close(reader)
