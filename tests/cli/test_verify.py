"""`overdrive verify` on real programs in real processes: what it shows, refuses, and takes up again. About a minute."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.schemas import held

PROGRAM = """
import numpy, torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(640, 20); y = (x[:, 0] * x[:, 1] > 0).long()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
step = 0
for epoch in range(3):
    for a, b in loader:
        step += 1
        CHANGE
        loss = nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    with torch.no_grad():
        print("Accuracy: %.2f %%" % (100 * (model(x).argmax(1) == y).float().mean()))
"""
PLAN = """
overdrive = 1
program = "train.py"
contract = "statistical"
[[technique]]
name = "{name}"
"""

Project = Callable[[str, str], Path]


@pytest.fixture
def project(script: Callable[..., Path]) -> Project:
    def make(technique: str, change: str = "pass") -> Path:
        path = script(PROGRAM.replace("CHANGE", change))
        (path.parent / "plan.toml").write_text(PLAN.format(name=technique))
        return path.parent

    return make


def test_an_exact_plan_is_seen_to_be_exact(project: Project, warm_overdrive: Run) -> None:
    folder = project("allocator", "pass")
    done = warm_overdrive("verify", "plan.toml", "--full", "--json", "proof.json", "train.py", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 steps identical bit for bit" in " ".join(done.stdout.split())
    proof = json.loads((folder / "proof.json").read_text())
    assert proof["level"] == "exact" and proof["exact"]["steps"] == 60
    assert all(each["same"] for each in proof["invariants"])


def test_rounding_is_seen_in_steps_from_the_same_states(project: Project, warm_overdrive: Run) -> None:
    folder = project("fused_optimizer", "pass")
    done = warm_overdrive("verify", "plan.toml", "--json", "proof.json", "train.py", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((folder / "proof.json").read_text())["rounding"]
    assert found["reference"] == "fp64" and found["states"] >= 16 and found["tensors"] == 4


def test_what_did_not_act_is_named_and_not_verified(project: Project, warm_overdrive: Run) -> None:
    """There the program was compared with itself."""
    folder = project("fast_max_pool", "pass")
    done = warm_overdrive("verify", "plan.toml", "train.py", cwd=folder)
    assert done.returncode == 1, done.stdout
    assert "none of its techniques acted: fast_max_pool (no max pool" in done.stdout
    with (folder / "plan.toml").open("a") as plan:
        plan.write('[[technique]]\nname = "allocator"\n')
    done = warm_overdrive("verify", "plan.toml", "--json", "proof.json", "train.py", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "What acted of the plan keeps the level exact" in done.stdout
    told = json.loads((folder / "proof.json").read_text())["sentence"]
    assert told.endswith("nothing is said of fast_max_pool, which did not act")


@pytest.mark.fault(18)
def test_a_loss_that_is_not_finite_is_named_with_its_step(project: Project, warm_overdrive: Run) -> None:
    folder = project("allocator", "a = a * (float('nan') if step == 5 else 1)")
    done = warm_overdrive("verify", "plan.toml", "train.py", cwd=folder)
    assert done.returncode == 1
    assert "not finite in step 5" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.fault(23)
def test_a_program_that_differs_from_itself_is_told_so(project: Project, warm_overdrive: Run) -> None:
    folder = project("allocator", "import time; a = a + 1e-6 * (time.perf_counter_ns() % 1000)")
    done = warm_overdrive("verify", "plan.toml", "train.py", cwd=folder)
    told = " ".join(done.stdout.split())
    assert done.returncode == 1
    assert "not available here" in told and "other inputs in step 1" in told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("plan.toml", "--metric", "(", "train.py"), "not a regular expression"),
        (("plan.toml", "--margin", "0", "train.py"), "margin must be above 0"),
        (("missing.toml", "train.py"), "missing.toml"),
        (("plan.toml", "missing.py"), "missing.py"),
    ],
)
def test_bad_words_are_one_sentence(project: Project, overdrive: Run, words: tuple[str, ...], says: str) -> None:
    done = overdrive("verify", *words, cwd=project("allocator", "pass"))
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def test_a_run_that_was_killed_is_told_as_data(script: Callable[..., Path], overdrive: Run) -> None:
    path = script("import time\nfor i in range(10):\n    print(i, flush=True)\n    time.sleep(0.03)\n")
    words = ("--resume", "--kills", "1", "--seed", "3", "--json", "-", "train.py")
    done = overdrive("verify", *words, cwd=path.parent)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    held("resume", told)
    assert told["verdict"] in done.stderr and all(told["same"].values()) and told["other_files"] == []
    assert "killed 1 time, " in done.stderr and "1 time begun again as there was no snapshot" in done.stderr


def test_a_script_that_is_named_by_its_whole_path_is_killed_in_copies_too(
    script: Callable[..., Path], overdrive: Run
) -> None:
    """It wrote beside the script itself, where no run was compared."""
    path = script(
        "import time\nfrom pathlib import Path\n(Path(__file__).parent / 'seen').write_text('x')\ntime.sleep(0.3)\n"
    )
    done = overdrive("verify", "--resume", "--kills", "1", "--seed", "3", str(path), cwd=path.parent)
    assert done.returncode == 0, done.stderr
    assert not (path.parent / "seen").exists()


OUTSIDE = """
import os, sys, time
out = sys.argv[1]
print(open(f"{out}/ckpt").read(), os.path.exists(f"{out}/new"), open("linked/ckpt").read())
os.makedirs(f"{out}/new", exist_ok=True)
for i in range(10):
    for path in (f"{out}/ckpt", f"{out}/new/epoch{i}", "linked/ckpt"):
        open(path, "w").write(str(i))
    print(i, flush=True)
    time.sleep(0.03)
