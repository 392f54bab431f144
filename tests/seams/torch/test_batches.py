"""Batches of classes of the program's own: looked into where it can be done, and never a reason to stop watching."""

from __future__ import annotations

from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from overdrive.datacache.cost.fetching import bytes_in
from overdrive.seams.batches import leading_size, leaves
from overdrive.seams.torch.iterators import samples_in
from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session
from overdrive.worker.torch.checksums import checksum
from overdrive.worker.torch.probe import Probe
from overdrive.worker.torch.sketch import sketch

Returns = namedtuple("Returns", "states actions values")


class Strict(dict):  # type: ignore[type-arg]
    __getattr__ = dict.__getitem__


class Lenient(dict):  # type: ignore[type-arg]
    __getattr__ = dict.get


class Store(UserDict):  # type: ignore[type-arg]
    """As transformers' BatchEncoding."""


class Graph:
    """As PyTorch Geometric's Data: methods of a tensor's, and all else is asked of what it holds."""

    def __init__(self, **given: Any) -> None:
        self.__dict__["_store"] = given

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_store"][name]
        except KeyError:
            raise AttributeError(f"no attribute '{name}'") from None

    def detach(self) -> Graph:
        return self

    def to(self, device: Any) -> Graph:
        return self


class Padded:
    """As DETR's NestedTensor."""

    def __init__(self, tensors: torch.Tensor) -> None:
        self.tensors, self.mask, self.whole = tensors, None, self  # it holds itself

    def to(self, device: Any) -> Padded:
        return self


@dataclass
class Pair:
    given: torch.Tensor
    text: str = "text"


class Refusing:
    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


KINDS: dict[str, Any] = {
    "a named tuple with values": lambda x: Returns(x, 1, 2.0),
    "a dictionary that raises": lambda x: Strict(x=x),
    "a dictionary that answers for all": lambda x: Lenient(x=x),
    "a dictionary that is none": lambda x: Store(x=x),
    "a graph": lambda x: Graph(x=x, number=3),
    "a class of its own": Padded,
    "a data class": Pair,
    "a mixture": lambda x: [Refusing(), {"a": (Pair(x), None)}],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_told_by_its_tensors_whatever_class_holds_them(kind: str) -> None:
    make = KINDS[kind]
    one, same, other = (make(torch.full((5, 2), float(value))) for value in (1, 1, 2))
    assert leading_size(one) == 5 and bytes_in(one) == 5 * 2 * 4
    assert checksum(one) == checksum(same) != checksum(other)
    assert sketch(one) == sketch(same) != sketch(other)


def test_arrays_are_told_apart_too() -> None:
    one, other = torch.zeros(3).numpy(), torch.ones(3).numpy()
    assert checksum([one]) == checksum([one.copy()]) != checksum([other])


def test_nested_tensors_have_as_many_rows_as_tensors() -> None:
    assert leading_size(torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.strided)) == 2


def test_a_batch_that_refuses_everything_has_no_samples() -> None:
    thing = Refusing()
    assert leading_size(thing) == 0 and checksum(thing) == 0 and list(leaves(thing)) == [thing]


def watched(loader: Any, loss: Any) -> tuple[Recorder, Probe, Session]:
    recorder, probe = Recorder(losses=True), Probe(8)
    weight = torch.nn.Parameter(torch.zeros(1))
    with Session([], [recorder, probe]) as session:
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for step, batch in enumerate(loader, 1):
            loss(batch, weight).backward()
            optimizer.step()
            probe.stepped(step)
        assert not session.seams.left_out
    return recorder, probe, session


@pytest.mark.parametrize("kind", KINDS)
def test_steps_on_any_batch_are_watched(kind: str) -> None:
    loader = DataLoader(
        list(torch.arange(12.0)), batch_size=4, collate_fn=lambda items: KINDS[kind](torch.stack(items))
    )
    recorder, probe, _ = watched(loader, lambda batch, weight: weight.sum())
    assert recorder.clock.steps == 3 and recorder.samples == 12
    assert len(set(probe.batch_hashes)) == 3


def test_a_batch_of_graphs_has_as_many_samples_as_graphs() -> None:
    """Its first tensor is of all graphs' nodes, the next of edges, which have two ends."""

    def joined(graphs: list[int]) -> dict[str, torch.Tensor]:
        return {"nodes": torch.zeros(sum(graphs), 7), "edges": torch.zeros(2, 30), "labels": torch.zeros(len(graphs))}

    batches = iter(DataLoader([3, 5, 4, 6, 2, 7, 3, 5], batch_size=4, collate_fn=joined))  # type: ignore[arg-type]
    assert [samples_in(batches, batch) for batch in batches] == [4, 4]
    whole = iter(DataLoader(torch.zeros(6, 3), batch_size=4))  # type: ignore[arg-type]
    assert [samples_in(whole, batch) for batch in whole] == [4, 2]


def test_a_detector_s_batches_are_lists_of_pictures() -> None:
    """Their first tensor's rows are its colours."""
    pictures = [(torch.zeros(3, 8, 8 + place), {"boxes": torch.zeros(1 + place % 3, 4)}) for place in range(8)]
    loader = DataLoader(pictures, batch_size=4, collate_fn=lambda items: tuple(zip(*items, strict=True)))  # type: ignore[arg-type]
    recorder, probe, _ = watched(loader, lambda batch, weight: (batch[0][0].sum() * weight).sum())
    assert recorder.samples == 8 and recorder.clock.steps == 2
    assert probe.facts(recorder).loaders[0].batch_size == 4


def test_a_loader_s_own_generator_is_watched() -> None:
    class Own(DataLoader):  # type: ignore[type-arg]
        def _get_iterator(self) -> Any:
            return (torch.full((4,), float(number)) for number in range(3))

    seen: list[Any] = []

    def observe(seams: Any) -> None:
        seams.loader_opens.subscribe(lambda loader, call: call())
        seams.batch_fetched.subscribe(lambda iterator, batch, seconds: seen.append(batch))

    with Session([], [observe]) as session:
        batches = list(Own(range(3)))  # type: ignore[arg-type]
        assert not session.seams.left_out
    assert len(batches) == len(seen) == 3


def test_all_batches_whose_gradients_a_step_gathers_count() -> None:
    """transformers' Trainer fetches them first, and then calls; evaluation between steps counts for nothing."""
    recorder = Recorder()
    weight = torch.nn.Parameter(torch.zeros(1))
    with Session([], [recorder]):
        optimizer = torch.optim.SGD([weight], lr=0.1)
        batches = iter(DataLoader(torch.zeros(20, 1), batch_size=4))  # type: ignore[arg-type]
        for gathered in (2, 2, 1):
            for batch in [next(batches) for _ in range(gathered)]:
                (batch * weight).sum().backward()
            optimizer.step()
            for _ in DataLoader(torch.zeros(9, 1), batch_size=3):  # type: ignore[arg-type]
                pass
    assert recorder.clock.steps == 3 and recorder.samples == 20
