"""The precision table: for each number format its speed, memory, error against fp64, and whether it learns the same.

It holds what a tune really measured, in duels, checks and replayed steps; elsewhere it says why not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from overdrive.core import facts
from overdrive.core.settings import Chosen
from overdrive.core.tune_result import Precision
from overdrive.evidence.equivalence import Check
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.technique import Settings, Technique
from overdrive.trials.duel import Duel
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Rejected

FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")


def formats_tried(found: Findings) -> list[Chosen]:
    """The techniques that changed the number format in a duel of their own, with their settings."""
    return [(name, settings) for name, settings, *_ in _duels(found) if _format(name, settings)]


def precision_table(found: Findings, rejected: Sequence[Rejected]) -> tuple[Precision, ...]:
    """A row for each format, or for each technique that brought it."""
    rows: list[Precision] = []
    for name in FORMATS:
        mine = [*_own(found, name), *_tried(found, name)]
        rows += mine or [Precision(name, told=f"not tried: {_why_not(found, name, rejected)}")]
    return tuple(rows)


def _own(found: Findings, name: str) -> Iterator[Precision]:
    duel = found.control
    if duel is None or duel.old_facts is None or not duel.old_side.steps:
        return
    for dtype in duel.old_facts.parameter_dtypes:
        if facts.FORMATS.get(dtype.removeprefix("torch.")) == name:
            within = ", within an autocast of its own" if duel.old_facts.own_autocast else ""
            yield Precision(
                format=name,
                told=f"the program as it is{within}",
                seconds_per_step=duel.old_side.seconds_per_step,
                peak_memory=duel.old_side.peak_memory or None,
                error=found.errors.get(found.spec().name()),
            )


def _tried(found: Findings, name: str) -> Iterator[Precision]:
    for technique, settings, duel, check, sentence in _duels(found):
        if _format(technique, settings) == name:
            yield Precision(
                format=name,
                technique=technique,
                settings=dict(settings),
                told=sentence,
                speedup=duel.interval,
                against=duel.old.name(),
                seconds_per_step=duel.new_side.seconds_per_step,
                peak_memory=duel.new_side.peak_memory or None,
                error=found.errors.get(found.spec(((technique, settings),)).name()),
                learns=None if check is None else check.level is not None,
            )


def _duels(found: Findings) -> Iterator[tuple[str, Settings, Duel, Check | None, str]]:
    """Of a technique each, with what was proved of it and what came of it in words."""
    for each in found.adopted:
        yield each.name, each.settings, each.duel, each.check, each.check.sentence
    for other in (*found.rejected, *found.dropped):
        if other.duel and _measured(other.duel):
            yield other.name, other.settings, other.duel, other.check, other.reason


def _why_not(found: Findings, name: str, rejected: Sequence[Rejected]) -> str:
    if found.refusal:
        return "the program could not be tuned"
    if name == "fp64":
        return "no technique makes a program slower on purpose; the errors are those against fp64"
    reasons = []
    for technique in catalogue().values():
        if name in _formats_of(technique):
            said = [each.reason for each in rejected if each.name == technique.name and not _measured(each.duel)]
            reasons.append(f"{technique.name}: {said[0].removeprefix('not tried: ') if said else 'no candidate here'}")
    return "; ".join(reasons) or "no technique computes in it"


def _formats_of(technique: Technique) -> set[str]:
    """All formats that some setting of it brings."""
    choices = product(*(knob.choices or (knob.default,) for knob in technique.knobs))
    names = [knob.name for knob in technique.knobs]
    return {technique.computes_in(dict(zip(names, each, strict=True))) for each in choices}


def _measured(duel: Duel | None) -> bool:
    return duel is not None and duel.interval is not None


def _format(name: str, settings: Settings) -> str:
    technique = catalogue()[name]
    return technique.computes_in({**technique.defaults(), **settings})
