"""Runs that begin from their start again: what becomes of what they had written, and when they have to."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from overdrive.survive.files import Files
from overdrive.survive.folder import LEFT, Unusable
from overdrive.survive.left_behind import put_back, set_aside
from tests.survive.killed import files_of, survive
from tests.survive.test_survive import TRAIN

pytest.importorskip("torch")

# As programs keep the commit that they were started from, go on from a checkpoint of their own, and add to a log.
BY_ITSELF = """
import os, signal, subprocess, torch
subprocess.check_output(["true"])
torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
begin = torch.load("ckpt.pt")["step"] if os.path.exists("ckpt.pt") else 0
for step in range(begin + 1, 21):
    loss = model(torch.randn(8, 3)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    torch.save({"step": step, "model": model.state_dict()}, "ckpt.pt")
    with open("log.csv", "a") as log:
        log.write(f"{step},{loss.item()}\\n")
    print(step, loss.item())
    if step == int(os.environ.get("DIES", 0)): os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_what_a_run_had_written_that_begins_from_its_start_is_kept(tmp_path: Path) -> None:
    """Its last checkpoint is worth the hours that it took, and the file that it wrote over was there before it."""
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.csv").write_text("0,of the user\n")
    whole = survive(tmp_path, "whole", BY_ITSELF)
    assert whole.returncode == 0, whole.stderr
    first = survive(tmp_path, "killed", BY_ITSELF, dies=15)
    left = files_of(tmp_path / "killed")
    second = survive(tmp_path, "killed", BY_ITSELF)
    assert second.returncode == 0 and "starts another program" in first.stderr, first.stderr + second.stderr
    assert first.stdout + second.stdout == whole.stdout
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")
    there = tmp_path / "killed-run" / f"{LEFT}1"
    assert f"lies in {there}" in second.stderr, second.stderr
    kept = files_of(Path(f"{there}{tmp_path}/killed"))
    assert kept == {name: left[name] for name in ("ckpt.pt", "log.csv")}
    assert survive(tmp_path, "killed", BY_ITSELF, "--fresh").returncode == 0 and there.exists()


def test_what_is_as_it_was_is_not_kept_and_nothing_is_lost_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    there = tmp_path / "there"
    there.write_text("before")
    files = Files(tmp_path / "run")
    files.noting = True
    new, link, folder = tmp_path / "made" / "new", tmp_path / "link", tmp_path / "made"
    for path in (there, folder, new, link):
        files.note(str(path))
    files.noting = False
    assert set_aside(files, tmp_path / "run") == ""
    folder.mkdir()
    new.write_text("new")
    link.symlink_to(new)

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "makedirs", full)
        with pytest.raises(Unusable, match=r"cannot be made what they were .*No space.* --fresh"):
            put_back(files, tmp_path / "run", print)
    told = set_aside(files, tmp_path / "run")
    into = tmp_path / "run" / f"{LEFT}2"
    assert told == f"what it had written ({new} and 1 more) lies in {into}"
    assert Path(f"{into}{new}").read_text() == "new" and os.readlink(f"{into}{link}") == str(new)
    put_back(files, tmp_path / "run", print)
    assert not folder.exists() and there.read_text() == "before"


# At step 12 something that cannot be skipped, as programs have it at their end: a report, an embedding of all.
LATE = TRAIN.replace("        log.write(", "        if step == 12: EVENT\n        log.write(")


@pytest.mark.survive
@pytest.mark.fault("killed")
@pytest.mark.parametrize(
    ("event", "why"), [('os.system("true")', "starts another program"), ("torch.zeros(2**21).numpy()", "bytes at once")]
)
def test_what_cannot_be_skipped_costs_the_way_from_the_snapshot_before_it(event: str, why: str, tmp_path: Path) -> None:
    """It is made again, as it would be in a run from the start."""
    text = LATE.replace("EVENT", event)
    whole = survive(tmp_path, "whole", text)
    assert whole.returncode == 0, whole.stderr
    first = survive(tmp_path, "killed", text, dies=17)
    assert "no more snapshots are taken" in first.stderr and why in first.stderr, first.stderr
    assert "Killed, it goes on after step" in first.stderr and "from its start" not in first.stderr
    second = survive(tmp_path, "killed", text, dies=19, by=signal.SIGTERM)
    assert "gone on after step" in second.stderr and "it goes on from the snapshot before" in second.stderr
    third = survive(tmp_path, "killed", text)
    assert third.returncode == 0 and "gone on after step" in third.stderr, third.stderr
    assert "from its start" not in second.stderr + third.stderr
    assert first.stdout + second.stdout + third.stdout == whole.stdout
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


@pytest.mark.survive
@pytest.mark.fault(13)
def test_where_there_is_room_again_a_run_that_began_anew_has_snapshots(tmp_path: Path) -> None:
    """Those from before the disk was full are not gone on from: what the program wrote over then was not kept."""
    full = """if step == 12 and "FULL" in os.environ:
            import overdrive.survive.file_states as states
            states.FileStates._keep = lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
            open("old.txt", "w").close()
"""
    text = TRAIN.replace("        log.write(", f"        {full}        log.write(")
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "old.txt").write_text("of the user")
    first = survive(tmp_path, "killed", text, dies=17, variables={"FULL": "1"})
    assert "takes no more (No space left on device). Killed, it begins from its start" in first.stderr, first.stderr
    assert not list((tmp_path / "killed-run").glob("*.snapshot"))
    second = survive(tmp_path, "killed", text, dies=17)
    assert "begun from its start again" in second.stderr and "cannot be gone on" not in second.stderr, second.stderr
    third = survive(tmp_path, "killed", text)
    assert third.returncode == 0 and "gone on after step" in third.stderr, third.stderr
    printed = [each for each in (first.stdout + second.stdout + third.stdout).splitlines() if each[0].isdigit()]
    assert [int(line.split()[0]) for line in printed] == list(range(1, 25))
