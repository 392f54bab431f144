"""The seams see what a program does, alter it where asked, and leave no trace."""

from __future__ import annotations

import operator
import os
import pickle
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, dataloader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from overdrive.seams.hub import Seams
from overdrive.seams.points import OBSERVER
from overdrive.seams.torch import iterators, loader_warnings
from overdrive.worker.session import Session

PATCHED = [
    (torch.optim.Optimizer, "__init__"),
    (torch.optim.Optimizer, "zero_grad"),
    (nn.Module, "zero_grad"),
    (nn.Module, "__call__"),
    (torch.autograd, "backward"),
    (DataLoader, "__iter__"),
    (_BaseDataLoaderIter, "__next__"),
    (torch, "manual_seed"),
    (torch.random, "manual_seed"),
    (torch.cuda, "manual_seed"),
    (torch.cuda, "manual_seed_all"),
]


def attributes() -> list[Any]:
    return [vars(holder).get(name) for holder, name in PATCHED]


def listening(seen: list[Any]) -> Any:
    def observer(seams: Seams) -> None:
        seams.optimizer_made.subscribe(lambda optimizer, models: seen.append(("made", list(models))))
        seams.step_begins.subscribe(lambda optimizer: seen.append("begins"))
        seams.step_ends.subscribe(lambda optimizer: seen.append("ends"))
        seams.loss_backward.subscribe(lambda loss: (seen.append("backward"), loss)[1])
        seams.batch_fetched.subscribe(lambda *_: seen.append("batch"))
        seams.seed_set.subscribe(lambda seed: (seen.append("seed"), seed)[1])

        def called(model: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(("called", type(model).__name__))
            return call(*args, **kwargs)

        seams.model_called.subscribe(called)
        seams.gradients_zeroed.subscribe(lambda owner, call, set_to_none: call(set_to_none))
        seams.loader_opens.subscribe(lambda loader, call: (seen.append("opens"), call())[1])

    return observer


def train(steps: int = 2) -> tuple[nn.Module, float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(2 * steps, 4), torch.randint(2, (2 * steps,)))
    loss = torch.zeros(())
    for x, y in DataLoader(data, batch_size=2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return model, loss.item()


def are(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """What stands in the place of a function is equal to it."""
    return all(map(operator.is_, now, before)) and len(now) == len(before)


def test_every_patched_attribute_is_put_back() -> None:
    before = attributes()
    with Session(observers=[listening([])]):
        assert all(one is not other for one, other in zip(attributes(), before, strict=True))
    assert are(attributes(), before)


def test_nothing_is_patched_without_a_subscriber() -> None:
    before = attributes()
    with Session():
        assert are(attributes(), before)


def test_sees_one_step_in_its_order() -> None:
    seen: list[Any] = []
    with Session(observers=[listening(seen)]):
        model, _ = train(steps=1)
    assert seen == [
        "seed",
        ("made", [model]),
        "opens",
        "batch",
        ("called", "Sequential"),  # the outermost call only
        "backward",
        "begins",
        "ends",
    ]


def test_observing_changes_no_bit() -> None:
    plain = train(8)[1]
    with Session(observers=[listening([])]):
        assert train(8)[1] == plain


def test_sessions_may_follow_one_another() -> None:
    seen: list[Any] = []
    for _ in range(2):
        with Session(observers=[listening(seen)]):
            train(1)
    assert seen.count("ends") == 2


def test_a_failing_subscriber_is_left_out_and_the_program_goes_on() -> None:
    said: list[tuple[str, str]] = []
    hub = Seams(lambda name, reason: said.append((name, reason)))
    undone: list[str] = []

    def fails(*_: Any) -> None:
        raise RuntimeError("no such luck\nand more")

    with hub.owned_by("lucky"):
        hub.step_ends.subscribe(fails)
        hub.on_undo(lambda: undone.append("lucky"))
    hub.step_ends.publish(None)
    hub.step_ends.publish(None)
    assert said == [("lucky", "RuntimeError: no such luck")]
    assert undone == ["lucky"] and not hub.step_ends.subscribers


def test_an_error_of_the_program_passes_through_a_subscriber() -> None:
    hub = Seams()
    with hub.owned_by("innocent"):
        hub.loader_opens.subscribe(lambda loader, call: call())

    def corrupt() -> None:
        raise ValueError("corrupt image")

    with pytest.raises(ValueError, match="corrupt image"):
        hub.loader_opens.run(None, corrupt)
    assert not hub.left_out


def test_an_error_of_a_subscriber_falls_back_to_the_plain_call() -> None:
    hub = Seams()
    with hub.owned_by("clumsy"):
        hub.loader_opens.subscribe(lambda loader, call: 1 / 0)
    assert hub.loader_opens.run(None, lambda: "batches") == "batches"
    assert "ZeroDivisionError" in hub.left_out["clumsy"]


def test_a_model_that_fails_with_a_technique_is_called_plainly_with_the_same_random_numbers() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)
            self.fc = nn.Linear(48, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.dropout(self.norm(x), 0.5, True)
            if not x.is_contiguous():
                raise RuntimeError("view size is not compatible")
            return self.fc(x.view(x.size(0), -1))

    def outcome() -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(1)
        model = Net()
        torch.optim.SGD(model.parameters(), lr=0.1)
        out = model(torch.randn(4, 3, 4, 4))
        assert model.norm.running_mean is not None
        return out, model.norm.running_mean

    plain = outcome()

    def install(seams: Seams) -> None:
        def channels_last(model: Any, call: Any, x: torch.Tensor) -> Any:
            return call(x.contiguous(memory_format=torch.channels_last))

        with seams.owned_by("layout"):
            seams.model_called.subscribe(channels_last)

    with Session(observers=[install]) as session:
        altered = outcome()
    assert torch.equal(plain[0], altered[0]) and torch.equal(plain[1], altered[1])
    assert "view size" in session.seams.left_out["layout"]


def test_a_call_made_again_draws_the_same_from_every_random_generator() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.fc = nn.Linear(144, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = random.random() + np.random.rand() + random.gauss(0, 1) + np.random.randn()
            x = torch.dropout(self.conv(x * scale), 0.5, True)
            return self.fc(x.view(x.size(0), -1))

    def losses() -> list[float]:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for _ in range(3):
            loss = model(torch.randn(4, 3, 8, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    def ends() -> tuple[float, ...]:
        return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(1).item()

    plain, plain_ends = losses(), ends()
    with Session([("channels_last", {})]) as session:
        altered, altered_ends = losses(), ends()
    assert "view" in session.seams.left_out["channels_last"]
    assert altered == plain and altered_ends == plain_ends


def test_observers_are_never_blamed_for_the_programs_failure() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("the program's own")

    with Session(observers=[listening([])]) as session, pytest.raises(ValueError, match="own"):
        Broken()(torch.zeros(1))
    assert OBSERVER not in session.seams.left_out


def test_what_a_technique_reads_ahead_counts_when_the_program_takes_it() -> None:
    taken: list[int] = []

    def ahead(loader: Any, call: Any) -> Any:
        return iter(list(call()))  # the whole epoch before the program has had a batch

    def observer(seams: Seams) -> None:
        seams.loader_opens.subscribe(ahead)
        seams.batch_fetched.subscribe(lambda iterator, batch, seconds: taken.append(len(iterator._dataset)))

    with Session(observers=[observer]):
        batches = iter(DataLoader(TensorDataset(torch.arange(12)), batch_size=4))
        counts = [(len(next(batches)[0]), len(taken)) for _ in range(3)]
    assert counts == [(4, 1), (4, 2), (4, 3)]
    assert taken == [12, 12, 12]


def test_an_operator_is_answered_by_name_and_only_what_is_listened_to_is_patched() -> None:
    before, x = (torch.conv2d, nn.functional.conv2d, torch.max_pool2d), torch.ones(1, 1, 2, 2)

    def observer(seams: Seams) -> None:
        seams.operator_called("max_pool2d").subscribe(lambda plain, args, kwargs: plain(*args, **kwargs) + 1)
        with seams.owned_by("mistaken"):
            seams.operator_called("max_pool_2d").subscribe(lambda plain, args, kwargs: None)

    with Session(observers=[observer]) as session:
        assert nn.MaxPool2d(2)(x).item() == 2
        assert are((torch.conv2d, nn.functional.conv2d), before[:2]) and torch.max_pool2d is not before[2]
        assert session.seams.left_out == {"mistaken": "no operator is called 'max_pool_2d'"}
    assert are((torch.conv2d, nn.functional.conv2d, torch.max_pool2d), before)


def test_what_stands_in_the_place_of_an_operator_is_pickled_by_its_name() -> None:
    """As a model that holds one is, where the program saves it as a whole or sends it to another process."""

    def observer(seams: Seams) -> None:
        for name in ("conv", "reshape"):
            seams.operator_called(name).subscribe(lambda plain, args, kwargs: None)
        seams.random_drawn.subscribe(lambda name, plain, args, kwargs: None)
        seams.shape_asked.subscribe(lambda subject, call: call())
        seams.value_read.subscribe(lambda name, call: call())

    def held() -> list[Any]:
        F = nn.functional
        of_torch = [torch.flatten, torch.conv2d, torch.randn, torch.dropout, torch.nonzero, torch.where, torch.equal]
        return [*of_torch, F.conv2d, F.one_hot, F.scaled_dot_product_attention]

    before = held()
    with Session(observers=[observer]):
        ours = held()
        saved = pickle.dumps(ours)
        assert all(one is other for one, other in zip(pickle.loads(saved), ours, strict=True))
    assert not any(one is other for one, other in zip(ours, before, strict=True))
    assert all(one is other for one, other in zip(pickle.loads(saved), before, strict=True))


class Doubling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class Transformed(Dataset):
    """Each sample passes a module without parameters; `model`: and one with some."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.transform = Doubling()
        self.model = model

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        x = self.transform(torch.full((3,), float(index)))
        return x if self.model is None else self.model(x).detach()


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        data = Transformed()
        return (data[index] for index in range(len(data)))


def collate_through_a_module(samples: list[torch.Tensor]) -> torch.Tensor:
    return Doubling()(torch.stack(samples))


LOADERS = {
    "items": lambda: DataLoader(Transformed(), 2),
    "stream": lambda: DataLoader(Stream(), 2),
    "collated": lambda: DataLoader([torch.ones(3)] * 4, 2, collate_fn=collate_through_a_module),
    "in a worker": lambda: DataLoader(Transformed(), 2, num_workers=1),
}


@pytest.mark.parametrize("name", LOADERS)
def test_transforms_are_no_models(name: str) -> None:
    """torchvision's are modules. What techniques do to models is not for them, and no proof may count their calls."""

    def changing(seams: Seams) -> None:
        seams.model_called.subscribe(lambda model, call, x: call(x) + 100)

    plain = torch.stack(list(LOADERS[name]()))
    with Session(observers=[changing]):
        batches = torch.stack(list(LOADERS[name]()))
        assert Doubling()(torch.ones(1)) == 102  # the program's own call
    assert torch.equal(batches, plain)


def test_calls_within_a_transform_are_nobodys() -> None:
    """Their tensors have no memory to look at, nor has what is made of others there."""
    model, batch, seen = nn.Linear(2, 1), torch.ones(3, 2), []

    def looks(seams: Seams) -> None:
        seams.model_called.subscribe(lambda module, call, given: (seen.append(given.numpy()), call(given))[1])

    with Session([], [looks]) as session:
        torch.func.vmap(model)(batch)
        torch.func.grad(lambda weight: torch.func.functional_call(model, {"weight": weight}, batch).sum())(model.weight)
        model(batch)
    assert len(seen) == 1 and session.seams.left_out == {}


def test_a_model_that_its_data_set_calls_is_heard_of() -> None:
    """A technique may have moved it, or changed its weights' precision, and has to look after each of its calls."""
    seen: list[Any] = []
    with Session(observers=[listening(seen)]):
        list(DataLoader(Transformed(nn.Linear(3, 3)), 2))
    assert [each for each in seen if each[0] == "called"] == 4 * [("called", "Linear")]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_of_another_kind_warns_as_the_programs_own(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python shows a warning once for each line: from another line it would be shown once more."""
    shown: list[Any] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(warnings, "showwarning", lambda *told: shown.append((str(told[0]), *told[1:4])))

    def warning(opening: Callable[[DataLoader], Any], workers: int) -> list[Any]:
        with warnings.catch_warnings():
            warnings.resetwarnings()
            opening(DataLoader([1, 2], num_workers=workers, pin_memory=True))
        found, shown[:] = [each for each in shown if "pin_memory" in each[0]], []
        return found

    def other(loader: DataLoader) -> Any:
        with loader_warnings.warned_as(workers=bool(workers)):
            return iter(loader)

    plain = warning(iter, workers)
    assert len(plain) == 1 and warning(other, 1 - workers) == plain
    if workers:
        assert warning(lambda loader: iterators.open_without_workers(loader, lambda: iter(loader)), 1) == plain
    assert dataloader.warnings is warnings


@pytest.mark.parametrize("lasts", [True, False])
def test_workers_that_live_on_are_warned_of_as_they_begin_alone(lasts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program keeps one processor after its first epoch: fewer than PyTorch thinks good for two workers."""

    def warnings_of(opening: Callable[[DataLoader], Any]) -> int:
        loader = DataLoader([1, 2], num_workers=2, persistent_workers=lasts)
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            for processors in ({0, 1}, {0}):
                monkeypatch.setattr(os, "sched_getaffinity", lambda process, those=processors: those)
                assert list(opening(loader)) == [torch.tensor([1]), torch.tensor([2])]
        return sum("suggested max number of worker" in str(each.message) for each in shown)

    def other(loader: DataLoader) -> Any:
        with loader_warnings.warned_as(2, goes_on=lasts and iterators.kept_open(loader) is not None):
            return iter(loader)

    assert warnings_of(iter) == (0 if lasts else 1)
    assert warnings_of(other) == warnings_of(iter)
    assert warnings_of(lambda loader: iterators.open_without_workers(loader, lambda: iter(loader))) == warnings_of(iter)
