"""The precision table holds what duels, checks and replayed steps came to, and the reason elsewhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.interval import Interval
from overdrive.core.program import Program
from overdrive.core.records import ExitReason
from overdrive.core.trial_spec import TrialSpec
from overdrive.core.tune_result import Precision
from overdrive.evidence.equivalence import Check
from overdrive.evidence.replayed import TensorRow, relative_error
from overdrive.evidence.speed import Pair, Verdict
from overdrive.trials.duel import Duel, Side
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Findings
from overdrive.tuner.formats import FORMATS, formats_tried, precision_table
from overdrive.tuner.outcomes import Adopted, Rejected
from overdrive.tuner.result import leftovers
from overdrive.tuner.tune import _errors

PROGRAM = Program("train.py")
PLAIN = TrialSpec(PROGRAM)
TWICE = Interval(1.8, 2.0, 2.2)


def duel(name: str, settings: dict[str, Any], interval: Interval | None = TWICE, **other: Any) -> Duel:
    new = TrialSpec(PROGRAM, ((name, settings),))
    sides = {"old_side": Side(2.0, 100), "new_side": Side(1.0, 100)}
    return Duel(PLAIN, new, [Pair(0, 1, 2.0, 1.0, True)], Verdict.FASTER, interval, **sides, **other)


def findings(**changes: Any) -> Findings:
    facts = Facts(parameter_dtypes=("torch.float64",))
    found = Findings(PROGRAM, Contract.STATISTICAL, control=duel("", {}, old_facts=facts))
    narrowed = duel("fp32_from_fp64", {})
    found.adopted = [Adopted("fp32_from_fp64", {}, narrowed, Check(Contract.STATISTICAL, "late loss 1 against 1"))]
    out_of_memory = duel("autocast", {}, None, exit_reason=ExitReason("oom"))
    found.rejected = [
        Rejected("autocast", {"dtype": "float16"}, "ended: oom", out_of_memory),
        Rejected("bf16_weights", {}, "does not keep it", duel("bf16_weights", {}), Check(None, "outside the spread")),
        Rejected("compile", {}, "slower", duel("compile", {})),
    ]
    found.errors = {"plain": 0.0, "fp32_from_fp64": 4e-7}
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def rows(found: Findings) -> dict[str, Precision]:
    table = precision_table(found, [*found.rejected, *leftovers(found, found.control and found.control.old_facts)])
    assert [row.format for row in table] == list(FORMATS)
    return {row.format: row for row in table}


def test_measured_formats_have_their_numbers_and_the_others_a_reason() -> None:
    table = rows(findings())
    assert table["fp64"].told == "the program as it is" and table["fp64"].seconds_per_step == 0.02
    fast = table["fp32"]
    assert fast.technique == "fp32_from_fp64" and fast.speedup.estimate == 2.0 and fast.learns is True
    assert (table["fp64"].error, fast.error, fast.against) == (0.0, 4e-7, "plain")
    assert table["bf16"].learns is False and table["bf16"].error is None
    assert "tf32: the parameters are torch.float64" in table["tf32"].told
    assert "autocast: ended: oom" in table["fp16"].told and "needs a GPU" in table["fp8"].told


def test_peak_memory_is_shown_where_a_duel_measured_it() -> None:
    found = findings()
    assert rows(found)["fp32"].peak_memory is None
    found.adopted[0].duel.new_side = Side(1.0, 100, peak_memory=3 << 20)
    assert rows(found)["fp32"].peak_memory == 3 << 20


def test_only_formats_that_a_duel_measured_are_compared_with_fp64() -> None:
    assert formats_tried(findings()) == [("fp32_from_fp64", {}), ("bf16_weights", {})]


@pytest.mark.parametrize("control", [None, duel("", {}, old_facts=None)])
def test_says_so_where_nothing_is_known(control: Any) -> None:
    table = rows(findings(control=control, adopted=[], rejected=[], refusal="It is too short."))
    assert all("could not be tuned" in row.told for row in table.values())


def test_the_error_is_a_median_share_of_the_gradients_size() -> None:
    def row(kind: str, error: float | None, size: float) -> TensorRow:
        return TensorRow(1, kind, "w", error, size, 10)

    made = [row("gradient", 1.0, 10.0), row("gradient", 2.0, 10.0), row("gradient", 9.0, 10.0)]
    assert relative_error([*made, row("update", 5.0, 5.0), row("gradient", None, 1.0)]) == pytest.approx(0.2)
    assert relative_error([]) is None


def test_errors_may_take_what_is_left_of_the_budget_when_all_is_settled() -> None:
    """The last proof had to end before the confirmation, which is over."""
    ends = [0.0]
    prover: Any = SimpleNamespace(
        end_by=ends.append, error_against_fp64=lambda plain, spec: 1e-7 if ends[-1] > 100 else None
    )
    schedule: Any = SimpleNamespace(deadline=200.0, time_for_errors=lambda: True)
    assert _errors(findings(), prover, schedule, Progress()).keys() == {"plain", "fp32_from_fp64", "bf16_weights"}
