"""Runs the trials of a state replay: one reference run, and any number of candidates (see `worker.replay`)."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from overdrive.core.in_runs import in_runs
from overdrive.core.records import ExitReason, StepRecord, Trace
from overdrive.core.trial_spec import ReplayRole, TrialSpec
from overdrive.evidence import replayed
from overdrive.trials.untimed import UntimedRunner

_Item = TypeVar("_Item")

STATES = 16
_FIRST, _IN_A_ROW, _SPACED = 4, 8, 7  # of the 32 chosen ones
# Among the spaced ones: what happens every so many steps does so at these, for most of the numbers that people take.
_MULTIPLES = (64, 100, 128, 200)
_ABOUT_EVENTS = 12
_ENOUGH = 12  # of a program that ends sooner, after one shortened epoch: others would take a reference run more
FEW_STATES = 3
_FEW_STEPS = (2, 8, 16)  # optimizers have something to remember from the second on
_FEW_REACH = 64  # steps within which an event is waited for
_RARE = 0.25  # share of the steps: what happens oftener is met by those that are spaced


class ReferenceRun:
    """The reference run of one program, and the results of its candidates.

    Attributes:
        plain: the program whose run it is.
        careful: why the target is not in fp64, if so.
    """

    def __init__(
        self,
        untimed: UntimedRunner,
        plain: TrialSpec,
        steps: int,
        events: Sequence[int] = (),
        among: frozenset[int] = frozenset(),
        few: bool = False,
        most: int = 2 * STATES,
    ) -> None:
        """
        Args:
            most: states at most, of which the first few calls are none: an engine begins with them.
            few: three states, for a short look (see `few_steps`).
            events: steps in which something rare should happen (see `replay_steps`): where the log of the first
                candidate knows of other kinds of such steps, another reference run is made about these.
            among: the steps that may be chosen, where a candidate makes many in a call; empty: all.
        """
        self.careful = ""
        self._untimed = untimed
        self.plain = plain
        self._steps = steps  # the chosen ones lie within so many
        self._events = events
        self._among = among
        self.fewest = FEW_STATES if few else min(STATES, most)  # states that a comparison takes
        self._most = most
        self._few = few
        self._folder: Path | None = None
        self._saved: Mapping[str, Any] = {}
        self._looked = False  # for events that were not foretold

    @property
    def begun(self) -> bool:
        """Whether the reference run was made already."""
        return self._folder is not None

    def begin(self) -> str | None:
        """Make the reference run, once; returns why it is impossible, or None."""
        if self._folder is not None:
            return None if self._saved else "no state of the program could be saved"
        self._folder = Path(tempfile.mkdtemp(prefix="replay-", dir=self._untimed.pool.scratch))
        for role in ("reference", "careful reference"):
            reason = self._run_as(role)
            if reason is None:
                return None
            if isinstance(reason, ExitReason) and reason.kind == "late":
                self._forget()
                self._folder = None  # with more time it may be had
                return f"its proof broke off ({reason})"
            self.careful = str(reason)
            self._forget()
        self._saved = {}
        return f"its steps cannot be repeated from saved states ({self.careful})"

    def _run_as(self, role: str) -> ExitReason | str | None:
        """Make a reference run in this role; returns why it is of no use, or None."""
        chosen = self._chosen(self._steps)
        trace = self._run(role, chosen)
        enough = min(self.fewest, _ENOUGH)
        if isinstance(trace, Trace) and trace.steps < chosen[-1] and len(trace.replay["states"]) < enough:
            self._forget()  # a short program: other steps
            trace = self._run(role, self._chosen(trace.steps))
        if isinstance(trace, ExitReason):
            return trace
        self._saved = trace.replay
        if self._saved.get("needs"):  # its steps are made in fp64 by another run
            target = self._targets(role, tuple(self._saved["states"]))
            if isinstance(target, ExitReason):
                return target
            self._saved = target.replay
        if not self._saved["states"]:
            return "it saved no state"
        candidate = self.candidate(self.plain)
        if isinstance(candidate, ExitReason):
            return candidate
        if self._has_missed_events(candidate):
            return self._run_as(role)
        return replayed.usable(replayed.rows_of(candidate.replay), careful=role != "reference")

    def _has_missed_events(self, candidate: Trace) -> bool:
        """Whether something rare happened where states can be saved (of several optimizers not in the first steps), and
        none is about it; then it is told where, and all forgotten that was made."""
        if self._among or self._few or self._looked:
            return False
        self._looked = True
        states = set(self._saved["states"])
        kinds = [{each for each in steps if each >= min(states)} for steps in _kinds_of_events(candidate.digests)]
        if not any(steps and not states & steps for steps in kinds):
            return False
        self._events = events_in(candidate.digests)
        self._forget()
        return True

    def _run(self, role: str, chosen: tuple[int, ...]) -> Trace | ExitReason:
        replay = ReplayRole(role, str(self._folder), chosen, tuple(self._events))
        return self._untimed.run(replace(self.plain, replay=replay), chosen[-1])

    def _chosen(self, last: int) -> tuple[int, ...]:
        if self._few:
            return few_steps(last, self._events, self._among)
        if not self._among:
            chosen = replay_steps(last, self._events)
            return chosen if len(chosen) <= self._most else tuple(_evenly(chosen[_FIRST:], self._most))
        reached = sorted(step for step in self._among if step <= last) or [last]
        every = -(-len(reached) // (2 * STATES))
        return tuple(reached[::every])

    def _targets(self, role: str, states: tuple[int, ...]) -> Trace | ExitReason:
        careful = "" if role == "reference" else "careful "
        targets = ReplayRole(f"{careful}{self._saved['needs']}", str(self._folder), states)
        return self._untimed.run(replace(self.plain, replay=targets), max(states, default=1))

    def _forget(self) -> None:
        assert self._folder is not None
        for path in self._folder.iterdir():
            path.unlink()
        self._untimed.forget(str(self._folder))

    def candidate(self, spec: TrialSpec) -> Trace | ExitReason:
        return self._replayed(spec, "candidate")

    def disturbed(self) -> Trace | ExitReason:
        """The program itself, with its parameters a little off: how sensitive its steps are."""
        return self._replayed(self.plain, "disturbed")

    def _replayed(self, spec: TrialSpec, role: str) -> Trace | ExitReason:
        assert self._folder is not None
        steps = tuple(self._saved["states"])
        replay = ReplayRole(role, str(self._folder), steps)
        candidate = replace(spec, replay=replay, digests="inputs", epoch=self.plain.epoch)
        name = f"{self._folder} {role} {spec.name()}"  # of no other reference run, whose states are others
        return self._untimed.known(name, lambda: self._untimed.run(candidate, steps[-1]))


def replay_steps(last: int, events: Sequence[int] = ()) -> tuple[int, ...]:
    """The first four steps, those about events, ever fewer others (round numbers among them), eight in a row up to the
    first event that comes after as many, else up to the last step, and some at random.

    A program of one epoch ends with that, where it is shortened: half of the states lie before.

    Args:
        last: the last step that may be chosen.
        events: steps in which something happens that does not happen in most (see `events_in`).
    """
    if last <= 2 * STATES:
        return tuple(range(1, last + 1))
    end = next((each for each in sorted(events) if _FIRST + _IN_A_ROW <= each <= last), last)
    chosen = {*range(1, _FIRST + 1), *range(end - _IN_A_ROW + 1, end + 1), last}
    around = sorted({step for each in events for step in (each - 1, each, each + 1) if 0 < step <= last})
    runs = in_runs(around)
    for run in _evenly(runs, _ABOUT_EVENTS // max(map(len, runs), default=1)):
        chosen.update(run[:_ABOUT_EVENTS])
    multiples = [each for each in _MULTIPLES if each <= last]
    spaced = _SPACED - len(multiples)
    chosen.update(multiples)
    for place in range(1, spaced + 1):
        chosen.add(round(_FIRST * ((last - _IN_A_ROW) / _FIRST) ** (place / (spaced + 1))))
    others = sorted(set(range(1, last + 1)) - chosen)
    chosen.update(random.Random(last).sample(others, 2 * STATES - len(chosen)))
    return tuple(sorted(chosen))


def few_steps(last: int, events: Sequence[int] = (), among: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """Three of the first steps: two are the first event, where it comes soon, and the step after (see `replay_steps`).

    The last batch of an epoch is an event, and the step after has the evaluation in it.
    """
    soon = next((step for step in sorted(events) if 3 < step <= min(last, _FEW_REACH)), 0)
    wanted = (2, soon, soon + 1) if soon else _FEW_STEPS
    reached = sorted(step for step in among if step <= last) or range(1, last + 1)
    chosen = list(dict.fromkeys(min(reached, key=lambda each: abs(each - step)) for step in wanted))
    chosen += [step for step in reached if step not in chosen][: FEW_STATES - len(chosen)]
    return tuple(sorted(chosen))


def events_in(steps: Sequence[StepRecord]) -> tuple[int, ...]:
    """Steps in which something rare happens: an evaluation, a batch of another size, other learning rates.

    They are numbered from 1. An evaluation counts to the step after it.
    """
    return tuple(sorted({step for steps in _kinds_of_events(steps) for step in steps}))


def _kinds_of_events(steps: Sequence[StepRecord]) -> list[list[int]]:
    """The steps of each kind."""
    before = [None, *(each.settings for each in steps)]
    kinds = (
        [bool(each.evaluation) for each in steps],
        _rarely([each.samples for each in steps]),
        _rarely([each.calls for each in steps]),
        [None is not old != each.settings for old, each in zip(before, steps, strict=False)],
    )
    rare = [kind for kind in kinds if sum(kind) <= _RARE * len(steps)]
    return [[step for step, happens in enumerate(kind, 1) if happens] for kind in rare]


def _rarely(values: Sequence[object]) -> list[bool]:
    usual, _ = Counter(values).most_common(1)[0] if values else (None, 0)
    return [value != usual for value in values]


def _evenly(items: Sequence[_Item], most: int) -> list[_Item]:
    """So many of them, at least one, the first among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / max(1, most - 1))] for place in range(max(1, most))]
