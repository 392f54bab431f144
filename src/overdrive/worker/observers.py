"""What watches a program in a trial: its probe, its digest log, its state replay, and observers by name.

Nothing here imports a framework.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from overdrive.core.facts import Facts
from overdrive.core.products import Products
from overdrive.core.records import StepRecord
from overdrive.seams import frameworks
from overdrive.seams.hub import Seams
from overdrive.seams.points import reason_of
from overdrive.worker.recording import Recorder

if TYPE_CHECKING:
    from overdrive.worker.replay import Replay


class Probe(Protocol):
    """Takes a step apart while a profile is on, and looks at what the program is made of."""

    batch_hashes: list[str]  # of the first steps

    def __call__(self, seams: Seams) -> None: ...
    def stepped(self, steps: int) -> None: ...
    def start_profile(self) -> None: ...
    def end_profile(self) -> None: ...
    def facts(self, recorder: Recorder, costs: bool = False) -> Facts: ...


class DigestLog(Protocol):
    """What went into every training step and what came out."""

    @property
    def entries(self) -> list[StepRecord]: ...

    def __call__(self, seams: Seams) -> None: ...
    def stepped(self) -> None:
        """One training step or more are complete since the last call."""


class TrainingCalls(Protocol):
    """Counts a program's calls of its models in training."""

    made: int

    def __call__(self, seams: Seams) -> None: ...


class ProductsWatch(Protocol):
    """What the run produces besides its losses."""

    def __call__(self, seams: Seams) -> None: ...
    def stepped(self) -> None:
        """One training step or more are complete since the last call."""

    def report(self, optimizers: Sequence[Any]) -> Products:
        """At the end of the run. May call the model, and leaves it in the mode that it was in."""


def make_probe(framework: str, hashed_steps: int) -> Probe:
    return cast(Probe, _room(framework, "probe").Probe(hashed_steps))


# The following are made when the framework is there.


def make_digests(framework: str, kind: str, inference: bool = False) -> DigestLog:
    """`inference`: of the model's calls, in a program that trains nothing."""
    if inference:
        return cast(DigestLog, _room(framework, "answer_digests").AnswerLog(kind))
    return cast(DigestLog, _room(framework, "digests").DigestLog(kind))


def make_replay(
    framework: str,
    role: str,
    steps: Sequence[int],
    folder: Path,
    inference: bool = False,
    rare: Collection[int] = (),
) -> Replay:
    """
    Args:
        inference: as for `make_digests`.
        rare: see `ReplayRole`.
    """
    from overdrive.worker.agreement import Agreement
    from overdrive.worker.replay import ROLES

    room = "answer_replay" if inference else "replay"
    roles: dict[str, type[Replay]] = {**ROLES, "agreement": Agreement}
    made = roles[role](_room(framework, room).steps_for(role), steps, folder)
    made.rare = rare
    made.careful = frameworks.seams_of(framework).compute_carefully if role.startswith("careful") else None
    return made


def make_products(framework: str) -> ProductsWatch | None:
    """None where nobody has written one for this framework yet."""
    return cast(ProductsWatch, _room(framework, "products").ProductsWatch()) if framework == "torch" else None


def make_training_calls(framework: str) -> TrainingCalls | None:
    """None where nobody has written one for this framework yet."""
    return cast(TrainingCalls, _room(framework, "training_calls").TrainingCalls()) if framework == "torch" else None


def _room(framework: str, name: str) -> Any:
    return importlib.import_module(f"overdrive.worker.{framework}.{name}")


class Observer(Protocol):
    """What a `TrialSpec` names by its module, which has a function `make_observer`."""

    def __call__(self, seams: Seams) -> None:
        """Subscribe to the seams. Called after the techniques were installed."""

    def report(self) -> Any:
        """Plain data; None as long as there is nothing to report."""


@runtime_checkable
class MayGoOn(Protocol):
    """An observer that is asked when the program has answered for long enough, and could be ended."""

    def goes_on(self) -> bool:
        """Whether it is to run to its end; where not, nothing is seen of what would have come."""


def load_observer(module: str) -> Observer:
    return cast(Observer, importlib.import_module(module).make_observer())


def reports_of(observers: Mapping[str, Observer], leave_out: Callable[[str, str], None]) -> dict[str, Any]:
    """By name, of those that have something to report; one that fails is left out."""
    reports = {}
    for name, observer in observers.items():
        try:
            report = observer.report()
        except Exception as error:
            leave_out(name, reason_of(error))
            continue
        if report is not None:
            reports[name] = report
    return reports
