"""An engine answers only where that was proved; everything else is the model's own call."""

from __future__ import annotations

import math
import random
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from overdrive.engines.answering import EngineAnswers
from overdrive.engines.tally import Tally
from overdrive.seams.torch.models import follow_forward
from overdrive.worker.session import Session
from tests.engines.graph_runtime import Graphs


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)
        self.dropout = nn.Dropout(0.5)
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.dropout(F.relu(self.norm(self.conv(x)))).mean((2, 3))) * self.scale


class Served:
    """A model in a session in which an engine may answer."""

    def __init__(self, model: nn.Module, runtime: Graphs | None = None) -> None:
        torch.manual_seed(0)
        self.model, self.runtime = model, runtime or Graphs()

    def __enter__(self) -> Served:
        self._session = Session(inference=True)
        self._session.__enter__()
        seams = self._session.seams
        self.answers = EngineAnswers(self.runtime, "engine", follow=partial(follow_forward, seams))
        with seams.owned_by("engine"):
            seams.model_called.subscribe_innermost(self.answers.called)
            seams.submodule_called.subscribe_innermost(self.answers.submodule_called)
        seams.blameless.add("engine")
        return self

    def __exit__(self, *_: object) -> None:
        self._session.__exit__(None, None, None)
        assert not self._session.seams.left_out

    def warm(self, *args: Any, calls: int = 6) -> None:
        with torch.no_grad():
            for _ in range(calls):
                self.model(*args)

    def own(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The model's own answer."""
        self._session.seams.switch("engine", False)
        try:
            result: torch.Tensor = self.model(*args, **kwargs)
            return result
        finally:
            self._session.seams.switch("engine", True)

    def answered(self, *args: Any) -> bool:
        """Whether an engine answers such a call; its answer is the model's in any case."""
        before = self.answers.answered
        with torch.no_grad():
            found, expected = self.model(*args), self.own(*args)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6, equal_nan=True)
        assert found.dtype == expected.dtype and found.stride() == expected.stride()
        return self.answers.answered > before


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_it_answers_once_its_first_two_answers_agreed(x: torch.Tensor) -> None:
    with Served(Net().eval()) as served:
        answered = [served.answered(x) for _ in range(100)]
    # Two to begin with; then the 32nd, 64th, … of those that it would answer.
    assert [place for place, each in enumerate(answered, start=1) if not each] == [1, 2, 34, 66]
    assert served.runtime.built == [[(4, 3, 8, 8)]]
    left = "made by both and compared (4)"
    assert served.answers.told() == f"engine answered 96 of 100 calls; the model itself the others: {left}"


def test_a_later_signature_gets_an_engine_when_it_comes_again(x: torch.Tensor) -> None:
    with Served(Net().eval()) as served:
        served.warm(x)
        assert [served.answered(x[:3]) for _ in range(4)] == [False, False, False, True]
    assert served.runtime.built == [[(4, 3, 8, 8)], [(3, 3, 8, 8)]]


def test_the_last_batch_is_the_models_until_its_size_is_proved(x: torch.Tensor) -> None:
    with Served(Net().eval()) as served:
        served.warm(x, calls=7)
        assert served.answered(x) and not served.answered(x[:3]) and served.answered(x)


def test_a_buffer_that_the_program_fills_for_each_call_can_grow(x: torch.Tensor) -> None:
    """`buffer.resize_(batch.shape).copy_(batch)`: PyTorch refuses that for a tensor once `numpy()` was asked of it."""
    buffer = torch.empty(0)
    with Served(Net().eval()) as served, torch.no_grad():
        for size in (2, 2, 2, 2, 3, 3, 3, 4):
            buffer.resize_(size, 3, 8, 8).copy_(x[:size])
            assert torch.allclose(served.model(buffer), served.own(x[:size]), rtol=1e-4, atol=1e-6)
        assert served.answers.answered


