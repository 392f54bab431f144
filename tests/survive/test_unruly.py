"""Unruly programs and folders that are links, under `--survive`: killed and started again they end as under Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.survive.killed import PICTURES, files_of, survive

pytest.importorskip("torch")
pytestmark = pytest.mark.survive

# Before anything else: no descriptor of ours is left, no signal reaches it, and it works in another folder.
CLOSES = """
import os, signal
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
os.closerange(3, 256); os.umask(0o077)
os.makedirs("elsewhere", exist_ok=True); os.chdir("elsewhere")
logs = [open(f"{number}.log", "w") for number in range(8)]
"""
FORKS = CLOSES + "if os.fork(): os._exit(os.waitstatus_to_exitcode(os.wait()[1]) % 256)\nos.setsid()\n"
SEEDED = PICTURES.replace(", os.urandom(2).hex()", "")


@pytest.mark.fault("unruly", "killed")
@pytest.mark.parametrize("begins", [CLOSES, FORKS], ids=["closes", "forks"])
def test_an_unruly_program_ends_as_under_python(begins: str, tmp_path: Path) -> None:
    text = begins + SEEDED
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "train.py").write_text(text)
    plain = subprocess.run([sys.executable, "train.py"], cwd=tmp_path / "plain", capture_output=True, text=True)
    assert plain.returncode == 0, plain.stderr
    first = survive(tmp_path, "killed", text, dies=17)
    assert first.returncode != 0
    second = survive(tmp_path, "killed", text)
    assert second.returncode == 0 and "Traceback" not in first.stderr + second.stderr, first.stderr + second.stderr
    if begins == FORKS:  # it begins from its start; what other processes print is not counted
        assert "it forks a process" in second.stderr and second.stdout == plain.stdout
    else:
        assert first.stdout + second.stdout == plain.stdout, second.stderr
    assert files_of(tmp_path / "killed" / "elsewhere") == files_of(tmp_path / "plain" / "elsewhere")


@pytest.mark.fault("killed", "files")
def test_a_folder_that_is_a_link_to_somewhere_else(tmp_path: Path) -> None:
    """It is gone on with by its own name, too; what is written goes where the link leads."""
    whole = survive(tmp_path, "whole", PICTURES)
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    (tmp_path / "link-run").symlink_to(tmp_path / "runs")
    (tmp_path / "runs").mkdir()
    first = survive(tmp_path, "link", PICTURES, dies=17)
    assert first.returncode == -signal.SIGKILL and list((tmp_path / "runs").glob("*.snapshot"))
    os.unlink(tmp_path / "link")
    os.symlink(tmp_path / "disk", tmp_path / "link")
    second = survive(tmp_path, "link", PICTURES)
    assert second.returncode == 0 and "gone on after step" in second.stderr, second.stderr
    assert first.stdout + second.stdout == whole.stdout
    assert files_of(tmp_path / "disk") == files_of(tmp_path / "whole")


@pytest.mark.fault("killed")
def test_what_was_warned_of_in_skipped_steps_is_no_state(tmp_path: Path) -> None:
    """PyTorch warns as a loss with a gradient is formatted by `%`, which notes the place in the program's module."""
    text = PICTURES.replace('f"{loss:.9f}"', '"%.9f" % loss')
    whole = survive(tmp_path, "whole", text)
    assert "requires_grad=True to a scalar" in whole.stderr
    survive(tmp_path, "killed", text, dies=17)
    second = survive(tmp_path, "killed", text)
    assert second.returncode == 0 and "gone on after step" in second.stderr, second.stderr


@pytest.mark.fault("killed")
def test_a_model_whose_first_call_decides_its_shapes_is_gone_on_with(tmp_path: Path) -> None:
    """The program reads these shapes after a call that is skipped when it is made again."""
    text = PICTURES.replace("nn.Linear(16 * 16, 4)", "nn.LazyLinear(4)").replace(
        "optimizer = ",
        "model(torch.zeros(2, 3, 16, 16, dtype=KIND)); print(sum(p.numel() for p in model.parameters()))\noptimizer = ",
        1,
    )
    whole = survive(tmp_path, "whole", text)
    first = survive(tmp_path, "killed", text, dies=17)
    second = survive(tmp_path, "killed", text)
    assert second.returncode == 0 and "gone on after step" in second.stderr, second.stderr
    assert first.stdout + second.stdout == whole.stdout
