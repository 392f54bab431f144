"""One run under a plan, inside its process: install the techniques, enter the seams, leave no trace."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from overdrive.core.settings import Chosen
from overdrive.core.trial_spec import is_switched
from overdrive.seams import frameworks, keras_2
from overdrive.seams.arrival import Arrival
from overdrive.seams.hub import Handle, Seams
from overdrive.seams.points import OBSERVER, reason_of
from overdrive.techniques.catalogue import catalogue, conflict, set_already
from overdrive.techniques.technique import Technique

Observer = Callable[[Seams], None]  # subscribes to the seams to watch; called after the techniques

_ON_OCCASION = ("data", "kernels")  # families whose techniques do nothing but where the program comes; tf32 sets a flag

_entered: set[Session] = set()


class _Inherited:
    """What a program's worker inherits is not collected there: when that is, our objects decide beside the program's.

    An iterator over data that an error of the parent's holds in a cycle would stop the parent's workers, and PyTorch
    prints an error of its own. Whether that comes to pass depends on how much was allocated, without us too. Nothing is
    collected from before the fork on: what Python itself does in the child comes before our turn, and allocates.
    """

    def __init__(self) -> None:
        self._paused = False
        self._forks = 0  # that are under way: threads may fork at once

    def before(self) -> None:
        self._forks += 1
        if _entered and gc.isenabled():
            self._paused = True
            gc.disable()

    def in_child(self) -> None:
        if _entered:
            gc.freeze()
        self._forks = 1
        self.in_parent()

    def in_parent(self) -> None:
        self._forks -= 1
        if self._paused and not self._forks:
            self._paused = False
            gc.enable()


_inherited = _Inherited()
os.register_at_fork(before=_inherited.before, after_in_child=_inherited.in_child, after_in_parent=_inherited.in_parent)


class Session:
    """A `with` block in which the techniques act. Entering and leaving are symmetrical."""

    def __init__(
        self,
        techniques: Iterable[Chosen] = (),
        observers: Sequence[Observer] = (),
        on_left_out: Callable[[str, str], None] | None = None,
        inference: bool = False,
    ) -> None:
        """`inference`: the program trains nothing, and its model's calls are its steps."""
        self.seams = Seams(on_left_out, inference, _is_for)
        self._techniques = list(techniques)
        self._observers = observers
        self._arrivals = [
            Arrival(module, partial(self._arrived, name, module))
            for name, modules in frameworks.MODULES.items()
            for module in modules
        ]
        self._arrivals.append(Arrival(keras_2.MODULE, self._keras_2_arrived))
        self.handles: dict[str, Handle] = {}  # by technique
        self.idle: list[str] = []  # once it is over: techniques in force for which there was nothing to do
        self._leave_seams: list[Callable[[], None]] = []
        self.installing = 0.0  # seconds so far that frameworks took to be patched, once they had been imported

    def __enter__(self) -> Session:
        _entered.add(self)
        chosen = dict(self._techniques)
        # In the order of installation. Reading the catalogue takes 0.03 s, which a run without a plan does not pay.
        for name, technique in catalogue().items() if chosen else ():
            if name not in chosen:
                continue
            with self.seams.owned_by(name):
                other = conflict(name, self.active[: self.active.index(name)])
                if other and not is_switched():
                    self.seams.leave_out(name, f"it cannot go with {other}, which the plan names first")
                    continue
                settings = {**technique.defaults(), **chosen[name]}
                if reason := _not_there(technique, technique.environment(settings)):
                    self.seams.leave_out(name, reason)
                    continue
                try:
                    self.handles[name] = technique.install(self.seams, settings)
                    if other:
                        self.handles[name].off()  # until it is switched on in the other's place
                except Exception as error:
                    self.seams.leave_out(name, reason_of(error))
        for observer in self._observers:
            with self.seams.owned_by(OBSERVER):
                observer(self.seams)
        for arrival in self._arrivals:
            arrival.watch()
        return self

    def __exit__(self, *_: object) -> None:
        for arrival in self._arrivals:
            arrival.stop()
        on_occasion = [name for name in self.active if catalogue()[name].family in _ON_OCCASION]
        self.idle = [name for name in on_occasion if self.seams.waits_in_vain(name)]
        while self._leave_seams:
            self._leave_seams.pop()()
        self.seams.close()
        _entered.discard(self)

    @property
    def active(self) -> list[str]:
        """The techniques that are in force."""
        return [name for name, _ in self._techniques if name not in self.seams.left_out]

    def settling(self) -> int:
        """Calls so far in which a technique did not act yet, and later may (see `Block`)."""
        return sum(getattr(handle.notes, "settling", 0) for handle in self.handles.values())

    def _keras_2_arrived(self) -> None:
        with contextlib.suppress(Exception):  # of another version: then nothing is told of it
            self._leave_seams.append(keras_2.enter(self.seams))

    def _arrived(self, framework: str, module: str) -> None:
        """`module` of `framework` has been imported; the last of its modules brings what the seams patch."""
        began = time.perf_counter()
        try:
            if framework not in self.seams.frameworks:
                self.seams.frameworks.append(framework)
                self.seams.framework_arrived.publish(to=lambda owner: _is_for(owner, framework))
            if module == frameworks.MODULES[framework][-1]:
                self._leave_seams.append(frameworks.seams_of(framework).enter(self.seams))
                self.seams.framework_ready.publish(to=lambda owner: _is_for(owner, framework))
        except Exception as error:  # a version that these seams were not made for: run on without us
            concerned = [name for name in self.active if _is_for(name, framework)]
            for name in [*concerned, OBSERVER]:
                self.seams.leave_out(name, f"this {frameworks.title(framework)} has other seams ({reason_of(error)})")
        finally:
            self.installing += time.perf_counter() - began


def _is_for(owner: str, framework: str) -> bool:
    """Whether who subscribed is to hear of this framework: a technique only of those that it is made for."""
    owner = owner.removeprefix(f"{OBSERVER} for ")  # see `own_facts`
    if owner.startswith(OBSERVER):
        return True
    return owner not in catalogue() or framework in catalogue()[owner].frameworks


def _not_there(technique: Technique, needed: Mapping[str, str]) -> str | None:
    """Why these variables are not what it needs; None where they are."""
    if all(os.environ.get(name) == value for name, value in needed.items()):
        return None
    if taken := set_already(technique, needed):
        return f"{taken} is set already"
    return "it must be there before the process starts (`overdrive run` sees to it)"
