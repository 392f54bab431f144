"""What a parent and the worker of a trial send each other: one JSON object a line, `{"NAME": its fields}`.

The parent sends a `Job`, then one command after the other; the worker answers with reports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from overdrive.core.facts import Facts
from overdrive.core.json_data import from_json, to_json
from overdrive.core.records import Block, ExitReason, Trace
from overdrive.core.trial_spec import TrialSpec

VERSION = 1  # of all messages; a parent and a worker of different versions do not understand each other


@dataclass(frozen=True)
class Job:
    """The first message: what to run, and where."""

    spec: TrialSpec
    isolate: bool = False
    scratch: str = ""  # the trial's own folder
    keep: tuple[str, ...] = ()  # folders that stay writable in isolation
    recordings: str = ""  # where recordings for a profile are left
    also: tuple[str, ...] = ()  # modules with techniques from outside the catalogue
    version: int = VERSION


@dataclass(frozen=True)
class Run:
    """Make `lead` steps, then `steps` that are measured."""

    steps: int
    lead: int = 0
    profile: bool = False
    record: str = ""


@dataclass(frozen=True)
class Switch:
    """Have these techniques on, and all others off that can be switched."""

    on: tuple[str, ...] = ()


@dataclass(frozen=True)
class TellFacts:
    costs: bool = False  # those of an item too


@dataclass(frozen=True)
class TellTrace:
    pass


@dataclass(frozen=True)
class TellRecorded:
    pass


@dataclass(frozen=True)
class TellObserved:
    pass


@dataclass(frozen=True)
class Stop:
    pass


@dataclass(frozen=True)
class End:
    """As Python ends a process, so that it can be timed; the program's own code after its last step is not run."""


@dataclass(frozen=True)
class Switched:
    """Which techniques act from now on."""

    on: tuple[str, ...]


@dataclass(frozen=True)
class Isolated:
    """How writes are kept away from the user's files (see `sandbox.isolation`)."""

    kind: str
    detail: str


@dataclass(frozen=True)
class Beat:
    """A sign of life, with the progress of a fill where one is going on."""

    done: int = 0
    total: int = 0


@dataclass(frozen=True)
class Recorded:
    data: Mapping[str, Any]  # see `worker.profiling.recorder`


@dataclass(frozen=True)
class Observed:
    """The observers' reports by their modules' names; one that has nothing to report yet is not there."""

    reports: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    reason: ExitReason
    facts: Facts | None = None  # of a program that ran out of memory


@dataclass(frozen=True)
class Ended:
    """The program came to its end by itself."""

    trace: Trace  # without any step where it trained nothing
    observed: Mapping[str, Any] = field(default_factory=dict)
    reason: ExitReason | None = None  # where it is another than that it ended


Command: TypeAlias = Run | Switch | TellFacts | TellTrace | TellRecorded | TellObserved | Stop | End
Report: TypeAlias = Block | Switched | Facts | Trace | Recorded | Observed | Beat | Isolated | Failed | Ended

_COMMANDS = (Job, Run, Switch, TellFacts, TellTrace, TellRecorded, TellObserved, Stop, End)
_REPORTS = (Block, Switched, Facts, Trace, Recorded, Observed, Beat, Isolated, Failed, Ended)
_KINDS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (*_COMMANDS, *_REPORTS)}


def write(message: Job | Command | Report) -> bytes:
    """A line."""
    return json.dumps({type(message).__name__: to_json(message)}).encode() + b"\n"


def read(line: bytes) -> Any:
    """The message in a line.

    Raises:
        ValueError: it is of no kind that is known, or a job of another version.
    """
    ((name, data),) = json.loads(line).items()
    if name not in _KINDS:
        raise ValueError(f"There is no message {name}.")
    if name == "Job" and data.get("version") != VERSION:
        raise ValueError(f"The job has version {data.get('version')}, this worker's is {VERSION}.")
    return from_json(_KINDS[name], data)
