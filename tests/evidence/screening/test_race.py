"""Who leaves, when it is over, and which plan comes out."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pytest

from overdrive.core.contract import Contract
from overdrive.evidence.screening import (
    Alternative,
    Design,
    Effects,
    Factor,
    LookResult,
    Prior,
    choose,
    estimate,
    learned,
    next_look,
    on_off,
    pairs_of_process,
    race,
    shipped,
)
from overdrive.evidence.screening.beliefs import beliefs
from overdrive.evidence.screening.prior import USUAL, PriorPart
from overdrive.techniques.catalogue import catalogue
from tests.evidence.screening.simulated import Program, names, switches

STUBBORN = Prior((PriorPart(0.96, 0.0, 0.0), PriorPart(0.02, 0.0, 0.06), PriorPart(0.02, 0.05, 0.35)))
ENTHUSIASTIC = Prior((PriorPart(0.02, 0.0, 0.0), PriorPart(0.02, 0.0, 0.06), PriorPart(0.96, 0.3, 0.1)))


def known(
    gains: dict[str, float],
    together: dict[tuple[str, str], float] | None = None,
    error: float = 0.01,
    pairs: int = 200,
    processes: int = 4,
) -> Effects:
    """Effects that were measured with this error."""
    terms = (*((label,) for label in gains), *(together or {}))
    mean = -np.array([*gains.values(), *(together or {}).values()])
    information = np.eye(len(terms)) / error**2
    return Effects(
        terms, mean, np.eye(len(terms)) * error**2, information, information @ mean, np.full(len(terms), 99.0),
        pairs, 0, (pairs // processes,) * processes, 0.05, 0.01, dict.fromkeys(gains, pairs),
    )  # fmt: skip


def chosen(effects: Effects, *candidates: Alternative, factors: list[Factor] | None = None) -> tuple[str, ...]:
    candidates = candidates or tuple(map(Alternative, effects.labels))
    return choose(effects, candidates, factors or [*map(on_off, effects.labels)])


def raced(program: Program, pairs: int, prior: Prior = USUAL) -> LookResult:
    design = switches(*program.costs, placebos=3)
    effects = estimate(program.screened(design, names(design), pairs), design.factors, program.noise)
    return race(effects, names(design), [Alternative(each, prior=prior) for each in program.costs], design.factors)


def searched(program: Program, prior: Prior, most: int) -> tuple[tuple[str, ...], int]:
    """A whole race: the plan, and the pairs that it took."""
    design = switches(*program.costs, placebos=3)
    active, blocks, pairs = set(names(design)), [], 0
    while True:
        look = next_look(pairs)
        blocks = program.screened(design, active, look - pairs, 1, blocks)
        pairs = look
        effects = estimate(blocks, design.factors, program.noise)
        verdict = race(effects, active, [Alternative(each, prior=prior) for each in program.costs], design.factors)
        active -= verdict.drop
        if verdict.stop or pairs >= most:
            return verdict.plan, pairs


NULLS = {f"c{at}": 0.0 for at in range(12)}


def test_what_is_hopeless_leaves_and_what_gains_stays() -> None:
    verdict = raced(Program({"good": -0.3, "bad": 0.2, "ruinous": 0.8, **NULLS}), 96)
    assert {"bad", "ruinous"} <= verdict.drop and "good" not in verdict.drop


def test_only_the_ruinous_leave_at_the_first_look() -> None:
    verdict = raced(Program({"good": -0.3, "bad": 0.1, "ruinous": 0.8, **NULLS}), 24)
    assert verdict.drop == {"ruinous"}


def test_placebos_never_leave() -> None:
    verdict = raced(Program(NULLS), 256)
    assert not any(each.startswith("placebo") for each in verdict.drop)


def test_it_stops_when_nothing_is_to_be_gained_and_not_before() -> None:
    early, late = (raced(Program({"good": -0.3, "maybe": -0.05, **NULLS}, noise=0.1), pairs) for pairs in (24, 512))
    assert not early.stop and late.stop
    assert set(late.plan) == {"good", "maybe"}


def test_what_gains_for_certain_has_to_be_seen_in_three_processes() -> None:
    """So wide an error of six gains that what may be lost would not end the race by itself."""
    gains = {f"g{number}": 0.5 for number in range(6)}
    wide = Prior((PriorPart(0.05, 0.0, 0.0), PriorPart(0.95, 0.5, 0.5)))
    candidates = [Alternative(each, prior=wide) for each in gains]
    for processes, over in ((1, False), (3, True)):
        effects = known(gains, error=0.28, processes=processes)
        assert race(effects, list(gains), candidates, [*map(on_off, gains)]).stop == over
    assert race(effects, [], candidates, [*map(on_off, gains)]).stop, "no candidate is left"


def test_looks_go_on_for_ever() -> None:
    looks = [0]
    while len(looks) < 30:
        looks.append(next_look(looks[-1]))
    assert looks[1] == 24 and all(one < other for one, other in pairwise(looks))


def test_antagonists_are_chosen_rightly() -> None:
    """1.3 each, 1.0 together: on average over the other, each seems to do nothing."""
    gain = math.log(1.3)
    right = 0
    for seed in range(6):
        program = Program({"a": -gain, "b": -gain, "c": -0.2, **NULLS}, {("a", "b"): 2 * gain}, noise=0.1, seed=seed)
        plan, _ = searched(program, USUAL, 256)
        right += len({"a", "b"} & set(plan)) == 1 and "c" in plan
    assert right >= 5


def test_what_gains_only_together_is_taken_together() -> None:
    program = Program({"a": 0.0, "b": 0.05, **NULLS}, {("a", "b"): -0.5}, noise=0.1)
    plan, _ = searched(program, USUAL, 256)
    assert {"a", "b"} <= set(plan)


@pytest.mark.parametrize("prior", [STUBBORN, ENTHUSIASTIC])
def test_a_wrong_prior_costs_time_and_never_a_wrong_plan(prior: Prior) -> None:
    """Gains of 10 and 25 % that were not believed in, or nothing where much was: the usual prior's plan comes out."""
    extra = []
    for seed in range(4):
        program = {"small": -0.1, "large": -0.22, "harm": 0.1, **{f"c{at}": 0.0 for at in range(6)}}
        plan, pairs = searched(Program(program, noise=0.08, seed=seed), prior, 1024)
        right, usual = searched(Program(program, noise=0.08, seed=seed), USUAL, 1024)
        assert set(plan) == set(right) == {"small", "large"}
        extra.append(pairs - usual)
    assert max(extra) < 1024


