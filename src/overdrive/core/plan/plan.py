"""The plan as data, read from its file and written into it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from overdrive.core.contract import Contract
from overdrive.core.interval import Interval
from overdrive.core.plan.removed import REMOVED
from overdrive.core.plan.table import MOST_BYTES, TOO_LONG, PlanError, TomlTable, closest
from overdrive.core.plan.written import given, one_line, toml
from overdrive.core.settings import Value

FORMAT = 1  # of the file; a file with another number is refused


class KnobLike(Protocol):
    """What a plan needs to know of a technique's knob."""

    @property
    def name(self) -> str: ...

    @property
    def default(self) -> Value: ...

    def fault(self, value: object) -> str | None: ...


class TechniqueLike(Protocol):
    """What a plan needs to know of a technique."""

    @property
    def knobs(self) -> Sequence[KnobLike]: ...

    def contract_with(self, settings: Mapping[str, Value]) -> Contract: ...


@dataclass(frozen=True)
class PlannedTechnique:
    """One technique of a plan: every knob's value, and what was measured of it."""

    name: str
    settings: Mapping[str, Value]
    contract: Contract  # the level that it keeps in this program
    verdict: str = ""
    speedup: Interval | None = None  # of this technique alone


@dataclass(frozen=True)
class PlanRejected:
    """A technique that was tried with these settings and left out."""

    name: str
    settings: Mapping[str, Value]
    reason: str


@dataclass(frozen=True)
class Plan:
    """What to apply to a program. All but the first three fields is evidence, and may be empty."""

    program: str  # name of the script or module that it was found for
    contract: Contract
    techniques: tuple[PlannedTechnique, ...]
    verdict: str = ""  # of the whole plan against the untouched program, on fresh data
    speedup: Interval | None = None
    unconfirmed: str = ""  # what the speedup rests on, where there was no time to confirm it
    noise_floor: float | None = None  # the smallest change that could be seen, as a share
    baseline: Mapping[str, float] = field(default_factory=dict)  # samples_per_s, seconds_per_step
    tuned: Mapping[str, float] = field(default_factory=dict)
    rejected: tuple[PlanRejected, ...] = ()
    tuning_seconds: float | None = None
    break_even_steps: int | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    created: str = ""  # ISO date
    inference: bool = False  # the program trains nothing: its model's calls are its steps
    removed: tuple[str, ...] = ()  # techniques that its file names and that were removed (see `removed.REMOVED`)

    def dumps(self, summaries: Mapping[str, str] | None = None) -> str:
        """The plan as TOML with comments for people; `summaries` says in a line what a technique does."""
        lines = [
            f"# Overdrive's plan for {one_line(self.program)}: what makes it faster, and the evidence.",
            "# To run under it: overdrive run --plan THIS_FILE SCRIPT [ARGS...]",
            "# It may be edited: take out a [[technique]], add one, or change its settings. What was",
            "# measured is then no longer true of it; `overdrive tune` measures anew.",
            "",
            f"overdrive = {FORMAT}  # the format of this file",
            f"program = {toml(self.program)}",
            f"contract = {toml(self.contract.value)}  # {_MEANING[self.contract]}",
        ]
        if self.inference:
            lines.append("inference = true  # it trains nothing: its steps are the calls of its model")
        for technique in self.techniques:
            lines += ["", "[[technique]]", *_comments(technique, summaries or {})]
            lines += [f"name = {toml(technique.name)}", f"contract = {toml(technique.contract.value)}"]
            if technique.settings:
                lines.append(f"settings = {toml(technique.settings)}")
            lines += given(verdict=technique.verdict, speedup=technique.speedup)
        evidence = given(
            verdict=self.verdict,
            speedup=self.speedup,
            unconfirmed=self.unconfirmed or None,
            noise_floor=self.noise_floor,
            baseline=self.baseline,
            tuned=self.tuned,
            tuning_seconds=self.tuning_seconds,
            break_even_steps=self.break_even_steps,
            created=self.created,
        )
        if evidence:
            unit = "call of the model" if self.inference else "step"
            lines += [
                "",
                f"# The whole plan against the untouched program. Speedups are ratios of times per {unit}.",
            ]
            lines += ["[evidence]", *evidence]
        for rejected in self.rejected:
            lines += ["", "[[rejected]]  # not used", f"name = {toml(rejected.name)}"]
            lines += given(settings=rejected.settings, reason=rejected.reason)
        for title, table in (("machine", self.machine), ("versions", self.versions)):
            if table:
                lines += ["", f"[{title}]  # where it was found", *given(**table)]
        return "\n".join(lines) + "\n"

    @classmethod
    def loads(cls, text: str, catalogue: Mapping[str, TechniqueLike], name: str = "plan.toml") -> Plan:
        """Read and check a plan. Missing settings take the knobs' defaults; evidence may be missing.

        Removed techniques are left out of `techniques`, and named in `removed`.

        Raises:
            PlanError: anything in it is unknown, wrong or too much; it names the line in the file `name`.
        """
        try:
            return _read(TomlTable.of(text, name), catalogue)
        except RecursionError:
            raise PlanError("this is nested too deeply to be a plan", None, name) from None

    @classmethod
    def read(cls, path: Path, catalogue: Mapping[str, TechniqueLike]) -> Plan:
        """Read and check the plan in a file.

        Raises:
            PlanError: it is not there or cannot be read, or as for `loads`.
        """
        try:
            with path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                raise PlanError(TOO_LONG, None, path.name)
            return cls.loads(data.decode(), catalogue, path.name)
        except FileNotFoundError:
            raise PlanError("there is no such plan; `overdrive tune train.py` makes one", None, str(path)) from None
        except OSError as error:
            raise PlanError(f"this plan cannot be read ({error.strerror})", None, str(path)) from None
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise PlanError("this is no text in UTF-8, which a plan must be", line, path.name) from None


