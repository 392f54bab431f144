"""Names what a step waits for most, and the techniques of the catalogue that address it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from overdrive.core.bounds import text
from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.units import listed, unit_of
from overdrive.insight.profile.split import shares
from overdrive.techniques.catalogue import catalogue

NAMES = {
    "data": "waiting for data",
    "copy": "copying to the device",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "evaluation": "evaluating",
    "synchronisation": "reading tensors back",
    "python": "Python and launching",
    "between": "what the program does outside its model",
    "graph": "the train function, which could not be told apart,",
}
# Parts of a step as techniques name them (`Technique.targets`).
_RELIEVED = {
    "evaluation": "forward",
    "copy": "other",
    "synchronisation": "other",
    "between": "other",
    "graph": "forward",
}
_LAUNCHED = ("forward", "backward", "optimizer")
_MOST = 6
_TOLD = 0.02  # of a step, from which Python within the bottleneck is told apart, as the table has it


@dataclass(frozen=True)
class Bottleneck:
    part: str = text(40)  # a phase, or "python"
    seconds: float = 0.0  # a step
    share: float = 0.0
    techniques: tuple[str, ...] = ()
    sentence: str = text(1000)


def bottleneck(
    phases: Mapping[str, float],
    python: float,
    facts: Facts | None,
    data: Mapping[str, float],
    within: Mapping[str, float] | None = None,
    operators: Collection[str] = (),
    inference: bool = False,
) -> Bottleneck:
    """`phases` and `python`: seconds a step; Python `within` the phases counts there too.

    `operators`: those that were seen to run; empty where that was not recorded.
    """
    whole = sum(phases.values())
    known = {part: seconds for part, seconds in phases.items() if part in NAMES}
    part, seconds = max(known.items(), key=lambda each: each[1])
    if python >= seconds or (part == "between" and python > 0.5 * seconds):
        part, seconds = "python", python
    share = seconds / whole if whole else 0.0
    names = addressing(part, phases, facts, operators)
    most = max(data, key=lambda each: data[each], default="") if part == "data" else ""
    detail = f", most of it {'the loader itself' if most == 'loader' else most}" if most else ""
    between = (within or {}).get(part, 0.0) / whole if whole and part != "python" else 0.0
    if between >= _TOLD:
        detail = f" ({share - between:.0%} operators, {between:.0%} Python between them){detail}"
    none = _NONE if facts else ""  # of a program of which nothing is known, nothing is said
    helped = f" {listed(names)} address{'es' if len(names) == 1 else ''} it." if names else none
    name = NAMES[part][0].upper() + NAMES[part][1:]
    sentence = f"{name} is the bottleneck: {share:.0%} of a {unit_of(inference)}{detail}.{helped}"
    return Bottleneck(part, seconds, share, names, sentence)


_NONE = " No technique of the catalogue addresses it here."


def addressing(
    part: str, phases: Mapping[str, float], facts: Facts | None, operators: Collection[str] = ()
) -> tuple[str, ...]:
    """Techniques that can shorten this part and apply to the program: the strictest contract first, then those that
    usually save most of it. Not those for operators of which none was seen."""
    if facts is None:
        return ()
    judged = replace(facts, shares=shares(phases), step_seconds=sum(phases.values()))
    found = []
    for name, technique in catalogue().items():
        if (
            not technique.is_for(facts.inference)
            or facts.framework not in technique.frameworks
            or technique.contract is Contract.OPEN
            or "time" not in technique.aims
        ):
            continue
        if part == "python":
            targets = technique.family == "compile" and any(each in _LAUNCHED for each in technique.targets)
        else:
            targets = _RELIEVED.get(part, part) in technique.targets
        if (
            operators
            and technique.acts_on
            and not any(sign in each for sign in technique.acts_on for each in operators)
        ):
            continue
        if targets and technique.applies(judged) is None:
            promise = judged.share(*technique.targets) * technique.expected_saving
            found.append((technique.contract.rank, -promise, name))
    return tuple(name for _, _, name in sorted(found)[:_MOST])
