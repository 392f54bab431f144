"""Findings have one owner: whoever finds something tells it by a method, and nobody else alters a field."""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import overdrive
from overdrive.core.contract import Contract
from overdrive.core.interval import Interval
from overdrive.core.program import Program
from overdrive.core.records import Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check
from overdrive.trials.duel import Duel, Pair, Side
from overdrive.tuner.findings import Findings
from overdrive.tuner.gain_with_screening import gain_with_screening
from overdrive.tuner.outcomes import Adopted, Rejected
from overdrive.tuner.reasons import other_steps
from overdrive.tuner.result import result_of
from overdrive.tuner.screened import Screened

PACKAGE = Path(overdrive.__file__).parent
OWNER = PACKAGE / "tuner" / "findings.py"
_ALTERING = ("append", "extend", "insert", "pop", "remove", "clear", "update", "sort", "reverse", "setdefault")


def _is_findings(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "found") or (
        isinstance(node, ast.Attribute) and node.attr == "_found"
    )


def _is_field(node: ast.expr) -> bool:
    if isinstance(node, (ast.Subscript, ast.Starred)):
        return _is_field(node.value)
    if isinstance(node, (ast.Tuple, ast.List)):
        return any(map(_is_field, node.elts))
    return isinstance(node, ast.Attribute) and _is_findings(node.value)


def altered(source: str) -> Iterator[int]:
    """Lines that alter a field of `found`, or what lies in one."""
    for node in ast.walk(ast.parse(source)):
        targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [getattr(node, "target", None)]
        if isinstance(node, (ast.Assign, ast.Delete, ast.AugAssign, ast.AnnAssign)) and any(
            each is not None and _is_field(each) for each in targets
        ):
            yield node.lineno
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in _ALTERING and _is_field(called.value):
            yield node.lineno


def test_what_alters_is_seen() -> None:
    lines = ("found.notes.append(1)", "self._found.proof = x", "a, found.seeds = 1, 2", "found.adopted[:1] = []")
    assert all(list(altered(line)) == [1] for line in lines)
    assert not list(altered("found.note(1); own = found.notes; notes.append(found.facts)"))


def test_findings_are_altered_by_themselves_alone() -> None:
    files = [*(PACKAGE / "tuner").rglob("*.py"), PACKAGE / "cli" / "tune.py"]
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in files
        if path != OWNER and "Findings" in (source := path.read_text(encoding="utf-8"))
        for line in altered(source)
    ]
    assert not wrong


def test_what_is_dropped_or_put_back_takes_the_attribution_with_it() -> None:
    spec = TrialSpec(Program("x.py"))
    found = Findings(spec.program, Contract.EXACT)
    members = [Adopted(name, {}, Duel(spec, spec), Check(Contract.EXACT, "")) for name in ("one", "two")]
    for each in members:
        found.adopt(each)
    found.drop(Rejected("one", {}, "idle"))
    assert [each.name for each in found.adopted] == ["two"] and [each.name for each in found.dropped] == ["one"]
    found.put_back(members, members[0].check)
    assert found.adopted == members and not found.dropped and found.proof is members[0].check


def test_a_rejection_is_taken_back_by_its_settings() -> None:
    found = Findings(Program("x.py"), Contract.EXACT)
    found.reject(Rejected("threads", {"count": 1}, "slower"), Rejected("threads", {"count": 2}, "slower"))
    found.take_back("threads", {"count": 2})
    assert [each.settings for each in found.rejected] == [{"count": 1}]


def test_a_screening_that_contradicts_a_duel_does_not_join_it() -> None:
    """Of a public RL loop `waiting` was screened at 2.20x [2.05, 2.37], and its duel said 1.01x: it was adopted."""
    found = Findings(Program("x.py", ()), Contract.ROUNDING)
    plain = TrialSpec(found.program)
    pairs = [Pair(process, 4, 0.1, (0.099, 0.098, 0.1)[at % 3], True) for process in range(3) for at in range(12)]
    duel = Duel(plain, TrialSpec(found.program, (("waiting", {}),)), pairs)
    found.screened = screened({"waiting": {}}, lambda name, plan: Interval(0.95, 1.03, 1.1))
    both = gain_with_screening(found, duel)
    assert both is not None and 1.0 < both.estimate < 1.03
    found.screened = screened({"waiting": {}}, lambda name, plan: Interval(2.05, 2.2, 2.37))
    assert gain_with_screening(found, duel) is None


