"""Compares what programs do under plans with what they do plainly: output, exit code, and files, byte for byte."""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.adversarial.forked_runs import Job, Outcome, Plan, run_all

_SHOWN = 6  # lines of a difference
_ERROR = re.compile(r"\b\w*(?:Error|Exception): [^\n]*")
_REPEATED = 10  # plain runs of a program that differed under a plan

ALONE: dict[str, Plan] = {
    "sample_cache": {"sample_cache": {"memory_share": 0.5}},
    "prefix_cache": {"prefix_cache": {"memory_share": 0.5}},
    "prefetch": {"sample_cache": {"memory_share": 0.5}, "prefetch": {"depth": 2}},
    "loader_workers": {"loader_workers": {"workers": 2, "prefetch": 2, "persistent": True}},
    "fast_decode": {"fast_decode": {}},
}
ITSELF = "itself"
PLANS: dict[str, Plan | None] = {
    ITSELF: None,  # plainly once more: a program that differs from itself says nothing of a plan
    **ALONE,
    "data_all": {name: settings for plan in ALONE.values() for name, settings in plan.items()},
    "workers_all": {"loader_workers": {"workers": 2}, "prefix_cache": {"memory_share": 0.5}},
}
OF_MODELS: dict[str, Plan | None] = {
    ITSELF: None,
    "checkpointing": {"activation_checkpointing": {"budget": 0.5}},
    "fast_max_pool": {"fast_max_pool": {}},
    "model_all": {
        "activation_checkpointing": {"budget": 0.5},
        "fast_max_pool": {},
        "sample_cache": {"memory_share": 0.5},
    },
}


@dataclass(frozen=True)
class Compared:
    """One program under one plan, beside what it does plainly."""

    job: Job
    plainly: Outcome
    under_plan: Outcome

    @property
    def differences(self) -> list[str]:
        return self.plainly.differences(self.under_plan)

    def text(self) -> str:
        lines = [f"{self.job.name} under {self.job.plan_name}: {', '.join(self.differences) or 'the same'}"]
        for each in self.differences:
            one, other = getattr(self.plainly, each), getattr(self.under_plan, each)
            if isinstance(one, str):
                shown = difflib.unified_diff(one.splitlines(), other.splitlines(), n=0, lineterm="")
                lines += [f"    {each} {line[:240]}" for line in list(shown)[2 : 2 + _SHOWN]]
            else:
                lines.append(f"    {each} {one!r:.200} -> {other!r:.200}")
        return "\n".join([*lines, *(f"    ({note[:200]})" for note in self.under_plan.notes)])


def compare(
    programs: Iterable[Job], plans: Mapping[str, Plan | None], scratch: Path, at_once: int
) -> Iterator[Compared]:
    """Each program plainly and under each plan; a plan's name with + at its end: with what an earlier run kept."""
    waiting: dict[str, list[tuple[Job, Outcome]]] = defaultdict(list)
    plainly: dict[str, Outcome] = {}
    for job, outcome in run_all(_jobs(programs, plans), scratch, at_once):
        waiting[job.name].append((job, outcome))
        if not job.plan_name:
            plainly[job.name] = outcome
        if job.name in plainly:
            for done, its in waiting.pop(job.name):
                if done.plan_name:
                    yield Compared(done, plainly[job.name], its)


def _jobs(programs: Iterable[Job], plans: Mapping[str, Plan | None]) -> Iterator[Job]:
    for program in programs:
        yield program
        for name, plan in plans.items():
            yield replace(program, plan=plan, plan_name=name, again=name.endswith("+"))


def racing(programs: Iterable[Job], scratch: Path, at_once: int) -> set[str]:
    """The names of those that differ from themselves, run plainly again and again: whoever comes first, their workers
    or they, decides what is read. What they do under a plan says nothing of that."""
    first: dict[str, Outcome] = {}
    found = set()
    for job, outcome in run_all((each for each in programs for _ in range(_REPEATED)), scratch, at_once):
        if first.setdefault(job.name, outcome).differences(outcome):
            found.add(job.name)
    return found


class Counts:
    """What came of all.

    Attributes:
        different: runs that differ.
        errors: that a run was told of, by how many: the program's own, or ours, for which a technique gave up.
    """

    def __init__(self) -> None:
        self.different: list[Compared] = []
        self.errors: Counter[str] = Counter()
        self._by_plan: dict[str, Counter[str]] = defaultdict(Counter)
        self._programs: set[str] = set()

    def add(self, each: Compared) -> None:
        counts, outcome = self._by_plan[each.job.plan_name], each.under_plan
        self._programs.add(each.job.name)
        counts["runs"] += 1
        counts["different"] += bool(each.differences)
        counts["served"] += outcome.served > 0
        counts["served to the end"] += outcome.last
        self.errors.update(set(_ERROR.findall("\n".join(outcome.notes))))
        if each.differences:
            self.different.append(each)

    def text(self) -> str:
        lines = [f"{len(self._programs)} programs"]
        for plan, counts in self._by_plan.items():
            told = (f"{counts[each]} {each}" for each in ("different", "served", "served to the end"))
            lines.append(f"{plan}: {counts['runs']} runs, {', '.join(told)}")
        lines += [f"told of in {count} runs: {error}" for error, count in self.errors.most_common()]
        return "\n".join(lines)
