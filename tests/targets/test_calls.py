"""Which calls of a program are kept."""

from __future__ import annotations

import torch

from overdrive.targets.child.calls import CalledModel
from overdrive.targets.child.flat import input_names, output_names, tensors_of


def kept(called: CalledModel) -> list[float]:
    return [float(tensors_of(call)[0][0]) for shape in called.shapes.values() for call in shape.kept]


def test_evaluation_takes_the_place_of_training_and_the_last_calls_that_of_the_first() -> None:
    called = CalledModel(torch.nn.Linear(1, 1))
    for number in range(3):
        called.note((torch.full((2,), float(number)),), {})
    called.model.eval()
    for number in range(10, 30):
        called.note((torch.full((2,), float(number)),), {})
    called.model.train()
    called.note((torch.zeros(2),), {})
    assert kept(called) == [float(number) for number in range(18, 30)]
    assert called.count == 24


def test_what_is_kept_is_a_copy() -> None:
    called, given = CalledModel(torch.nn.Linear(1, 1).eval()), torch.ones(2)
    called.note((given,), {})
    given.zero_()
    assert kept(called) == [1.0]


def test_names_come_from_the_model_and_from_what_it_returns() -> None:
    class Decoder(torch.nn.Module):
        def forward(self, tokens: torch.Tensor, state: tuple[torch.Tensor, ...], mask: torch.Tensor) -> None: ...

    called = CalledModel(Decoder().eval())
    one = torch.ones(1)
    called.note((one, (one, one)), {"mask": one})
    call = next(iter(called.shapes.values())).kept[0]
    assert input_names(called.model, call) == ["tokens", "state_0", "state_1", "mask"]
    assert output_names(one) == ["output"]
    assert output_names((one, {"hidden": one})) == ["output_0", "output_1_hidden"]
