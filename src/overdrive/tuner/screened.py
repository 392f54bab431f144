"""What a screening found: which candidates make the plan to begin with, and which need no duel."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from overdrive.core.facts import Facts
from overdrive.core.interval import Interval
from overdrive.core.settings import Chosen, Settings
from overdrive.core.units import several
from overdrive.evidence.attribution import Attribution, Share
from overdrive.evidence.neighbours import busy
from overdrive.evidence.screening import Alternative, Effects, Factor, choose, rivals_of, shipped
from overdrive.evidence.screening.beliefs import Belief, beliefs
from overdrive.evidence.speed import product
from overdrive.techniques.catalogue import catalogue
from overdrive.trials.checkpoint import TuneCheckpoint

_HOPELESS = 0.005  # of log speed: less is expected to be lost without a duel for this candidate
_HOPELESS_BESIDE = 0.05  # likewise: the probability of being worth a per cent in the best company
_WORTH_A_DUEL = 1.01  # speedup beside what is adopted, at the upper end of its interval
_MOST_TOLD = 6  # candidates in a sentence
_WORTH_TELLING = 1.05  # speedup beyond the contract, at the lower end of its interval


Gain = tuple[float, float]  # the logarithm of a speedup, and its standard error


def gains_elsewhere(facts: Facts, checkpoint: TuneCheckpoint) -> dict[str, list[Gain]]:
    """What each technique gained in other programs: public ones, and the user's own on such a machine."""
    found = {name: list(gains) for name, gains in shipped(facts.device).items()}
    for name, gains in checkpoint.gains().items():
        found.setdefault(name, []).extend(gains)
    return found


