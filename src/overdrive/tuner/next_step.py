"""What to do now, where a tune established nothing or had no time for all: the cause, and the command to type."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from overdrive.core.contract import Contract
from overdrive.core.objective import TIME
from overdrive.core.program import Program
from overdrive.core.units import several
from overdrive.evidence.neighbours import share_disturbed
from overdrive.evidence.speed import Verdict
from overdrive.trials.duel import Duel
from overdrive.tuner.figures import step_time
from overdrive.tuner.findings import Findings
from overdrive.tuner.neighbours import held

STEPS = 200  # that a process should make for its blocks and what goes before them
# How programs call the option by which they are as long as they are, without what joins its words; the first counts: a
# limit comes before epochs, and steps last, which may be those of a rollout.
_LENGTH_OPTIONS = (
    r"-*(trainer\.)?max(train)?(steps|batches)",
    r"-*(trainer\.)?(n|nb|num|max|total|train)*(epochs?|iters|iterations|timesteps|episodes)",
    r"-*(n|nb|num|total|train)*(steps|batches)",
)
_BUDGETS = (5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 480, 720)  # minutes
_LITTLE = 1.02  # a speedup: one that reaches no further is none
_UNSEEN = 1.2  # one that an interval must not hold where there is said to be none; those of nothing reach 1.1 and less


def next_step(found: Findings) -> str:
    """One or two sentences; "" where there is nothing to be said."""
    untried = [each.name for each in found.rejected if each.kind == "time"]
    if found.chosen:
        if not untried:
            return ""
        seen = "".join(f" ({each})" for each in _unproved(found))
        command = _tune(found, found.program, _longer(found))
        return f"{len(untried)} more could be tried in a longer tune{seen}: {command}."
    if found.refusal or found.control is None:
        return ""
    return (
        _short(found, found.control) or _busy(found, found.control, untried) or _slow(found, untried) or _nothing(found)
    )


def _short(found: Findings, control: Duel) -> str:
    """The program ends before anything can be measured."""
    total = control.total_steps
    return "" if total is None or total >= STEPS else too_short(found, total)


def too_short(found: Findings, total: int) -> str:
    """Of a program that ends after so many steps: how many it takes, and how it gets there."""
    times = max(2, math.ceil(STEPS / max(1, total)))
    made = several(total, found.spec().unit)
    if total == 1 and not found.inference:  # of a physics-informed network, say, whose author counts iterations
        made += ", as calls of optimizer.step() are counted (LBFGS calls the model many times within one)"
    said = f"The program ends after {made}, and about {STEPS} are needed"
    if total >= STEPS:
        said = f"The program's {made} are over before two pairs of blocks are measured"
    if longer := _longer_arguments(found.program.arguments, times):
        return f"{said}: {_tune(found, replace(found.program, arguments=longer))}."
    return f"{said}: give it {times} times as many by its own options or its data."


def _longer_arguments(arguments: Sequence[str], times: int) -> tuple[str, ...]:
    """With so many times the epochs or steps, where an option says how many; else none."""
    given = list(arguments)
    for form in _LENGTH_OPTIONS:
        for place, argument in enumerate(arguments):
            option, equals, value = argument.partition("=")
            if not argument.startswith("-") or not re.fullmatch(form, re.sub(r"(?<=\w)[-_]", "", option)):
                continue
            where = place if equals else place + 1
            value = value if equals else "".join(arguments[where : where + 1])
            if value.isdigit():
                given[where] = f"{option}={int(value) * times}" if equals else str(int(value) * times)
                return tuple(given)
    return ()


def _busy(found: Findings, control: Duel, untried: Sequence[str]) -> str:
    """Others had the machine."""
    duels = [control, *(each.duel for each in found.rejected if each.duel), *(duel for _, duel in found.other_duels)]
    if found.confirmation:
        duels.append(found.confirmation)
    # Each duel by itself: what waiting is usual is known by process, and each counts its processes from the first.
    disturbed = sum(share_disturbed(duel.pairs) * len(duel.pairs) for duel in duels)
    of_all = disturbed / max(1, sum(len(duel.pairs) for duel in duels))
    # A candidate's processes may wait all the while, and are used to it: the program against itself tells by itself.
    who = held(control, max(of_all, found.screened.share_disturbed))
    if not who:
        return ""
    again = _tune(found, found.program, _longer(found) if untried else math.ceil(found.budget / 60))
    return f"This machine is busy: {who}. Tune when it is quieter, or where the cores are yours alone: {again}."


def _slow(found: Findings, untried: Sequence[str]) -> str:
    """There was too little time."""
    control = found.control
    if control is None or not untried:
        return ""
    step = step_time(control)
    start = control.old_side.setup_seconds
    unit = control.old.unit
    causes = [f"a {unit} takes {step:.2g} s"] if step > 0.5 else []
    causes += [f"a process needs {start:.0f} s for its first {unit}"] if start > 10 else []
    causes += _unproved(found)
    cause = f" ({', '.join(causes)})" if causes else ""
    few = several(len(untried), "candidate")
    return f"There was no time for {few}{cause}: {_tune(found, found.program, _longer(found))}."


def _unproved(found: Findings) -> list[str]:
    """The most of what was measured to be faster, and had no time to be proved; none where nothing was."""
    late = [(each, each.speedup) for each in found.rejected if each.kind == "time" and each.speedup]
    faster = [(speedup.estimate, each.name, speedup) for each, speedup in late if speedup.low > 1]
    return [f"{name} was measured at {speedup.as_speedup()}" for _, name, speedup in sorted(faster)[-1:]]


def _nothing(found: Findings) -> str:
    """All that could be tried was."""
    measured = [
        (each, each.speedup)  # not what crashed, hung or left itself out
        for each in (*found.rejected, *found.dropped)
        if each.kind == "measured" and each.speedup
    ]
    if not measured:
        return ""
    best, gain = max(measured, key=lambda each: each[1].estimate)
    were = f"{several(len(measured), 'candidate')} {'was' if len(measured) == 1 else 'were'}"
    unclear = any(speedup.high > _UNSEEN for _, speedup in measured)
    faster = any(each.duel and each.duel.verdict is Verdict.FASTER for each, _ in measured)
    if gain.estimate > _LITTLE or unclear or faster:
        said = f"{were} measured, and none was established at {found.contract}"
    else:
        said = f"There is nothing to gain at {found.contract}: {were} measured"
    return f"{said}; the best was {best.name}, {gain.as_speedup()}."


def longer_tune(found: Findings) -> str:
    """The command that gives the same tune twice the time."""
    return _tune(found, found.program, _longer(found))


def _longer(found: Findings) -> int:
    """Minutes of a budget with twice the time, or as much as what was seen to gain lacked; one of them, at least."""
    late = [each for each in found.rejected if each.kind == "time" and each.lacks]
    least = min((each.lacks for each in late), default=0.0)
    lacks = max((each.lacks for each in late if each.speedup and each.speedup.low > 1), default=least)
    wanted = max(2 * found.budget, found.budget + lacks) / 60
    return next((each for each in _BUDGETS if each >= wanted), _BUDGETS[-1])


def _as_typed(seconds: float) -> str:
    return f"{seconds / 60:.0f}m" if seconds % 60 == 0 else f"{seconds:g}s"


def _tune(found: Findings, program: Program, minutes: int | None = None) -> str:
    """The command, in backquotes; with this budget, else with one that was typed."""
    options = [] if found.contract is Contract.ROUNDING else ["--contract", str(found.contract)]
    if minutes:
        options += ["--budget", f"{minutes}m"]
    elif found.runs is None:  # it was typed
        options += ["--budget", _as_typed(found.budget)]
    options += [] if found.objective == TIME else ["--objective", str(found.objective)]
    options += ["--techniques", ",".join(sorted(found.only))] if found.only else []
    options += [] if found.ranks is None else ["--ranks", str(found.ranks or "auto")]
    options += ["--stdin", program.stdin] if program.stdin else []
    options += found.typed
    return f"`{shlex.join(['overdrive', 'tune', *options])} {program.command()}`"
