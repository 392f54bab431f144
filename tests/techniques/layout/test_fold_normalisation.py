"""`fold_normalisation`: evaluation without its normalisations, to rounding; the model as it was."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.session import Session

PLAN = [("fold_normalisation", {})]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.fc, self.last = nn.Linear(4, 5), nn.BatchNorm1d(5, affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.fc(F.relu(self.norm(self.conv(x))).mean((2, 3))))


def trained(model: nn.Module) -> nn.Module:
    """With statistics and scales that are not those of the beginning."""
    torch.manual_seed(1)
    for _ in range(3):
        model(torch.randn(8, 3, 8, 8) * 2 + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


@pytest.fixture
def normalisations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one at each batch normalisation that is computed."""
    computed: list[int] = []
    plain = torch.batch_norm
    monkeypatch.setattr(torch, "batch_norm", lambda *args: computed.append(1) or plain(*args))
    return computed


def test_it_is_folded_from_the_second_call_and_the_model_is_as_it_was(normalisations: list[int]) -> None:
    model, x = trained(Net()), torch.randn(2, 3, 8, 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    objects = [id(parameter) for parameter in model.parameters()]
    with torch.no_grad():
        expected = model(x)
        normalisations.clear()
        with Session(PLAN) as session:
            first, second = model(x), model(x)
    assert len(normalisations) == 2 and not session.seams.left_out
    assert torch.equal(first, expected) and type(first) is torch.Tensor
    assert torch.allclose(second, expected, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [id(parameter) for parameter in model.parameters()] == objects
    assert "forward" not in vars(model.norm) and not model.conv._forward_hooks  # type: ignore[union-attr,arg-type]


@pytest.mark.parametrize("how", ["in place", "data in place", "data", "buffer", "loaded", "half"])
def test_weights_that_changed_are_seen_however_they_were_written(how: str) -> None:
    model, x = trained(Net()), torch.randn(2, 3, 8, 8)
    with torch.no_grad(), Session(PLAN):
        for _ in range(2):
            model(x)
        if how == "in place":
            model.conv.weight.mul_(2)  # type: ignore[union-attr,operator]
        elif how == "data in place":
            model.conv.weight.data.mul_(2)  # type: ignore[union-attr,operator]
        elif how == "data":
            model.norm.weight.data = torch.randn(4)  # type: ignore[union-attr]
        elif how == "buffer":
            model.norm.running_var.add_(1)  # type: ignore[union-attr,operator]
        elif how == "half":
            model, x = model.double(), x.double()
        else:
            model.load_state_dict({name: value + 0.5 for name, value in model.state_dict().items()})
        after = model(x)
    with torch.no_grad():
        assert torch.allclose(after, model(x), rtol=1e-5, atol=1e-6)


def test_training_and_calls_with_gradients_are_left_alone(normalisations: list[int]) -> None:
    model, x = trained(Net()), torch.randn(2, 3, 8, 8)
    with Session(PLAN):
        for _ in range(3):
            model(x).sum().backward()
        model.train()
        with torch.no_grad():
            for _ in range(3):
                model(x)
    assert len(normalisations) >= 12 and all(parameter.grad is not None for parameter in model.conv.parameters())  # type: ignore[union-attr]


def residual(model: Any, x: torch.Tensor) -> torch.Tensor:
    h = model.conv(x)
    return model.norm(h) + h  # type: ignore[no-any-return]


def relu_between(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.norm(F.relu(model.conv(x)))  # type: ignore[no-any-return]


def called_twice(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.norm(model.conv(x)) + model.conv(x)  # type: ignore[no-any-return]


def kept(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.kept = model.conv(x)
    return model.norm(model.kept)  # type: ignore[no-any-return]


@pytest.mark.parametrize("middle", [residual, relu_between, called_twice, kept])
def test_what_else_uses_the_layers_result_gets_it_as_written(middle: Any) -> None:
    class Other(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return middle(self, x)  # type: ignore[no-any-return]

    model, x = trained(Other()), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected = model(x)
        with Session(PLAN) as session:
            assert all(torch.equal(model(x), expected) for _ in range(3))
    assert not session.seams.left_out and type(getattr(model, "kept", x)) is torch.Tensor


def test_a_hook_that_comes_later_sees_what_it_would_see() -> None:
    model, x = trained(Net()), torch.randn(2, 3, 8, 8)
    seen: list[torch.Tensor] = []
    with torch.no_grad(), Session(PLAN):
        for _ in range(2):
            model(x)
        model.conv.register_forward_hook(lambda module, given, made: seen.append(made.clone()))  # type: ignore[union-attr,operator]
        model(x)
    with torch.no_grad():
        assert torch.equal(seen[0], model.conv(x))  # type: ignore[operator]


def test_a_program_without_evaluation_is_told_so() -> None:
    assert "no evaluation" in str(
        catalogue()["fold_normalisation"].applies(Facts(own={"fold_normalisation": {"inference_calls": False}}))
    )
    assert catalogue()["fold_normalisation"].applies(Facts()) is None


@pytest.mark.parametrize("normalised", [True, False])
def test_models_without_batch_normalisation_are_told_so(normalised: bool) -> None:
    technique = catalogue()["fold_normalisation"]
    layers = [nn.Linear(3, 3), nn.BatchNorm1d(3) if normalised else nn.LayerNorm(3)]
    model, told = nn.Sequential(*layers).eval(), []
    with Session(observers=[lambda seams: told.append(technique.observe(seams))]), torch.no_grad():
        model(torch.randn(2, 3))
    report = told[0]
    assert report is not None and report()["batch_norms"] is normalised
    reason = technique.applies(Facts(own={technique.name: report()}))
    assert reason is None if normalised else "no model that is evaluated" in str(reason)


@pytest.mark.parametrize("how", ["attribute", "global", "value", "kind"])
def test_a_use_of_the_layers_result_that_begins_late_is_seen(how: str) -> None:
    """A residual that is switched on later, by whatever the model's code looks at."""

    class Late(Net):
        skip = False

        def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
            h = self.conv(x)
            y = self.norm(h)
            if self.skip or SETTINGS["skip"] or skip or (how == "value" and x.max() > 50):
                y = y + h
            return self.last(self.fc(F.relu(y).mean((2, 3))))

    model, x = trained(Late()), torch.randn(2, 3, 8, 8)
    given: tuple[Any, ...] = (x,)
    with torch.no_grad(), Session(PLAN) as session:
        for _ in range(3):
            model(x)
        if how == "attribute":
            model.skip = True
        elif how == "global":
            SETTINGS["skip"] = True
        elif how == "kind":
            given = (x, True)
        else:
            given = (x * 100,)
        late = [model(*given) for _ in range(3)]
    try:
        with torch.no_grad():
            expected = model(*given)
    finally:
        SETTINGS["skip"] = False
    assert all(torch.allclose(each, expected, rtol=1e-4, atol=1e-5) for each in late) and not session.seams.left_out


SETTINGS = {"skip": False}


def test_a_call_that_comes_in_another_thread_gets_no_folded_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """It came while the first was folded, and the first ended in its midst: normalised twice."""
    model = trained(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)))
    x, found = torch.randn(2, 3, 8, 8), {}
    inside, second_inside, over = threading.Event(), threading.Event(), threading.Event()
    plain = F.conv2d

    def conv2d(given: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        made = plain(given, *args, **kwargs)
        if given.shape[1] == 4 and threading.current_thread().name == "first":
            inside.set()
            second_inside.wait(0.5)
        elif given.shape[1] == 4 and threading.current_thread().name == "second":
            second_inside.set()
            over.wait(5)
        return made

    monkeypatch.setattr(F, "conv2d", conv2d)

    def answer() -> None:
        with torch.no_grad():
            found[threading.current_thread().name] = model(x)

    with torch.no_grad(), Session(PLAN) as session:
        expected, _ = model(x), model(x)
        first, second = (threading.Thread(target=answer, name=name) for name in ("first", "second"))
        first.start()
        assert inside.wait(5)
        second.start()
        first.join()
        over.set()
        second.join()
        found["after"] = model(x)
    assert "several threads" in session.seams.left_out["fold_normalisation"]
    assert all(torch.allclose(each, expected, rtol=1e-4, atol=1e-5) for each in found.values()) and len(found) == 3
    assert "forward" not in vars(model[1]) and torch.equal(found["after"], expected)


def test_calls_in_one_thread_after_another_are_folded(normalisations: list[int]) -> None:
    model, x = trained(Net()), torch.randn(2, 3, 8, 8)

    def answer() -> None:
        with torch.no_grad():
            model(x)

    with Session(PLAN) as session:
        answer()
        normalisations.clear()
        for _ in range(3):
            thread = threading.Thread(target=answer)
            thread.start()
            thread.join()
    assert not normalisations and not session.seams.left_out


def test_a_model_that_has_its_parts_called_in_other_threads_goes_on() -> None:
    """As `nn.DataParallel` does: its own call waits for them."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            halves = []

            def answer(half: torch.Tensor) -> None:
                with torch.no_grad():
                    halves.append(self.net(half))

            for half in x.chunk(2):
                thread = threading.Thread(target=answer, args=(half,))
                thread.start()
                thread.join()
            return torch.cat(halves)

    model, x = trained(Both()), torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        expected = model(x)
        with Session(PLAN):
            assert all(torch.allclose(model(x), expected, rtol=1e-4, atol=1e-5) for _ in range(4))
