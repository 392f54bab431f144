from __future__ import annotations

from dataclasses import replace

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts, LoaderFacts
from overdrive.core.program import Program
from overdrive.tuner.findings import Findings
from overdrive.tuner.switchable import that_go_together

LOADER = LoaderFacts(64, 0, True, 6400, 0.009, draws=False)
SHARES = {"data": 0.6, "forward": 0.26, "backward": 0.132, "optimizer": 0.008}
OWN = {"fused_optimizer": {"optimizers": ["SGD"]}}
FACTS = Facts(step_seconds=0.025, shares=SHARES, loaders=(LOADER,), parameters=1000, own=OWN)


def screened(facts: Facts) -> set[str]:
    found = Findings(Program("train.py"), Contract.ROUNDING)
    found.controlled(facts)
    return set(that_go_together(found))


def test_what_is_a_small_share_beside_the_data_is_screened_where_the_data_may_be_kept() -> None:
    names = screened(FACTS)
    assert {"sample_cache", "fused_optimizer"} <= names and "prefix_cache" not in names


@pytest.mark.parametrize(
    "facts",
    [
        replace(FACTS, loaders=()),  # nothing can be done about it
        replace(FACTS, shares={"data": 0.01, "forward": 0.6, "backward": 0.385, "optimizer": 0.005}),
    ],
)
def test_what_is_a_small_share_whatever_is_on_is_not_screened(facts: Facts) -> None:
    assert "fused_optimizer" not in screened(facts)
