"""What was made for steps of training does the same at calls of a model that only answers."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from overdrive.techniques.catalogue import catalogue
from overdrive.worker.session import Session


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.max_pool2d(self.norm(self.conv(x)).relu(), 2).mean((2, 3)))


def program(watch: Any = lambda model: None, samples: int = 22) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Net().eval()
    model.norm.running_mean.normal_(0, 0.3)
    answers = []
    with torch.no_grad():
        for (x,) in DataLoader(TensorDataset(torch.randn(samples, 3, 12, 12)), batch_size=4):
            answers.append(model(x))
            watch(model)
    return answers


USED = [name for name, each in catalogue().items() if each.is_for(True) and not each.process_level]


@pytest.mark.parametrize("name", USED)
def test_the_answers_stay(name: str) -> None:
    if name == "compile" and not shutil.which("g++"):
        pytest.skip("there is no C++ compiler")
    expected = program()
    with Session([(name, {})], inference=True) as session:
        if session.seams.left_out:
            pytest.skip(session.seams.left_out[name])
        found = program()
    exact = str(catalogue()[name].contract) == "exact"
    narrow = str(catalogue()[name].contract) == "statistical"  # in 16 bits or fewer
    near = {"rtol": 0.05, "atol": 0.02} if narrow else {"rtol": 1e-4, "atol": 1e-5}
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other) if exact else torch.allclose(one, other, **near)


SWITCHED = [name for name in USED if catalogue()[name].switchable and catalogue()[name].programs == ("inference",)]


@pytest.mark.parametrize("name", SWITCHED)
def test_switched_ten_times_the_answers_with_it_off_have_the_models_own_bits(name: str) -> None:
    expected, found = program(samples=46), []  # twelve answers
    with Session([(name, {})], inference=True) as session:
        if session.seams.left_out:
            pytest.skip(session.seams.left_out[name])
        handle = session.handles[name]

        def switch(model: Any) -> None:
            (handle.on if len(found) % 2 else handle.off)()
            found.append(handle.active)

        handle.off()
        answers = program(switch, samples=46)
    assert not session.seams.left_out and found[1:11] == 5 * [True, False]
    off = [True, *(not active for active in found[:-1])]
    assert all(
        torch.equal(*pair) for pair, plain in zip(zip(answers, expected, strict=True), off, strict=True) if plain
    )
    assert all(torch.allclose(*pair, rtol=1e-4, atol=1e-5) for pair in zip(answers, expected, strict=True))


def test_weights_are_laid_out_before_the_first_answer() -> None:
    formats = []
    with Session([("channels_last", {})], inference=True) as session:
        program(lambda model: formats.append(model.conv.weight.is_contiguous(memory_format=torch.channels_last)))
    assert formats == [True] * 6 and not session.seams.left_out


def test_the_model_is_compiled_before_its_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda model, **_: compiled.append(model))
    with Session([("compile", {})], inference=True):
        program()
    assert [type(each) for each in compiled] == [Net]


def test_training_begun_after_all_is_training() -> None:
    """Then the optimizer's steps are told, and calls are no steps any more."""
    model, ends = nn.Linear(4, 2), []
    with Session([("no_grad", {})], [lambda seams: seams.step_ends.subscribe(ends.append)], inference=True) as session:
        for _ in range(3):
            model(torch.randn(2, 4))
        assert not session.seams.left_out
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model.weight.clone()
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert "trains" in session.seams.left_out["no_grad"]
    assert torch.allclose(before - model.weight, torch.full((2, 4), 0.1 * 2 * 4))
    assert ends[4:] == [optimizer] * 4 and optimizer not in ends[:4]
