"""Finds out in one or two short trials what of a program can be varied, and which option decides which value."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from overdrive.core.facts import Facts
from overdrive.core.hyperparameters import (
    CONSTANT,
    DEPTH,
    FIRST_DIMENSION,
    HEADS,
    IMPORTED,
    INPUT,
    KERNEL,
    LITERAL,
    LOADER,
    MODEL,
    OPTION,
    SCHEDULE,
    WORD,
    WRITTEN,
    Hyperparameters,
    Seen,
    ValuePlace,
)
from overdrive.core.json_data import from_json
from overdrive.core.program import Program
from overdrive.core.records import TrialOver
from overdrive.core.settings import Value
from overdrive.core.trial_spec import TrialSpec
from overdrive.core.units import duration
from overdrive.search.names import BATCH_SIZE, at_seam, means
from overdrive.search.parameters import Parameter, parameters_of, set_in
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

REPORT = "overdrive.worker.hyperparameter_watch"
_WORD = re.compile(r"((?:--)?[A-Za-z_][\w.-]*)=([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
_MOST = re.compile(r"(?i)(^|[-_.])(max|limit|cap)")  # as in `MAX_BATCH_SIZE`
_STEPS = 2  # a schedule acts after the first
PATIENCE = 300.0  # seconds for these steps


class CannotList(Exception):
    """The program could not be followed; the message is one sentence for people."""


@dataclass(frozen=True)
class ParameterList:
    """What a program has.

    Attributes:
        facts: of a program that makes training steps.
        tree: the modules of its models.
        read: files that it reads its settings from, and its own modules.
    """

    parameters: tuple[Parameter, ...]
    facts: Facts | None
    tree: str = ""
    read: tuple[str, ...] = ()


def listing(pool: TrialPool, program: Program, models: bool = True, patience: float = PATIENCE) -> ParameterList:
    """
    Args:
        models: whether depths and widths of its models are wanted, which takes trials of smaller ones.
        patience: seconds for its first steps: data may be fetched before.

    Raises:
        CannotList: the program fails by itself, or cannot be watched.
    """
    pool.first_patience = patience
    report, facts = _reported(pool, program, {})
    seen = list(report.places)
    places = [place for place in seen if place.kind != WORD]
    if models:
        places = _that_can_change(pool, program, places)
    else:
        places = [place for place in places if place.kind not in MODEL]
    places += _words(program, places)
    deciders = _equal(places)
    moved, tried = _found_out(pool, program, deciders)
    idle = {place.key for place, _ in deciders if tried and place.kind in (CONSTANT, IMPORTED)} - moved.keys()
    known = {place.key for place in places}
    words = [replace(place, kind=OPTION) for place in seen if place.kind == WORD]
    words = [word for word in words if word.key not in known]
    if as_words := [(word, seam) for word, seam in _equal([*words, *places]) if word in words]:
        by_word = _found_out(pool, program, as_words, by_value=False)[0]
        places += [word for word in words if word.key in by_word]
        moved |= by_word
    if guesses := _batch_literals(places, moved):
        by_guess = _found_out(pool, program, guesses, by_value=False)[0]
        first = {key: seams for key, seams in by_guess.items() if any(seam.name == FIRST_DIMENSION for seam in seams)}
        moved |= first or by_guess  # a batch comes second only where nothing else makes the first
    return ParameterList(tuple(parameters_of(places, moved, tried, idle)), facts, report.tree, report.read)


def _found_out(
    pool: TrialPool, program: Program, deciders: Sequence[tuple[ValuePlace, ValuePlace]], by_value: bool = True
) -> tuple[dict[str, list[ValuePlace]], bool]:
    """What moves which seams, and whether a trial told.

    Args:
        by_value: where the program does not live with other values, equal ones say which it is.
    """
    if not deciders:
        return {}, False
    other = _others(deciders)
    try:
        again, _ = _seen(pool, *_with(program, deciders, other))
    except CannotList:
        moved: dict[str, list[ValuePlace]] = {}
        for place, seam in deciders if by_value else ():
            if not any(seam in seams for seams in moved.values()):
                moved.setdefault(place.key, []).append(seam)
        return moved, False
    return _moved(deciders, other, again), True


def _that_can_change(pool: TrialPool, program: Program, places: list[ValuePlace]) -> list[ValuePlace]:
    """Without those parts of a model that the program does not live with a smaller one of."""
    parts = [place for place in places if place.kind in MODEL]

    def lives(with_smaller: Sequence[ValuePlace]) -> bool:
        try:
            _seen(pool, program, {place.key: _smaller(place) for place in with_smaller})
        except CannotList:
            return False
        return True

    if not parts or lives(parts):
        return places
    fixed = parts if len(parts) == 1 else [place for place in parts if not lives([place])]
    return [place for place in places if place not in fixed]


def _smaller(place: ValuePlace) -> int:
    assert isinstance(place.value, int)
    if place.kind in (HEADS, KERNEL):
        return _another(place)
    return place.value - 1 if place.kind == DEPTH else max(1, place.value // 2)


def _another(place: ValuePlace) -> int:
    """Of heads or kernels, whose sizes are not any."""
    return next(int(each) for each in place.choices if each != str(place.value))


def _words(program: Program, known: Sequence[ValuePlace]) -> list[ValuePlace]:
    """Numbers on the command line that no parser tells of: `--lr=0.1` or `lr=0.1`, read by the program itself."""
    names = {place.name for place in known}
    found = []
    for word in program.arguments:
        match = _WORD.fullmatch(word)
        if match and match[1] not in names:
            number = float(match[2])
            whole = re.fullmatch(r"[-+]?\d+", match[2])
            found.append(ValuePlace(OPTION, match[1], int(number) if whole else number))
    return found


def _equal(places: Sequence[ValuePlace]) -> list[tuple[ValuePlace, ValuePlace]]:
    """Options and constants beside the seams whose value they have: those that sound alike, else all."""
    written = [place for place in places if place.kind in WRITTEN and place.kind != LITERAL and _is_number(place.value)]
    found = []
    for seam in places:
        if seam.kind in (*WRITTEN, SCHEDULE):
            continue
        same = [place for place in written if place.value == seam.value]
        alike = [place for place in same if means(place.name) == at_seam(seam)]
        telling = seam.kind not in (INPUT, *MODEL) and seam.value not in (0, 1)
        same = [place for place in same if not means(place.name) and _type(place) == _type(seam)] if telling else []
        found += [(place, seam) for place in alike or same]
    return found


def _batch_literals(
    places: Sequence[ValuePlace], moved: Mapping[str, Sequence[ValuePlace]]
) -> list[tuple[ValuePlace, ValuePlace]]:
    """Numbers without a name beside the dimensions of the model's input whose size they have, where nothing else is
    known to decide the batch size. What says nothing of batches may only be the first dimension."""
    known = any(at_seam(seam) == BATCH_SIZE for seams in moved.values() for seam in seams)
    if known or any(place.kind == LOADER for place in places):
        return []
    return [
        (place, seam)
        for place in places
        for seam in places
        if place.kind == LITERAL and seam.kind == INPUT and place.value == seam.value
        if seam.name == FIRST_DIMENSION or "batch" in place.name.lower()
    ]


def _is_number(value: Value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _type(place: ValuePlace) -> type:
    return type(place.value)


def _others(deciders: Sequence[tuple[ValuePlace, ValuePlace]]) -> dict[str, Value]:
    """For each place another value, near the program's own and unlike all others."""
    found: dict[str, Value] = {}
    for place, seam in deciders:
        if place.key in found:
            continue
        if seam.kind in (HEADS, KERNEL):
            found[place.key] = _another(seam)
            continue
        number = len(found) + 1
        value = place.value
        assert isinstance(value, (int, float))
        up = bool(_MOST.search(place.name))  # anything follows a limit that is lowered, and little one that is raised
        if isinstance(value, float):
            found[place.key] = value * (1 + 0.01 * (number if up else -number)) if value else 1e-4 * number
        else:
            found[place.key] = value - number if value > 2 * number and not up else value + number
    return found


