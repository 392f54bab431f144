"""Findings have one owner: whoever finds something tells it by a method, and nobody else alters a field."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import overdrive
from overdrive.core.contract import Contract
from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check
from overdrive.trials.duel import Duel
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Adopted, Rejected

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
