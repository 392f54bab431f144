"""What an item costs: found out part by part, in a forked process, of which nothing remains."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset  # noqa: E402

from overdrive.core.facts import Facts, LoaderFacts  # noqa: E402
from overdrive.core.json_data import from_json, to_json  # noqa: E402
from overdrive.datacache.cost import parts  # noqa: E402
from overdrive.datacache.cost.fetching import Fetching, Served, batch_bytes, bytes_in  # noqa: E402
from overdrive.datacache.cost.parts import examine  # noqa: E402
from overdrive.forks.layout import Unfit  # noqa: E402
from overdrive.machine import shared_memory  # noqa: E402
from overdrive.seams.hub import Seams  # noqa: E402
from overdrive.worker.recording import Recorder  # noqa: E402
from overdrive.worker.session import Session  # noqa: E402
from overdrive.worker.torch.probe import Probe  # noqa: E402

PARTS = {"read", "decode", "transform", "collate"}
NAP = 0.004


class Nap:
    """A transform that takes its time, so that shares can be told apart on any machine."""

    def __call__(self, x: Any) -> Any:
        time.sleep(NAP)
        return x + random.random()


class Naps(Dataset):
    def __init__(self, transform: Any = None, folder: Path | None = None, decode: float = 0.0) -> None:
        self.transform = transform
        self.folder = folder
        self.decode = decode
        self.fetched = 0

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        self.fetched += 1
        time.sleep(self.decode)
        if self.folder is not None:
            (self.folder / f"{index}.bin").read_bytes()
        x = torch.full((3, 8), float(index))
        return self.transform(x) if self.transform is not None else x


def share(costs: dict[str, float], part: str) -> float:
    return costs[part] / sum(costs.values())


def costs_of(dataset: Any, **options: Any) -> dict[str, float]:
    found = examine(Fetching.by_loader(DataLoader(dataset, batch_size=8, **options))).seconds
    assert set(found) == PARTS and all(seconds >= 0 for seconds in found.values())
    return found


def slow_collate(samples: list[Any]) -> Any:
    time.sleep(8 * NAP)
    return torch.stack(samples)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_callables_that_a_data_set_holds_are_its_transform(workers: int) -> None:
    costs = costs_of(Naps(Nap()), num_workers=workers)
    assert share(costs, "transform") > 0.7 and costs["transform"] >= 0.9 * NAP


@pytest.mark.parametrize("wrap", [lambda inner: Subset(inner, range(30)), lambda inner: ConcatDataset([inner, inner])])
def test_data_sets_inside_others_are_looked_into(wrap: Any) -> None:
    assert share(costs_of(wrap(Naps(Nap()))), "transform") > 0.7


def test_transforms_in_a_list_count_and_nested_ones_count_once() -> None:
    class Listed(Naps):
        def __init__(self) -> None:
            super().__init__()
            self.steps = [Nap(), lambda x: self.steps[0](x)]

        def __getitem__(self, index: int) -> Any:
            x = super().__getitem__(index)
            for step in self.steps:
                x = step(x)
            return x

    costs = costs_of(Listed())
    assert share(costs, "transform") > 0.7 and costs["transform"] < 10 * NAP


def test_the_rest_of_fetching_is_decode_and_a_loader_that_opens_files_is_no_transform(tmp_path: Path) -> None:
    for index in range(40):
        (tmp_path / f"{index}.bin").write_bytes(b"x" * 100)

    class Folder(Naps):
        def __init__(self) -> None:
            super().__init__()
            self.loader = self.load

        def load(self, path: Path) -> int:
            time.sleep(NAP)
            return len(path.read_bytes())

        def __getitem__(self, index: int) -> Any:
            return torch.full((3,), self.loader(tmp_path / f"{index}.bin"))

    assert share(costs_of(Folder()), "decode") > 0.7
    assert share(costs_of(Naps(decode=NAP)), "decode") > 0.7


def test_reading_is_found_by_reading_again(tmp_path: Path) -> None:
    for index in range(40):
        (tmp_path / f"{index}.bin").write_bytes(os.urandom(4 << 20))
    assert costs_of(Naps(folder=tmp_path))["read"] > 10 * costs_of(Naps())["read"]


def test_collating_is_taken_apart_from_fetching() -> None:
    assert share(costs_of(Naps(), collate_fn=slow_collate), "collate") > 0.5


def test_nothing_of_it_remains() -> None:
    dataset = Naps(Nap())
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    torch.manual_seed(3)
    random.seed(4)
    before = (torch.get_rng_state().tolist(), random.getstate())
    examine(Fetching.by_loader(loader))
    assert (torch.get_rng_state().tolist(), random.getstate()) == before
    assert dataset.fetched == 0 and type(dataset.transform) is Nap


def test_an_open_file_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(range(200)))

    class Reading(Naps):
        def __init__(self) -> None:
            super().__init__()
            self.file = open(tmp_path / "data", "rb", buffering=0)  # noqa: SIM115

        def __getitem__(self, index: int) -> Any:
            return torch.tensor(list(self.file.read(1)))

    dataset = Reading()
    dataset.file.seek(7)
    costs_of_it = examine(Fetching.by_loader(DataLoader(dataset, batch_size=4))).seconds
    assert set(costs_of_it) == PARTS and dataset.file.tell() == 7
    with pytest.raises(Unfit, match="a file is open"):
        examine(Fetching.by_loader(DataLoader(dataset, batch_size=4, num_workers=2)))


def test_a_program_that_talks_to_a_server_is_not_forked() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
        pytest.raises(Unfit, match="connected to a server"),
    ):
        examine(Fetching.by_loader(DataLoader(Naps(), batch_size=4)))


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(64))


def refusing(index: int) -> Any:
    raise ValueError("no such sample")


@pytest.mark.parametrize(
    ("loader", "why"),
    [
        (lambda: DataLoader(Stream(), batch_size=4), "stream"),
        (lambda: DataLoader(Naps(), batch_size=None), "no batches"),
        (lambda: DataLoader(Naps(refusing), batch_size=4), "no such sample"),
    ],
)
def test_what_cannot_be_taken_apart_says_why(loader: Any, why: str) -> None:
    with pytest.raises(Unfit, match=why):
        examine(Fetching.by_loader(loader()))


def test_a_callable_that_bears_no_stand_in_leaves_transform_unknown_only() -> None:
    class Strict(Naps):
        def __getitem__(self, index: int) -> Any:
            assert type(self.transform) is Nap
            return super().__getitem__(index)

    costs = costs_of(Strict(Nap()))
    assert costs["transform"] == 0 and share(costs, "decode") > 0.7


def test_the_bytes_of_a_batch() -> None:
    assert batch_bytes(Fetching.by_loader(DataLoader(Naps(), batch_size=8))) == 8 * 3 * 8 * 4
    assert bytes_in({"a": torch.zeros(4), "b": [torch.zeros(2, dtype=torch.int64), "text"]}) == 32


def facts_of(loader: Any, costs: bool = True, device: str = "cpu") -> Facts:
    """The facts that a worker takes of a program that trains on this loader."""
    probe, recorder = Probe(2), Recorder(losses=True)

    def observe(seams: Seams) -> None:
        recorder(seams)
        probe(seams)

    with Session([], [observe]):
        model = torch.nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        probe.start_profile()
        for step, batch in enumerate(loader, 1):
            model(batch.to(device)).mean().backward()
            optimizer.step()
            probe.stepped(step)
        probe.end_profile()
        return probe.facts(recorder, costs)


def test_the_facts_of_a_loader_hold_it_all() -> None:
    (found,) = facts_of(DataLoader(Naps(Nap()), batch_size=8)).loaders
    assert set(found.seconds_per_item) == PARTS | {"copy", "wait"}
    assert found.own_fetch and not found.not_split and found.batch_bytes == 8 * 3 * 8 * 4
    made = found.seconds_to_make
    assert made is not None and made >= 8 * 0.9 * NAP and found.seconds_per_item["copy"] == 0


def test_nobody_pays_for_costs_that_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.worker.torch.probe.examine", lambda *_: pytest.fail("examined"))
    (found,) = facts_of(DataLoader(Naps(), batch_size=8), costs=False).loaders
    assert set(found.seconds_per_item) == {"wait"} and found.seconds_to_make is None


def test_loaders_that_are_made_anew_for_each_epoch_are_one() -> None:
    def epochs() -> Any:
        for _ in range(3):
            yield from DataLoader(Naps(), batch_size=8)

    (found,) = facts_of(epochs(), costs=False).loaders
    assert found.length == 40 and found.batch_size == 8


@pytest.mark.parametrize("sizes", [{"batch_size": 1, "collate_fn": lambda items: items[0]}, {"batch_size": None}])
def test_where_an_item_is_a_batch_it_counts_as_one(sizes: Any) -> None:
    """Public DLRM: its loader waited 5 ms for an item that takes 16 to make, and 0.08 were told."""
    (found,) = facts_of(DataLoader(Naps(), **sizes)).loaders
    assert found.batch_size == 1 and found.length == 40
    assert found.seconds_per_item["wait"] == found.seconds_per_batch


def test_streams_have_their_wait_and_the_reason() -> None:
    class Numbers(Stream):
        def __iter__(self) -> Any:
            return iter(torch.zeros(32, 8))

    (found,) = facts_of(DataLoader(Numbers(), batch_size=8)).loaders
    assert set(found.seconds_per_item) == {"wait"} and "stream" in found.not_split


def test_what_a_technique_serves_is_not_taken_for_the_data_sets_cost() -> None:
    class Own:
        _dataset, _num_workers = Naps(), 0

    with pytest.raises(Served):
        Fetching.by_iterator(Own())
    iterator = iter(DataLoader(Naps(), batch_size=8))
    iterator._dataset_fetcher = Own()
    with pytest.raises(Served):
        Fetching.by_iterator(iterator)


class WithItsOwn(Naps):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(1)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + self.generator.random()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("dataset", "draws"), [(Naps(Nap()), True), (WithItsOwn(), True), (Naps(), False)])
def test_it_is_seen_whether_items_draw_random_numbers(dataset: Any, draws: bool, workers: int) -> None:
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=workers)  # which draws as well
    assert examine(Fetching.by_loader(loader)).draws is draws
    (found,) = facts_of(loader).loaders
    assert found.draws is draws
    (found,) = facts_of(loader, costs=False).loaders
    assert found.draws is None, "it was not looked at"


@pytest.mark.parametrize(("dataset", "draws"), [(Naps(Nap()), True), (Naps(), None)])
def test_a_few_items_without_a_draw_say_nothing_of_the_others(
    dataset: Any, draws: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_SECONDS", 0.0)
    assert examine(Fetching.by_loader(DataLoader(dataset, batch_size=8))).draws is draws


def test_loaders_that_draw_and_others_together_say_nothing() -> None:
    def facts(*draws: bool | None, **more: Any) -> Facts:
        return Facts(loaders=tuple(LoaderFacts(8, 0, True, 40, 0.01, draws=each, **more) for each in draws))

    found = [facts(*each).items_draw() for each in ((), (True,), (False,), (True, True), (True, False), (True, None))]
    assert found == [None, True, False, True, None, None]
    later = facts(None, seconds_per_item={"wait": 0.1}).with_costs_of(facts(True, seconds_per_item={"decode": 0.5}))
    assert later.items_draw() is True


def test_facts_are_plain_data_and_old_ones_are_still_read() -> None:
    facts = Facts(loaders=(LoaderFacts(8, 0, True, 40, 0.01, seconds_per_item={"decode": 0.5}),), shared_memory=7)
    assert from_json(Facts, json.loads(json.dumps(to_json(facts)))) == facts
    old = {"batch_size": 8, "workers": 0, "map_style": True, "length": 40, "seconds_per_batch": 0.01}
    assert from_json(Facts, {"loaders": [old]}).loaders[0].seconds_to_make is None


def test_costs_outlive_the_adoption_of_other_techniques() -> None:
    plain = Facts(loaders=(LoaderFacts(8, 0, True, 40, 0.01, seconds_per_item={"decode": 0.5, "wait": 1.0}),))
    later = Facts(loaders=(LoaderFacts(8, 2, True, 40, 0.001, seconds_per_item={"wait": 0.1}),))
    assert later.with_costs_of(plain).loaders[0].seconds_per_item == {"decode": 0.5, "wait": 0.1}
    served = Facts(loaders=(LoaderFacts(8, 0, True, 40, 0.001, own_fetch=False),))
    assert served.with_costs_of(plain) == served


def test_workers_fit_into_the_shared_memory_or_are_fewer() -> None:
    mega = 1 << 20
    assert shared_memory.fitting(4, 2, mega, 100 * mega) == (4, 2)
    assert shared_memory.fitting(4, 2, mega, 9 * mega) == (4, 1)
    assert shared_memory.fitting(4, 2, mega, 5 * mega) == (2, 1)
    assert shared_memory.fitting(4, 2, mega, 3 * mega) == (0, 0)
    for free in range(1, 40):
        workers, prefetch = shared_memory.fitting(4, 3, mega, free * mega)
        assert shared_memory.needed(workers, prefetch, mega) <= 0.8 * free * mega
    assert shared_memory.free_shared_memory("/no/such/place") is None
