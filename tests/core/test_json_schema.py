"""The published schemas: what is written passes, and what a plan's reader refuses does not."""

from __future__ import annotations

from typing import Any

import pytest
import tomlkit

from overdrive.core.contract import Contract
from overdrive.core.json_data import to_json
from overdrive.core.json_schema import schema_of
from overdrive.core.plan import Plan, PlanError
from overdrive.core.plan.plan import _ROOT
from overdrive.core.plan.schema import plan_schema
from overdrive.core.proof_record import ProofRecord
from overdrive.core.run_record import RunRecord
from overdrive.core.tune_result import TuneResult
from overdrive.report.reading import read
from overdrive.techniques.catalogue import catalogue
from tests.report.sample import result

jsonschema = pytest.importorskip("jsonschema")

PLAN = """
overdrive = 1
program = "train.py"
contract = "rounding"
[[technique]]
name = "threads"
contract = "rounding"
settings = { count = 2 }
speedup = { low = 1.1, estimate = 1.2, high = inf }
[evidence]
verdict = "FASTER"
tuned = { samples_per_s = 10.0 }
created = 2026-11-25
[[rejected]]
name = "compile"
reason = "slower"
[machine]
cores = 2
"""


def test_a_result_passes_and_one_with_a_text_for_a_number_does_not() -> None:
    schema = schema_of(TuneResult, "result")
    jsonschema.Draft202012Validator.check_schema(schema)
    data = to_json(read(TuneResult, result()))
    assert set(data) == set(schema["properties"])
    jsonschema.validate(data, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "noise_floor": "much"}, schema)


def test_the_schema_of_plans_has_all_that_a_plan_may_have() -> None:
    schema = plan_schema(catalogue())
    assert set(schema["properties"]) == set(_ROOT)
    made = Plan("train.py", Contract.EXACT, (), inference=True).dumps()
    assert "inference = true" in made
    jsonschema.validate(tomlkit.parse(made).unwrap(), schema)


@pytest.mark.parametrize("kind", [ProofRecord, RunRecord])
def test_what_other_commands_write_passes(kind: type) -> None:
    schema = schema_of(kind, kind.__name__)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(to_json(kind()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({}, schema)


def data_of(text: str) -> Any:
    return to_json(tomlkit.parse(text).unwrap())


def test_a_plan_passes() -> None:
    schema = plan_schema(catalogue())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(data_of(PLAN), schema)
    jsonschema.validate(data_of(Plan.loads(PLAN, catalogue()).dumps()), schema)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("overdrive = 1", "overdrive = 2"),
        ('program = "train.py"', "program = 3"),
        ('contract = "rounding"', 'contract = "loose"'),
        ('name = "threads"', 'name = "warp"'),
        ("count = 2", "speed = 2"),
        ("count = 2", 'count = "two"'),
        ("[machine]", "[machines]"),
        ("low = 1.1", "low = -1.1"),
    ],
)
def test_what_the_reader_of_plans_refuses_the_schema_refuses(old: str, new: str) -> None:
    text = PLAN.replace(old, new)
    assert text != PLAN
    with pytest.raises(PlanError):
        Plan.loads(text, catalogue())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data_of(text), plan_schema(catalogue()))