def test_beside_a_busy_process_the_pace_of_the_program_is_that_of_its_quietest_duel() -> None:
    """Of the example the control told 209 ms a step, of which others held the cores; undisturbed steps took 22."""
    found = Findings(Program("x.py", ()), Contract.ROUNDING)
    plain = found.reference()

    def pairs(loud: int) -> list[Pair]:
        quiet = [Pair(0, 1, 0.022, 0.013, True, (0.0, 0.0), (0.0, 0.0))] * 10
        return quiet + [Pair(0, 1, 0.3, 0.3, True, (0.9, 0.9), (1.0, 1.0))] * loud

    control = Duel(plain, plain, pairs(14), old_side=Side(4.42, 24))
    found.begin(control)
    assert found.of_plain() is control
    beside = Duel(found.spec((("threads", {}),)), found.spec((("threads", {}), ("waiting", {}))), pairs(0))
    quieter = Duel(plain, found.spec((("threads", {}),)), pairs(5), old_side=Side(1.72, 15))
    found.reject(Rejected("waiting", {}, "slower", beside), Rejected("threads", {}, "slower", quieter))
    assert found.of_plain() is quieter
    before = result_of(found, "").baseline
    assert before is not None and before.seconds_per_step == pytest.approx(0.022)
    control.pairs = pairs(4)
    assert found.of_plain() is control


def screened(settings: dict[str, dict[str, Any]], beside: Callable[[str, set[str]], Interval]) -> Screened:
    effects: Any = SimpleNamespace(labels=tuple(settings), beside=beside)
    return Screened(effects=(effects,), settings=settings)


def test_a_screening_joins_a_duel_with_what_it_measured_beside_the_same_plan() -> None:
    """Beside `prefetch`, which did not join, it gained more: of that the duel of both that did join says nothing."""
    found = Findings(Program("x.py", ()), Contract.ROUNDING)
    asked: list[tuple[str, set[str]]] = []

    def beside(name: str, plan: set[str]) -> Interval:
        asked.append((name, plan))
        return Interval(0.9, 1.0, 1.1)

    settings: dict[str, dict[str, Any]] = {
        "cache": {},
        "autocast": {},
        "pool": {},
        "prefetch": {},
        "threads": {"count": 1},
    }
    found.screened = screened(settings, beside)
    old = TrialSpec(found.program, (("cache", {}), ("threads", {"count": 2})))
    new = TrialSpec(found.program, (*old.techniques, ("autocast", {}), ("pool", {})))
    pairs = [Pair(process, 4, 0.1, (0.099, 0.098, 0.1)[at % 3], True) for process in range(3) for at in range(12)]
    assert gain_with_screening(found, Duel(old, new, pairs)) is not None
    assert asked == [("autocast", {"cache"}), ("pool", {"cache", "autocast"})]


def test_steps_of_any_length_that_are_others_than_before_tell_no_speed() -> None:
    """An episode's length hangs on what the model says: of a public RL loop a fused optimizer was told as 1.85x."""
    chance = random.Random(0)
    plain = TrialSpec(Program("x.py", ()))

    def duel(other: bool, uneven: bool, state: str) -> Duel:
        pairs = []
        for at in range(24):
            one, two = (0.05 * math.exp(chance.gauss(0, 0.6 * uneven)) for _ in range(2))
            pairs.append(Pair(0, 1, one, (two if other else one) * math.exp(chance.gauss(0, 0.05)), at % 2 == 0))
        return Duel(plain, plain, pairs, old_trace=Trace(state="a"), new_trace=Trace(state=state))

    uneven, even = duel(False, True, "a"), duel(False, False, "a")
    assert "do not tell its speed" in (other_steps(uneven, duel(True, True, "b")) or "")
    assert other_steps(uneven, duel(True, True, "a")) is None, "the same bit for bit: these are the same steps"
    assert other_steps(uneven, duel(False, True, "b")) is None, "their lengths are the data's"
    assert other_steps(even, duel(False, False, "b")) is None
    assert other_steps(None, duel(True, True, "b")) is None


def test_a_plan_that_lost_a_technique_is_told_by_no_duel_with_it() -> None:
    """Three joined by one duel, at 1.9x; one of them was dropped in the proof, and the other two were told at 1.9x."""
    found = Findings(Program("x.py", ()), Contract.EXACT)
    plain = found.spec()
    group = Duel(plain, found.spec((("a", {}), ("b", {}))))
    last = Duel(group.new, found.spec((("a", {}), ("b", {}), ("c", {}))))
    same = Check(Contract.EXACT, "the same")
    for name, duel in (("a", group), ("b", group), ("c", last)):
        found.adopt(Adopted(name, {}, duel, same))
    assert found.led_here() == [group, last]
    found.drop(Rejected("c", {}, "not proved"))
    assert found.led_here() == [group]
    found.drop(Rejected("a", {}, "not proved"))
    assert not found.led_here()
