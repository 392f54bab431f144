"""`overdrive run --survive` with parts on ranks: each writes a file of its own, and those of one step count as one."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from overdrive.survive import part_files, snapshot
from overdrive.survive.folder import Unusable
from overdrive.survive.journal import Journal
from overdrive.survive.taking import Snapshots
from tests.survive.killed import files_of, started, survive
from tests.survive.test_ranks_that_survive import ON_RANK, ON_RANKS

pytest.importorskip("torch")

# Odd sizes, gradients that are looked at, a state that is kept; with MANY also memory of a parameter that the program
# keeps, an average, and a model whose training begins where steps are skipped and whose gradients stand over steps.
WORDS = f"""
import copy, os, random, signal
import torch
nn, F = torch.nn, torch.nn.functional
{ON_RANK}
torch.manual_seed(3)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm, self.out = nn.Embedding(11, 7), nn.LayerNorm(7), nn.Linear(7, 11)
        self.up, self.down, self.drop = nn.Linear(7, 13), nn.Linear(13, 7), nn.Dropout(0.1)
    def forward(self, x):
        x = self.words(x)
        return self.out(x + self.drop(self.down(F.gelu(self.up(self.norm(x))))))

def loss_of(model):
    x, y = torch.randint(11, (8, 5)), torch.randint(11, (8, 5))
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

first = Net()
adam = torch.optim.AdamW(first.parameters(), lr=0.01)
models, memory = [first], torch.zeros(1)
if "MANY" in os.environ:
    second, average, memory = Net(), copy.deepcopy(first), first.up.weight.data
    sgd = torch.optim.SGD(second.parameters(), lr=0.01, momentum=0.9)
    models += [average, second]
for step in range(1, 31):
    adam.zero_grad()
    loss = loss_of(first)
    loss.backward()
    looked = first.down.weight.grad.norm().item() if step % 4 == 0 else 0.0
    norm = nn.utils.clip_grad_norm_(first.parameters(), 1.0)
    adam.step()
    if step % 10 == 0:
        kept = adam.state_dict()
    if len(models) > 1:
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), first.parameters()):
                mine.lerp_(theirs, 0.1)
    if len(models) > 1 and step > 8:
        loss_of(second).backward()
        if step % 2 == 0:
            sgd.step()
            sgd.zero_grad()
    print(step, repr(loss.item()), looked, norm.item(), memory.sum().item(), os.urandom(2).hex())
    if step == int(os.environ.get("DIES", 0)) and not os.path.exists(os.environ.get("DIED", "")):
        os.environ.get("DIED") and open(os.environ["DIED"], "w")
        os.kill(os.getpid(), int(os.environ.get("BY", signal.SIGKILL)))
for model in models:
    print(*(repr(each.double().sum().item()) for each in model.parameters()))