def test_where_other_threads_are_allowed_an_engine_with_as_many_answers(x: torch.Tensor) -> None:
    """A tune switches `threads` on and off around engines: built under one, they answered with one for good."""
    before = torch.get_num_threads()
    other = before % 2 + 1
    try:
        with Served(Net().eval()) as served:
            for threads in (before, other, before):
                torch.set_num_threads(threads)
                served.warm(x)
                assert served.answered(x)
    finally:
        torch.set_num_threads(before)
    assert served.runtime.threads == [before, other]


CHANGES: dict[str, Callable[[Net], Any]] = {
    "in place": lambda model: model.fc.weight.data.mul_(2),
    "by way of numpy": lambda model: model.fc.weight.detach().numpy().__setitem__(0, 3.0),
    "one value of a large tensor": lambda model: model.conv.weight.data.view(-1).__setitem__(7, 9.0),
    "a running mean": lambda model: model.norm.running_mean.add_(0.5),
    "another memory": lambda model: setattr(model.fc.weight, "data", torch.randn(5, 4)),
    "other strides of the same memory": lambda model: setattr(
        model.conv.weight, "data", model.conv.weight.data.transpose(2, 3)
    ),
    "another parameter": lambda model: setattr(model, "fc", nn.Linear(4, 5)),
    "a state dict": lambda model: model.load_state_dict({k: v * 1.5 for k, v in model.state_dict().items()}),
    "an attribute": lambda model: setattr(model, "scale", 2.0),
    "a module": lambda model: setattr(model, "norm", nn.Identity()),
    "its mode": lambda model: model.norm.train(),
    "a forward of its own": lambda model: setattr(model.fc, "forward", lambda x: x.new_ones(len(x), 5)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_engine_is_not_stale(change: Callable[[Net], Any], x: torch.Tensor) -> None:
    with Served(Net().eval()) as served:
        served.warm(x)
        assert served.answered(x)
        with torch.no_grad():
            change(served.model)
        assert not served.answered(x)


def test_it_is_built_anew_for_other_weights_and_kept_for_those_that_come_back(x: torch.Tensor) -> None:
    with Served(Net().eval()) as served:
        served.warm(x)
        first = {name: value.clone() for name, value in served.model.state_dict().items()}
        with torch.no_grad():
            served.model.fc.weight.mul_(2)
        served.warm(x, calls=6)
        assert served.answered(x) and len(served.runtime.built) == 2
        before = served.answers.answered
        served.model.load_state_dict(first)
        assert not served.answered(x)  # they are looked at first
        served.warm(x, calls=3)
        assert len(served.runtime.built) == 2 and served.answers.answered > before


def test_a_model_that_changes_all_the_time_is_left_alone(x: torch.Tensor) -> None:
    with Served(Net().eval()) as served:
        for _ in range(12):
            assert not served.answered(x)
            with torch.no_grad():
                served.model.fc.weight.mul_(1.01)
    assert "changes from call to call" in served.answers.told() and len(served.runtime.built) == 1


def test_hooks_training_autocast_and_modes_are_the_models_own(x: torch.Tensor) -> None:
    with Served(Net().eval()) as served:
        served.warm(x)
        hook = served.model.fc.register_forward_hook(lambda *_: None)
        assert not served.answered(x)
        hook.remove()
        assert served.answered(x)
        served.model._forward_pre_hooks = OrderedDict({0: lambda *_: None})  # in the place of where hooks were
        assert not served.answered(x) and not served.answered(x)
        served.model._forward_pre_hooks = OrderedDict()
        served.warm(x)
        with torch.autocast("cpu"):
            before = served.answers.answered
            served.model(x)
            assert served.answers.answered == before
        with torch.device("cpu"):
            assert not served.answered(x)
        assert served.answered(x)
        served.model.train()
        before = served.answers.answered
        served.model(x)
        assert served.answers.answered == before


def test_a_model_that_was_never_put_into_evaluation_mode_is_answered_where_that_makes_no_difference(
    x: torch.Tensor,
) -> None:
    with Served(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())) as served:
        served.warm(x)
        assert served.model.training and served.answered(x)


@pytest.mark.parametrize(
    ("layer", "why"),
    [(nn.Dropout(0.5), "it draws random numbers"), (nn.BatchNorm2d(4), "a call writes to the model's own tensors")],
    ids=["dropout", "batch statistics"],
)
def test_what_training_mode_changes_is_the_models_own_until_it_is_over(
    layer: nn.Module, why: str, x: torch.Tensor
) -> None:
    with Served(nn.Sequential(nn.Conv2d(3, 4, 3), layer)) as served:
        served.warm(x, calls=12)
        assert f"a part of the model is in training mode, and {why} (12)" in served.answers.told()
        served.model.eval()
        served.warm(x)
        assert served.answered(x)


def test_a_transform_of_pictures_is_none_of_the_calls_that_are_counted(x: torch.Tensor) -> None:
    class Resize(nn.Module):
        def forward(self, picture: object) -> torch.Tensor:
            return x

    with Served(Net().eval()) as served:
        for _ in range(6):
            served.warm(Resize()(object()), calls=1)
    assert "of 6 calls" in served.answers.told() and "object" not in served.answers.told()


class Chooses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) if x.sum() > 0 else -self.fc(x)