def test_beliefs_converge_to_what_was_measured_whatever_the_prior() -> None:
    for prior in (STUBBORN, ENTHUSIASTIC):
        for gain in (-0.05, 0.0, 0.05):
            belief = beliefs(known({"a": gain}, error=0.004), {"a": prior}).by_label["a"]
            assert abs(belief.mean - gain) < 0.008
            assert (belief.worth > 0.97) == (gain > 0.01)


def test_few_pairs_of_a_slow_program_tell_what_is_large() -> None:
    """12 pairs over 18 candidates: a doubling and a halving; the rest stays open."""
    found = harmed = invented = 0
    for seed in range(10):
        program = Program({"good": -math.log(2), "bad": 0.7, **NULLS}, noise=0.03, seed=seed)
        verdict = raced(program, 12)
        found += "good" in verdict.plan
        harmed += "bad" in verdict.plan
        invented += len({*verdict.plan} - {"good", "bad"})
        assert "good" not in verdict.drop
    assert found >= 8 and harmed == 0 and invented <= 5


def test_the_stricter_contract_wins_a_tie_and_only_a_tie() -> None:
    exact, loose = Alternative("fused"), Alternative("autocast", Contract.STATISTICAL)
    one = [Factor("either", ("fused", "autocast"))]
    near = chosen(known({"fused": 0.2, "autocast": 0.21}, error=0.02), exact, loose, factors=one)
    far = chosen(known({"fused": 0.2, "autocast": 0.5}, error=0.02), exact, loose, factors=one)
    assert near == ("fused",)
    assert far == ("autocast",)


def test_fewer_techniques_win_a_tie() -> None:
    choice = chosen(known({"a": 0.2, "b": 0.02, "c": -0.1}, error=0.015))
    assert choice == ("a",)
    assert chosen(known({"a": 0.2, "b": 0.02, "c": -0.1}, error=0.003)) == ("a", "b")


def test_many_small_ties_do_not_add_up_to_a_loss() -> None:
    """Ten gains of 3 % with errors of 2.5 % each are a tie one by one, and 35 % together."""
    usual = PriorPart(0.96, 0.03, 0.03)
    choice = chosen(
        known({f"c{at}": 0.03 for at in range(10)}, error=0.025),
        *(
            Alternative(f"c{at}", prior=Prior((PriorPart(0.02, 0.0, 0.0), usual, PriorPart(0.02, 0.0, 0.3))))
            for at in range(10)
        ),
    )
    assert len(choice) >= 6


