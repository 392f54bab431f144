"""Programs written for Horovod, which is not installed: on one rank, and on two (gloo, on this machine)."""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.ranks.horovod.coordinator import Coordinator
from overdrive.ranks.horovod.imports import HorovodImports, installed
from overdrive.ranks.horovod.requests import Request, ready
from overdrive.ranks.horovod.wire import Wire
from tests.conftest import Run

torch = pytest.importorskip("torch")
if installed():
    pytest.skip("Horovod is installed", allow_module_level=True)

HERE = Path(__file__).parent
HALF = 2e-3  # of a loss, after six steps of gradients in fp16


@pytest.fixture
def provided() -> Iterator[None]:
    imports = HorovodImports()
    imports.provide()
    yield
    sys.meta_path.remove(imports)
    if "horovod.torch" in sys.modules:
        sys.modules["horovod.torch"].shutdown()
    for name in [each for each in sys.modules if each.partition(".")[0] == "horovod"]:
        del sys.modules[name]


def test_one_process_trains_as_without_horovod(provided: None) -> None:
    import horovod.torch as hvd

    with pytest.raises(ValueError, match="not been initialized"):
        hvd.rank()
    hvd.init()
    assert (hvd.size(), hvd.rank(), hvd.local_rank(), hvd.local_size(), hvd.cross_size()) == (1, 0, 0, 1, 1)
    made = []
    for wrap in (lambda optimizer, _: optimizer, lambda optimizer, model: hvd.DistributedOptimizer(optimizer, model)):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = wrap(torch.optim.Adam(model.parameters(), lr=0.1), model.named_parameters())
        assert isinstance(optimizer, torch.optim.Adam)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).pow(2).sum().backward()
            optimizer.step()
        made.append(model.weight.detach())
    assert torch.equal(*made)
    assert hvd.allreduce(torch.tensor(3.0)).item() == 3 and hvd.join() == 0
    assert hvd.allgather_object("a") == ["a"] and hvd.broadcast_object("a", root_rank=0) == "a"
    assert hvd.alltoall(torch.ones(2)).tolist() == hvd.reducescatter(torch.ones(2)).tolist() == [1, 1]


def test_hooks_on_steps_are_called_once(provided: None) -> None:
    import horovod.torch as hvd

    hvd.init()
    from torch.optim.optimizer import register_optimizer_step_post_hook

    seen = []
    handle = register_optimizer_step_post_hook(lambda *_: seen.append(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1))
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    handle.remove()
    assert len(seen) == 1


def test_what_is_not_there_is_said(provided: None) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"stands in for horovod\.torch only"):
        import horovod.tensorflow.keras  # noqa: F401
    import horovod.torch as hvd

    hvd.init()
    for refused in (
        lambda: hvd.ProcessSet([0]),
        lambda: hvd.add_process_set([0]),
        lambda: hvd.init([0]),
        lambda: hvd.allreduce(torch.ones(1), op=hvd.Adasum),
    ):
        with pytest.raises(NotImplementedError, match="Overdrive's"):
            refused()
    with pytest.raises(ValueError, match="no names for 1"):
        hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), named_parameters=[])


def test_a_library_that_looks_for_horovod_finds_none(
    provided: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "a_library.py").write_text("from importlib.util import find_spec\nfound = find_spec('horovod')\n")
    monkeypatch.syspath_prepend(str(folder))
    import a_library

    assert a_library.found is None and find_spec("horovod") is not None
    del sys.modules["a_library"]


def test_a_folder_of_that_name_is_no_horovod(provided: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a program, with scripts in it: Python takes it for a package."""
    (tmp_path / "horovod").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    import horovod.torch as hvd

    assert hvd.Average and not installed()


class OfTwo(Wire):
    """The other rank asks for the same from the exchange of that number on."""

    size, by_memory = 2, False
    monitor = SimpleNamespace(waits=lambda *_, **__: None, goes_on=lambda: None)

    def __init__(self, first: int = 1) -> None:
        self.rank, self._first, self.exchanges = 0, first, 0

    def exchange(self, thing: Any) -> list[Any]:
        self.exchanges += 1
        return [thing, thing if self.exchanges >= self._first else {"pending": [], "joined": False}]

    def reduce_(self, tensor: torch.Tensor, operation: str) -> None: ...

    def close(self) -> None: ...


SUM = {"op": "sum", "before": 1.0, "after": 1.0}


def test_who_waits_hears_of_an_error_within_an_exchange(provided: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for is pending no longer then."""

    class WithoutMemory(OfTwo):
        def reduce_(self, tensor: torch.Tensor, operation: str) -> None:
            raise MemoryError("none is left")

    coordinator = Coordinator(WithoutMemory())
    asked = coordinator.ask(Request("a", "allreduce", torch.ones(2), SUM))
    assert asked.done.wait(20)
    with pytest.raises(MemoryError, match="none is left"):
        coordinator.wait(asked)
    coordinator.stop()


def test_ranks_pause_before_they_tell_each_other_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one waits for what another has not asked for yet, they would do nothing else meanwhile."""
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    wire = OfTwo(first=3)
    coordinator = Coordinator(wire)
    coordinator.wait(coordinator.ask(Request("a", "allreduce", torch.ones(2), SUM)))
    coordinator.stop()
    assert wire.exchanges == 3 and len(pauses) == 2


def test_an_elastic_sampler_deals_in_horovods_order(provided: None) -> None:
    """By its source: shuffled by Python's generator of seed and epoch, and from there what was not processed."""
    import horovod.torch as hvd

    hvd.init()
    sampler = hvd.elastic.ElasticSampler(range(7), seed=3)
    sampler.set_epoch(2)
    expected = list(range(7))
    random.Random(5).shuffle(expected)
    assert list(sampler) == expected
    sampler.record_batch(0, 4)
    again = hvd.elastic.ElasticSampler(range(7), seed=3)
    again.load_state_dict(sampler.state_dict())
    assert list(again) == expected[4:] and len(again) == 3


def test_a_group_that_comes_later_has_names_too(provided: None) -> None:
    import horovod.torch as hvd

    hvd.init()
    first, later = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(first.parameters(), lr=0.1), first.named_parameters())
    optimizer.add_param_group({"params": list(later.parameters())})
    assert [optimizer._horovod.name(each) for each in (first.weight, later.weight)] == ["weight", "added.2"]