class Straight(Chooses):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


class Counts(Chooses):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.fc(x) + self.calls


class Draws(Chooses):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) + torch.randn(4)


class Remembers(Chooses):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.fc(x) + self.seen


class WritesToItsInput(Chooses):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x.mul_(0.5))


class HandsItsInputOn(Chooses):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1)


class HandsOutOneMemory(Chooses):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.fc(x)
        return made, made.view(-1)


class Prints(Chooses):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("asked")
        return self.fc(x)


class Reads(Chooses):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * float(open("/proc/self/stat").read().split()[0])


OF_MORE = (Chooses, Counts, Draws, Remembers, WritesToItsInput, HandsItsInputOn, HandsOutOneMemory, Prints, Reads)


@pytest.mark.parametrize("kind", OF_MORE)
def test_what_does_more_than_compute_is_never_answered_by_an_engine(kind: Any, capsys: Any) -> None:
    torch.manual_seed(0)
    alone, watched = kind().eval(), kind().eval()
    watched.load_state_dict(alone.state_dict())
    given = [torch.randn(3, 4) for _ in range(7)]
    with torch.no_grad():
        torch.manual_seed(5)
        expected = [alone(each.clone()) for each in given]
        said = capsys.readouterr().out
        with Served(watched) as served:
            torch.manual_seed(5)
            found = [watched(each.clone()) for each in given]
    leaves = torch.utils._pytree.tree_leaves
    assert all(map(torch.equal, leaves(found), leaves(expected))) and capsys.readouterr().out == said
    assert served.answers.answered == 0


def test_a_wrong_engine_is_caught_by_its_first_answers(x: torch.Tensor) -> None:
    def one_element(array: Any) -> Any:
        array.flat[3] += 0.05 * abs(array).max()
        return array

    orders = (lambda a: a[:, ::-1].copy(), lambda a: a[::-1].copy())
    spoiling = (*orders, lambda a: a * 1.001, lambda a: a[:3], one_element)
    for spoilt in spoiling:
        with Served(Net().eval(), Graphs(spoilt)) as served:
            for _ in range(8):
                assert not served.answered(x)
        assert served.answers.answered == 0


def test_an_engine_that_turns_wrong_is_caught_later(x: torch.Tensor) -> None:
    runtime = Graphs()
    with Served(Net().eval(), runtime) as served, torch.no_grad():
        served.warm(x, calls=7)
        runtime._spoilt = lambda array: array * 1.01
        for _ in range(32):
            served.model(x)
        before = served.answers.answered
        served.warm(x)
    assert served.answers.answered == before and "another one" in served.answers.told()


