"""What a tune has established so far, kept in the ledger so that a tune that was killed goes on from there."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from overdrive.core.contract import Contract
from overdrive.core.json_data import from_json, to_json
from overdrive.core.ledger import Ledger
from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.speed import Pair
from overdrive.machine.inventory import fingerprint, summary
from overdrive.trials.duel import Duel


class TuneCheckpoint:
    """One tune's place in the ledger: the same program, arguments, contract, machine and versions.

    Attributes:
        spent_before: seconds of the tune until it was broken off.
    """

    def __init__(self, ledger: Ledger, program: Program, purpose: Contract | str) -> None:
        """`purpose`: the contract of a tune, or what else is done with the program."""
        self._ledger = ledger
        parts = (program.identity(), str(purpose), fingerprint())
        self.key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        self._known = ledger.recall(self.key, "duel")
        self._runs = ledger.recall(self.key, "run")
        self._registrations = ledger.recall(self.key, "registration")
        self._screening = ledger.recall(self.key, "screening").get("all")
        self._results = ledger.recall(self.key, "result")
        self.spent_before = float(ledger.recall(self.key, "spent").get("all", {}).get("seconds", 0.0))
        self._began = time.monotonic()
        self._script = program.target if program.module else os.path.realpath(program.target)

    @property
    def resumes(self) -> bool:
        return bool(self._known or self._runs or self._screening)

    def duel(self, name: str, old: TrialSpec, new: TrialSpec) -> Duel | None:
        data = self._known.get(name)
        return restore_duel(data, old, new) if data else None

    def remember_duel(self, name: str, duel: Duel) -> None:
        self._remember("duel", name, store_duel(duel))

    def screening(self) -> dict[str, Any] | None:
        """How far the screening had come."""
        return self._screening

    def remember_screening(self, state: dict[str, Any]) -> None:
        self._remember("screening", "all", state)

    @cached_property
    def _gains_key(self) -> str:
        """Of this kind of machine; read anew where a screening asks, and by nothing else."""
        found = summary()
        return hashlib.sha256("\0".join(("gains", found.cpu, *(found.gpus or ()))).encode()).hexdigest()

    def gains(self) -> dict[str, list[tuple[float, float]]]:
        """What screenings of the user's other scripts found on this kind of machine, by technique.

        Of each script there is one: the logarithm of the speedup, and its standard error.
        """
        found: dict[str, list[tuple[float, float]]] = {}
        for script, gains in self._ledger.recall(self._gains_key, "gains").items():
            for name, (gain, error) in gains.items() if script != self._script else ():
                found.setdefault(name, []).append((gain, error))
        return found

    def remember_gains(self, gains: Mapping[str, tuple[float, float]]) -> None:
        """Of this script, in place of what an earlier tune of it found. See `gains`."""
        self._ledger.remember(self._gains_key, "gains", self._script, dict(gains))

    def run(self, name: str) -> dict[str, Any] | None:
        """A run of one arm of a proof, under one seed."""
        return self._runs.get(name)

    def remember_run(self, name: str, run: dict[str, Any]) -> None:
        self._runs[name] = run
        self._remember("run", name, run)

    def registration(self, name: str) -> dict[str, Any] | None:
        """What was written down before a statistical proof began."""
        return self._registrations.get(name)

    def register(self, name: str, registration: dict[str, Any]) -> None:
        self._registrations[name] = registration
        self._ledger.remember(self.key, "registration", name, registration)

    def _remember(self, kind: str, name: str, value: dict[str, Any]) -> None:
        """Keep what took time; and the seconds of the tune by then, which are part of what it cost if it is gone on."""
        self._ledger.remember(self.key, kind, name, value)
        spent = self.spent_before + time.monotonic() - self._began
        self._ledger.remember(self.key, "spent", "all", {"seconds": round(spent, 1)})

    def earlier_duels(self) -> list[list[Pair]]:
        """The pairs of all duels of the last tune that came to its end: how much processes differed then."""
        duels = [duel for result in self._results.values() for duel in result.get("duels", ())]
        return [[from_json(Pair, pair) for pair in duel.get("pairs", ())] for duel in duels]

    def forget(self) -> None:
        """What was found is not to be gone on from: the program could not be tuned, and may be mended meanwhile."""
        self._ledger.forget(self.key)

    def finished(self, date: str, result: dict[str, Any]) -> None:
        """The tune is complete: keep its result on record, and let the next tune start afresh."""
        self.forget()
        self._ledger.remember(self.key, "result", date, result)


def store_duel(duel: Duel) -> dict[str, Any]:
    return {name: value for name, value in to_json(duel).items() if name not in ("old", "new")}


def restore_duel(data: dict[str, Any], old: TrialSpec, new: TrialSpec) -> Duel:
    return replace(from_json(Duel, {**data, "old": to_json(old), "new": to_json(new)}), old=old, new=new)
