"""A model's call that fails under a technique, at whatever step, leaves no trace and is made again."""

from __future__ import annotations

import io
import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from overdrive.core.rng import States
from overdrive.seams.hub import Seams
from overdrive.seams.points import Again
from overdrive.seams.torch.undoing import Undoable
from overdrive.worker.session import Session

LATE = 9  # calls until something goes wrong


class Net(nn.Module):
    """Writes to whatever a model may write to, and then fails, while `fails` is given."""

    def __init__(self, fails: Callable[[int], None] = lambda calls: None) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.fc = nn.Linear(6, 3)
        self.register_buffer("counted", torch.zeros(2))
        self.register_buffer("uncounted", torch.zeros(2))
        self.register_buffer("replaced", torch.zeros(2))
        self.calls, self.last = 0, torch.zeros(1)
        self.seen: list[int] = []
        self.table: dict[str, int] = {}
        self.latest: deque[int] = deque(maxlen=2)
        self.fails = fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        print("call", self.calls)
        self.seen.append(self.calls)
        self.latest.append(self.calls)
        self.table[f"{self.calls % 3}"] = self.calls
        self.counted.add_(1)
        self.uncounted.data.add_(1)
        self.replaced = self.replaced + 1
        x.add_(1)
        scale = random.gauss(0, 1) + float(np.random.randn())
        x = torch.dropout(self.norm(x * scale), 0.5, True)
        self.last = x.detach()
        self.fails(self.calls)
        print("done")
        return self.fc(x)


def trained(model: Net, steps: int = LATE + 3) -> list[Any]:
    """All that a loop prints and leaves."""
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)
    model.fc.reset_parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    output, seen = io.StringIO(), []
    with redirect_stdout(output):
        for _ in range(steps):
            x = torch.randn(4, 6)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += [loss.item(), x.tolist()]
    state = {name: value.tolist() for name, value in model.state_dict().items()}
    own = (model.calls, model.seen, model.table, list(model.latest), model.last.tolist())
    return [output.getvalue(), seen, state, own, States.now().digest()]


def technique(act: Callable[..., Any]) -> Callable[[Seams], None]:
    def install(seams: Seams) -> None:
        with seams.owned_by("layout"):
            seams.model_called.subscribe(act)

    return install


def passes(model: Any, call: Any, *args: Any) -> Any:
    return call(*args)


def test_a_model_that_fails_late_under_a_technique_goes_on_as_without_it() -> None:
    def fails(calls: int) -> None:
        if calls == LATE and session.seams.model_called.techniques:
            raise RuntimeError("view size is not compatible")

    plain = trained(Net())
    with Session(observers=[technique(passes)]) as session:
        assert trained(Net(fails)) == plain
    assert "view size" in session.seams.left_out["layout"]


@pytest.mark.parametrize("after", [False, True])
def test_a_technique_that_fails_late_is_left_out_and_what_it_made_of_the_call_is_undone(after: bool) -> None:
    def act(model: Any, call: Any, x: Any) -> Any:
        if model.calls != LATE:
            return call(x)
        if after:
            call(x.double().float() * 3)
        raise ValueError("no such luck")

    plain = trained(Net())
    with Session(observers=[technique(act)]) as session:
        assert trained(Net()) == plain
    assert session.seams.left_out["layout"] == "ValueError: no such luck"


def test_one_that_changes_its_mind_stays() -> None:
    minds: list[bool] = []

    def act(model: Any, call: Any, x: Any) -> Any:
        result = call(x)
        if model.calls == LATE and not minds:
            minds.append(True)
            raise Again("it cannot be recorded")
        return result

    plain = trained(Net())
    with Session(observers=[technique(act)]) as session:
        assert trained(Net()) == plain
    assert minds and not session.seams.left_out


def test_the_programs_own_error_comes_out_once_and_as_it_is() -> None:
    def fails(calls: int) -> None:
        if calls == LATE:
            raise ValueError("a bad batch")

    def caught(model: Net) -> list[Any]:
        seen = []
        for _ in range(LATE + 1):
            try:
                seen.append(model(torch.ones(4, 6)).tolist())
            except ValueError as error:
                seen += [str(error), error.__context__, error.__cause__]
        return [seen, model.calls, model.seen, {name: value.tolist() for name, value in model.state_dict().items()}]

    found = []
    for observers in ([], [technique(passes)]):
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)
        output = io.StringIO()
        with Session(observers=observers), redirect_stdout(output):
            found.append([*caught(Net(fails)), output.getvalue(), States.now().digest()])
    assert found[0] == found[1]


def test_a_class_of_the_programs_own_that_leaves_a_model_early_is_no_reason_to_call_it_again() -> None:
    class Stop(Exception):
        pass

    calls: list[int] = []

    def fails(number: int) -> None:
        calls.append(number)
        raise Stop

    with Session(observers=[technique(passes)]) as session, pytest.raises(Stop):
        Net(fails)(torch.ones(4, 6))
    assert calls == [1] and not session.seams.left_out