def _with(
    program: Program, deciders: Sequence[tuple[ValuePlace, ValuePlace]], other: Mapping[str, Value]
) -> tuple[Program, dict[str, Value]]:
    single = {place.key: Parameter(place.key, (place,)) for place, _ in deciders}
    return set_in(program, list(single.values()), other)


def _moved(
    deciders: Sequence[tuple[ValuePlace, ValuePlace]], other: Mapping[str, Value], after: Sequence[ValuePlace]
) -> dict[str, list[ValuePlace]]:
    """By an option's or a constant's key, the seams that took its other value."""
    moved: dict[str, list[ValuePlace]] = {}
    for place, seam in deciders:
        taken = {each.value for each in after if _same_seam(each, seam)}
        if other[place.key] in taken:
            moved.setdefault(place.key, []).append(seam)
    return moved


def _same_seam(one: ValuePlace, other: ValuePlace) -> bool:
    if one.kind == INPUT:  # whichever dimension: a batch may come second
        return other.kind == INPUT
    return (one.kind, one.where, one.name) == (other.kind, other.where, other.name)


def tree_of(pool: TrialPool, program: Program, values: Mapping[str, Value]) -> str:
    """The modules of the program's models with these values, by their places' keys.

    Raises:
        CannotList: it does not live with them.
    """
    return _reported(pool, program, values)[0].tree


def _seen(pool: TrialPool, program: Program, values: Mapping[str, Value]) -> tuple[list[ValuePlace], Facts | None]:
    report, facts = _reported(pool, program, values)
    return list(report.places), facts


def _reported(pool: TrialPool, program: Program, values: Mapping[str, Value]) -> tuple[Seen, Facts | None]:
    """What a short trial saw, and what the program is like, where it makes steps."""
    trial = Trial(pool, TrialSpec(program, hyperparameters=Hyperparameters(values, look=True)))
    facts = None
    try:
        trial.first_step(time.monotonic() + pool.first_patience)
        trial.run(_STEPS - 1)
        observed, facts = trial.observed(), trial.facts()
    except TrialOver as over:
        if over.exit_reason.kind in ("late", "hang"):
            raise CannotList(
                f"No training step was seen within {duration(pool.first_patience)}. Have the program come to its first "
                "step sooner (with its data prepared), or write a longer --budget."
            ) from None
        if not over.exit_reason.by_itself:
            last = pool.last_output.strip().splitlines()
            said = f" ({last[-1][:200]})" if last and str(over.exit_reason) not in last[-1] else ""
            raise CannotList(f"The program fails by itself: {over.exit_reason}{said}.") from None
        observed = over.observed
    finally:
        trial.stop()
    reason = trial.left_out.get(REPORT, "" if REPORT in observed else "nothing was reported")
    if reason:
        raise CannotList(f"The program's values could not be watched: {reason}.")
    return from_json(Seen, observed[REPORT]), facts
