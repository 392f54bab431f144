"""What a model's call sets on its modules, and what it returns."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import pytest

from overdrive.survive.journal import Journal

torch = pytest.importorskip("torch")


def test_what_a_call_sets_is_found_with_its_place_and_set_again() -> None:
    from overdrive.survive.set_in_calls import SetInCalls, set_again

    model, other = torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.nn.Linear(2, 2)
    layer = model[0]
    layer.register_buffer("mask", None)
    heard = SetInCalls()
    heard.heard(model, "before")
    heard.begin()
    values: dict[str, Any] = {"calls": 3, "mask": torch.ones(2), "weight": torch.nn.Parameter(torch.zeros(2, 2))}
    for name, value in values.items():
        setattr(layer, name, value)
        heard.heard(layer, name)
    model.seen = other.seen = True
    heard.heard(model, "seen")
    heard.heard(other, "seen")  # no part of the model
    found = heard.found(model)
    assert [place for place, _ in found] == [["0", "calls"], ["0", "mask"], ["", "seen"]]
    assert heard.found(model) == []

    again = torch.nn.Sequential(torch.nn.Linear(2, 2))
    again[0].register_buffer("mask", None)
    set_again(again, [place for place, _ in found], [value for _, value in found])
    assert again[0].calls == 3 and again.seen and again[0]._buffers["mask"] is values["mask"]


def test_what_models_of_torchvision_and_torchs_distributions_return_is_returned_again() -> None:
    from overdrive.survive import structure

    x = torch.ones(4, 3)
    results = (collections.OrderedDict(out=x * 2, aux=x.shape), x.max(1), torch.distributions.Categorical(logits=x))
    told = json.loads(json.dumps(structure.told((*results, torch.distributions.Normal(x, x)), (x,))))
    layers, most, choice, normal = structure.made(told, (x,), lambda: None)
    assert type(layers) is collections.OrderedDict and list(layers) == ["out", "aux"]
    assert type(layers["aux"]) is torch.Size and layers["aux"] == (4, 3)
    assert type(most) is torch.return_types.max and most.indices.shape == (4,)
    assert choice.sample().shape == (4,) and choice.log_prob(choice.sample()).shape == (4,)
    assert normal.loc.shape == (4, 3) and normal.batch_shape == x.shape and type(normal.batch_shape) is torch.Size


def test_of_what_a_call_set_that_which_can_be_told_is(tmp_path: Path) -> None:
    from overdrive.survive import set_in_calls, structure
    from overdrive.survive.results import Results

    model, results, journal = torch.nn.Linear(2, 2), Results(), Journal(tmp_path / "journal")
    results.set.begin()
    for name, value in {"calls": 3, "hidden": iter([1]), "size": torch.Size([2])}.items():
        setattr(model, name, value)
        results.set.heard(model, name)
    results.note(journal, "model", torch.zeros(1), ((), {}), model)
    journal.read(*journal.flush())
    _, told, places = journal.next("model", "")
    again = torch.nn.Linear(2, 2)
    set_in_calls.set_again(again, places, structure.made(told, ((), []), lambda: None)[1:])
    assert again.calls == 3 and again.size == (2,) and not hasattr(again, "hidden")


def test_a_tensor_that_is_in_several_places_is_one_again() -> None:
    from overdrive.survive import structure

    x = torch.ones(3)
    weights = torch.rand(2, requires_grad=True) * 1
    told = json.loads(json.dumps(structure.told([weights, [weights, weights[:1]], x, x], (x,))))
    one, (other, part), *given = structure.made(told, (x,), lambda: None)
    assert one is other and part is not one and part.shape == (1,) and given == [x, x]
