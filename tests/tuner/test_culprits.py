"""The search for what makes a plan fail, over simulated plans: how many proofs it takes, and what it drops."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import pytest

from overdrive.core.contract import Contract
from overdrive.tuner.culprits import Sorted, risk, sort_out


class Plan:
    """Techniques, and sets of them whose plan fails, as does every plan that holds all of such a set."""

    def __init__(self, risks: dict[str, float], failing: Collection[frozenset[str]], proofs: float = 1e9) -> None:
        self.risks = risks
        self.failing = failing
        self.proofs = proofs  # that there is time for
        self.asked: list[frozenset[str]] = []

    def holds(self, names: Sequence[str]) -> bool | None:
        if len(self.asked) >= self.proofs:
            return None
        assert frozenset(names) not in self.asked, "proved twice"
        self.asked.append(frozenset(names))
        return not any(each <= set(names) for each in self.failing)

    def sorted_out(self, held: Sequence[str] = ()) -> Sorted:
        return sort_out(self.risks, self.holds, held)


def plan_of(chance: random.Random, size: int) -> dict[str, float]:
    """As plans are: half host techniques that are exact, the rest of other kinds, in any order."""
    kinds = [
        risk(Contract.EXACT, "host", True),
        risk(Contract.EXACT, "data", True),
        risk(Contract.EXACT, "layout", True),
    ]
    kinds += [risk(Contract.ROUNDING, "device", True), risk(Contract.ROUNDING, "kernels", True)]
    kinds += [risk(Contract.STATISTICAL, "precision", True)]
    return {f"t{index}": chance.choice(kinds) for index in range(size)}


def drawn(chance: random.Random, risks: dict[str, float], count: int) -> list[str]:
    """So many different ones, each as likely as its risk says."""
    left, taken = dict(risks), list[str]()
    for _ in range(count):
        taken.append(chance.choices(list(left), list(left.values()))[0])
        del left[taken[-1]]
    return taken


def simulated(size: int, culprits: int, together: bool = False) -> tuple[float, float]:
    """Proofs and innocents dropped, on average."""
    chance = random.Random(size)
    proofs = innocents = 0
    for _ in range(500):
        risks = plan_of(chance, size)
        guilty = drawn(chance, risks, culprits)
        failing = [frozenset(guilty)] if together else [frozenset({each}) for each in guilty]
        plan = Plan(risks, failing)
        out = plan.sorted_out()
        assert not out.left and set(out.held) | set(out.culprits) == set(risks)
        assert not any(each <= set(out.held) for each in failing)
        proofs += len(plan.asked)
        innocents += len(out.culprits) - (1 if together else culprits)
    return proofs / 500, innocents / 500


@pytest.mark.parametrize(("size", "culprits", "most"), [(6, 1, 3.9), (12, 1, 4.8), (20, 1, 5.5), (12, 2, 8.5)])
def test_few_proofs_find_the_culprits_and_no_innocent_is_dropped(size: int, culprits: int, most: float) -> None:
    proofs, innocents = simulated(size, culprits)
    assert proofs <= most and innocents == 0


def test_of_two_that_fail_only_together_one_is_dropped_and_nothing_else() -> None:
    proofs, innocents = simulated(6, 2, together=True)
    assert proofs <= 5.0 and innocents == 0


def test_a_plan_that_holds_takes_one_proof() -> None:
    plan = Plan({"a": 0.1, "b": 0.2}, [])
    assert plan.sorted_out() == Sorted(("a", "b")) and len(plan.asked) == 1


def test_one_that_fails_alone_takes_no_second_proof() -> None:
    plan = Plan({"a": 0.1}, [frozenset("a")])
    assert plan.sorted_out() == Sorted((), ("a",)) and len(plan.asked) == 1


def test_what_was_proved_before_is_never_proved_again() -> None:
    plan = Plan(dict.fromkeys("abcdef", 0.1), [frozenset("ef")])
    assert plan.sorted_out(held="abcd") == Sorted(tuple("abcde"), ("f",))
    assert len(plan.asked) == 2 and all(each > set("abcd") for each in plan.asked)


@pytest.mark.parametrize("proofs", range(6))
def test_whenever_the_time_ends_the_best_proved_plan_is_kept(proofs: int) -> None:
    plan = Plan(dict.fromkeys("abcdefgh", 0.1), [frozenset("f")], proofs)
    out = plan.sorted_out()
    established = [each for each in plan.asked if "f" not in each]
    assert set(out.held) == max(established, key=len, default=set())
    assert set(out.held) | set(out.culprits) | set(out.left) == set("abcdefgh")


def test_those_unlikely_to_fail_come_first() -> None:
    plan = Plan({"bf16": 0.9, "threads": 0.01, "fused": 0.1}, [frozenset({"bf16"})])
    assert plan.sorted_out() == Sorted(("threads", "fused"), ("bf16",))
    assert plan.asked[1] == {"threads", "fused"}  # by far the likeliest culprit alone is left out first


def test_risks_are_in_the_order_of_contracts_families_and_what_was_proved() -> None:
    exact, rounding, statistical = Contract.EXACT, Contract.ROUNDING, Contract.STATISTICAL
    assert risk(exact, "host", True) < risk(exact, "host", False) < risk(exact, "kernels", False)
    assert risk(exact, "host", True) < risk(rounding, "host", True) < risk(statistical, "host", True)
