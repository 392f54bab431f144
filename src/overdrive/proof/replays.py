"""Runs the trials of a state replay: one reference run, and any number of candidates (see `worker.replay`)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from overdrive.core.records import ExitReason, Trace
from overdrive.core.trial_spec import ReplayRole, TrialSpec
from overdrive.evidence import rounding
from overdrive.trials.untimed import UntimedRunner

STATES = 16


class ReferenceRun:
    """The reference run of one program, and the results of its candidates.

    Attributes:
        plain: the program whose run it is.
        careful: why the target is not in fp64, if so.
    """

    def __init__(
        self, untimed: UntimedRunner, plain: TrialSpec, steps: int, among: frozenset[int] = frozenset()
    ) -> None:
        """`among`: the steps that may be chosen, where a candidate makes many in a call; empty: all."""
        self.careful = ""
        self._untimed = untimed
        self.plain = plain
        self._steps = steps  # the chosen ones lie within so many
        self._among = among
        self._folder: Path | None = None
        self._saved: Mapping[str, Any] = {}

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
        if isinstance(trace, Trace) and trace.steps < chosen[-1] and len(trace.replay["states"]) < STATES:
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
        return rounding.usable(rounding.rows_of(candidate.replay)) if role == "reference" else None

    def _run(self, role: str, chosen: tuple[int, ...]) -> Trace | ExitReason:
        return self._untimed.run(replace(self.plain, replay=ReplayRole(role, str(self._folder), chosen)), chosen[-1])

    def _chosen(self, last: int) -> tuple[int, ...]:
        if not self._among:
            return replay_steps(last)
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
        self._untimed.forget("candidate")

    def candidate(self, spec: TrialSpec) -> Trace | ExitReason:
        assert self._folder is not None
        steps = tuple(self._saved["states"])
        candidate = replace(spec, replay=ReplayRole("candidate", str(self._folder), steps), digests="inputs")
        return self._untimed.known(f"candidate {spec.name()}", lambda: self._untimed.run(candidate, steps[-1]))


def replay_steps(last: int) -> tuple[int, ...]:
    """The first four steps, ever fewer until the last sixteen: those in a row, for what happens now and then."""
    if last <= 2 * STATES:
        return tuple(range(1, last + 1))
    first, spaced = 4, last - STATES  # the last of those that are spaced
    chosen = list(range(1, first + 1))
    for place in range(1, STATES - first + 1):
        wanted = round(first * (spaced / first) ** (place / (STATES - first)))
        chosen.append(max(wanted, chosen[-1] + 1))
    return (*chosen, *range(spaced + 1, last + 1))