def test_a_proof_that_would_fail_makes_a_gain_worth_less() -> None:
    effects = known({"safe": 0.2, "risky": 0.25}, error=0.005)
    one = [Factor("either", ("safe", "risky"))]
    assert chosen(effects, Alternative("safe"), Alternative("risky", proof_fails=0.6), factors=one) == ("safe",)
    assert chosen(effects, Alternative("safe"), Alternative("risky"), factors=one) == ("risky",)


def test_of_two_that_do_the_same_one_is_taken() -> None:
    choice = chosen(known({"a": 0.4, "b": 0.4}, {("a", "b"): -0.4}, error=0.002))
    assert len(choice) == 1


def test_candidates_alone_may_be_in_the_plan() -> None:
    effects = known({"a": 0.3, "placebo": 0.2})
    assert chosen(effects, Alternative("a")) == ("a",)


def test_large_groups_are_climbed_and_small_ones_looked_through_with_the_same_result() -> None:
    rng = np.random.default_rng(0)
    for labels in (10, 25):
        gains = {f"c{at:02}": float(gain) for at, gain in enumerate(rng.normal(0.05, 0.2, labels))}
        pairs = [pair for pair in combinations(gains, 2) if rng.random() < 0.12]
        together = {pair: float(rng.normal(0, 0.2)) for pair in pairs}
        effects = known(gains, together, error=0.001)
        plan = frozenset(chosen(effects))

        def value(plan: frozenset[str], effects: Effects = effects) -> float:
            gain, _ = effects.gain(effects.of_plan(plan))
            return 0.95 * gain - 0.005 * len(plan)

        others = [frozenset(label for label in gains if rng.random() < 0.5) for _ in range(500)]
        neighbours = [plan ^ {label} for label in gains]
        assert value(plan) >= max(map(value, [*others, *neighbours])) - 0.03


def test_records_make_priors_that_can_be_overruled() -> None:
    never = learned([(0.0, 0.01)] * 50)
    always = learned([(0.4, 0.02)] * 50)
    assert never.parts[0].weight > 0.75 > 0.1 > always.parts[0].weight >= 0.02
    assert math.isclose(sum(part.weight for part in always.parts), 1.0)
    with pytest.raises(ValueError, match=r"0\.02 or more"):
        Prior((PriorPart(1.0, 0.0, 0.0), PriorPart(0.0, 0.0, 0.1)))


def test_fresh_processes_pay_where_effects_differ_between_them() -> None:
    alike = known({"a": 0.1}, pairs=200, processes=4)
    differing = Effects(**{**vars(alike), "spread": 0.05, "noise": 0.02})
    noisy = Effects(**{**vars(alike), "spread": 0.005, "noise": 0.3})
    assert pairs_of_process(differing, 0.25, 3.0, 120.0) < 70
    assert pairs_of_process(noisy, 0.25, 3.0, 120.0) > 300
    one = Effects(**{**vars(noisy), "pairs_by_process": (20,)})
    assert pairs_of_process(one, 0.25, 3.0, 120.0) < 200  # three at the least
    assert pairs_of_process(one, 0.25, 60.0, 30.0) >= 20  # no time for another: go on


def test_contributions_multiply_to_the_plan_and_share_what_two_do_together() -> None:
    effects = known({"a": 0.3, "b": 0.2, "c": 0.1}, {("a", "b"): -0.1, ("a", "c"): 0.5})
    shares = effects.contributions(["a", "b"])
    assert shares["a"].estimate == pytest.approx(math.exp(0.25)) and shares.keys() == {"a", "b"}
    together = effects.speedup_of(["a", "b"]).estimate
    assert shares["a"].estimate * shares["b"].estimate == pytest.approx(together) == pytest.approx(math.exp(0.4))
    assert effects.beside("c", ["a", "b"]).estimate == pytest.approx(math.exp(0.6))


def test_a_design_of_levels_is_raced_to_the_best_of_them() -> None:
    design = Design([Factor("threads", ("1 thread", "2 threads")), *map(on_off, NULLS)])
    program = Program({"1 thread": -0.1, "2 threads": -0.3, **NULLS})
    effects = estimate(program.screened(design, names(design), 192), design.factors)
    verdict = race(effects, names(design), map(Alternative, names(design)), design.factors)
    assert verdict.plan == ("2 threads",)


def test_what_is_shipped_of_public_programs_is_of_techniques_that_there_are() -> None:
    known = shipped("cpu")
    assert known and known.keys() <= catalogue().keys()
    for gains in known.values():
        assert all(abs(gain) < 3 and 0 < error < 2 for gain, error in gains)
        assert learned(gains).parts
    assert shipped("another device") == {}