print(repr(kept["state"][0]["exp_avg"].double().sum().item()), kept["state"][0]["step"].item())
"""
SHARD = ("--ranks", "2", "--layout", "shard=2")
MANY = {"MANY": "1"}
PROGRAMS = {"pictures": (ON_RANKS, {}), "words": (WORDS, {}), "many": (WORDS, MANY)}
DIVIDED = {
    "shard=2": "parameters and gradients are divided over 2 ranks",
    "tensor=2": "divided over 2 ranks, parameters",
    "pipeline=2": "2 stages on 2 ranks",
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[str, dict[str, bytes]]]:
    """Output and files of a program that nobody disturbs, in the same parts."""
    known: dict[tuple[str, str], tuple[str, dict[str, bytes]]] = {}

    def of(name: str, layout: str = "shard=2") -> tuple[str, dict[str, bytes]]:
        if (name, layout) not in known:
            place, (text, variables) = tmp_path_factory.mktemp(name), PROGRAMS[name]
            got = survive(place, "whole", text, "--ranks", "2", "--layout", layout, variables=variables)
            assert got.returncode == 0 and DIVIDED[layout] in got.stderr, got.stderr
            assert "no more snapshots" not in got.stderr and "cannot be gone on with" not in got.stderr, got.stderr
            known[name, layout] = got.stdout, files_of(place / "whole")
        return known[name, layout]

    return of


@pytest.mark.survive
@pytest.mark.cluster
@pytest.mark.fault("lost rank")
@pytest.mark.parametrize(
    ("name", "layout", "rank", "dies"),
    [
        ("pictures", "shard=2", 1, 17),
        ("many", "shard=2", 0, 21),
        ("many", "shard=2", 1, 26),
        ("many", "shard=2", 1, 5),
        ("words", "tensor=2", 1, 17),
        ("words", "tensor=2", 0, 25),
        ("pictures", "tensor=2", 1, 17),
        ("words", "pipeline=2", 1, 17),
        ("words", "pipeline=2", 0, 25),
        ("pictures", "pipeline=2", 1, 17),
    ],
)
def test_a_lost_rank_of_a_run_in_parts_costs_the_way_from_the_last_snapshot(
    name: str, layout: str, rank: int, dies: int, undisturbed: Any, tmp_path: Path
) -> None:
    (tmp_path / "killed-cache").mkdir()
    text, variables = PROGRAMS[name]
    variables = {**variables, "ON_RANK": str(rank), "DIED": str(tmp_path / "killed-cache" / "died")}
    got = survive(tmp_path, "killed", text, "--ranks", "2", "--layout", layout, dies=dies, variables=variables)
    assert got.returncode == 0 and f"rank {rank} is lost (SIGKILL); all go on from step" in got.stderr, got.stderr
    assert "gone on after step" in got.stderr and "from its start" not in got.stderr, got.stderr
    assert (got.stdout, files_of(tmp_path / "killed")) == undisturbed(name, layout)


def kill_at_once(process: subprocess.Popen[str]) -> None:
    """The command with all that it has started."""
    found = [psutil.Process(process.pid)]
    found += found[0].children(recursive=True)
    for each in found:
        each.suspend()
    for each in found:
        each.kill()
    process.wait()


@pytest.mark.survive
@pytest.mark.cluster
@pytest.mark.fault("killed")
def test_a_run_in_parts_that_is_killed_as_a_whole_goes_on(undisturbed: Any, tmp_path: Path) -> None:
    # The program waits for its end where several snapshots are kept.
    stands = 'step == 20 and not os.path.exists("../seen") and (open("../there", "w"), __import__("time").sleep(60))'
    text = WORDS.replace("    if step == int(", f"    {stands}\n    if step == int(", 1)
    process = started(tmp_path, "killed", text, *SHARD, variables=MANY)
    try:
        while not (tmp_path / "there").exists() and process.poll() is None:
            time.sleep(0.05)
        (tmp_path / "seen").touch()
    finally:
        kill_at_once(process)
    printed, told = process.communicate()
    assert {len(list((tmp_path / "killed-run").glob(f"*{end}"))) for end in (".snapshot", ".part")} == {2}, told
    second = survive(tmp_path, "killed", text, *SHARD, variables=MANY)
    assert second.returncode == 0 and "gone on after step" in second.stderr, second.stderr
    assert "from its start" not in second.stderr
    assert printed + second.stdout == undisturbed("many")[0]


def damaged(folder: Path, how: str) -> None:
    """A snapshot of rank 1, the newest."""
    *_, older, newest = sorted(folder.glob("step-*.part"))
    match how:
        case "missing":
            newest.unlink()
        case "of another step":
            shutil.copy(older, newest)
        case "of another rank":
            shutil.copy(sorted(folder.glob("step-*.snapshot"))[-1], newest)
        case "changed":
            data = bytearray(newest.read_bytes())
            data[len(data) // 2] ^= 1
            newest.write_bytes(data)


@pytest.mark.survive
@pytest.mark.cluster
@pytest.mark.fault(12)
@pytest.mark.parametrize("how", ["missing", "of another step"])
def test_a_run_whose_newest_part_is_damaged_goes_on_from_the_one_before(
    how: str, undisturbed: Any, tmp_path: Path
) -> None:
    variables = {**MANY, "ON_RANK": "0"}
    first = survive(tmp_path, "killed", WORDS, *SHARD, dies=21, by=signal.SIGTERM, variables=variables)
    assert first.returncode == 128 + signal.SIGTERM and "the same command goes on after step" in first.stderr
    damaged(tmp_path / "killed-run", how)
    second = survive(tmp_path, "killed", WORDS, *SHARD, variables=MANY)
    assert second.returncode == 0 and second.stderr.count("an older snapshot is taken") == 1, second.stderr
    assert "gone on after step" in second.stderr and "from its start" not in second.stderr, second.stderr
    assert ("a damaged part of a snapshot is left out" in second.stderr) == (how != "missing")
    assert first.stdout + second.stdout == undisturbed("many")[0]


@pytest.mark.survive
@pytest.mark.cluster
@pytest.mark.fault(28)
@pytest.mark.parametrize("others", [("--ranks", "3", "--layout", "shard=3"), ("--ranks", "2"), ()])
def test_a_run_in_parts_is_not_gone_on_with_in_others(others: tuple[str, ...], tmp_path: Path) -> None:
    first = survive(tmp_path, "killed", WORDS, *SHARD, dies=9, by=signal.SIGTERM, variables={"ON_RANK": "0"})
    assert first.returncode == 128 + signal.SIGTERM, first.stderr
    second = survive(tmp_path, "killed", WORDS, *others)
    assert second.returncode == 2 and "--fresh begins the run anew" in second.stderr, second.stderr
    assert "Traceback" not in second.stderr


# -- files, without programs ----------------------------------------------------------------------


def written(folder: Path, step: int, journal: Journal, ranks: int = 2) -> None:
    """A snapshot of so many ranks."""
    length, digest = journal.flush()
    for rank in reversed(range(ranks)):
        header = {"step": step, "rank": rank, "ranks": ranks, "journal": {"bytes": length, "sha256": digest}}
        header |= {"files": {}, "positions": [], "printed": [0, 0], "fetching": [None, [], {}]}
        snapshot.write(folder / "candidate", header, [])
        if rank:
            snapshot.keep_part(folder / "candidate", folder, step, rank)
        else:
            snapshot.keep(folder / "candidate", folder, step)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "journal")
    for step in (3, 6, 9):
        journal.add("value", step)
        written(tmp_path, step, journal)
    return tmp_path


def newest(folder: Path, rank: int, said: list[str], ranks: int = 2) -> int | None:
    found = part_files.newest_whole(folder, rank, ranks, Journal(folder / "journal"), said.append)
    return found and found.header["step"]


def test_two_snapshots_are_kept_with_the_parts_of_all_ranks(folder: Path) -> None:
    names = ["step-000000006.rank-1.part", "step-000000006.snapshot"]
    assert sorted(each.name for each in folder.glob("step-*")) == [*names, *(each.replace("6", "9") for each in names)]
    assert [newest(folder, rank, []) for rank in (0, 1)] == [9, 9]
    assert snapshot.forget(folder) and not list(folder.glob("step-*"))


@pytest.mark.fault(12)
@pytest.mark.parametrize("how", ["missing", "of another step", "of another rank", "changed"])
def test_a_part_that_is_not_what_its_rank_has_written_is_not_gone_on_from(how: str, folder: Path) -> None:
    """The rank whose file it is deletes it; from then on all see that the snapshot is incomplete."""
    damaged(folder, how)
    if how != "missing":
        with pytest.raises(part_files.Gone, match=r"step-000000009\.rank-1\.part is "):
            newest(folder, 1, [])
    said: list[str] = []
    assert [newest(folder, rank, said) for rank in (0, 1)] == [6, 6]
    assert said == ["step-000000009.rank-1.part is not there; an older snapshot is taken"] * 2


@pytest.mark.fault(12)
@pytest.mark.parametrize("name", ["step-000000009.rank-1.part", "journal"])
def test_a_part_that_cannot_be_read_just_now_is_left_as_it_is(name: str, folder: Path) -> None:
    """A disk that does not answer for a while says nothing of what lies there: the part was deleted."""
    unread, aside = folder / name, folder / "aside"
    unread.rename(aside)
    unread.mkdir()
    said: list[str] = []
    with pytest.raises(Unusable, match=rf"{name} cannot be read: .*\. Nothing is deleted"):
        newest(folder, 1, said)
    unread.rmdir()
    aside.rename(unread)
    assert [newest(folder, rank, said) for rank in (0, 1)] == [9, 9] and not said


@pytest.mark.fault(12)
def test_a_part_of_another_run_is_not_gone_on_from(folder: Path, tmp_path: Path) -> None:
    """It has the right step and the right rank, and another journal."""
    other = tmp_path / "other"
    other.mkdir()
    journal = Journal(other / "journal")
    journal.add("value", "another loss")
    written(other, 9, journal)
    shutil.copy(next(other.glob("*.part")), folder)
    with pytest.raises(part_files.Gone, match="journal is not what was written"):
        newest(folder, 1, [])
    assert newest(folder, 1, []) == 6


def test_parts_of_a_snapshot_that_rank_0_did_not_keep_count_for_nothing(folder: Path) -> None:
    """It was killed before it did; the next snapshot that is kept takes them away."""
    snapshot.write(folder / "candidate", {"step": 12, "rank": 1, "ranks": 2}, [])
    snapshot.keep_part(folder / "candidate", folder, 12, 1)
    assert newest(folder, 0, []) == 9
    journal = Journal(folder / "journal")
    journal.add("value", 15)
    written(folder, 15, journal)
    assert sorted(each.name for each in folder.glob("*.part")) == [f"step-{n:09d}.rank-1.part" for n in (9, 15)]


@pytest.mark.fault(13)
def test_a_snapshot_is_kept_only_where_all_ranks_have_written_theirs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty: Any = SimpleNamespace(tensors=(), header={}, blocks=[])
    asked: list[bool] = []
    for others, steps in ((False, [9, 6]), (True, [12, 9])):
        snapshots, one = Snapshots(folder, 0, lambda own, others=others: asked.append(own) or others), object()
        snapshots.take(empty, one, {"step": 12}, empty)
        for _ in range(2):
            snapshots.stepped(one)
        assert snapshot.steps_of(folder) == steps and bool(snapshots.failure) is not others
    assert asked == [True, True]


@pytest.mark.fault(13)
def test_a_rank_that_took_no_part_says_that_it_has_none(folder: Path) -> None:
    empty: Any = SimpleNamespace(tensors=(), header={}, blocks=[])
    snapshots = Snapshots(folder, 1)
    assert not snapshots.keep_part()
    for step in (12, 15):  # the first is let go by rank 0, without a word
        snapshots.take(empty, object(), {"step": step}, empty)
    assert snapshots.keep_part() and not list(folder.glob("candidate*"))
    assert part_files.part_path(folder, 15, 1).exists() and not part_files.part_path(folder, 12, 1).exists()
