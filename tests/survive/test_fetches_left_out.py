"""Runs that are made again without fetching their samples, and those whose data sets do not allow that."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from overdrive.core.rng import States
from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.survive import state, words
from overdrive.survive.batches import Batches
from overdrive.survive.journal import Journal
from tests.survive.killed import files_of, survive

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from overdrive.seams.torch import asked  # noqa: E402
from overdrive.seams.torch.fetchers import map_fetcher  # noqa: E402

# COUNTS is a file outside of the run's, to which each sample that is fetched adds a byte.
PROGRAM = """
import itertools, os, random
import numpy as np, torch
F = torch.nn.functional
torch.manual_seed(3); random.seed(4); np.random.seed(5)
KIND, HOW = os.environ.get("KIND", ""), os.environ.get("HOW", "")

class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
        self.fetched, self.calls, self.own = 0, 0, np.random.default_rng(7)
        self.cycle = itertools.cycle([0.1, 0.2, 0.3]) if KIND == "cycles" else None
        self.file = None
    def __len__(self):
        return 40
    def __getitem__(self, i):
        with open(os.environ["COUNTS"], "ab", buffering=0) as counts:
            counts.write(b"x")
        x = self.x[i]
        if KIND == "draws":
            x = x * random.random() + np.random.rand() + random.gauss(0, 1) + np.random.randn() + torch.rand(1)
        if KIND == "seeds":
            random.seed(i); x = x * random.random()
        if KIND == "own":
            x = x * float(self.own.random())
        if KIND == "counts":
            self.fetched += 1; x = x * (self.fetched % 5)
        if KIND == "cycles":
            x = x * next(self.cycle)
        if KIND == "opens":
            self.file = self.file or open("numbers.txt", "rb", buffering=0)
            self.file.seek(2 * i); x = x * int(self.file.read(2))
        if KIND == "streams":
            self.file = self.file or open("numbers.txt", "rb", buffering=0)
            x = x * int(self.file.read(2))
        if KIND == "flips":
            self.fetched += int(torch.randint(0, 9, (1,)))
        if KIND == "flips a lot":
            self.fetched += sum(int(torch.randint(0, 9, (1,))) for _ in range(80))
        if KIND == "picks":
            self.fetched += sum(int(torch.multinomial(torch.tensor([0.2, 0.3, 0.5]), 1)) for _ in range(80))
        if KIND == "compares":
            self.fetched += int(F.mse_loss(torch.full((5000,), float(i)), torch.zeros(5000)) * 100)
        if KIND == "predicts":
            self.calls += 1
            if self.calls % 50 > 9:
                self.fetched += int(1e3 * model(x[None]).mean()) + int(torch.randint(0, 9, (1,)))
        if KIND == "fails" and i == 7:
            raise OSError("a bad sample")
        return {"x": x, "y": i % 3, "name": f"sample {i}"} if KIND == "names" else (x, i % 3)

def started(number):
    random.seed(random.random() + number); np.random.seed(number)

if __name__ == "__main__":
    with open("numbers.txt", "w") as file:
        file.write("".join(f"{n % 9} " for n in range(4000)))
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    samples = Samples()
    how = dict(num_workers=2) if HOW else {}
    if HOW == "persistent":
        how["persistent_workers"] = True
    if HOW == "init":
        how["worker_init_fn"] = started
    if HOW == "spawn":
        how["multiprocessing_context"] = "spawn"
    loader = torch.utils.data.DataLoader(samples, batch_size=4, shuffle=True, **how)
    step = 0
    for epoch in range(3):
        batches = iter(loader)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                break
            except OSError as error:
                print(epoch, str(error).splitlines()[-1])  # a worker's has the folder in it
                continue
            x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
            if isinstance(batch, dict):
                print(batch["name"])
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward(); optimizer.step(); step += 1
            print(step, f"{loss:.9f}", random.random(), np.random.rand())
            if step == int(os.environ.get("DIES", 0)):
                os.kill(os.getpid(), int(os.environ["BY"]))
    print(*(f"{p.double().sum().item():.17g}" for p in model.parameters()))