class Looks(nn.Module):
    """As attention in libraries does: a mask that hides nothing is left out, but not where a graph is made."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_exporting() and mask.all():
            return self.fc(x)
        return self.fc(x) * mask


def test_a_model_that_looks_at_values_but_exports_for_all_of_them_is_compared_more_often() -> None:
    with Served(Looks().eval()) as served, torch.no_grad():
        for request in range(100):
            given = torch.randn(3, 4), torch.rand(3, 4) > (0.5 if request > 20 else -1)
            assert torch.allclose(served.model(*given), served.own(*given))
    assert 80 < served.answers.answered < 96


class Calibrated(nn.Module):
    """Its normalisation averages over all batches, which reads their number in training; its own switch is a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)
        self.register_buffer("bounded", torch.tensor(True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.fc(x))
        return x.clamp(0, 6) if torch.compiler.is_exporting() or self.bounded.item() else x


def test_what_a_model_reads_in_training_or_of_its_own_tensors_is_no_look_at_values() -> None:
    with Served(Calibrated()) as served, torch.no_grad():
        served.model(torch.randn(3, 4))
        served.model.eval()
        for _ in range(100):
            given = torch.randn(3, 4)
            assert torch.allclose(served.model(given), served.own(given), atol=1e-6)
    assert served.answers.answered > 93


def test_such_a_model_is_compared_less_often_once_many_answers_agreed() -> None:
    tally = Tally()
    due = [number for number in range(1, 5001) if tally.due(looks=True)]
    assert due[:3] == [16, 32, 48] and due[-2:] == [4608, 4864]
    assert all(later - earlier in (16, 32, 64, 128, 256) for earlier, later in pairwise([0, *due]))


@dataclass(unsafe_hash=True)
class Sized(nn.Module):
    """Equal to any other of its size."""

    size: int = 4

    def __post_init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, self.size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def test_models_that_compare_equal_have_an_engine_each() -> None:
    one, other, rows = Sized().eval(), Sized().eval(), torch.randn(2, 4)
    assert one == other
    with Served(one) as served:
        served.warm(rows)
        with torch.no_grad():
            assert not torch.allclose(other(rows), one(rows)) and torch.equal(other(rows), other.fc(rows))


class Weighs(Chooses):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.fc(a) - 2 * self.fc(b)


class AsksWhetherTheyAreOne(Chooses):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.fc(a) if a is b else self.fc(a + b)


@pytest.mark.parametrize("kind", [Weighs, AsksWhetherTheyAreOne])
def test_one_tensor_given_twice_has_an_engine_of_its_own(kind: Any) -> None:
    """Exporting makes one input of the two: such an engine answers two tensors by the second alone."""
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    with Served(kind().eval()) as served:
        served.warm(a, a)
        assert served.answered(a, a) and not served.answered(a, b)
        served.warm(a, b)
        assert served.answered(a, b) and served.answered(b, a) and served.answered(b, b)


def test_one_tensor_given_twice_in_many_sizes_has_an_engine_of_its_own() -> None:
    with Served(Weighs().eval()) as served:
        for _ in range(4):
            for count in range(2, 12):
                given = torch.randn(count, 4)
                served.answered(given, given)
        assert served.answers.answered > 0
        for count in range(2, 12):
            assert not served.answered(torch.randn(count, 4), torch.randn(count, 4))


class TakesItsTable(Chooses):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.fc(x) * self.table + table


def test_an_input_that_is_one_of_the_models_own_tensors_is_the_models() -> None:
    x, other = torch.randn(3, 4), nn.Parameter(torch.randn(3, 4))
    with Served(TakesItsTable().eval()) as served:
        assert not any(served.answered(x, served.model.table) for _ in range(6))
        assert "an input is one of the model's own tensors" in served.answers.told()
        served.warm(x, other)
        assert served.answered(x, other) and not served.answered(x, served.model.table)


class Makes(Chooses):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) + torch.ones(4)


def test_a_default_type_that_the_program_sets_later_counts() -> None:
    given = torch.randn(3, 4)
    with Served(Makes().eval()) as served:
        served.warm(given)
        assert served.answered(given)
        torch.set_default_dtype(torch.float64)
        try:
            assert not served.answered(given), "its answer is of another type now"
        finally:
            torch.set_default_dtype(torch.float32)
        assert served.answered(given)