@dataclass(frozen=True)
class Screened:
    """What was found. Names of techniques, with their first settings.

    Attributes:
        effects: of what was switched within processes, then of what distinguished them; those that were measured.
        settings: of all that were measured.
        choice: the plan to begin with, within the contract.
        beliefs: gains on the logarithm of speed, prior included.
        speedups: as measured, beside the choice.
        idle: that are not expected to gain anything, whatever else is on.
        beyond: those that another contract would allow.
        failed: that killed their process, with the reason.
        left_out: that left themselves out beside all others, with the reason; what each would do alone is not known.
    """

    effects: Sequence[Effects] = ()
    settings: Mapping[str, Settings] = field(default_factory=dict)
    choice: Sequence[str] = ()
    beliefs: Mapping[str, Belief] = field(default_factory=dict)
    speedups: Mapping[str, Interval] = field(default_factory=dict)
    idle: Collection[str] = ()
    beyond: Collection[str] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    pairs: int = 0  # of blocks
    disturbed: int = 0  # of these, by a neighbour
    processes: int = 0
    seconds: float = 0.0

    def taken_in(
        self,
        effects: Effects,
        factors: Sequence[Factor],
        candidates: Iterable[Alternative],
        settings: Mapping[str, Settings],
        least: float = 0.0,
    ) -> Screened:
        """The same, and what these effects say.

        Args:
            candidates: that may be chosen.
            settings: of all that may be told of.
            least: probability of being worth it, below which one is not chosen, and has a duel of its own.
        """
        out = self.failed.keys() | self.left_out.keys()
        names = [name for name in effects.labels if name in settings and name not in out]
        candidates = list(candidates)
        believed = beliefs(effects, {each.label: each.prior for each in candidates})
        sure = [each for each in candidates if each.label not in out and believed.best.get(each.label, 0.0) >= least]
        plan = choose(effects, sure, factors, believed=believed)
        partners = frozenset().union(*effects.interacting)

        def beside(name: str) -> set[str]:
            return set(plan) - rivals_of(name, factors)  # in the place of what it excludes

        # What gains only beside another is believed to gain nothing alone: of these the best company counts.
        idle = {name for name in names if believed.by_label[name].above < _HOPELESS and name not in partners}
        idle |= {name for name in partners & set(names) if believed.best[name] < _HOPELESS_BESIDE}
        return replace(
            self,
            effects=(*self.effects, effects),
            settings={**self.settings, **{name: settings[name] for name in names}},
            choice=(*self.choice, *plan),
            beliefs={**self.beliefs, **{name: believed.by_label[name] for name in names}},
            speedups={**self.speedups, **{name: effects.beside(name, beside(name)) for name in names}},
            idle=frozenset(self.idle) | (idle - set(plan)),
        )

    def absent(self) -> Mapping[str, str]:
        """Within the contract, those of which nothing is known, since they left themselves out, with the reason."""
        return {name: why for name, why in self.left_out.items() if name not in {*self.failed, *self.beyond}}

    @property
    def share_disturbed(self) -> float:
        return self.disturbed / max(1, self.pairs)

    def busy(self) -> bool:
        """Whether others held the cores in so many pairs that all count."""
        return busy(self.share_disturbed)

    def sentence(self) -> str:
        """What came of it."""
        if not self.pairs:
            return "no pair of blocks was measured in its time"
        besides = f" ({self.disturbed} of them left out: others held the cores)" if self.disturbed else ""
        if self.busy():
            besides = f" (in {self.disturbed} of them others held the cores)"
        if not self.beliefs:
            return f"nothing established in {self._pairs()}{besides}"
        hopeful = [name for name in self.beliefs if self.hopeless(name) is None and name not in self.beyond]
        hopeful.sort(key=lambda name: -self.beliefs[name].mean)
        best = ", ".join(f"{name} {self.speedups[name].as_speedup()}" for name in hopeful[:_MOST_TOLD])
        said = f"worth a duel: {best}" if hopeful else "none of them gains anything"
        return f"{self._pairs()}{besides} in {self._processes()}, {self.seconds:.0f} s; {said}"

    def _pairs(self) -> str:
        return several(self.pairs, "pair of blocks", "pairs of blocks")

    def _processes(self) -> str:
        return several(self.processes, "process", "processes")

    def hopeless(self, name: str, adopted: Sequence[Chosen] = ()) -> str | None:
        """Why a candidate needs no duel beside these; None where it does, or nothing is known of it."""
        if name in self.failed:
            return self.failed[name]
        if name in self.idle:
            return f"no gain among all others: {self.speedups[name].as_speedup()}"
        partners = self._interacting_with(name)
        if company := [other for other, _ in adopted if other in partners]:
            beside = self.beside((name, self.settings[name]), adopted)
            if beside and beside.high < _WORTH_A_DUEL:
                return f"no gain beside {' + '.join(company)}: {beside.as_speedup()}"
        return None

    def was_slower(self, name: str) -> bool:
        """Whether it acted, beside the choice, and lost."""
        return name in self.speedups and self.speedups[name].high < 1

    def _interacting_with(self, name: str) -> frozenset[str]:
        pairs = [pair for effects in self.effects for pair in effects.interacting if name in pair]
        return frozenset().union(*pairs) - {name}

    def saving(self, name: str) -> float | None:
        """The share of a step that it is expected to save; None where it was not screened."""
        if name in self.left_out:
            return 0.0
        return 1 - math.exp(-self.beliefs[name].mean) if name in self.beliefs else None

    def gains(self) -> dict[str, tuple[float, float]]:
        """The logarithm of each measured speedup, averaged over the others on and off, and its standard error."""
        return {
            name: effects.gain(effects.on_average(name))
            for effects in self.effects
            for name in effects.labels
            if name in self.settings
        }

    def within_processes(self, chosen: Chosen) -> Interval | None:
        """The speedup by a technique with these settings, where it was switched in running processes: that knows how
        processes differ."""
        switched = self.effects and chosen[0] in self.effects[0].labels
        return self.speedup(chosen) if switched else None

    def speedup(self, chosen: Chosen) -> Interval | None:
        """As measured, by a technique with these settings. How much processes differ is in it, where they had to."""
        name, settings = chosen
        return self.speedups.get(name) if self.settings.get(name) == settings else None

    def beside(self, chosen: Chosen, others: Sequence[Chosen]) -> Interval | None:
        """The speedup by a technique with these settings beside others, as far as these were screened with theirs."""
        name, settings = chosen
        if self.settings.get(name) != settings:
            return None
        on = {other for other, its in others if self.settings.get(other) == its}
        among = (effects for effects in self.effects if name in effects.labels)
        return next((effects.beside(name, on.intersection(effects.labels)) for effects in among), None)

    def attribution(self, techniques: Sequence[Chosen]) -> Attribution | None:
        """What each technique of a plan gains; None where one of them was not screened, or with other settings.

        What is switched within processes and what distinguishes them add up: that they do is left to the confirmation.
        """
        names = [name for name, settings in techniques if self.settings.get(name) == settings]
        if len(names) < len(techniques):
            return None
        shares: dict[str, Share] = {}
        totals, together = [], []
        for effects in self.effects:
            plan = [name for name in names if name in effects.labels]
            within = effects.contributions(plan)
            for name in plan:
                alone = effects.speedup_of([name])
                shares[name] = Share(name, within[name], alone, effects.beside(name, plan))
            totals.append(effects.speedup_of(plan))
            beside = effects.of_plan(plan) - sum(effects.of_plan([name]) for name in plan)
            if beside.any():
                together.append(effects.interval(beside))
        return Attribution(
            f"screening ({self._pairs()} in {self._processes()})",
            None,
            product(totals),
            tuple(shares[name] for name in names),
            product(together) if together else None,
        )

    def beyond_the_contract(self) -> list[str]:
        """A sentence for each technique that another contract would allow, and that gains."""
        known = catalogue()
        better = [name for name in self.beyond if name in self.speedups and self.speedups[name].low > _WORTH_TELLING]
        better.sort(key=lambda name: -self.speedups[name].estimate)
        return [
            f"`{name}` would make the program faster still, {self.speedups[name].as_speedup()}: "
            f"--contract {known[name].contract}."
            for name in better
        ]
