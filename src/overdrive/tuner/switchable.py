"""Which candidates a screening takes in, and which go before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from overdrive.evidence.screening import Factor
from overdrive.techniques.catalogue import catalogue, conflict
from overdrive.techniques.technique import Technique
from overdrive.tuner.findings import Findings
from overdrive.tuner.process_rows import FEWEST, WANTED

_LONGEST_START = 10.0  # seconds that one may add to a process's start: compiling comes when the rest is known
_MUCH = 0.2  # the share of a step that one saves, as a rule, which has its duel before


def that_go_together(found: Findings) -> dict[str, Technique]:
    """The techniques to be screened. Of those that exclude each other only such as may take turns within a process (see
    `in_turns`); else the one that promises most.

    What is a small share of a step may not be where the program waits for no data, which others aboard see to: of
    `make demo`, the optimizer takes 0.8 % of a step, and 2.3 % under `sample_cache`.
    """

    def able(technique: Technique) -> bool:
        screened = (technique.switchable or technique.process_level) and technique.usual_start <= _LONGEST_START
        wanted = found.may_be_tried(technique) and "time" in technique.aims
        return wanted and screened and not technique.compare_all

    known = [technique for technique in catalogue().values() if able(technique)]
    suiting = [technique for technique in known if not technique.applies(found.facts)]
    if any("data" in technique.targets for technique in suiting):
        soon = found.facts.without_data()
        suiting = [technique for technique in known if technique in suiting or not technique.applies(soon)]

    def rank(technique: Technique) -> tuple[bool, float]:
        return not found.contract.allows(technique.contract), -technique.expected_step_saving(found.facts)

    def takes_turns(technique: Technique) -> bool:
        """Beyond the contract one of them is enough to be told of: each more takes time from all others."""
        return not technique.process_level and found.contract.allows(technique.contract)

    chosen: dict[str, Technique] = {}
    for technique in sorted(suiting, key=rank):
        rivals = _excluded(technique.name, chosen)
        # With all of which it would take turns, and these with it alone.
        closed = all({each, *_excluded(each, chosen)} == set(rivals) for each in rivals)
        if not rivals or (closed and all(map(takes_turns, (technique, *map(chosen.__getitem__, rivals))))):
            chosen[technique.name] = technique
    return {name: chosen[name] for name in catalogue() if name in chosen}


def in_turns(names: Iterable[str]) -> list[Factor]:
    """What is switched: each by itself, and those that exclude each other in turns.

    Of public nanoGPT, MNIST and a siamese network `bf16_weights` had no time for a duel of its own, since `autocast`
    was screened in its place.
    """
    groups: list[list[str]] = []
    for name in names:
        group = next((each for each in groups if conflict(name, each)), None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return [Factor(" or ".join(group), tuple(group)) for group in groups]


def _excluded(name: str, others: Iterable[str]) -> list[str]:
    return [other for other in others if conflict(name, [other])]


def goes_ahead(technique: Technique, found: Findings) -> bool:
    """Whether it has its duel before the screening: it is too slow to start for that, and answers in the place of the
    very calls that most of what is screened would make faster, of which it saves more than these do.

    Of an encoder that answers, a screening took 66 s of four minutes and chose `autocast`, 1.45x. There was no time for
    OpenVINO, which is 5 times as fast as PyTorch by hand.
    """
    if not technique.switchable or technique.usual_start <= _LONGEST_START or found.wanted() != "time":
        return False
    return technique.expected_step_saving(found.facts) > _MUCH


def affordable(techniques: Sequence[Technique], processes: float, found: Findings) -> list[str]:
    """Those that can be told apart where there is time to start so many processes: what promises most first.

    Half of the time is for what is switched within them. A pair of processes tells about one more than nothing.
    """
    pairs = int(min(processes / 2, WANTED) / 2)
    if 2 * pairs < FEWEST:
        return []
    best = sorted(techniques, key=lambda each: -each.expected_step_saving(found.facts))
    return [each.name for each in best[: pairs + 1]]
