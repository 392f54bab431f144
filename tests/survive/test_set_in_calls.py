"""What a model's call sets on its modules."""

from __future__ import annotations

from typing import Any

import pytest

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