def test_the_installed_one_is_asked_for_where_there_is_none(overdrive: Run, tmp_path: Path) -> None:
    said = overdrive("run", "--engine", "horovod", "train.py", cwd=tmp_path)
    assert said.returncode == 2 and "Horovod is not installed here" in said.stderr


SIZE = "import horovod.torch as hvd\nhvd.init()\nprint('ranks', hvd.size())\n"


def test_an_installed_one_that_did_not_start_the_ranks_does_not_answer(python: Run, tmp_path: Path) -> None:
    """It would have a size of 1 on each of them."""
    library = tmp_path / "library" / "horovod"
    library.mkdir(parents=True)
    (library / "__init__.py").touch()
    (library / "torch.py").write_text("def init(): pass\ndef size(): return 1\n")
    (tmp_path / "train.py").write_text(SIZE)
    path = os.pathsep.join([str(library.parent), os.environ.get("PYTHONPATH", "")])
    how: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": path}}
    line = ("-m", "overdrive", "run")
    assert python(*line, "--ranks", "2", "train.py", **how).stdout == "ranks 2\n"
    assert python(*line, "train.py", **how).stdout == "ranks 1\n"
    refused = python(*line, "--ranks", "2", "--engine", "horovod", "train.py", **how)
    assert refused.returncode == 2 and "horovodrun -np 2 overdrive run --engine horovod" in refused.stderr


def told(joined: bool, *requests: Request) -> dict[str, object]:
    return {"pending": [each.told() for each in requests], "joined": joined}


def test_requests_are_ready_when_all_ranks_have_made_them() -> None:
    a, b, c = (Request(name, "allreduce", torch.ones(2), {"op": "sum"}) for name in "abc")
    assert [each.name for each in ready([told(False, a, b), told(False, b, a)])] == ["a", "b"]
    assert [each.name for each in ready([told(False, a, b), told(False, b, c)])] == ["b"]
    alone = ready([told(True, Request("join", "join")), told(False, c)])
    assert [each.name for each in alone] == ["c"] and alone[0].by_rank[0] is None and not alone[0].wrong()


@pytest.mark.parametrize(
    ("other", "wrong"),
    [
        (Request("a", "broadcast", torch.ones(2), {"op": "sum"}), "another operation"),
        (Request("a", "allreduce", torch.ones(2), {"op": "max"}), "other settings"),
        (Request("a", "allreduce", torch.ones(2).long(), {"op": "sum"}), "another type"),
        (Request("a", "allreduce", torch.ones(3), {"op": "sum"}), "another shape"),
        (Request("a", "allreduce", torch.ones(2), {"op": "sum"}), ""),
    ],
)
def test_requests_that_differ_are_told(other: Request, wrong: str) -> None:
    (found,) = ready([told(False, Request("a", "allreduce", torch.ones(2), {"op": "sum"})), told(False, other)])
    assert wrong in found.wrong() and bool(wrong) is bool(found.wrong())


@pytest.mark.cluster
def test_losses_on_two_ranks_are_those_of_a_mean_by_hand(overdrive: Run) -> None:
    told = overdrive("run", "--ranks", "2", "horovod_training.py", cwd=HERE)
    assert told.returncode == 0, told.stderr
    assert "the program brings its own parallelism (it is written for Horovod)" in told.stderr
    lines = told.stdout.splitlines()
    names = lines[::3]
    assert names == ["plain", "accumulated", "sum", "synchronized", "predivided", "fp16"]
    for name, by_hand, ours in zip(names, lines[1::3], lines[2::3], strict=True):
        tolerance = HALF if name == "fp16" else 1e-12
        assert list(map(float, ours.split())) == pytest.approx(list(map(float, by_hand.split())), rel=tolerance), name
        assert len(set(by_hand.split())) == 6