def test_a_late_change_of_which_buffers_are_written_is_seen() -> None:
    """A batch normalisation that is thawed in the midst of training, in the very call that fails."""

    class Thawed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6).eval()
            self.register_buffer("steps", torch.zeros(1))
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls == LATE:
                self.norm.train()
                self.steps += 1
            x = self.norm(x)
            if self.calls == LATE and session.seams.model_called.techniques:
                raise TypeError("got BFloat16")
            return x

    with Session(observers=[technique(passes)]) as session:
        model = Thawed()
        model.norm.eval()
        for _ in range(LATE):
            model(torch.arange(24.0).view(4, 6))
    assert session.seams.left_out and model.steps.item() == model.norm.num_batches_tracked.item() == 1
    assert torch.allclose(model.norm.running_mean, 0.1 * torch.arange(9.0, 15.0))


def test_an_undo_that_fails_does_not_end_the_program_nor_keep_the_others_from_theirs() -> None:
    undone: list[str] = []
    hub = Seams()
    with hub.owned_by("clumsy"):
        hub.on_undo(lambda: undone.append("first"))
        hub.on_undo(lambda: 1 / 0)
    hub.leave_out("clumsy", "no luck")
    assert undone == ["first"]
    assert hub.left_out["clumsy"].startswith("no luck; what it changed could not all be put back (ZeroDivisionError")


def test_a_stream_is_left_as_it_was() -> None:
    output = io.StringIO()
    with redirect_stdout(output), Session(observers=[technique(passes)]):
        inside: list[Any] = []
        Net(lambda calls: inside.append(output))(torch.ones(4, 6))
        assert "write" not in vars(output)
    assert inside[0] is output


class Pooled(nn.Module):
    """Holds nothing, as losses do; its calls come late to an operator."""

    def __init__(self, late: int, fails: Callable[[float], None] = lambda found: None) -> None:
        super().__init__()
        self.late, self.fails, self.drawn = late, fails, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.drawn.append(torch.rand(1).item())
        if len(self.drawn) < self.late:
            return x.sum()
        found = nn.functional.max_pool2d(x, 2)
        self.fails(found.sum().item())
        return found.sum()


def doubling(seams: Seams) -> None:
    def answer(plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return 2 * plain(*args, **kwargs)

    with seams.owned_by("doubling"):
        seams.operator_called("max_pool2d").subscribe(answer)


def test_of_calls_that_come_to_no_operator_nothing_is_kept_and_the_first_that_does_is_the_programs_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[Any] = []
    before = Undoable.before
    monkeypatch.setattr(
        Undoable, "before", lambda self, model, *given: kept.append(model) or before(self, model, *given)
    )
    model, loss, x = Pooled(late=3), nn.CrossEntropyLoss(), torch.ones(1, 1, 2, 2)
    with Session(observers=[doubling]):
        for _ in range(3):
            loss(torch.ones(2, 3), torch.tensor([0, 1]))
        found = [model(x).item() for _ in range(5)]
    assert found == [4, 4, 1, 2, 2] and kept == [loss, model, model, model]


def test_a_checkpoint_counts_what_is_kept_in_the_first_call_and_late() -> None:
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    for model in (nn.MaxPool2d(2), Pooled(late=3)):
        gradients = []
        for techniques in ([], [("fast_max_pool", {})]):
            with Session(techniques):
                for _ in range(4):
                    checkpoint(lambda given, model=model: model(given).sum() ** 2, x, use_reentrant=False).backward()
            gradients.append(x.grad)
            x.grad = None
            if isinstance(model, Pooled):
                model.drawn = []
        assert torch.equal(*gradients)


def test_a_call_that_came_to_an_operator_is_undone_where_it_fails() -> None:
    def fails(found: float) -> None:
        if found == 2:
            raise RuntimeError("it is doubled")

    model = Pooled(late=1, fails=fails)
    torch.manual_seed(1)
    expected = torch.rand(3).tolist()
    torch.manual_seed(1)
    with Session(observers=[doubling]) as session:
        found = [model(torch.ones(1, 1, 2, 2)).item() for _ in range(3)]
    assert found == [1, 1, 1] and "it is doubled" in session.seams.left_out["doubling"]
    assert model.drawn == expected


def test_two_models_that_are_called_at_once_leave_a_stream_that_can_be_written_to() -> None:
    """An actor answers quickly beside a learner: its next call begins while the learner's first is under way."""
    inside, over, output = threading.Event(), threading.Event(), io.StringIO()

    def slow(calls: int) -> None:
        inside.set()
        assert over.wait(60)

    with redirect_stdout(output), Session(observers=[technique(passes)]):
        actor, learner = Net(), Net(slow)
        beside = threading.Thread(target=learner, args=(torch.ones(4, 6),))
        actor.fails = lambda calls: beside.start() or inside.wait(60) if calls == 1 else None
        try:
            for _ in range(2):
                actor(torch.ones(4, 6))
            print("between")
        finally:
            over.set()
            beside.join(60)
        print("after")
        assert "write" not in vars(output)
    assert output.getvalue().split("\n")[-5:-1] == ["done", "between", "done", "after"]


def test_a_stream_that_the_program_listens_to_from_within_a_call_on_can_be_written_to() -> None:
    """As libraries do that keep a copy of what is printed, if they are set up when a model is first called."""
    output, copied = io.StringIO(), []

    def listens(calls: int) -> None:
        if calls > 1:
            return
        write = output.write
        output.write = lambda text: (copied.append(text), write(text))[1]

    with redirect_stdout(output), Session(observers=[technique(passes)]):
        model = Net(listens)
        for _ in range(3):
            model(torch.ones(4, 6))
        print("after")
    assert output.getvalue().count("done") == "".join(copied).count("done") == 3
    assert output.getvalue().endswith("after\n")
