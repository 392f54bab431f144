"""Runs the trials of a teacher-forced comparison: one teacher, and any number of pupils (see `trials.torch.lesson`)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from overdrive.evidence import rounding
from overdrive.trials.bench import Bench
from overdrive.trials.order import Ending, Order, Part, Trace

STATES = 16


class Teaching:
    """The teacher of one program, and what its pupils came to.

    Attributes:
        plain: the order whose run is taught.
        careful: why the reference is not in fp64, if so.
    """

    def __init__(self, bench: Bench, plain: Order, steps: int, among: frozenset[int] = frozenset()) -> None:
        """`among`: the steps that may be chosen, where a pupil makes many in a call; empty: all."""
        self.careful = ""
        self._bench = bench
        self.plain = plain
        self._steps = steps  # the chosen ones lie within so many
        self._among = among
        self._folder: Path | None = None
        self._taught: Mapping[str, Any] = {}

    @property
    def begun(self) -> bool:
        """Whether the teacher was run, and need not be again."""
        return self._folder is not None

    def begin(self) -> str | None:
        """Run the teacher once; returns why it is impossible, or None."""
        if self._folder is not None:
            return None if self._taught else "no state of the program could be saved"
        self._folder = Path(tempfile.mkdtemp(prefix="lesson-", dir=self._bench.house.scratch))
        for role in ("teacher", "careful teacher"):
            reason = self._teach_as(role)
            if reason is None:
                return None
            if isinstance(reason, Ending) and reason.kind == "late":
                self._forget_lesson()
                self._folder = None  # with more time it may be had
                return f"its proof broke off ({reason})"
            self.careful = str(reason)
            self._forget_lesson()
        self._taught = {}
        return f"its steps cannot be repeated from saved states ({self.careful})"

    def _teach_as(self, role: str) -> Ending | str | None:
        """Why this teacher is of no use, or None."""
        chosen = self._chosen(self._steps)
        trace = self._lecture(role, chosen)
        if isinstance(trace, Trace) and trace.steps < chosen[-1] and len(trace.lesson["states"]) < STATES:
            self._forget_lesson()  # a short program: other steps
            trace = self._lecture(role, self._chosen(trace.steps))
        if isinstance(trace, Ending):
            return trace
        self._taught = trace.lesson
        if self._taught.get("needs"):  # its steps are made in fp64 by another run
            reference = self._reference(role, tuple(self._taught["states"]))
            if isinstance(reference, Ending):
                return reference
            self._taught = reference.lesson
        if not self._taught["states"]:
            return "it saved no state"
        pupil = self.pupil(self.plain)
        if isinstance(pupil, Ending):
            return pupil
        return rounding.usable(rounding.rows_of(pupil.lesson)) if role == "teacher" else None

    def _lecture(self, role: str, chosen: tuple[int, ...]) -> Trace | Ending:
        return self._bench.run(replace(self.plain, part=Part(role, str(self._folder), chosen)), chosen[-1])

    def _chosen(self, last: int) -> tuple[int, ...]:
        if not self._among:
            return lesson_steps(last)
        reached = sorted(step for step in self._among if step <= last) or [last]
        every = -(-len(reached) // (2 * STATES))
        return tuple(reached[::every])

    def _reference(self, role: str, states: tuple[int, ...]) -> Trace | Ending:
        careful = "" if role == "teacher" else "careful "
        part = Part(f"{careful}{self._taught['needs']}", str(self._folder), states)
        return self._bench.run(replace(self.plain, part=part), max(states, default=1))

    def _forget_lesson(self) -> None:
        assert self._folder is not None
        for path in self._folder.iterdir():
            path.unlink()
        self._bench.forget("pupil")

    def pupil(self, order: Order) -> Trace | Ending:
        assert self._folder is not None
        steps = tuple(self._taught["states"])
        pupil = replace(order, part=Part("pupil", str(self._folder), steps), diary="inputs")
        return self._bench.known(f"pupil {order.name()}", lambda: self._bench.run(pupil, steps[-1]))


def lesson_steps(last: int) -> tuple[int, ...]:
    """The first four steps, ever fewer until the last sixteen: those in a row, for what happens now and then."""
    if last <= 2 * STATES:
        return tuple(range(1, last + 1))
    first, spaced = 4, last - STATES  # the last of those that are spaced
    chosen = list(range(1, first + 1))
    for place in range(1, STATES - first + 1):
        wanted = round(first * (spaced / first) ** (place / (STATES - first)))
        chosen.append(max(wanted, chosen[-1] + 1))
    return (*chosen, *range(spaced + 1, last + 1))