"""


def test_what_runs_write_by_whole_paths_is_made_what_it_was(script: Callable[..., Path], overdrive: Run) -> None:
    """There the user has his own runs; and each run finds what the first one found."""
    path = script(OUTSIDE)
    out, linked = path.parent.parent / "out", path.parent.parent / "beside"
    for folder in (out, linked):
        folder.mkdir()
        (folder / "ckpt").write_text("mine")
    (path.parent / "linked").symlink_to(linked)
    words = ("--resume", "--kills", "2", "--seed", "3", "--json", "-", "train.py", str(out))
    done = overdrive("verify", *words, cwd=path.parent)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert all(told["same"].values()) and len(told["killed_after"]) > 0, done.stderr
    assert f"{linked}/ckpt and" in done.stderr and "outside of the folder" in done.stderr, done.stderr
    assert (out / "ckpt").read_text() == (linked / "ckpt").read_text() == "mine" and not (out / "new").exists()


def test_a_program_that_fails_under_survive_alone_does_not_end_the_same(
    script: Callable[..., Path], overdrive: Run
) -> None:
    path = script("import sys, time\nsys.exit(3 if hasattr(time.time, '__wrapped__') else 0)\n")
    done = overdrive("verify", "--resume", "--kills", "1", "--seed", "3", "train.py", cwd=path.parent)
    assert done.returncode == 1 and "It ended with 3, and without --survive with 0" in done.stdout, done.stdout


def test_a_program_whose_undisturbed_run_fails_after_its_steps_is_not_killed(
    script: Callable[..., Path], overdrive: Run
) -> None:
    """Each kill would wait for a run of its own, and end as that one did."""
    path = script(STEPS + "raise ValueError('no room for the plots')\n")
    done = overdrive("verify", "--resume", "--kills", "3", "--seed", "1", "train.py", cwd=path.parent)
    assert done.returncode == 1 and "It ended with 1: ValueError: no room for the plots" in done.stdout, done.stdout
    assert "Nothing was shown: the program fails by itself: killed 0 times" in done.stdout, done.stdout


STEPS = """
import time, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.05)
"""


@pytest.mark.survive
def test_what_snapshots_and_going_on_took_is_told_as_doctor_is_told_it(
    script: Callable[..., Path], overdrive: Run
) -> None:
    words = ("verify", "--resume", "--kills", "4", "--seed", "1", "--json", "-", "train.py")
    done = overdrive(*words, cwd=script(STEPS).parent)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    held("resume", told)
    assert told["gone_on"] >= 2 and told["took"]["snapshot"] > 0 and told["took"]["start"] > 0, done.stderr
    assert "--back " in done.stderr


SLOW_AT_FIRST = """
import os, sys, time
if not os.path.exists(sys.argv[1]):
    os.system(f"touch {sys.argv[1]}")  # which is not seen, as all that Python opens would be undone
    time.sleep(4)
"""


@pytest.mark.parametrize(
    ("text", "why"),
    [("import nowhere_at_all", "the program fails by itself"), ("pass", "it ended before it could be killed")],
)
def test_of_a_program_that_fails_or_was_never_killed_nothing_is_shown(
    text: str, why: str, script: Callable[..., Path], overdrive: Run
) -> None:
    """It takes long the first time, and is over before the moment, a late one, that is drawn by that."""
    path = script(SLOW_AT_FIRST + text)
    words = ("--resume", "--kills", "1", "--seed", "15", "train.py", str(path.parent.parent / "seen"))
    done = overdrive("verify", *words, cwd=path.parent)
    assert done.returncode == 1 and "is the same" not in done.stdout, done.stderr
    assert f"Nothing was shown: {why}: killed 0 times" in done.stdout


@pytest.mark.parametrize("words", [("--full",), ("--budget", "5m"), ("--stdin", "train.py"), ("--metric", "Accuracy")])
def test_what_a_resumed_run_has_no_use_for_is_refused(
    words: tuple[str, ...], script: Callable[..., Path], overdrive: Run
) -> None:
    done = overdrive("verify", "--resume", *words, "train.py", cwd=script("pass").parent)
    assert (done.returncode, done.stderr) == (2, f"overdrive: {words[0]} does nothing with --resume: leave it out.\n")


BESIDE = """
import datetime, os, time
print(open("../data.txt").read(), time.time(), datetime.datetime.now(), time.strftime("%H:%M:%S"))
open(f"log.{os.getpid()}", "w").close()
for i in range(10):
    print(i, flush=True)
    time.sleep(0.03)
"""


def test_what_is_read_beside_the_folder_and_what_no_two_runs_have_alike(tmp_path: Path, overdrive: Run) -> None:
    """Times that are printed are compared; names with the process's number in them are not, and that is told."""
    (tmp_path / "data.txt").write_text("of all")
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(BESIDE)
    words = ("--resume", "--kills", "1", "--seed", "3")
    failed = overdrive("verify", *words, "train.py", cwd=work)
    told = failed.stdout
    assert failed.returncode == 1
    assert "It ended with 1: FileNotFoundError" in told and "--copy names the folder" in told
    done = overdrive("verify", *words, "--copy", "..", "--json", "-", "train.py", cwd=work)
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["exit_code"] == 0 and all(found["same"].values()), done.stderr
    assert {name.partition(".")[0] for name in found["not_compared"]} == {"work/log"}
    assert "but for what two uninterrupted runs differ in" in found["verdict"]
    wrong = overdrive("verify", *words, "--copy", str(tmp_path / "work"), "train.py", cwd=tmp_path)
    assert wrong.returncode == 2
