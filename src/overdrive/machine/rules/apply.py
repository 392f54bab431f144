"""Applies all rules to one survey."""

from __future__ import annotations

from overdrive.machine.rules import (
    amd,
    environment,
    gpus,
    links,
    measured,
    memory,
    network,
    processors,
    software,
    storage,
    tensorflow,
)
from overdrive.machine.rules.finding import Finding, LeftOut, Rule, Severity, Survey

RULES: tuple[Rule, ...] = (
    *software.RULES,
    *tensorflow.RULES,
    *gpus.RULES,
    *links.RULES,
    *amd.RULES,
    *network.RULES,
    *processors.RULES,
    *memory.RULES,
    *storage.RULES,
    *environment.RULES,
    *measured.RULES,
)
_ORDER = list(Severity)


def apply_rules(survey: Survey, rules: tuple[Rule, ...] = RULES) -> tuple[list[Finding], list[LeftOut]]:
    """The findings, the worst first; and the rules that failed on this survey, with the reason."""
    findings: list[Finding] = []
    failed = []
    for rule in rules:
        try:
            findings += rule(survey)
        except Exception as error:  # a machine that answers in a way nobody foresaw
            failed.append(LeftOut(f"advice {rule.__name__}", f"{type(error).__name__}: {error}"))
    findings.sort(key=lambda each: _ORDER.index(each.severity))
    return findings, failed