_MEANING = {
    Contract.EXACT: "every bit stays the same",
    Contract.ROUNDING: "no further from exact arithmetic than the program itself is",
    Contract.STATISTICAL: "the same result within the noise of the seed",
    Contract.OPEN: "changes the training itself",
}


def _comments(technique: PlannedTechnique, summaries: Mapping[str, str]) -> list[str]:
    lines = []
    if summary := summaries.get(technique.name):
        lines.append(one_line(summary))
    if technique.speedup is not None:
        lines.append(f"{technique.speedup.estimate:.2f} times as fast by itself.")
    lines.append(f"Contract: {_MEANING[technique.contract]}.")
    return [f"# {line}" for line in lines]


_ROOT = ("overdrive", "program", "contract", "inference", "technique", "evidence", "rejected", "machine", "versions")
_EVIDENCE = (
    "verdict",
    "speedup",
    "unconfirmed",
    "noise_floor",
    "baseline",
    "tuned",
    "tuning_seconds",
    "break_even_steps",
    "created",
)
_RATES = ("samples_per_s", "seconds_per_step")


def _read(root: TomlTable, catalogue: Mapping[str, TechniqueLike]) -> Plan:
    _check_format(root)
    root.only(_ROOT, "a plan")
    program = root.text("program")
    techniques: dict[str, PlannedTechnique] = {}
    named = [(table, table.text("name")) for table in root.tables("technique")]
    removed = [name for _, name in named if name in REMOVED and name not in catalogue]
    tables = [table for table, name in named if name not in removed]
    for table in tables:
        technique = _read_technique(table, catalogue)
        if technique.name in techniques:
            raise table.fault(f"the technique {technique.name!r} is named twice", "name")
        techniques[technique.name] = technique
    kept = [technique.contract for technique in techniques.values()]
    contract = root.one_of("contract", max(kept, key=lambda level: level.rank, default=Contract.EXACT))
    for table, technique in zip(tables, techniques.values(), strict=True):
        if not contract.allows(technique.contract):
            raise table.fault(
                f"{technique.name!r} keeps only {technique.contract}, and the plan's contract is {contract}: "
                f"take it out, or widen the contract",
                "contract" if table.has("contract") else "name",
            )
    evidence = root.table("evidence")
    evidence.only(_EVIDENCE, "evidence")
    return Plan(
        program=program,
        contract=contract,
        techniques=tuple(techniques.values()),
        verdict=evidence.text("verdict", ""),
        speedup=evidence.interval("speedup"),
        unconfirmed=evidence.text("unconfirmed", ""),
        noise_floor=evidence.number("noise_floor"),
        baseline=evidence.numbers("baseline", _RATES),
        tuned=evidence.numbers("tuned", _RATES),
        rejected=tuple(_read_rejected(table) for table in root.tables("rejected")),
        tuning_seconds=evidence.number("tuning_seconds"),
        break_even_steps=evidence.whole("break_even_steps"),
        machine=root.anything("machine"),
        versions=root.texts("versions"),
        created=evidence.day("created"),
        inference=root.flag("inference"),
        removed=tuple(dict.fromkeys(removed)),
    )


def _check_format(root: TomlTable) -> None:
    if not root.has("overdrive"):
        raise root.fault(f"this is not a plan of Overdrive's, which says `overdrive = {FORMAT}` at its top")
    number = root.whole("overdrive")
    if number != FORMAT:
        raise root.fault(
            f"this has the format {number}, and this version of Overdrive reads the format {FORMAT}: "
            f"tune again, or use the version that wrote it",
            "overdrive",
        )


def _read_technique(table: TomlTable, catalogue: Mapping[str, TechniqueLike]) -> PlannedTechnique:
    name = table.text("name")
    if name not in catalogue:
        raise table.fault(
            f"there is no technique {name!r}{closest(name, list(catalogue))}: `overdrive techniques` lists them",
            "name",
        )
    table.only(("name", "settings", "contract", "verdict", "speedup"), "a technique")
    settings = _read_settings(table, name, catalogue[name].knobs)
    best = catalogue[name].contract_with(settings)
    contract = table.one_of("contract", best)
    if contract.rank < best.rank:
        raise table.fault(f"{name!r} keeps {best} at best, not {contract}", "contract")
    return PlannedTechnique(
        name=name,
        settings=settings,
        contract=contract,
        verdict=table.text("verdict", ""),
        speedup=table.interval("speedup"),
    )


def _read_settings(table: TomlTable, technique: str, knobs: Sequence[KnobLike]) -> dict[str, Value]:
    given = table.scalars("settings")
    settings = {knob.name: knob.default for knob in knobs}
    table.table("settings").only(list(settings), technique)
    for knob in knobs:
        if knob.name not in given:
            continue
        value = given[knob.name]
        fault = knob.fault(value)
        if fault is None and isinstance(value, float) and not math.isfinite(value):
            fault = f"must be finite, not {value!r}"
        if fault is not None:
            raise table.fault(f"{technique}'s {knob.name} {fault}", "settings", knob.name)
        settings[knob.name] = float(value) if isinstance(knob.default, float) else value
    return settings


def _read_rejected(table: TomlTable) -> PlanRejected:
    """A record only, never applied: so its technique need not be in the catalogue any more."""
    table.only(("name", "settings", "reason"), "a rejected technique")
    return PlanRejected(table.text("name"), table.scalars("settings"), table.text("reason", ""))
