"""A rank's part of what is drawn for the whole batch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from overdrive.model_state.division.chance import Chance, Drawn  # noqa: E402

ROWS, FIRST, OWN = 6, 2, 3


@pytest.mark.parametrize("name", ["dropout", "dropout_", "alpha_dropout", "feature_dropout"])
@pytest.mark.parametrize("p", [0.25, 1.0])
@pytest.mark.parametrize("helped", [False, True])
def test_a_dropout_is_that_of_the_whole_batch(name: str, p: float, helped: bool) -> None:
    """And leaves the generator as it does, also where somebody else draws for the whole batch (`helped`)."""
    plain, calls = getattr(torch, name), []

    def others(*asked: Any) -> Any:
        calls.append(asked[0])
        return asked[1](*asked[2], **asked[3]) if helped else None

    x = torch.randn(ROWS, 4, 5)
    torch.manual_seed(3)
    wanted = plain(x.clone(), p, True)[FIRST : FIRST + OWN]
    after = torch.random.get_rng_state()
    chance = Chance()
    chance.others = others
    chance.begin([Drawn(name, (ROWS, 4, 5), 0)], FIRST, OWN, ROWS)
    torch.manual_seed(3)
    found = chance.answer(name, plain, (x[FIRST : FIRST + OWN].clone(), p, True), {})
    chance.end()
    assert torch.equal(found, wanted) and torch.equal(torch.random.get_rng_state(), after)
    assert calls == (["dropout"] if name in ("dropout", "dropout_") and p < 1 else [])
