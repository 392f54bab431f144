"""The JSON schema of a plan: of the TOML file as data, as editors check it. `Plan.loads` checks more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overdrive.core.contract import Contract
from overdrive.core.json_schema import DIALECT
from overdrive.core.plan.plan import FORMAT, KnobLike, TechniqueLike
from overdrive.core.plan.removed import REMOVED

_NUMBER = {"type": "number", "minimum": 0}
_SCALAR = {"type": ["boolean", "number", "string"]}
_CONTRACT = {"enum": [level.value for level in Contract]}
_INTERVAL = {
    "type": "object",
    "properties": {"low": _NUMBER, "estimate": _NUMBER, "high": _NUMBER},
    "required": ["low", "estimate", "high"],
    "additionalProperties": False,
}
_RATES = {
    "type": "object",
    "properties": {"samples_per_s": _NUMBER, "seconds_per_step": _NUMBER},
    "additionalProperties": False,
}


def plan_schema(catalogue: Mapping[str, TechniqueLike]) -> dict[str, Any]:
    return {
        "$schema": DIALECT,
        "title": "Overdrive's plan",
        "description": "What makes a program faster, and the evidence. NAME.overdrive.toml, written by overdrive tune.",
        **_object(
            {
                "overdrive": {"const": FORMAT, "description": "the format of the file"},
                "program": {"type": "string", "minLength": 1, "description": "the script or module it was found for"},
                "contract": _CONTRACT,
                "inference": {"type": "boolean", "description": "the program trains nothing: it calls its model"},
                "technique": {"type": "array", "items": _technique(catalogue)},
                "evidence": _evidence(),
                "rejected": {
                    "type": "array",
                    "items": _object(
                        {"name": {"type": "string"}, "settings": {}, "reason": {"type": "string"}}, ["name"]
                    ),
                },
                "machine": {"type": "object"},
                "versions": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            ["overdrive", "program"],
        ),
    }


def _technique(catalogue: Mapping[str, TechniqueLike]) -> dict[str, Any]:
    settings = [
        {
            "if": {"properties": {"name": {"const": name}}},
            "then": {"properties": {"settings": _object({knob.name: _value(knob) for knob in technique.knobs})}},
        }
        for name, technique in catalogue.items()
    ]
    given = {
        "name": {"enum": [*catalogue, *(name for name in REMOVED if name not in catalogue)]},
        "settings": {"type": "object", "additionalProperties": _SCALAR},
        "contract": _CONTRACT,
        "verdict": {"type": "string"},
        "speedup": _INTERVAL,
    }
    return {**_object(given, ["name"]), "allOf": settings}


def _value(knob: KnobLike) -> dict[str, Any]:
    """By the kind of its default; whether it is one of its choices is for `Plan.loads` to say."""
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return {"type": kinds[type(knob.default)], "default": knob.default}


def _evidence() -> dict[str, Any]:
    return _object(
        {
            "verdict": {"type": "string"},
            "speedup": _INTERVAL,
            "unconfirmed": {"type": "string"},
            "noise_floor": _NUMBER,
            "baseline": _RATES,
            "tuned": _RATES,
            "tuning_seconds": _NUMBER,
            "break_even_steps": {"type": "integer", "minimum": 0},
            "created": {"description": "a date such as 2026-01-31"},
        }
    )


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**made, "required": required} if required else made
