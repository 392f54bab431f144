"""What optimizers keep, as it is told, and made again where no step is made."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overdrive.survive.journal import Journal

torch = pytest.importorskip("torch")


def trained(make: Callable[[Any], Any], steps: int = 3) -> Any:
    """An optimizer that has made its steps."""
    torch.manual_seed(1)
    layer = torch.nn.Linear(3, 2)
    optimizer = make(layer.parameters())
    stepped(optimizer, steps)
    return optimizer


def stepped(optimizer: Any, steps: int) -> None:
    weight, bias = optimizer.param_groups[0]["params"]

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (torch.arange(6.0).reshape(2, 3) @ weight.t() + bias).pow(2).sum()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


MAKERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.01, amsgrad=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.001, momentum=0.9),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, 0.1, max_iter=2),
}


def over_json(told: Any) -> Any:
    return json.loads(json.dumps(told))


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_made_is_what_was_told(name: str) -> None:
    """In an optimizer that has made no step, whose `state_dict()` would be empty."""
    from overdrive.survive.optimizer_states import OptimizerStates

    then, now = trained(MAKERS[name]), trained(MAKERS[name], steps=0)
    told = over_json(OptimizerStates().told(then))
    states = OptimizerStates()
    states.make(now, *told)
    assert over_json(states.told(now)) == told and told[0]
    assert forms(now.state_dict()["state"]) == forms(then.state_dict()["state"])


def forms(thing: Any) -> Any:
    if isinstance(thing, torch.Tensor):
        return thing.shape, thing.dtype
    if isinstance(thing, dict):
        return [(key, forms(value)) for key, value in thing.items()]
    return list(map(forms, thing)) if isinstance(thing, (list, tuple)) else thing


def test_what_a_program_holds_of_it_stays_the_same_thing() -> None:
    """As later steps change it where they are made; a copy stays what it was; the next process knows the numbers."""
    from overdrive.survive.optimizer_states import OptimizerStates

    first, then = OptimizerStates(), trained(MAKERS["lbfgs"])
    told = [over_json(first.told(then))]
    kept = then.state_dict()["state"][0]["d"]  # the next step makes another one
    stepped(then, 1)
    told.append(over_json(first.told(then)))
    assert told[0] != told[1] and kept is not then.state_dict()["state"][0]["d"]

    second, now = OptimizerStates(), trained(MAKERS["lbfgs"], steps=0)
    second.make(now, *told[0])
    held = now.state_dict()["state"][0]
    before, past, copied = held["d"], held["old_dirs"], copy.deepcopy(held)
    second.make(now, *told[1])
    again = now.state_dict()["state"][0]
    assert again is held and again["old_dirs"] is past and again["d"] is not before
    assert copied["d"] is not again["d"] and forms(copied["d"]) == forms(again["d"])
    assert again["prev_flat_grad"] is not None and second.number_of(again["d"]) == first.number_of(
        then.state_dict()["state"][0]["d"]
    )
    fresh = second.number_of(torch.zeros(1))
    assert fresh > max(second.number_of(each) for each in [again["d"], *again["old_dirs"], *again["old_stps"]])


def test_what_is_there_is_kept_and_parts_of_one_memory_stay_that() -> None:
    from overdrive.survive.optimizer_states import OptimizerStates

    then, now = trained(MAKERS["momentum"]), trained(MAKERS["momentum"])
    (weight, _), (ours, _) = then.param_groups[0]["params"], now.param_groups[0]["params"]
    flat = torch.zeros(8)
    then.state[weight].update({"a": flat[:6], "b": flat[6:], "start": weight, "row": weight.detach()[1]})
    there = now.state[ours]["momentum_buffer"]
    states = OptimizerStates()
    states.make(now, *over_json(OptimizerStates().told(then)))
    made = now.state[ours]
    made["a"].fill_(1)
    assert made["momentum_buffer"] is there and there.abs().sum() > 0
    assert made["start"] is ours and made["row"].data_ptr() == ours[1].data_ptr()
    assert made["b"].shape == (2,) and made["b"].data_ptr() == made["a"].data_ptr() + 24


def test_what_is_news_is_noted_once_and_answers_the_same_optimizer(tmp_path: Path) -> None:
    from overdrive.survive.optimizer_states import OptimizerStates

    states, optimizer, journal = OptimizerStates(), trained(MAKERS["adam"]), Journal(tmp_path / "journal")
    states.note("state 0", trained(MAKERS["adam"], steps=0), journal)  # keeps nothing yet
    states.note("state 0", optimizer, journal)
    states.note("state 0", optimizer, journal)
    stepped(optimizer, 1)
    states.note("state 0", optimizer, journal)  # the same tensors, with other numbers in them
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    states.note("loaded 0", optimizer, journal)
    journal.read(*journal.flush())
    assert [entry[0] for entry in journal.to_come] == ["state 0", "loaded 0"]

    again, other = OptimizerStates(), trained(MAKERS["adam"], steps=0)
    again.answer("state 1", other, journal)
    assert not other.state and len(journal.to_come) == 2
    again.answer("state 0", other, journal)
    assert forms(other.state_dict()["state"]) == forms(optimizer.state_dict()["state"])


def test_it_is_seen_whether_a_program_may_have_loaded_a_state() -> None:
    from overdrive.survive.optimizer_states import OptimizerStates

    states, optimizer = OptimizerStates(), trained(MAKERS["momentum"])
    states.stepped(optimizer)
    assert not states.touched(optimizer)
    assert states.asked(optimizer) and not states.asked(optimizer) and states.touched(optimizer)
    states.stepped(optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    assert states.touched(optimizer)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (lambda weight: {weight: {"a": object()}}, "an optimizer keeps a object"),
        (lambda weight: {weight: {"a": torch.eye(2).to_sparse()}}, "a state of an optimizer is torch.sparse_coo"),
        (lambda weight: {torch.zeros(1): {}}, "the state of a Tensor that it does not train"),
    ],
)
def test_what_cannot_be_made_again_is_said(kept: Callable[[Any], Any], said: str) -> None:
    from overdrive.survive.optimizer_states import CannotTake, OptimizerStates

    optimizer = trained(MAKERS["momentum"], steps=0)
    optimizer.state.update(kept(optimizer.param_groups[0]["params"][0]))
    with pytest.raises(CannotTake, match=said):
        OptimizerStates().told(optimizer)
