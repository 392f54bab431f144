"""Parameters of a program: which place decides each, what it moves, and how it is given another value."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from overdrive.core.hyperparameters import (
    CONSTANT,
    ENVIRONMENT,
    HEADS,
    IMPORTED,
    INPUT,
    KERNEL,
    LITERAL,
    MODEL,
    OPTIMIZER,
    OPTION,
    SCHEDULE,
    WRITTEN,
    ValuePlace,
)
from overdrive.core.program import Program
from overdrive.core.settings import Value
from overdrive.search import names
from overdrive.search.names import at_seam, means, spelled, told, usual

_OPTION = re.compile(r"-(?![\d.])")  # a word that is no value: no negative number
Values = Mapping[str, Value]  # by parameter


@dataclass(frozen=True)
class Parameter:
    """One hyperparameter.

    Attributes:
        places: what is set: an option, a constant, or one value or more at seams.
        moves: the seams whose values follow it.
        tried: whether that was seen in a trial, and not only taken from equal values.
        told: whether it is listed. What may be anything (a constant of a module, a variable of the environment, of no
            usual name) is varied where it is asked for.
    """

    name: str
    places: tuple[ValuePlace, ...]
    moves: tuple[ValuePlace, ...] = ()
    tried: bool = False
    told: bool = True

    @property
    def default(self) -> Value:
        return self.places[0].value

    @property
    def meaning(self) -> str:
        """The usual hyperparameter that it is, if any."""
        seams = [place for place in (*self.moves, *self.places) if place.kind not in WRITTEN]
        return at_seam(seams[0]) if seams else usual(self.places[0])

    @property
    def of_model(self) -> ValuePlace | None:
        """The part of a model that it is or moves, if any."""
        return next((place for place in (*self.moves, *self.places) if place.kind in MODEL), None)

    @property
    def place(self) -> str:
        """Where it is set, for people."""
        first = self.places[0]
        if first.kind == OPTION:
            return f"option {first.name}"
        if first.kind in (CONSTANT, IMPORTED):
            return f"constant {first.name} ({first.where})"
        if first.kind == ENVIRONMENT:
            return f"variable {first.name} of the environment"
        if first.kind == LITERAL:
            return f"number in {first.name} ({first.where})"
        return told(first) + (f" and {len(self.places) - 1} more" if len(self.places) > 1 else "")

    @property
    def effect(self) -> str:
        """What it moves, for people."""
        seen = "" if self.tried else ", by its value"
        return "; ".join(dict.fromkeys(told(place) for place in self.moves)) + (seen if self.moves else "")


class UnknownParameter(Exception):
    """The program has none of this name; the message is one sentence for people."""


def find(parameters: Sequence[Parameter], name: str) -> Parameter:
    """By its name or the program's own spelling of it.

    Raises:
        UnknownParameter: there is none, or more than one.
    """
    wanted = spelled(name)
    for each in parameters:
        if each.name == wanted or each.places[0].name == name:
            return each
    own = [each for each in parameters if each.places[0].name.lstrip("-") == name.lstrip("-")]
    own = own or [each for each in parameters if spelled(each.places[0].name) == wanted]
    if len(own) == 1:
        return own[0]
    known = [each.name for each in parameters if each.told]
    if meant := means(name):
        close = [each for each in known if each == meant] or difflib.get_close_matches(meant, known)
    else:
        close = difflib.get_close_matches(wanted, known, 3)
    hint = f"did you mean {' or '.join(close)}?" if close else "`overdrive search --list` shows what it has."
    raise UnknownParameter(f"The program has no parameter {name!r} that could be varied: {hint}")


def parameters_of(
    places: Sequence[ValuePlace],
    moved: Mapping[str, Sequence[ValuePlace]],
    tried: bool,
    idle: Collection[str] = (),
) -> list[Parameter]:
    """All parameters, the usual ones first.

    Args:
        places: as the program has them.
        moved: by an option's or a constant's key, the seams that follow it.
        tried: whether that was seen in a trial.
        idle: keys of constants with a seam's value and a name to match, which were seen not to decide it.
    """
    following = {place.key for seams in moved.values() for place in seams}
    found: list[Parameter] = []
    others: list[Parameter] = []
    for place in places:
        if place.key not in moved and _is_told_by_what_it_moves(place):
            others += [Parameter(spelled(place.name), (place,), told=False)] if place.kind != LITERAL else []
            continue
        if place.kind in WRITTEN:
            moves = tuple(moved.get(place.key, ()))
            name = "" if place.key in idle else usual(place)
            name = at_seam(moves[0]) if moves else name or spelled(place.name)
            found.append(Parameter(name, (place,), moves, tried or place.kind == LITERAL))
        elif place.kind != INPUT and place.key not in following:
            found.append(Parameter(at_seam(place), (place,)))
    order = [names.LR, names.BATCH_SIZE, names.WEIGHT_DECAY, names.MOMENTUM, names.BETA1, names.BETA2]
    order += [names.ANNEAL, names.DROPOUT_RATE, names.BLOCKS, names.HIDDEN, HEADS, KERNEL]
    found.sort(key=lambda each: (order.index(each.name) if each.name in order else len(order), _rank(each)))
    return _with_own_names([*found, *others])


def _is_told_by_what_it_moves(place: ValuePlace) -> bool:
    """Of what a program writes or asks for, that which may well be no hyperparameter."""
    return place.kind == LITERAL or (place.kind in (ENVIRONMENT, IMPORTED) and not usual(place))


def _rank(parameter: Parameter) -> int:
    """Of several of one name, what is seen to decide a seam's value comes first, then the seams themselves.

    An option `--anneal` of the program is its author's, whatever it means (of a VAE's loss, say).
    """
    if parameter.moves:
        return 0
    if parameter.meaning == names.ANNEAL:
        return 3
    return 2 if parameter.places[0].kind in WRITTEN else 1


def _with_own_names(found: Sequence[Parameter]) -> list[Parameter]:
    """The first of a name keeps it; others have the program's own spelling, or a number."""
    taken: set[str] = set()
    named = []
    for each in found:
        name = each.name
        if name in taken and each.places[0].kind in WRITTEN:
            name = spelled(each.places[0].name)
        number = 2
        while name in taken:
            name, number = f"{each.name}-{number}", number + 1
        taken.add(name)
        named.append(replace(each, name=name))
    return named


