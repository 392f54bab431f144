"""The technique `loader_workers`: the same batches, the knobs, the shared memory, and what fails as before."""

from __future__ import annotations

import gc
import multiprocessing.process
import os
import re
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, Subset  # noqa: E402

from overdrive.core.contract import Contract  # noqa: E402
from overdrive.core.facts import Facts, LoaderFacts  # noqa: E402
from overdrive.core.program import Program  # noqa: E402
from overdrive.core.trial_spec import TrialSpec  # noqa: E402
from overdrive.machine import shared_memory  # noqa: E402
from overdrive.techniques.catalogue import catalogue  # noqa: E402
from overdrive.trials.duel import Duel  # noqa: E402
from overdrive.tuner.findings import Findings  # noqa: E402
from overdrive.tuner.result import result_of  # noqa: E402
from overdrive.worker.session import Session  # noqa: E402
from tests.conftest import Run, long_but  # noqa: E402
from tests.techniques.data.harness import seed, states  # noqa: E402

COUNT = 40
BATCH_BYTES = 4 * (2 * 3 * 4) + 4 * 8  # four samples and their labels
MEGA = 1 << 20


class Numbers(Dataset):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.full((2, 3), float(index)), index


class Telling(Numbers):
    """What a worker is like: process, threads, cores, the variable, and what the program's function left.

    It is something else for each process, as it seems to have been opened there.
    """

    def __getitem__(self, index: int) -> Any:
        self.opened = True
        with open("/proc/self/status") as status:  # who asks `os` gets no workers
            listed = next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list"))
        ranges = [[int(each) for each in part.split("-")] for part in listed.split(",")]
        cores = [core for each in ranges for core in range(each[0], each[-1] + 1)]
        told = int(os.environ.get("PROGRAMS_OWN", "-1"))
        return int(os.readlink("/proc/self")), torch.get_num_threads(), len(cores), cores[0], told


