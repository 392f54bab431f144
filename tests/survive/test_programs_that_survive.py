"""The programs of tests/programs, killed at random moments: each ends as it does uninterrupted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.programs.manifest import PROGRAMS, NaiveProgram
from tests.survive.killed import plan_of

pytestmark = [pytest.mark.survive, pytest.mark.timeout(900)]
FOLDER = Path(__file__).parents[1] / "programs"
# They say so in their first run, and end right from their start.
FROM_START = {"self_compiled", "jit_scripted", "plain_sgd_by_hand", "no_training"}


# Techniques of each family, under which programs of many kinds run; what does not fit one leaves itself out.
PLANNED = ("sample_cache", "prefetch", "channels_last", "fast_max_pool", "activation_checkpointing", "fused_optimizer")
WITH_DATA = (
    *("cnn_argparse", "gan", "vae", "dict_collate", "padded_text", "workers_fork", "random_augment", "view_after_conv"),
    *("checkpoint_resume", "mixed_loader_eval", "tensor_dataset", "weight_tied_ema"),
)


@pytest.mark.parametrize("program", [each for each in PROGRAMS if each.name in WITH_DATA], ids=lambda each: each.name)
@pytest.mark.fault("killed")
def test_it_ends_as_uninterrupted_under_a_plan(
    program: NaiveProgram, overdrive: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "work").mkdir()
    plan = plan_of(tmp_path, *PLANNED, program=program.command[0])
    words = ("verify", "--resume", "--kills", "3", "--seed", "1", str(plan), str(FOLDER / program.command[0]))
    got = overdrive(*words, cwd=tmp_path / "work", timeout=900)
    assert got.returncode == 0, got.stdout + got.stderr
    assert " 0 times sent back to the start" in got.stdout, got.stdout


@pytest.mark.parametrize("program", [each for each in PROGRAMS if not each.needs], ids=lambda each: each.name)
@pytest.mark.fault("killed")
def test_it_ends_as_uninterrupted(
    program: NaiveProgram, overdrive: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]))
    words = list(program.command)
    if words[0] != "-m":
        words[0] = str(FOLDER / words[0])
    got = overdrive("verify", "--resume", "--kills", "5", "--seed", "1", "--", *words, cwd=tmp_path, timeout=900)
    from_start = program.name in FROM_START or program.exit_code != 0
    # A program that trains nothing, or is quicker the second time, may have been killed at no step of its.
    shown = "Nothing was shown" not in got.stdout
    assert got.returncode == (0 if shown else 1) and (shown or from_start), got.stdout + got.stderr
    assert "ANOTHER" not in got.stdout, got.stdout
    if not from_start:
        assert " 0 times sent back to the start" in got.stdout, got.stdout