def set_in(program: Program, parameters: Sequence[Parameter], values: Values) -> tuple[Program, dict[str, Value]]:
    """The program with the options that these values take, and what a trial is to set by its places' keys."""
    words = list(program.arguments)
    keys: dict[str, Value] = {}
    for parameter in parameters:
        if parameter.name not in values:
            continue
        value = values[parameter.name]
        for place in parameter.places:
            if place.kind == OPTION:
                words = _without(words, place)
                at = words.index(place.before) if place.before in words else len(words)
                words[at:at] = option_words(place, value)
            else:
                keys[place.key] = value
                if place.kind == OPTIMIZER and _is_alone(place, parameters):
                    keys[place.key_of_any] = value
    return replace(program, arguments=tuple(words)), keys


def _is_alone(place: ValuePlace, parameters: Sequence[Parameter]) -> bool:
    """Whether its line has no other value of its kind and name. A loader's line may serve evaluations, too."""
    every = (other for each in parameters for other in (*each.places, *each.moves))
    return {other.key for other in every if other.key_of_any == place.key_of_any} == {place.key}


def command_of(
    program: Program, parameters: Sequence[Parameter], values: Values, runner: Sequence[str] = ("python",)
) -> tuple[str, tuple[str, ...]]:
    """The command line of a configuration, and what of it stands in the program's text."""
    chosen, _ = set_in(program, parameters, values)
    moved = any(values[each.name] != each.default for each in parameters)
    edits = tuple(
        _edit(each, values[each.name])
        for each in parameters
        if each.places[0].kind not in (OPTION, ENVIRONMENT, SCHEDULE)
        and (values[each.name] != each.default or (moved and each.places[0].kind == OPTIMIZER))
    )
    variables = tuple(
        f"{each.places[0].name}={written(values[each.name])}"
        for each in parameters
        if each.places[0].kind == ENVIRONMENT
    )
    words = (*(("-m",) if chosen.module else ()), chosen.target, *chosen.arguments)
    return shlex.join((*variables, *runner, *words)), edits


def _edit(parameter: Parameter, value: Value) -> str:
    """An optimizer's value is set whatever the program computes it from: a rate that grows with the batch, say."""
    if value == parameter.default:
        return f"{parameter.place}: {written(value)} as before, whatever the other values make of it"
    return (
        f"{parameter.place}: {written(value)} instead of {written(parameter.default)}{_of_schedules(parameter, value)}"
    )


def _of_schedules(parameter: Parameter, value: Value) -> str:
    """A trial scales the rate at every step; who edits the optimizer's own leaves a schedule's as they are."""
    first, default = parameter.places[0], parameter.default
    if (first.kind, first.name) != (OPTIMIZER, "lr") or isinstance(value, str) or isinstance(default, str):
        return ""
    return f" ({value / default:.3g} times; and so any rate that a schedule sets by itself)" if default else ""


def option_words(place: ValuePlace, value: Value) -> list[str]:
    """What is typed for an option: `--lr=0.01`."""
    if place.on or place.off:
        word = place.on if value else place.off
        return [word] if word else []
    short = place.name.startswith("-") and not place.name.startswith("--")
    return [place.name, written(value)] if short else [f"{place.name}={written(value)}"]


def written(value: Value) -> str:
    """A value as people write it; its float is the same."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _without(words: list[str], place: ValuePlace) -> list[str]:
    """Without what stands there for this option, in its full spelling; else the last one counts."""
    kept, rest = [], list(words)
    takes_word = "=" in place.on or not (place.on or place.off)
    while rest:
        word = rest.pop(0)
        if word in (place.name, *place.others) and takes_word:
            if rest and not _OPTION.match(rest[0]):  # it may stand alone: `--fp16 --lr 0.2`
                rest.pop(0)
        elif word not in (place.on, place.off, *place.others) and not word.startswith(f"{place.name}="):
            kept.append(word)
    return kept
