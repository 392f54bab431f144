"""Ranks in growing numbers: what is asked, what a step is made of, and the catalogue of links."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tomlkit

from overdrive.cli.layout import technique_of
from overdrive.core.link import Link
from overdrive.core.program import Program
from overdrive.core.requirements_result import PARTS_AT_SIZE
from overdrive.core.unlike_ranks import Failures, Sizes, Survival
from overdrive.insight.requirements.links import links
from overdrive.insight.requirements.scale import at_size, at_sizes
from overdrive.insight.requirements.unlike import Unlike
from overdrive.trials import pool
from tests.conftest import ROOT
from tests.insight.requirements.test_ranks import SLOW
from tests.warm_trials import warm_trials

LINK = Link(1e12, 0.005, "8Tbit,5ms")


@pytest.mark.parametrize(("first", "last", "each"), [(8, 64, [8, 16, 32, 64]), (3, 20, [3, 6, 12, 20]), (4, 5, [4, 5])])
def test_sizes_double_up_to_the_last(first: int, last: int, each: list[int]) -> None:
    assert list(Sizes(first, last, LINK).each()) == each


def test_a_step_is_the_sum_of_its_parts() -> None:
    found = at_size(16, Unlike(computing=0.3, network=0.2, slowest=0.1), alone=3.2, failures=None)
    assert found.parts == pytest.approx({"share": 0.2, "beside": 0.1, "slowest": 0.1, "network": 0.2, "failures": 0})
    assert tuple(found.parts) == PARTS_AT_SIZE
    quicker = at_size(16, Unlike(0.1, 0.0, 0.0), alone=3.2, failures=None)
    assert (quicker.parts["share"], quicker.parts["beside"]) == (0.1, 0.0), "it takes less than its share"


def test_what_failures_cost_is_spread_over_all_steps() -> None:
    failures = Failures(mtbf=1e12, steps=1_000_000, survival=Survival(0.3, 10.0, 0.0))
    found = at_size(2, Unlike(1.0, 0.0, 0.0), 2.0, failures)
    # None fails: a snapshot every half an hour, the first after 30 s.
    snapshots = 1 + (1_000_000 - 30) // 1800
    assert found.run == pytest.approx(1_000_000 + snapshots * 0.3)
    assert found.parts["failures"] == pytest.approx(snapshots * 0.3 / 1_000_000)
    dead = at_size(4096, Unlike(1.0, 0.0, 0.0), 2.0, Failures(4096.0, 10_000, Survival(0.3, 10.0, 0.0)))
    assert (dead.run, dead.ends, dead.parts["failures"]) == (None, 0.0, 0.0)


def test_a_program_on_more_and_more_ranks(script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample takes 2 ms in each of two layers; 64 of them are divided by 2, 32 and not by 128."""
    monkeypatch.setattr(pool, "LocalLauncher", warm_trials)
    program = Program(str(script(SLOW.replace("STEPS", "90"))))
    asked = Sizes(2, 128, LINK)
    monkeypatch.setattr(Sizes, "each", lambda self: iter([2, 32, 128]))
    found = at_sizes(program, asked, technique_of, alone=0.26, samples=64)
    few, many, whole = (each.parts for each in found.rows)
    assert few["share"] == pytest.approx(0.13) and many["share"] == pytest.approx(0.26 / 32)
    assert few["share"] + few["beside"] > 4 * (many["share"] + many["beside"])
    # Each exchange is 5 ms from each rank to the next: once round for two, 31 times for 32. Nothing hides so much.
    assert few["network"] >= 3 * 0.005 and many["network"] == pytest.approx(31 * few["network"], rel=0.1)
    assert whole["beside"] > 0.2, "each makes the whole call"
    assert found.samples == 64 and found.varied[0] > 10 and found.varied[1] >= 1
    assert found.network == "machines as this one, over 8Tbit,5ms" and not any(each.why for each in found.rows)


def test_a_size_that_cannot_be_foretold_says_why(script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LocalLauncher", warm_trials)
    program = Program(str(script(SLOW.replace("STEPS", "3"))))
    (row, _) = at_sizes(program, Sizes(2, 4, LINK), technique_of, alone=0.26, samples=64).rows
    assert not row.parts and "came to an end" in row.why


def test_each_link_of_the_catalogue_has_its_source() -> None:
    file = ROOT / "src" / "overdrive" / "insight" / "requirements" / "links.toml"
    told = tomlkit.parse(file.read_text()).unwrap()["link"]
    assert {each["name"] for each in told} == links().keys() >= {"10gbe", "25gbe", "100gbe", "hdr", "ndr"}
    assert all("http" in each["source"] or "802.3" in each["source"] for each in told)
    hdr = links()["hdr"]
    assert (hdr.bytes_per_second, hdr.latency_seconds) == (25e9, pytest.approx(1.2e-6))