def test_a_forked_process_is_answered_by_the_model(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of an engine are those of the process that built it: in a child it would wait for them for ever."""
    with Served(Net().eval()) as served:
        served.warm(x)
        with monkeypatch.context() as in_child:
            in_child.setattr("os.getpid", lambda: -1)
            assert not served.answered(x)
        assert served.answers.left["a process that was forked has none of the engine's threads"] == 1
        assert served.answered(x)


def test_an_error_of_the_program_is_its_own(x: torch.Tensor) -> None:
    with Served(Net().eval()) as served:
        served.warm(x)
        with torch.no_grad(), pytest.raises(RuntimeError, match="channels"):
            served.model(x[:, :2])
        assert served.answered(x)


def test_an_engine_that_fails_is_left_out_and_the_call_is_made(x: torch.Tensor) -> None:
    runtime = Graphs()
    with Session([], inference=True) as session:
        answers = EngineAnswers(runtime, "engine")
        with session.seams.owned_by("engine"):
            session.seams.model_called.subscribe_innermost(answers.called)
        model = Net().eval()
        with torch.no_grad():
            for _ in range(6):
                model(x)
            runtime._spoilt = lambda array: 1 / 0
            assert torch.equal(model(x), model.forward(x))
    assert "ZeroDivisionError" in session.seams.left_out["engine"]


def test_gradients_that_are_asked_for_after_all_are_the_models(x: torch.Tensor) -> None:
    model = Net().eval()
    model(x).square().sum().backward()
    expected = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    with Served(model) as served:
        served.warm(x, calls=2)
        assert model(x).requires_grad and served.answers.answered == 0  # which shows what the model's own does
        result = model(x)
        assert served.answers.answered == 1 and result.requires_grad
        result.square().sum().backward()
    for each, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(each.grad, gradient, rtol=1e-4, atol=1e-6)


def test_no_answer_takes_a_walk_through_the_models_layers(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred layers each takes 0.2 ms, where gradients are recorded, of calls of 5 ms."""
    model, walks, walk = Net().eval(), [], nn.Module.named_modules

    def counted(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        walks.append(self)
        return walk(self, *args, **kwargs)

    with Served(model) as served:
        served.warm(x, calls=2)
        monkeypatch.setattr(nn.Module, "named_modules", counted)
        model(x)
        assert served.answers.answered == 0
        walks.clear()
        assert model(x).requires_grad and served.answers.answered == 1 and not walks
        model.requires_grad_(False)
        walks.clear()
        assert not model(x).requires_grad and not walks  # by the model, since it is another case
        assert not model(x).requires_grad and served.answers.answered == 2 and not walks
        model.fc.weight = nn.Parameter(torch.zeros_like(model.fc.weight))
        assert [model(x).requires_grad for _ in range(6)] == [True] * 6 and served.answers.answered > 2


def test_an_input_that_was_written_to_before_its_backward_pass_is_an_error_as_in_pytorch() -> None:
    """One buffer for all inputs: the gradient would be of the next one."""
    model, given = Straight().eval(), torch.randn(3, 4)
    with Served(model) as served:
        for _ in range(4):
            result = model(given)
        assert served.answers.answered > 0
        given.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


class Frozen(Chooses):
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


class Detaches(Chooses):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"features": self.fc(x).detach(), "scores": self.fc(x)}


def test_results_that_require_no_gradient_by_themselves_require_none_of_an_engine() -> None:
    rows = torch.randn(3, 4)
    with Served(Frozen().eval()) as served:
        assert not any(served.model(rows).requires_grad for _ in range(6))
        assert served.answers.answered == 4 and served.model(rows).numpy().shape == (3, 4)
    with Served(Detaches().eval()) as served:
        made = [served.model(rows) for _ in range(6)]
        assert served.answers.answered == 4
    assert [(each["features"].requires_grad, each["scores"].requires_grad) for each in made] == [(False, True)] * 6


class Recurrent(nn.Module):
    """Its state lies in a dict of the program's, or in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.before = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, state: Any, key: Any = "h") -> torch.Tensor:
        state[key] = torch.tanh(self.fc(x) + self.before(state[key]))
        return state[key] * 2


@pytest.mark.parametrize("key", ["h", 0], ids=["dict", "list"])
def test_a_model_that_writes_to_a_container_that_it_is_given_is_left_alone(key: Any) -> None:
    torch.manual_seed(0)
    model, given = Recurrent().eval(), [torch.randn(1, 4) for _ in range(8)]

    def stream() -> list[torch.Tensor]:
        state: Any = {"h": torch.zeros(1, 4)} if key == "h" else [torch.zeros(1, 4)]
        with torch.no_grad():
            return [model(each, state, key) for each in given]

    expected = stream()
    with Served(model) as served:
        found = stream()
    assert all(map(torch.equal, found, expected)) and served.answers.answered == 0
    assert "writes to its inputs" in served.answers.told()


class Scored(Chooses):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.fc(x)
        return {"loss": scores.mean(), "scores": scores}


def test_a_number_among_the_results_is_one_of_an_engine_too() -> None:
    rows = torch.randn(3, 4)
    with Served(Scored().eval()) as served:
        served.warm(rows)
        assert served.answers.answered == 4
        with torch.no_grad():
            assert served.model(rows)["loss"].shape == ()


def test_other_threads_find_their_weights_while_an_engine_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows, found = Straight().eval(), torch.randn(3, 4), []
    own, over = torch.export.export, threading.Event()
    waiting = threading.Thread(target=over.wait)

    def export(exported: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """In the midst of which another thread calls the model."""

        def look(*_: Any) -> None:
            hook.remove()
            other = threading.Thread(target=lambda: found.append(model.forward(rows)))
            other.start()
            other.join()

        hook = exported.fc.register_forward_pre_hook(look)
        return own(exported, *args, **kwargs)

    monkeypatch.setattr(torch.export, "export", export)
    waiting.start()
    with Served(model) as served:
        served.warm(rows)
        assert served.answers.answered == 4
    over.set()
    with torch.no_grad():
        assert found and all(torch.equal(each, model(rows)) for each in found)


def test_what_cannot_be_copied_is_exported_only_while_no_other_thread_could_call_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Uncopied(Straight):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no copy")

    for threads in (1, 2):
        monkeypatch.setattr(threading, "active_count", lambda threads=threads: threads)
        with Served(Uncopied().eval()) as served:
            served.warm(torch.randn(3, 4))
        assert (served.answers.answered > 0) is (threads == 1)
    assert "there are other threads, and it cannot be copied: TypeError: no copy" in served.answers.told()


class Doubled(torch.autograd.Function):
    """Whose gradient is its own, and no derivative of what it computes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 7


class OwnGradient(Chooses):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(self.fc(x))


def test_a_gradient_of_its_own_is_the_models() -> None:
    model, rows = OwnGradient().eval(), torch.randn(3, 4)
    with Served(model) as served:
        served.warm(rows)
        assert served.answered(rows)
        result = model(rows)
        assert torch.allclose(result, model.fc(rows) * 2, rtol=1e-4, atol=1e-6)
        result.sum().backward()
    assert torch.allclose(model.fc.bias.grad, torch.full((4,), 21.0))


def test_it_answers_one_thread_at_a_time(x: torch.Tensor) -> None:
    with Served(Net().eval()) as served, torch.no_grad():
        served.warm(x)
        given = [torch.randn(4, 3, 8, 8) for _ in range(40)]
        found: dict[int, torch.Tensor] = {}

        def ask(numbers: range) -> None:
            with torch.no_grad():
                for number in numbers:
                    found[number] = served.model(given[number])

        threads = [threading.Thread(target=ask, args=(range(n, 40, 4),)) for n in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        for number, each in enumerate(given):
            assert torch.allclose(found[number], served.own(each), rtol=1e-4, atol=1e-6)


class Anything(nn.Module):
    """Takes inputs of any shape and type."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1))

    def forward(self, x: torch.Tensor, times: float = 1.0) -> torch.Tensor:
        return (x.double() * self.weight * times).cumsum(0).flip(0)


def test_a_thousand_random_inputs_get_the_right_answers() -> None:
    chance = random.Random(0)
    types = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool)
    with Served(Anything().eval()) as served, torch.no_grad():
        for _ in range(1000):
            shape = [chance.randint(0 if chance.random() < 0.1 else 1, 3) for _ in range(chance.randint(1, 3))]
            x = (torch.randn(shape) * 3).to(chance.choice(types))
            x = x.transpose(0, -1) if chance.random() < 0.3 else x
            given = (x,) if chance.random() < 0.7 else (x, chance.choice((1.0, 2.0)))
            assert torch.equal(served.model(*given), served.own(*given))
    assert served.answers.answered > 0 and served.answers.left.total() + served.answers.answered == 1000


class Scaled(Chooses):
    def forward(self, x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return self.fc(x).abs() / torch.full((1,), by)


@pytest.mark.parametrize("value", [lambda call: float(call), lambda call: math.nan * call], ids=["a step", "NaN"])
def test_a_plain_value_that_is_new_in_each_call_ends_it(value: Callable[[int], float]) -> None:
    rows = torch.randn(2, 4)
    with Served(Scaled().eval()) as served, torch.no_grad():
        for call in range(100):
            served.model(rows, value(call))
        held = served.answers._models[served.model]
        new = value(1) == value(1)
        assert len(held._seen) + len(held._sizes) <= 128
        assert ("more than 64 kinds" in served.answers.in_vain()) is new
        assert (served.answers.answered > 0) is not new, "NaN is the same value each time"


def test_zero_and_minus_zero_have_an_engine_each() -> None:
    rows = torch.randn(2, 4)
    with Served(Scaled().eval()) as served:
        served.warm(rows, 0.0)
        for _ in range(4):
            assert served.answered(rows, 0.0)
            with torch.no_grad():
                assert torch.equal(served.model(rows, -0.0), served.own(rows, -0.0))


def test_shapes_that_never_come_again_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.engines.model._MOST_SIZES", 12)
    with Served(Straight().eval()) as served, torch.no_grad():
        for count in range(1, 30):
            served.model(torch.randn(count, 4))
        assert served.answers.in_vain() == "more than 12 shapes of inputs"
        assert not served.answers._models[served.model]._seen


def test_an_engine_that_fails_where_the_model_does_is_not_to_blame() -> None:
    runtime = Graphs()
    with Served(Straight().eval(), runtime) as served, torch.no_grad():
        rows = torch.randn(2, 4)
        served.warm(rows)
        runtime._spoilt = lambda array: 1 / 0
        own, nn.Linear.forward = nn.Linear.forward, _raises  # type: ignore[method-assign]
        try:
            with pytest.raises(IndexError, match="no such place"):
                served.model(rows)
        finally:
            nn.Linear.forward = own  # type: ignore[method-assign]
        runtime._spoilt = lambda array: array
        assert served.answered(rows)


def _raises(*_: Any) -> Any:
    raise IndexError("no such place")


class Sums(nn.Module):
    """A model that takes any number of rows of any length."""

    def __init__(self, fixed: bool = False) -> None:
        super().__init__()
        self.embed, self.fc = nn.Embedding(50, 8), nn.Linear(8, 3)
        self.fixed = fixed

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens).cumsum(1)
        return self.fc(x.view(-1, 5, 8) if self.fixed else x)


def rows(length: int, count: int = 2) -> torch.Tensor:
    return torch.randint(50, (count, length), generator=torch.Generator().manual_seed(length))


def test_one_engine_answers_for_many_sizes_each_of_which_is_proved() -> None:
    """As a model is called that generates tokens: one more in each call."""
    with Served(Sums().eval()) as served:
        served.warm(rows(5), calls=1)
        answered = dict.fromkeys(range(6, 30), 0)
        for _ in range(4):
            for length in answered:
                answered[length] += served.answered(rows(length))
    # The first size has an engine of its own; the others come again when there are too many for that.
    assert len(served.runtime.built) == 2
    # Each size is compared twice; then one answer now and then is, of all sizes together.
    assert sum(answered.values()) > 12 and served.answers.left["made by both and compared"] < 60


class TakesMore(Sums):
    """As models of transformers do, which pass on whatever else they are given."""

    def forward(self, tokens: torch.Tensor, scale: float = 1.0, **more: Any) -> torch.Tensor:
        return super().forward(tokens) * scale * more.get("twice", 1)


def test_one_engine_answers_for_many_sizes_where_a_model_takes_arguments_of_any_name() -> None:
    with Served(TakesMore().eval()) as served, torch.no_grad():
        for _ in range(4):
            for length in range(5, 25):
                given = {"tokens": rows(length), "told": True, "twice": 2}
                assert torch.allclose(served.model(**given), served.own(**given), rtol=1e-4, atol=1e-6)
    assert served.answers.answered > 20 and "shapes of inputs" not in served.answers.told(), served.answers.told()


def test_calls_are_counted_that_no_engine_answers_yet() -> None:
    with Served(Sums().eval()) as served:
        served.warm(rows(5), calls=3)  # two are made by both
        assert served.answers.settling == 2
        served.warm(rows(5), calls=40)  # the 32nd of which is made by both, once more
        assert served.answers.settling == 2 and served.answers.left["made by both and compared"] == 3
        served.warm(rows(6), calls=1)
        assert served.answers.settling == 3


def test_up_to_four_sizes_have_an_engine_each() -> None:
    with Served(Sums().eval()) as served:
        for length in (5, 6, 7, 8):
            served.warm(rows(length))
    assert served.runtime.built == [[(2, length)] for length in (5, 6, 7, 8)]


def test_what_differs_otherwise_is_no_matter_of_size() -> None:
    with Served(Sums().eval()) as served:
        for length in range(5, 15):
            served.warm(rows(length))
        before = len(served.runtime.built)
        served.warm(rows(20).int(), calls=7)
        assert served.answered(rows(20).int()) and len(served.runtime.built) == before + 1


def test_where_an_engine_for_all_sizes_is_wrong_for_one_each_has_its_own() -> None:
    """As OpenVINO's LSTM was for other lengths than the one that it was exported with."""
    runtime = Graphs(lambda array: array * (1.5 if array.shape[1] == 12 else 1.0))
    with Served(Sums().eval(), runtime) as served:
        for _ in range(8):
            for length in range(5, 16):
                served.answered(rows(length))
        assert "an engine's answer was another one" in served.answers.left
        assert not served.answered(rows(12)) and served.answered(rows(13))
    assert 2 < len(runtime.built) <= 8


def test_one_for_many_sizes_that_turns_wrong_answers_for_none() -> None:
    spoilt: set[int] = set()
    with Served(Sums().eval(), Graphs(lambda array: array * (1.5 if array.shape[1] in spoilt else 1.0))) as served:
        for _ in range(6):
            for length in range(5, 14):
                served.answered(rows(length))
        before = served.answers.answered
        assert before > 9
        spoilt.add(12)
        served.answers._models[served.model]._looks = True  # one answer in 16 is compared
        with torch.no_grad():
            for _ in range(40):
                served.model(rows(12))
        assert served.answers.left["an engine's answer was another one"] > 1
        before = served.answers.answered
        assert not any(served.answered(rows(length)) for length in range(6, 14)) and served.answers.answered == before


def test_a_model_that_fixes_a_size_has_engines_of_single_sizes() -> None:
    with Served(Sums(fixed=True).eval()) as served:
        for _ in range(3):
            for count in (1, 2, 3, 4, 5, 6):
                served.answered(rows(5 * count, 2))
    assert len(served.runtime.built) <= 8