class Dying(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 0 and multiprocessing.process._parent_process is not None:  # in a worker, as no name here tells
            time.sleep(0.5)  # while a batch of the other worker is handed over, the error would be another one
            signal.raise_signal(signal.SIGKILL)
        return super().__getitem__(index)


class Faulty(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 21:
            raise ValueError("sample 21 is bad")
        return super().__getitem__(index)


def programs_own(number: int) -> None:
    os.environ["PROGRAMS_OWN"] = str(10 * torch.get_num_threads() + number)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Sets how much shared memory there is."""

    def put(count: int | None) -> None:
        monkeypatch.setattr(shared_memory, "free_shared_memory", lambda: count)

    return put


def session(**settings: Any) -> Session:
    return Session([("loader_workers", {"workers": 2, **settings})])


def epochs(loader: Any, count: int = 2) -> list[Any]:
    seen: list[Any] = []
    for _ in range(count):
        seen += [(x.numpy().tobytes(), x.stride(), y.tolist()) for x, y in loader]
        seen.append(states())
    return seen


def loader(dataset: Any = None, **options: Any) -> Any:
    return DataLoader(dataset or Numbers(), **{"batch_size": 4, "shuffle": True, **options})


@pytest.mark.parametrize("settings", [{}, {"prefetch": 5, "workers": 3}, {"persistent": False}, {"affinity": "spread"}])
def test_batches_order_and_draws_are_those_of_the_program(settings: dict[str, Any]) -> None:
    seed()
    expected = epochs(loader())
    seed()
    with session(**settings) as running:
        given = loader()
        seen = epochs(given)
        assert given.num_workers == settings.get("workers", 2)
    # Persistent workers of torch's draw their seed once; ours draw as those that are started for each epoch.
    assert seen == expected and not running.seams.left_out
    assert given.num_workers == 0 and given.prefetch_factor is None and given.worker_init_fn is None
    seed()
    assert seen == epochs(loader(num_workers=2))


def test_where_kept_samples_take_over_from_workers_that_live_on_no_seed_is_drawn_twice() -> None:
    """made42_012: from then on the program had the order of an epoch later."""
    seed()
    expected = epochs(loader(num_workers=2), 3)
    seed()
    with Session([("sample_cache", {}), ("loader_workers", {"workers": 2, "persistent": True})]) as running:
        given = loader(num_workers=2)
        assert epochs(given, 3) == expected
        assert given._iterator is not None  # of the first epoch
    assert not running.seams.left_out


class ByName(Numbers):
    """Reads each sample from a file whose name nothing tells beforehand."""

    def __getitem__(self, index: int) -> Any:
        with open(os.path.join("replay", str(index)), "rb") as file:
            return file.read()


@pytest.mark.parametrize("start", long_but(["program", "forkserver"], ["program", "spawn", "forkserver"]))
def test_a_file_that_only_a_fetch_names_is_read_when_the_program_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """A batch that was made ahead would have what was in it before."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "replay").mkdir()

    def read() -> list[Any]:
        for index in range(COUNT):
            (tmp_path / "replay" / str(index)).write_text("before")
        seen = []
        for batch in DataLoader(ByName(), 4):
            seen.append(batch)
            for index in (5, 17, 38):  # none of those that are tried
                (tmp_path / "replay" / str(index)).write_text(f"after {len(seen)}")
            time.sleep(0.05)  # workers make ahead
        return seen

    expected = read()
    with session(start=start):
        assert read() == expected


@pytest.mark.parametrize("start", long_but(["forkserver"], ["spawn", "forkserver"]))
def test_workers_can_be_started_in_another_way(start: str) -> None:
    seed()
    expected = epochs(loader())
    seed()
    with session(workers=1, start=start, threads=2) as running:
        given = loader()
        assert epochs(given) == expected
        assert given.multiprocessing_context.get_start_method() == start
        _, threads, *_ = next(iter(loader(Telling())))
        assert threads.tolist() == [2] * 4
    assert given.multiprocessing_context is None and not running.seams.left_out
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_where_they_do_not_start_in_another_way_the_program_goes_on_in_its_own() -> None:
    class Local(Numbers):  # cannot be pickled
        pass

    seed()
    expected = epochs(loader(Local()))
    seed()
    with session(start="spawn") as running, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of what cannot be pickled
        assert epochs(loader(Local())) == expected
    assert "fetch no batch (AttributeError" in running.seams.left_out["loader_workers"]


UNGUARDED = """
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
METHOD
class Own(TensorDataset):
    pass
torch.manual_seed(0)
loader = DataLoader(KIND(torch.randn(64, 4)), batch_size=4, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(float(loss))
"""


@pytest.mark.parametrize(
    ("kind", "start"),
    long_but(
        [("TensorDataset", "forkserver")],
        [("Own", "spawn"), ("TensorDataset", "forkserver"), ("TensorDataset", "program")],
    ),
)
def test_a_script_is_never_run_again_by_workers(
    kind: str, start: str, script: Callable[[str], Path], python: Run, overdrive: Run
) -> None:
    method = "torch.multiprocessing.set_start_method('spawn')" if start == "program" else ""
    path = script(UNGUARDED.replace("KIND", kind).replace("METHOD", method))
    plan = path.with_name("plan.toml")
    plan.write_text(
        'overdrive = 1\nprogram = "train.py"\ncontract = "exact"\n'
        f'[[technique]]\nname = "loader_workers"\nsettings = {{ workers = 1, start = "{start}" }}\n'
    )
    expected = python(path.name, cwd=path.parent)
    seen = overdrive("run", "--plan", str(plan), path.name, cwd=path.parent)
    assert seen.returncode == 0 and seen.stdout == expected.stdout and expected.stdout, seen.stderr
    left_out = "left out loader_workers: workers that are not forked would have to run the script again"
    assert (left_out in seen.stderr) is (kind == "Own")


def test_the_programs_own_function_is_called_after_ours() -> None:
    cores = sorted(os.sched_getaffinity(0))
    with session(affinity="spread"):
        told = list(loader(Telling(), worker_init_fn=programs_own, shuffle=False))
    each_told = [tuple(map(int, one)) for batch in told for one in zip(*batch, strict=True)]
    workers = {pid: (count, core, own) for pid, _, count, core, own in each_told}
    assert len(workers) == 2 and os.getpid() not in workers
    assert {own for _, _, own in workers.values()} == {10, 11}  # one thread, as torch has it; numbers 0 and 1
    if len(cores) > 1:
        assert all(count == 1 and core in cores[1:] for count, core, _ in workers.values())
    assert sorted(os.sched_getaffinity(0)) == cores


def test_several_threads_in_forked_workers_are_refused() -> None:
    with session(threads=2) as running:
        assert len(list(loader())) == 10
    assert "OpenMP" in running.seams.left_out["loader_workers"]


@pytest.mark.parametrize(
    ("batches", "workers", "prefetch"),
    [(20, 4, 3), (10, 4, 2), (6, 4, 1), (4, 2, 1)],
)
def test_the_shared_memory_decides_how_many_there_are(
    batches: int, workers: int, prefetch: int, free: Callable[[int | None], None]
) -> None:
    free(int(batches * BATCH_BYTES / 0.8) + 1)
    with session(workers=4, prefetch=3) as running:
        given = loader()
        # two besides those in flight: 20 batches of room hold 4 x 3, 10 hold 4 x 2, 6 hold 4 x 1, 4 hold 2 x 1
        assert len(list(given)) == 10
        assert (given.num_workers, given.prefetch_factor) == (workers, prefetch)
    assert not running.seams.left_out


def test_workers_whose_batches_do_not_fit_are_left_out_before_anything_fails(
    free: Callable[[int | None], None],
) -> None:
    free(2 * BATCH_BYTES)
    seed()
    expected = epochs(loader())
    seed()
    with session() as running:
        assert epochs(loader()) == expected
    assert "/dev/shm" in running.seams.left_out["loader_workers"]


def test_a_second_loader_gets_what_the_first_has_left_over(free: Callable[[int | None], None]) -> None:
    free(int(9 * BATCH_BYTES / 0.8) + 1)
    with session() as running:
        first, second = loader(), loader()
        assert len(list(first)) == len(list(second)) == 10
        assert (first.num_workers, first.prefetch_factor) == (2, 2)
        assert second.num_workers <= 1
    assert not running.seams.left_out


@pytest.mark.parametrize("count", [None, 1 << 40])
def test_where_there_is_room_nothing_is_measured(
    count: int | None, free: Callable[[int | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    free(count)
    monkeypatch.setattr("overdrive.datacache.cost.fetching.batch_bytes", lambda *_: pytest.fail("measured"))
    with session():
        given = loader()
        assert len(list(given)) == 10 and given.num_workers == 2


def test_a_batch_that_cannot_be_measured_gets_no_workers_where_room_is_short(
    free: Callable[[int | None], None],
) -> None:
    free(MEGA)
    with session() as running, pytest.raises(ValueError, match="sample 21"):
        data = Subset(Faulty(), [21] * 220)
        list(loader(data, batch_size=22, shuffle=False))
    assert "could not be measured" in running.seams.left_out["loader_workers"]


def failure(running: Session | None, dataset: Any, **options: Any) -> tuple[str, int]:
    """The error of an epoch, without process numbers, and how many batches came before."""
    count = 0
    try:
        for _ in loader(dataset, shuffle=False, **options):
            count += 1
    except Exception as error:
        return re.sub(r"\d+", "N", f"{type(error).__name__}: {str(error).splitlines()[0]}"), count
    return "", count


def test_where_a_worker_is_killed_the_program_fetches_for_itself() -> None:
    seed()
    expected = epochs(loader())
    seed()
    with session() as running:
        assert epochs(loader(Dying())) == expected
    assert not running.seams.left_out


def test_a_worker_that_is_killed_ends_nothing_of_the_program() -> None:
    """PyTorch's handler of SIGCHLD raises an error wherever the main thread is just then."""
    seed()
    expected = epochs(loader())
    seed()
    seen: list[Any] = []
    with session() as running:
        loaded = loader()
        for _ in range(2):
            for number, (x, y) in enumerate(loaded):
                if number == 1:
                    multiprocessing.active_children()[0].kill()
                    time.sleep(0.3)
                seen.append((x.numpy().tobytes(), x.stride(), y.tolist()))
            seen.append(states())
    assert seen == expected
    assert not running.seams.left_out


@pytest.mark.parametrize("many", [0, 1])
def test_where_the_system_starts_no_more_processes_the_program_fetches_for_itself(
    many: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A program without workers ended with "Resource temporarily unavailable", or "Cannot allocate memory"."""
    begun: list[Any] = []
    begin = multiprocessing.process.BaseProcess.start

    def start(process: Any) -> None:
        if len(begun) == many:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        begun.append(process)
        begin(process)

    seed()
    expected = epochs(loader())
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start)
    seed()
    with session() as running:
        assert epochs(loader()) == expected
    assert "workers cannot be started (BlockingIOError" in running.seams.left_out["loader_workers"]
    assert len(begun) == many and not any(each.is_alive() for each in begun)
    gc.collect()
    assert "Exception ignored" not in capfd.readouterr().err


def test_a_process_that_may_have_none_of_its_own_fetches_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a pool's: multiprocessing makes them daemons."""
    monkeypatch.setitem(multiprocessing.process.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    seed()
    expected = epochs(loader())
    seed()
    with session() as running:
        assert epochs(loader()) == expected
    assert "daemonic processes" in running.seams.left_out["loader_workers"]


def test_where_more_workers_than_the_programs_do_not_start_its_own_do(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = multiprocessing.process.BaseProcess.start

    def start(process: Any) -> None:
        if len(multiprocessing.active_children()) == 1:
            raise OSError(12, "Cannot allocate memory")
        begin(process)

    seed()
    expected = epochs(loader(num_workers=1))
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start)
    seed()
    with session() as running:
        assert epochs(loader(num_workers=1)) == expected
    assert "Cannot allocate memory" in running.seams.left_out["loader_workers"]


def test_a_worker_that_dies_between_two_epochs_ends_nothing_of_the_program() -> None:
    seed()
    expected = epochs(loader())
    seed()
    with session() as running:
        loaded = loader()
        seen = epochs(loaded, 1)
        worker = loaded._iterator._workers[0]
        worker.kill()
        worker.join()
        seen += epochs(loaded, 1)
    assert seen == expected and "exited unexpectedly" in running.seams.left_out["loader_workers"]


def test_an_error_of_the_data_set_comes_at_the_same_batch() -> None:
    expected, before = failure(None, Faulty())
    with session() as running:
        assert failure(running, Faulty()) == (expected, before) == (expected, 5)
    assert failure(None, Faulty())[1] == 5


def way_of_the_error(**options: Any) -> list[str]:
    """The functions that an error of the data set comes through, but ours."""
    with pytest.raises(ValueError) as caught:
        list(loader(Faulty(), shuffle=False, **options))
    return [f"{each.path.name}: {each.name}" for each in caught.traceback if "overdrive" not in each.path.parts]


def test_an_error_of_the_data_set_comes_through_the_same_functions_of_pytorchs() -> None:
    """made41_024: one of them was missing in the traceback that the program ended with."""
    expected = way_of_the_error()
    with session():
        assert way_of_the_error() == expected
    assert "dataloader.py: _next_data" in expected


def test_workers_that_live_on_for_the_program_are_left_to_end_as_it_has_them_end() -> None:
    """One that ends by itself would print what plain Python loses as it ends."""
    loader = DataLoader(Numbers(), 4, num_workers=1, persistent_workers=True)
    with Session([("loader_workers", {"workers": 2})]):
        list(loader)
        iterator = loader._iterator
    assert iterator is not None and loader._iterator is iterator and loader.num_workers == 1
    assert all(worker.is_alive() for worker in iterator._workers)


def test_loaders_that_the_program_is_done_with_are_let_go() -> None:
    import weakref

    with session():
        given = loader()
        list(given)
        gone = weakref.ref(given)
        del given
        gc.collect()
        assert gone() is None


@pytest.mark.parametrize("persistent", [False, True])
def test_an_iterator_that_is_dropped_in_the_middle_is_gone_with_the_last_name_for_it(persistent: bool) -> None:
    """In a cycle it would wait for the garbage collector, which ends its queues before its workers are told."""
    import weakref

    with session(persistent=persistent):
        gc.disable()
        try:
            given = loader()
            begun = iter(given)
            next(begun)
            assert begun._workers, "it is one with workers"
            gone = weakref.ref(begun)
            del begun, given
            assert gone() is None
        finally:
            gc.enable()


def facts(made: float | None, step: float, wait: float, cores: int = 8, **more: Any) -> Facts:
    """A program whose batches of 10 take so many seconds to make and whose steps wait for so many."""
    costs = {"wait": wait / 10} if made is None else {"wait": wait / 10, "decode": made / 20, "collate": made / 20}
    each = LoaderFacts(10, 0, True, 1000, wait, seconds_per_item=costs, batch_bytes=more.pop("batch_bytes", 0))
    return Facts(cores=cores, step_seconds=step, shares={"data": wait / step}, loaders=(each,), **more)


def counts(found: Facts) -> list[int]:
    return [int(each["workers"]) for each in catalogue()["loader_workers"].candidates(found)]


def test_as_many_workers_are_tried_as_keep_up_with_the_loop() -> None:
    assert counts(facts(made=0.030, step=0.040, wait=0.030))[:2] == [3, 4]  # 10 ms of work a step
    assert counts(facts(made=0.003, step=0.013, wait=0.003))[:2] == [1, 2]
    assert counts(facts(made=0.100, step=0.110, wait=0.100, cores=4))[:3] == [4, 3, 2]  # 10 would be needed
    assert counts(facts(made=None, step=0.040, wait=0.030))[:3] == [8, 4, 1]  # not measured
    assert counts(facts(made=0.030, step=0.040, wait=0.030, cores=1)) == [1]


def test_candidates_fit_the_shared_memory_and_are_valid() -> None:
    technique = catalogue()["loader_workers"]
    found = facts(made=0.030, step=0.040, wait=0.030, batch_bytes=MEGA, shared_memory=5 * MEGA)
    tries = technique.candidates(found)
    assert [(each["workers"], each["prefetch"]) for each in tries[:1]] == [(2, 1)]
    knobs = {knob.name: knob for knob in technique.knobs}
    for each in technique.candidates(facts(made=0.030, step=0.040, wait=0.030)):
        assert all(knobs[key].fault(value) is None for key, value in each.items())
    assert technique.candidates(facts(made=0.030, step=0.040, wait=0.030))[-1]["affinity"] == "spread"


@pytest.mark.parametrize(("made", "ready"), [(0.030, 2), (0.010, 2), (0.005, 4), (0.001, 8)])
def test_quick_batches_are_kept_ready_in_greater_number(made: float, ready: int) -> None:
    """For as long as a worker may be held up."""
    found = facts(made=made, step=made + 0.001, wait=made)
    assert catalogue()["loader_workers"].candidates(found)[0]["prefetch"] == ready


def test_where_memory_allows_no_more_workers_these_may_use_more_threads() -> None:
    def threads(**room: Any) -> list[tuple[Any, ...]]:
        tries = catalogue()["loader_workers"].candidates(facts(made=0.030, step=0.040, wait=0.030, **room))
        return [(each["workers"], each["threads"], each["start"]) for each in tries if "threads" in each]

    assert threads(batch_bytes=MEGA, shared_memory=5 * MEGA)[:1] == [(2, 4, "forkserver")]
    assert threads(batch_bytes=MEGA, shared_memory=5 * MEGA, cores=2) == []
    assert threads(batch_bytes=MEGA, shared_memory=500 * MEGA) == []


def test_the_same_number_of_workers_is_tried_persistent() -> None:
    each = LoaderFacts(10, 3, True, 1000, 0.01)
    assert counts(Facts(cores=2, shares={"data": 0.5}, loaders=(each,)))[-1] == 3


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Facts(), "no map-style"),
        (facts(made=0.030, step=1.0, wait=0.030), "only 3%"),
        (facts(made=0.0001, step=0.001, wait=0.0001), "100 µs, less than handing it over"),
        (facts(made=0.030, step=0.040, wait=0.030, batch_bytes=MEGA, shared_memory=2 * MEGA), "/dev/shm"),
    ],
)
def test_where_workers_cannot_help_it_says_why(found: Facts, why: str) -> None:
    assert why in (catalogue()["loader_workers"].applies(found) or "")


def test_costs_not_known_are_no_reason_against_it() -> None:
    assert catalogue()["loader_workers"].applies(facts(made=None, step=0.040, wait=0.030)) is None


def test_a_tune_warns_where_the_programs_own_workers_are_near_the_limit() -> None:
    order = TrialSpec(Program("train.py", ()))
    each = LoaderFacts(10, 4, True, 1000, 0.01, prefetch=2, batch_bytes=MEGA)
    for free_bytes, warned in ((12 * MEGA, True), (100 * MEGA, False), (None, False)):
        found = Findings(order.program, Contract.EXACT)
        found.control = Duel(order, order, old_facts=Facts(loaders=(each,), shared_memory=free_bytes))
        notes = " ".join(result_of(found, "plan.toml").notes)
        assert ("/dev/shm" in notes) is warned


@pytest.mark.parametrize("others", [(), ("sample_cache",)])
def test_pytorch_warns_from_the_programs_own_line(others: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning is shown once for each line, and iterators with workers have another one."""
    shown: list[Any] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(warnings, "showwarning", lambda *told: shown.append((str(told[0]), *told[1:4])))

    def told() -> list[Any]:
        with warnings.catch_warnings():
            warnings.resetwarnings()
            for _ in range(2):
                list(loader(pin_memory=True))
        found, shown[:] = [each for each in shown if "pin_memory" in each[0]], []
        return found

    plain = told()
    techniques = [("loader_workers", {"workers": 1}), *((name, {"memory_share": 0.5}) for name in others)]
    with Session(techniques) as running:
        assert told() == plain and len(plain) == 1
    assert not running.seams.left_out
