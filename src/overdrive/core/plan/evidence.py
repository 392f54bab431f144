"""What a tune measured for a plan, kept in the ledger under the plan's own text: an edited plan finds nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from overdrive.core.ledger import Ledger

_KIND, _NAME = "report", "result"


def remember(ledger: Ledger, plan_text: str, result: Mapping[str, Any]) -> None:
    ledger.remember(_key(plan_text), _KIND, _NAME, result)


def recall(ledger: Ledger, plan_text: str) -> dict[str, Any] | None:
    """The result of the tune that wrote this very plan, or None. It is data: read it with care."""
    found = ledger.recall(_key(plan_text), _KIND).get(_NAME)
    return found if isinstance(found, dict) else None


def _key(plan_text: str) -> str:
    return "plan:" + hashlib.sha256(plan_text.encode("utf-8", "surrogatepass")).hexdigest()