@pytest.mark.cluster
def test_operations_on_two_ranks(overdrive: Run) -> None:
    told = overdrive("run", "--ranks", "2", "horovod_operations.py", cwd=HERE)
    assert told.returncode == 0 and "all as it should be" in told.stdout, told.stderr


_SCHEDULED = """
import torch, horovod.torch as hvd
from horovod.torch.mpi_ops import Average, allreduce_async_, global_process_set, init, rank, size, synchronize
from torch.optim.lr_scheduler import StepLR

init()
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * size(), momentum=0.9)
schedule, group = StepLR(optimizer, 1, 0.1), optimizer.param_groups[0]
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), 0)
hvd.broadcast_optimizer_state(optimizer, 0)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    schedule.step()
assert group is optimizer.param_groups[0]
rates = hvd.allgather(torch.tensor([optimizer.param_groups[0]["lr"]])).tolist()
weights = hvd.allgather(model.weight.detach())
if rank() == 0:
    print(rates[0] == rates[1], round(rates[0], 6), torch.equal(weights[0], weights[1]))
"""


@pytest.mark.cluster
def test_after_a_broadcast_a_schedule_rules_on_every_rank(script: Callable[[str], Path], overdrive: Run) -> None:
    told = overdrive("run", "--ranks", "2", "train.py", cwd=script(_SCHEDULED).parent)
    assert told.stdout.split() == ["True", "0.002", "True"], told.stderr


@pytest.mark.cluster
@pytest.mark.fault(17)
def test_ranks_that_ask_for_different_things_are_stopped(script: Callable[[str], Path], overdrive: Run) -> None:
    text = "import torch, horovod.torch as hvd\nhvd.init()\n"
    path = script(text + "hvd.allreduce(torch.ones(1), name='ab'[hvd.rank()])\n")
    told = overdrive("run", "--ranks", "2", "train.py", cwd=path.parent, timeout=60)
    assert told.returncode and re.search(
        r"rank . waits for allreduce\.. in step 1, and rank . for allreduce", told.stderr
    )


@pytest.mark.cluster
def test_under_torchrun(script: Callable[[str], Path], python: Run) -> None:
    text = "import torch, horovod.torch as hvd\nhvd.init()\nx = hvd.allreduce(torch.tensor(float(hvd.rank())))\n"
    path = script(text + "if hvd.rank() == 0: print(hvd.size(), hvd.local_rank(), x.item())\n")
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    told = python(*launcher, "-m", "overdrive", "run", "train.py", cwd=path.parent)
    assert told.returncode == 0 and told.stdout == "2 0 0.5\n", told.stderr


# In the idiom of its examples: each rank reads its share, samples take 2 ms.
_TUNED = """
import sys, time
import torch, horovod.torch as hvd
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

class Slow(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.randn(8, generator=torch.Generator().manual_seed(index)), index % 2

hvd.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
sampler = DistributedSampler(Slow(), num_replicas=hvd.size(), rank=hvd.rank())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for epoch in range(int(sys.argv[1])):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(Slow(), batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
mean = hvd.allreduce(loss.detach(), name="mean")
if hvd.rank() == 0:
    print(f"ranks {hvd.size()} loss {mean.item():.9f}")
"""


@pytest.mark.cluster
def test_a_script_is_tuned_as_one_rank_and_its_plan_is_not_that_of_two(
    script: Callable[[str], Path], overdrive: Run
) -> None:
    path = script(_TUNED)
    wanted = ("--ranks", "2", "--techniques", "sample_cache", "--budget", "3m", "--json", "result.json")
    told = overdrive("tune", *wanted, "train.py", "1000", cwd=path.parent, timeout=400)
    assert told.returncode == 0, told.stderr
    result = json.loads((path.parent / "result.json").read_text())
    assert result["verdict"] == "FASTER" and [each["name"] for each in result["techniques"]] == ["sample_cache"]
    why = "The plan is for one process: the program brings its own parallelism (it is written for Horovod)."
    assert why in result["notes"], result["notes"]
    for ranks in ((), ("--ranks", "2")):
        plain = overdrive("run", *ranks, "--no-plan", "train.py", "3", cwd=path.parent)
        planned = overdrive("run", *ranks, "train.py", "3", cwd=path.parent)
        assert planned.returncode == 0 and planned.stdout == plain.stdout, planned.stderr
        assert f"ranks {2 if ranks else 1} loss 0." in plain.stdout
        used = "train.overdrive.toml (sample_cache)"
        assert (used in planned.stderr) != bool(ranks)
    assert "train.overdrive.toml is left out: it was not proved on 2 ranks" in planned.stderr