"""


@pytest.fixture
def counts() -> Iterator[Path]:
    path = Path(f"/dev/shm/overdrive-counts-{secrets.token_hex(6)}")
    yield path
    path.unlink(missing_ok=True)


def _resumed(place: Path, counts: Path, kind: str, how: str = "") -> tuple[str, int]:
    """What the run that went on said, and how many samples it fetched; its end is compared."""
    variables = {"KIND": kind, "HOW": how, "COUNTS": str(counts)}
    whole = survive(place, "whole", PROGRAM, every="1000s", variables=variables)
    assert whole.returncode == 0, whole.stderr
    first = survive(place, "broken", PROGRAM, dies=27, variables=variables)
    counts.write_bytes(b"")
    second = survive(place, "broken", PROGRAM, variables=variables)
    assert first.returncode == -9 and second.returncode == 0, second.stderr
    assert first.stdout + second.stdout == whole.stdout
    assert files_of(place / "whole") == files_of(place / "broken")
    return second.stderr, counts.stat().st_size


# Of 30 steps in all those after the last snapshot are left (how many tells how fast the machine is); three fetches of
# the past are made, and those ahead.
@pytest.mark.parametrize("kind", ["", "draws", "own", "opens", "names"])
@pytest.mark.parametrize("how", ["", "workers"])
@pytest.mark.fault("killed")
def test_samples_of_skipped_steps_are_not_fetched(tmp_path: Path, counts: Path, kind: str, how: str) -> None:
    if how and kind in ("own", "opens"):
        pytest.skip("see below: what workers' data sets hold is not handed over")
    told, fetched = _resumed(tmp_path, counts, kind, how)
    assert "gone on after step" in told and "made again" not in told and "from its start" not in told, told
    after = int(told.split("gone on after step ")[1].split()[0].rstrip(".,:;"))
    assert after >= 15 and fetched <= 4 * (3 + 30 - after), (after, fetched)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *(("draws", "persistent"), ("draws", "init"), ("", "spawn"), ("own", "workers"), ("counts", "workers")),
        *(("cycles", "workers"), ("opens", "workers"), ("fails", "workers"), ("fails", ""), ("seeds", "")),
    ],
)
@pytest.mark.survive  # 150 s of processor time
@pytest.mark.fault("killed")
def test_it_goes_on_whatever_its_data_set_does(tmp_path: Path, counts: Path, kind: str, how: str) -> None:
    told, fetched = _resumed(tmp_path, counts, kind, how)
    assert "gone on after step" in told and "from its start" not in told, told
    if how == "persistent" or how == "init":
        assert fetched <= 4 * 10, fetched


@pytest.mark.parametrize(
    "kind", ["counts", "cycles", "streams", "flips", "flips a lot", "picks", "compares", "predicts"]
)
@pytest.mark.fault("killed")
def test_a_data_set_that_keeps_count_is_seen_and_its_fetches_are_made(tmp_path: Path, counts: Path, kind: str) -> None:
    told, fetched = _resumed(tmp_path, counts, kind)
    assert "gone on after step" in told and "from its start" not in told, told
    assert fetched >= 120, fetched


def _fetching(act: Callable[[], object]) -> tuple[list[str], list[list[object]]]:
    """What came to the seams of questions while a fetch did this, and the journal's entries."""
    hub, patches, told = Seams(), Patches(), []
    hub.value_asked.subscribe(lambda subject, call: (told.append(subject[0]), call())[1])
    hub.shape_asked.subscribe(lambda subject, call: (told.append(subject[0]), call())[1])
    journal = Journal(Path("nowhere"))
    run = SimpleNamespace(journal=journal, replaying=False, aside=lambda: False, guarded=lambda act: act)
    batches = Batches(run, lambda: None)  # type: ignore[arg-type]
    asked.enter(hub, patches)
    try:
        batches.follow(hub)
        fetcher = map_fetcher(torch.zeros(3), None)
        with contextlib.suppress(ZeroDivisionError):
            batches.fetched((fetcher, [0, 1]), act)
        assert "item" not in told
        torch.tensor(1).item()
        assert told.pop() == "item"  # it is over
    finally:
        patches.restore()
    return told, journal._new


def test_what_a_fetch_asks_its_own_tensors_comes_to_nobody() -> None:
    mask = torch.tensor([True, False])

    def reads() -> object:
        assert int(torch.tensor(3)) == 3 and torch.tensor(1.5).item() == 1.5 and len(mask[mask]) == 1
        return torch.zeros(2).numpy().tolist()

    told, [entry] = _fetching(reads)
    assert not told and entry[2] == [] and entry[6] is True


def test_where_it_draws_the_generators_state_before_it_is_noted() -> None:
    torch.manual_seed(3)
    before = state.torch_told(state.torch_state())
    told, [entry] = _fetching(lambda: torch.rand(1).item())
    assert not told and entry[2] == [] and entry[6] == before
    torch.manual_seed(3)
    _, [entry] = _fetching(lambda: torch.rand(1).item() / 0)  # its samples are bad
    assert entry[6] == before


def _with_numpys_spare() -> None:
    np.random.randn(1)


@pytest.mark.parametrize(
    "draws",
    [
        lambda: None,
        lambda: [random.random() for _ in range(700)],
        lambda: [random.gauss(0, 1) for _ in range(3)],
        lambda: np.random.permutation(2000),
        _with_numpys_spare,
        lambda: (random.shuffle(list(range(99))), np.random.randn(5), np.random.randint(7)),
    ],
)
def test_as_many_words_leave_generators_where_the_draws_did(draws: Callable[[], object]) -> None:
    random.seed(1), np.random.seed(2)
    for _ in range(3):
        before, saved = state.host_state(), States.now()
        draws()
        after, digest = state.host_state(), state.host_digest()
        found = words.between(before, after)
        assert found is not None
        saved.restore()
        words.draw(found)
        assert state.host_digest() == digest


def test_a_seed_is_no_draw() -> None:
    before = state.host_state()
    random.seed(os.urandom(4))
    assert words.between(before, state.host_state()) is None


def test_what_changes_is_seen_behind_samples_of_any_number() -> None:
    """Their lists are looked at last, and as far as there is time."""
    from overdrive.survive.data_sets import digest_of

    class Pictures:
        def __init__(self, count: int) -> None:
            self.opened = Counts(count)
            self.samples = [[[[0] for _ in range(100)] for _ in range(100)] for _ in range(10)]

    class Counts:
        def __init__(self, count: int) -> None:
            self.count = count

    assert digest_of([Pictures(0)]) == digest_of([Pictures(0)]) is not None
    assert digest_of([Pictures(0)]) != digest_of([Pictures(1)])
