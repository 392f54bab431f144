"""How many calls of models were divided or made whole, and what is told of that at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from overdrive.core.units import several

ENOUGH = 2  # samples a rank, of a batch by which it is found out how a call is divided


@dataclass
class Calls:
    """Of models of one name.

    Attributes:
        few: made whole since they had too few samples.
        whole: made whole for another reason; the last is `reason`.
    """

    divided: int = 0
    few: int = 0
    whole: int = 0
    reason: str = ""


def saved_nothing(calls: Mapping[str, Calls], ranks: int) -> str:
    """Of the model that was called whole the most, and for a reason; or of which no call had enough samples."""
    whole = [(each.whole, name, each) for name, each in calls.items() if each.whole and each.reason]
    if whole:
        count, name, found = max(whole, key=lambda each: each[0])
        return (
            f"ranks saved nothing in {count:,} of the {several(count + found.divided, 'call')} of {name}, which were "
            f"made whole on each: {found.reason}"
        )
    few = [(each.few, name) for name, each in calls.items() if each.few and not each.divided]
    if not few:
        return ""
    count, name = max(few)
    return (
        f"ranks saved nothing in {several(count, 'call')} of {name}, which were made whole on each: none had "
        f"{ENOUGH * ranks:,} samples or more, for {ranks:,} ranks"
    )
