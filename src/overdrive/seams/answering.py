"""Steps of a program that only calls its model: each outermost call of it is one.

In a session that is for such a program (`Seams.inference`) the beginning and the end of each call are told as those of
a step, with an `AnsweringModel` in the optimizer's place. So what techniques and observers do at a step of training
they do at a call. Should one of the program's own optimizers step after all, that is over: from then on it is a
training program, whose steps its optimizers tell.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from overdrive.core.own_lock import OwnLock
from overdrive.seams.hub import Seams
from overdrive.seams.points import OBSERVER, reason_of

Parameters = Callable[[Any], Sequence[Any]]  # those of a model


class AnsweringModel:
    """A model that answers, in the optimizer's place: what techniques and observers are given where nothing is trained.

    It has what is asked of an optimizer: its parameters in one group, and no state.
    """

    def __init__(self, model: Callable[[], Any], parameters: Parameters, framework: str) -> None:
        """`model`: gives it, or None where it is gone. `framework`: whose it is, by its name in `seams.frameworks`."""
        self.model = model
        self.framework = framework
        self.state: dict[Any, Any] = {}
        self._parameters = parameters

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        model = self.model()
        return [] if model is None else [{"params": list(self._parameters(model))}]


class Answers:
    """The calls of one session's models of one framework, told as steps."""

    def __init__(self, hub: Seams, framework: str, parameters: Parameters) -> None:
        self._hub = hub
        self._framework = framework
        self._parameters = parameters
        self._models: dict[int, tuple[Any, AnsweringModel | None]] = {}  # by id, with a weak reference
        self._lock = OwnLock()  # a server's threads call one model; told is one call after the other
        self._over = False
        with hub.owned_by(OBSERVER):
            hub.step_begins.subscribe(self._stepped)

    def _stepped(self, optimizer: Any) -> None:
        self._over |= not isinstance(optimizer, AnsweringModel)

    def begins(self, model: Any) -> AnsweringModel | None:
        """Tell that an outermost call begins; None where it is no step: of what has no parameters."""
        if self._over:
            return None
        with self._lock:
            try:
                stands_in, known = self._known(model)
            except Exception as error:  # a model of a kind of its own: the program goes on
                self._over = True
                self._hub.leave_out(OBSERVER, reason_of(error))
                return None
            if stands_in is None:
                return None
            if not known:
                self.met(stands_in, model)
            self._hub.step_begins.publish(stands_in, to=self._concerned)
            return stands_in

    def met(self, stands_in: AnsweringModel, model: Any) -> None:
        """The model's first call is about to be told."""

    def _concerned(self, owner: str) -> bool:
        """Techniques of another framework may import it where they are told of a step."""
        return self._hub.concerns(owner, self._framework)

    def _known(self, model: Any) -> tuple[AnsweringModel | None, bool]:
        """What stands in for its optimizer, and whether it was called before."""
        key, models = id(model), self._models
        found = models.get(key)
        if found is not None and found[0]() is model:
            return found[1], True
        own = weakref.ref(model)
        stands_in = AnsweringModel(own, self._parameters, self._framework) if self._parameters(model) else None
        models[key] = weakref.ref(model, lambda _: models.pop(key, None)), stands_in
        return stands_in, False

    def ended(self, stands_in: AnsweringModel) -> None:
        """The call has given its answer, which the program has not got yet."""
        with self._lock:
            self._hub.step_ends.publish(stands_in, to=self._concerned)
            self._hub.between_steps.publish()


def kinds_asked(seams: Seams) -> set[str]:
    """Grows by the ways in which the program has its models answer, as *answer called* names them."""
    kinds: set[str] = set()

    def called(subject: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        kinds.add(subject[1])
        return call(*args, **kwargs)

    seams.answer_called.subscribe(called)
    return kinds
