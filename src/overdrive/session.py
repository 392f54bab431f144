"""One run under a plan, inside its process: install the techniques, enter the seams, leave no trace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType

from overdrive.seams.arrival import Arrival
from overdrive.seams.hub import OBSERVER, Seams, reason_of
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.technique import Settings

Chosen = tuple[str, Settings]  # a technique's name and its settings
Observer = Callable[[Seams], None]  # subscribes to the seams to watch; called after the techniques


class Session:
    """A `with` block in which the techniques act. Entering and leaving are symmetrical."""

    def __init__(
        self,
        techniques: Iterable[Chosen] = (),
        observers: Sequence[Observer] = (),
        on_left_out: Callable[[str, str], None] | None = None,
    ) -> None:
        self.seams = Seams(on_left_out)
        self._techniques = list(techniques)
        self._observers = observers
        self._arrival = Arrival("torch", self._torch_arrived)
        self._leave_seams: Callable[[], None] | None = None

    def __enter__(self) -> Session:
        chosen = dict(self._techniques)
        for name, technique in catalogue().items():  # in the order of installation
            if name not in chosen:
                continue
            with self.seams.owned_by(name):
                settings = {**technique.defaults(), **chosen[name]}
                if not _environment_is_there(technique.environment(settings)):
                    self.seams.leave_out(
                        name, "it must be there before the process starts (`overdrive run` sees to it)"
                    )
                    continue
                try:
                    technique.install(self.seams, settings)
                except Exception as error:
                    self.seams.leave_out(name, reason_of(error))
        for observer in self._observers:
            with self.seams.owned_by(OBSERVER):
                observer(self.seams)
        self._arrival.watch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._arrival.stop()
        if self._leave_seams:
            self._leave_seams()
            self._leave_seams = None
        self.seams.close()

    @property
    def active(self) -> list[str]:
        """The techniques that are in force."""
        return [name for name, _ in self._techniques if name not in self.seams.left_out]

    def _torch_arrived(self) -> None:
        try:
            from overdrive.seams import torch as torch_seams

            self.seams.framework_arrived.publish()
            self._leave_seams = torch_seams.enter(self.seams)
        except Exception as error:  # a torch that these seams were not made for: run on without us
            for name in [*self.active, OBSERVER]:
                self.seams.leave_out(name, f"this PyTorch has other seams ({reason_of(error)})")


def _environment_is_there(needed: Mapping[str, str]) -> bool:
    return all(os.environ.get(name) == value for name, value in needed.items())


def environment_for(techniques: Iterable[Chosen]) -> dict[str, str]:
    """The environment variables that these techniques need before their process starts."""
    needed: dict[str, str] = {}
    for name, settings in techniques:
        technique = catalogue()[name]
        needed.update(technique.environment({**technique.defaults(), **settings}))
    return needed
