"""How the modules of a model differ with what a search has chosen, as a diff."""

from __future__ import annotations

import difflib

from overdrive.core.program import Program
from overdrive.search.listing import CannotList, ParameterList, tree_of
from overdrive.search.parameters import Values, set_in
from overdrive.trials.pool import TrialPool

_MOST_LINES = 60


def tree_diff(pool: TrialPool, program: Program, found: ParameterList, values: Values) -> tuple[str, ...]:
    """Lines of a diff, without their numbers; nothing where no part of a model was varied. Takes a short trial."""
    if not found.tree or not any(each.of_model for each in found.parameters if each.name in values):
        return ()
    try:
        changed = tree_of(pool, *set_in(program, found.parameters, values))
    except CannotList:
        return ()
    lines = list(difflib.unified_diff(found.tree.splitlines(), changed.splitlines(), lineterm="", n=1))[2:]
    kept = [line for line in lines if not line.startswith("@@")]
    return (*kept[:_MOST_LINES], f"... and {len(kept) - _MOST_LINES} lines") if len(kept) > _MOST_LINES else tuple(kept)
