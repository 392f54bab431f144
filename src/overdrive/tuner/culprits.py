"""Finds what makes a plan fail its proof, with few proofs, and without dropping anything that is innocent.

Nothing is run here: `holds` says of a set of techniques whether its proof came out well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from overdrive.core.contract import Contract

# How likely a technique is to make a plan fail its proof. Only their order and rough ratios count: what promises equal
# bits is compared bit for bit in its own duel already, what promises a result within the noise of the seed fails most.
_RISK = {Contract.EXACT: 0.01, Contract.ROUNDING: 0.05, Contract.STATISTICAL: 0.3, Contract.OPEN: 0.0}
_NUMERICAL = frozenset({"kernels", "compile", "layout", "precision"})  # families that compute by other operations
_NUMERICAL_TIMES = 3.0
_PROVED_TIMES = 0.3  # for one that passed a proof of its own: it can only fail together with others


def risk(level: Contract, family: str, proved: bool) -> float:
    """The chance that a plan fails because of this technique, up to a factor common to all.

    Args:
        proved: it passed a proof by itself, or with those that were in the plan before it.
    """
    return _RISK[level] * (_NUMERICAL_TIMES if family in _NUMERICAL else 1.0) * (_PROVED_TIMES if proved else 1.0)


@dataclass(frozen=True)
class Sorted:
    """What a search for culprits came to; the three have nothing in common."""

    held: tuple[str, ...] = ()  # their plan is proved
    culprits: tuple[str, ...] = ()  # with each of them a plan failed that held without it
    left: tuple[str, ...] = ()  # there was no time to say anything of them


def sort_out(
    risks: Mapping[str, float], holds: Callable[[Sequence[str]], bool | None], held: Sequence[str] = ()
) -> Sorted:
    """Prove the whole; where that fails, find the culprits by bisection and take them out.

    Suspects are put in a row, those unlikely to fail first, and the shortest beginning of it that fails is looked for:
    the last of that beginning is taken out, and the rest proved again. Two that fail only together are found so, too:
    the likelier one goes. A set is taken to fail if a part of it does, so that no set that was proved is proved again.

    Simulated, with one culprit drawn by these risks, this takes 3.2 proofs for a plan of 6, 3.9 of 12 and 4.6 of 20
    (4.5, 5.6 and 6.3 where all risks are alike), for two culprits of 12 it takes 6.7 (9.3), and drops no innocent
    (tests/tuner/test_culprits.py). Taking out the last again and again took 4.3, 7.3 and 11.7, and lost 2.5, 5.4 and
    9.7 innocents.

    Args:
        risks: of all techniques of the plan, those in `held` too.
        holds: whether the plan of these is proved; None: there is no time to find out.
        held: those whose plan was proved before.
    """
    safe, culprits = list(held), list[str]()
    rest = sorted((name for name in risks if name not in safe), key=lambda name: risks[name])
    while rest:
        answer = holds([*safe, *rest])
        if answer is None:
            break
        if answer:
            return Sorted((*safe, *rest), tuple(culprits))
        known, failing = 0, len(rest)  # the beginning of `rest` that holds, and the one that does not
        while failing - known > 1:
            middle = known + _half([risks[name] for name in rest[known:failing]])
            answer = holds([*safe, *rest[:middle]])
            if answer is None:
                return Sorted((*safe, *rest[:known]), tuple(culprits), tuple(rest[known:]))
            known, failing = (middle, failing) if answer else (known, middle)
        safe += rest[:known]
        culprits.append(rest[known])
        rest = rest[failing:]
    return Sorted(tuple(safe), tuple(culprits), tuple(rest))


def _half(risks: Sequence[float]) -> int:
    """How many of the first have half of the risk together, as nearly as can be; one at the least, and not all."""
    total, before, best, nearest = sum(risks), 0.0, 1, float("inf")
    for count, each in enumerate(risks[:-1], start=1):
        before += each
        if abs(2 * before - total) < nearest:
            best, nearest = count, abs(2 * before - total)
    return best
