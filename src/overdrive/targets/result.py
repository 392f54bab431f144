"""What an export came to: the form of `export --json`, and of what lies in the folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from overdrive.core.interval import Interval
from overdrive.core.proof_record import RoundingRecord


@dataclass(frozen=True)
class AnswersProof:
    """The artefact's answers, by its runner in a fresh process, against the program's own, both held to fp64.

    Attributes:
        inputs: how many of each kind: recorded, of another size, disturbed. None was seen by the exporter.
        sizes: of dimensions that may vary: those that were compared.
    """

    level: str
    sentence: str
    inputs: Mapping[str, int]
    sizes: Mapping[str, Sequence[int]]
    record: RoundingRecord


@dataclass(frozen=True)
class SideLatency:
    """In seconds; None where too few calls were timed to tell (of p99 fewer than 368)."""

    calls: int
    p50: Interval | None
    p99: Interval | None


@dataclass(frozen=True)
class ShapeLatency:
    """At one shape of inputs. `eager`: the program's own call; `speedup`: its median over the artefact's."""

    shapes: Mapping[str, Sequence[int]]
    sent: int  # calls of this shape that the program made
    artefact: SideLatency
    eager: SideLatency
    speedup: Interval


@dataclass(frozen=True)
class Exported:
    """A folder with a model for another engine."""

    folder: str
    target: str
    model: str
    artefact: str
    signature: Mapping[str, Any]
    proof: AnswersProof
    latency: Sequence[ShapeLatency]
    calls: int  # that the program made of the model
    recorded: int  # different ones of which inputs were kept
    other_models: Mapping[str, int] = field(default_factory=dict)  # calls, by class; `Net:2` is the second of a class
    left: Mapping[str, int] = field(default_factory=dict)  # calls that the artefact has no answer for, by reason
    notes: Sequence[str] = ()
