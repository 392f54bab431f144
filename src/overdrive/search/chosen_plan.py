"""A plan file for what a search has chosen: the plan of its runs, where the proof of that covers the chosen one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from overdrive.core.atomic_file import write_atomically
from overdrive.core.plan import Plan
from overdrive.core.plan.written import one_line
from overdrive.core.program import Program
from overdrive.core.search_result import GAINED, SearchResult, Tried
from overdrive.core.settings import in_words
from overdrive.search.parameters import Parameter, command_of
from overdrive.search.plan_cover import without
from overdrive.techniques.catalogue import catalogue


def plan_of_run(plan: Plan, run: Tried, program: str) -> Plan | None:
    """As this run was made under it; None where its proof does not cover the run, or nothing of it is left."""
    if run.outside:
        return None
    found = without(plan, dict.fromkeys(run.without, "it left itself out in the search"))
    return replace(found, program=program) if found.techniques else None


def run_of_chosen(
    plan: Plan,
    result: SearchResult,
    program: Program,
    parameters: Sequence[Parameter],
    path: Path,
    tell: Callable[[str], None],
) -> str:
    """The command that runs what was chosen as the search ran it, and the plan for that in a file; nothing where there
    is no gain, or the proof does not cover it.

    Args:
        plan: of all runs.
        path: where the plan is written.
    """
    chosen = next((run for run in result.trials if dict(run.values) == dict(result.chosen)), None)
    found = plan_of_run(plan, chosen, program.name) if chosen and result.verdict in GAINED else None
    if found is None:
        return ""
    if path.resolve() != Path(result.plan).resolve():  # what was given is left as it is
        text = found.dumps({name: each.summary() for name, each in catalogue().items()})
        try:
            write_atomically(path, f"# For {one_line(in_words(result.chosen))}, as `overdrive search` ran it.\n{text}")
        except OSError as error:
            tell(f"a plan for what was chosen could not be written into {path}: {error.strerror}")
            return ""
    return command_of(program, parameters, result.chosen, ("overdrive", "run", "--plan", str(path)))[0]
