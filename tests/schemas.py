"""Holds what a command writes with `--json` to its published schema."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from overdrive.core.json_data import finite
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import pages


def held(name: str, data: Any, more: frozenset[str] = frozenset()) -> None:
    """That `data` passes the schema `name`, and has no part that it does not tell of, but `more`."""
    jsonschema = pytest.importorskip("jsonschema")
    _, made = pages.SCHEMAS[name]
    schema = made()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(finite(data), schema)
    assert set(data) - more == set(schema["properties"])
