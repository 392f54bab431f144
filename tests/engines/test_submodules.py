"""Where no engine can answer for a model, engines answer for modules within it, and the model's answers stay."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.engines.graph_runtime import Graphs
from tests.engines.test_answering import Served


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(torch.relu(self.first(x)))
        return result


class Sentences(nn.Module):
    """As an encoder of sentences is: what it is given is a dict, which it writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.scale = Encoder(), nn.Linear(1, 1)

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        features["embedding"] = self.encoder(features["x"]) * 2
        return features


class ByForward(Sentences):
    """As sentence-transformers does since its version 5."""

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        method = getattr(self.encoder, "forward")  # noqa: B009
        features["embedding"] = method(features["x"]) * 2
        return features


class Chooses(nn.Module):
    """As a detector does: its way depends on its data, between modules whose way does not."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(Encoder(), nn.Dropout(0.5), Encoder())
        self.heads = nn.ModuleList([Encoder(), Encoder()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.backbone(x)
        result: torch.Tensor = self.heads[0 if found.sum() > 0 else 1](found[found[:, 0] < 100])
        return result


class Draws(Sentences):
    """Its encoder does more than compute: no engine answers for that, but for what is within it."""

    class Inner(Encoder):
        def __init__(self) -> None:
            super().__init__()
            self.steady = Encoder()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.steady(x)) + torch.rand(x.shape)

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Draws.Inner()


def given(number: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(3, 4, generator=torch.Generator().manual_seed(number))}


def answers(model: nn.Module, calls: int = 12, of: Callable[[int], Any] = given) -> list[torch.Tensor]:
    torch.manual_seed(1)
    found = [model(of(number)) for number in range(calls)]
    return [each["embedding"] if isinstance(each, dict) else each for each in found]


def made(kind: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = kind().eval()
    return model


def rows(number: int) -> torch.Tensor:
    return given(number)["x"]


@pytest.mark.parametrize("recorded", [False, True], ids=["no_grad", "with gradients"])
@pytest.mark.parametrize(
    ("kind", "of", "least"),
    [(Sentences, given, 8), (ByForward, given, 5), (Chooses, rows, 6), (Draws, given, 6)],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_it_answers_within_and_the_programs_answers_are_the_same(
    kind: Any, of: Any, least: int, recorded: bool
) -> None:
    with torch.set_grad_enabled(recorded):
        expected = answers(made(kind), of=of)
        with Served(made(kind)) as served:
            found = answers(served.model, of=of)
    assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in zip(found, expected, strict=True))
    assert all(each.requires_grad is recorded for each in found)
    assert served.answers.answered == 0 and not served.answers.in_vain()
    assert sum(number for _, number in served.answers.within.values()) >= least
    assert Encoder.forward.__qualname__ == "Encoder.forward"


def test_what_is_told_says_what_answered_and_why_not_the_whole() -> None:
    with Served(made(Sentences)) as served, torch.no_grad():
        answers(served.model, 20)
    assert served.answers.told() == (
        "engine answered 0 of 20 calls; the model itself the others: a call writes to its inputs (20); "
        "within these it answered 17 of 19 calls of Encoder"
    )
    assert served.answers.settling == 3  # of a trial's calls, those in which it did not act as it will


def test_gradients_that_are_asked_for_after_all_are_the_models() -> None:
    for kind, of in ((Sentences, given), (Chooses, rows)):
        plain, model = made(kind), made(kind)
        torch.cat(answers(plain, of=of)).square().sum().backward()
        with Served(model):
            torch.cat(answers(model, of=of)).square().sum().backward()
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None)
            assert one.grad is None or torch.allclose(one.grad, other.grad, rtol=1e-3, atol=1e-6)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "weights": lambda model: model.encoder.first.weight.data.mul_(2),
    "another module": lambda model: setattr(model, "encoder", Encoder().eval()),
    "a hook": lambda model: model.encoder.register_forward_hook(lambda module, args, result: result + 1),
    "an attribute": lambda model: setattr(model.encoder, "second", nn.Identity()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_the_program_changes_within_counts_at_once(change: Callable[[Any], Any]) -> None:
    model = made(Sentences)
    with Served(model) as served, torch.no_grad():
        answers(model, 12)
        torch.manual_seed(3)
        change(model)
        found = answers(model, 12)
        expected = [served.own(given(number))["embedding"] for number in range(12)]  # type: ignore[call-overload]
    assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in zip(found, expected, strict=True))


def test_a_wrong_engine_is_caught_within_too() -> None:
    with Served(made(Sentences), Graphs(spoilt=lambda array: array * 1.01)) as served, torch.no_grad():
        found = answers(served.model)
    with torch.no_grad():
        assert all(map(torch.equal, found, answers(made(Sentences))))
    assert not any(number for _, number in served.answers.within.values()) and served.answers.in_vain()


def test_an_engine_that_fails_within_is_left_out_and_the_call_is_made() -> None:
    turned: list[bool] = []

    def broken(array: Any) -> Any:
        if turned:
            raise RuntimeError("the library fails")
        return array

    served = Served(made(Sentences), Graphs(spoilt=broken))
    with torch.no_grad():
        expected = answers(made(Sentences))
        served.__enter__()
        answers(served.model)
        turned.append(True)
        found = answers(served.model)
    assert all(map(torch.equal, found, expected))
    assert "the library fails" in served._session.seams.left_out["engine"]
    served._session.__exit__(None, None, None)


def test_hooks_on_one_module_leave_the_others_to_engines() -> None:
    model, seen = made(Chooses), []
    model.heads[0].register_forward_hook(lambda *_: seen.append(0))  # type: ignore[index]
    model.heads[1].register_forward_hook(lambda *_: seen.append(1))  # type: ignore[index]
    with Served(model) as served, torch.no_grad():
        answers(model, 12, of=rows)
    assert len(seen) == 12 and served.answers.within["Sequential"][1] > 6
    assert not served.answers.within["Encoder"][1]


class Checkpointed(Chooses):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = checkpoint(self.backbone, x, use_reentrant=False)
        return found if found.sum() > 0 else found * 2  # type: ignore[no-any-return]


def test_what_is_called_within_a_checkpoint_is_as_it_is() -> None:
    """It counts what is saved for a backward pass, and the second call is not to save other things."""
    plain, model = made(Checkpointed), made(Checkpointed)
    torch.cat(answers(plain, of=rows)).square().sum().backward()
    with Served(model):
        torch.cat(answers(model, of=rows)).square().sum().backward()
    for one, other in zip(plain.backbone.parameters(), model.backbone.parameters(), strict=True):  # type: ignore
        assert torch.equal(one.grad, other.grad)


def test_a_model_within_which_nothing_can_be_answered_is_left_alone() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) if x.sum() > 0 else self.other(x)  # type: ignore[no-any-return]

    with Served(made(Single)) as served, torch.no_grad():
        answers(served.model, 12, of=rows)
    assert not served.answers.within and "cannot be exported" in served.answers.in_vain()


def test_two_threads_are_told_of_their_own_modules() -> None:
    """What one thread's call is within is nothing to another thread, whose answers are the model's at worst."""
    model, found = made(Sentences), {}
    with torch.no_grad():
        expected = answers(model, 40)

    def ask(name: str) -> None:
        with torch.no_grad():
            found[name] = answers(model, 40)

    with Served(model):
        threads = [threading.Thread(target=ask, args=(name,)) for name in "ab"]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    for each in found.values():
        assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in zip(each, expected, strict=True))
    assert len(found) == 2
