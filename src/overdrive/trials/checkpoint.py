"""What a tune has established so far, kept in the ledger so that a tune that was killed goes on from there."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.interval import Interval
from overdrive.core.ledger import Ledger
from overdrive.core.program import Program
from overdrive.core.records import ExitReason, Trace, TrialSpec
from overdrive.evidence.speed import Pair, Verdict
from overdrive.machine.inventory import fingerprint
from overdrive.trials.duel import Duel, Side


class TuneCheckpoint:
    """One tune's place in the ledger: the same program, arguments, contract, machine and versions."""

    def __init__(self, ledger: Ledger, program: Program, purpose: Contract | str) -> None:
        """`purpose`: the contract of a tune, or what else is done with the program."""
        self._ledger = ledger
        parts = (program.identity(), str(purpose), fingerprint())
        self.key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        self._known = ledger.recall(self.key, "duel")
        self._runs = ledger.recall(self.key, "run")
        self._registrations = ledger.recall(self.key, "registration")

    @property
    def resumes(self) -> bool:
        return bool(self._known or self._runs)

    def duel(self, name: str, old: TrialSpec, new: TrialSpec) -> Duel | None:
        data = self._known.get(name)
        return restore_duel(data, old, new) if data else None

    def remember_duel(self, name: str, duel: Duel) -> None:
        self._ledger.remember(self.key, "duel", name, store_duel(duel))

    def run(self, name: str) -> dict[str, Any] | None:
        """A run of one arm of a proof, under one seed."""
        return self._runs.get(name)

    def remember_run(self, name: str, run: dict[str, Any]) -> None:
        self._runs[name] = run
        self._ledger.remember(self.key, "run", name, run)

    def registration(self, name: str) -> dict[str, Any] | None:
        """What was written down before a statistical proof began."""
        return self._registrations.get(name)

    def register(self, name: str, registration: dict[str, Any]) -> None:
        self._registrations[name] = registration
        self._ledger.remember(self.key, "registration", name, registration)

    def forget(self) -> None:
        """What was found is not to be gone on from: the program could not be tuned, and may be mended meanwhile."""
        self._ledger.forget(self.key)

    def finished(self, result: dict[str, Any]) -> None:
        """The tune is complete: keep its result on record, and let the next tune start afresh."""
        self.forget()
        self._ledger.remember(self.key, "result", result.get("date", ""), result)


def store_duel(duel: Duel) -> dict[str, Any]:
    data = {name: value for name, value in vars(duel).items() if name not in ("old", "new")}
    return {
        name: [asdict(pair) for pair in value]
        if name == "pairs"
        else asdict(value)
        if hasattr(value, "__dataclass_fields__")
        else value
        for name, value in data.items()
    }


def restore_duel(data: dict[str, Any], old: TrialSpec, new: TrialSpec) -> Duel:
    def made(kind: Any, name: str) -> Any:
        return kind(**data[name]) if data.get(name) is not None else None

    return Duel(
        old,
        new,
        pairs=[Pair(**pair) for pair in data["pairs"]],
        verdict=Verdict(data["verdict"]),
        interval=made(Interval, "interval"),
        old_side=made(Side, "old_side"),
        new_side=made(Side, "new_side"),
        old_trace=_trace(data["old_trace"]),
        new_trace=_trace(data["new_trace"]),
        old_facts=Facts.from_dict(data["old_facts"]) if data["old_facts"] else None,
        new_facts=Facts.from_dict(data["new_facts"]) if data["new_facts"] else None,
        exit_reason=made(ExitReason, "exit_reason"),
        old_exit_reason=made(ExitReason, "old_exit_reason"),
        total_steps=data.get("total_steps"),
        apart=data.get("apart", False),
    )


def _trace(data: dict[str, Any] | None) -> Trace | None:
    return Trace.from_report(data) if data else None
