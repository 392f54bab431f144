"""Bits of each layer: from observed ranges, and by a search. PyTorch alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from overdrive.engines.runtime import NoEngine
from overdrive.evidence.binomial import at_most, up_to
from overdrive.targets.fpga.design import design
from overdrive.targets.fpga.fixed import Fixed, integer_bits
from overdrive.targets.fpga.of_torch import TorchFrontEnd, TorchLayers, folded
from overdrive.targets.fpga.precision import other_classes, passing, search, wider


def test_a_fixed_point_number_is_truncated_and_held_at_its_ends() -> None:
    kind = Fixed(3, 2)  # from -4 to 3.75 by quarters
    given = np.array([0.3, -0.3, 9.0, -9.0])
    assert kind.of(given).tolist() == [0.25, -0.5, 3.75, -4.0] and kind.text == "fixed<5,3,TRN,SAT>"


def test_bits_before_the_point_hold_the_largest_number() -> None:
    for largest in (0.2, 0.99, 1.0, 3.99, 4.0, 100.0):
        bits = integer_bits(largest)
        assert abs(Fixed(bits, 20).of(np.array(largest)).item() - largest) < 1e-4
        assert Fixed(bits - 1, 20).of(np.array(largest)).item() < largest or largest < 1


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


def test_the_search_finds_the_fewest_bits_that_are_enough() -> None:
    one, inputs = model(), torch.randn(200, 8).numpy()
    with torch.no_grad():
        wanted = one(torch.from_numpy(inputs)).numpy()
        layers = TorchLayers(one)

        def too_far(answers: Any, most: float = 0.02) -> bool:
            return float(np.sqrt(np.square(answers - wanted).mean())) > most

        types = search(layers, inputs, too_far)
        assert types is not None and set(types) == set(layers.names)
        assert not too_far(layers.answers(inputs, types))
        for name, each in types.items():  # none of them could do with a bit less
            assert too_far(layers.answers(inputs, {**types, name: Fixed(each.integer, each.fraction - 1)})), name
        assert np.array_equal(one(torch.from_numpy(inputs)).numpy(), wanted)  # its weights are what they were
        assert all(wider(types)[name].fraction == each.fraction + 1 for name, each in types.items())
        assert search(layers, inputs, lambda answers: True) is None


def test_normalisations_become_part_of_the_weights_before_them() -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4)
    one = nn.Sequential(*layers)
    for norm in (one[1], one[5]):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    inputs, before = torch.randn(8, 1, 4, 4), {name: each.clone() for name, each in one.state_dict().items()}
    one.eval()
    with torch.no_grad():
        made = folded(one)
        assert torch.allclose(made(inputs), one(inputs), atol=1e-5)
    assert not any(isinstance(each, (nn.BatchNorm1d, nn.BatchNorm2d)) for each in made.modules())
    assert all(torch.equal(each, before[name]) for name, each in one.state_dict().items())


class Shared(nn.Module):
    """A layer that is called twice, and one whose output is used elsewhere: both keep their normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm, self.last = nn.BatchNorm1d(4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.other(self.norm(self.fc(self.fc(x))))
        return y + self.last(y)


def test_a_layer_that_is_used_elsewhere_keeps_its_normalisation() -> None:
    one, inputs = Shared().eval(), torch.randn(8, 4)
    with torch.no_grad():
        made = folded(one)
        assert torch.equal(made(inputs), one(inputs))
    assert sum(isinstance(each, nn.BatchNorm1d) for each in made.modules()) == 2


@pytest.mark.parametrize(("samples", "most"), [(300, 0), (398, 0), (1000, 4)])
def test_the_search_aims_at_what_the_test_will_find_enough(samples: int, most: int) -> None:
    assert at_most(most, samples) <= 0.01 < at_most(most + 1, samples)
    assert abs(up_to(most, samples, passing(0.01, samples)) - 0.95) < 0.001


def test_other_classes_are_expected_before_one_is_seen() -> None:
    torch.manual_seed(0)
    wanted = 5 * torch.randn(20_000, 4)
    answers = wanted + 0.2 * torch.randn(20_000, 4)
    seen = float((answers.argmax(1) != wanted.argmax(1)).double().mean())
    wanted, answers = wanted.numpy(), answers.numpy()
    few = other_classes(answers[:100], wanted[:100])
    assert 0.01 < seen < 0.03 and abs(other_classes(answers, wanted) / seen - 1) < 0.2 and few > 0.005
    assert other_classes(wanted, wanted) == 0.0
    swapped = wanted.copy()
    swapped[:50] = wanted[:50, ::-1]
    assert other_classes(swapped, wanted) > 0.001


def test_one_input_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoEngine, match="one input alone"):
        design(TorchFrontEnd(torch.nn.Linear(3, 2)), [np.ones((4, 3), np.float32)] * 2, 0.01, tmp_path)


def test_answers_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    """Whatever was compared with them was near enough."""

    class Masked(torch.nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows.masked_fill(rows < 0, float("-inf"))

    with pytest.raises(NoEngine, match="NaN or infinity"):
        design(TorchFrontEnd(Masked()), [torch.randn(20, 3).numpy()], 0.01, tmp_path)
