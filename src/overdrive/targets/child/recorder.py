"""Records what a program gives its models, and makes the artefact when the program is over. Runs inside a trial.

Of several models one is recorded: no other is held, nor are its inputs. The last calls of each shape are kept: of a
training program those of its last evaluation. Once a model has been called in evaluation mode, calls in training mode
are counted and no more. Nothing is asked of the program's own answers, which come from weights that may have changed
since: at the end the model answers all recorded inputs once more.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overdrive.core.units import listed_some
from overdrive.seams.points import reason_of
from overdrive.targets.child import exporting
from overdrive.targets.child.kept import KeptCalls
from overdrive.targets.child.keras.watch import KerasWatch
from overdrive.targets.child.torch.losses import Losses
from overdrive.targets.order import FOLDER, FPGA, Made, Order, read_order

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams

_ROWS_FOR_FPGA = 4000  # of the data that Keras hands over in small batches: 299 and more are for the test alone
_ENDED = (
    "the script was ended when it had answered for a while: if it trains later, or changes its model, that is not in "
    "this one; `--to-end` lets it run to its end"
)


def make_observer() -> CallRecorder:
    folder = Path(os.environ[FOLDER])
    return CallRecorder(read_order(folder), folder)


@dataclass
class _Seen:
    """A model that the program has called. `name`: its class, and of a further one of that its place: `Net:2`."""

    kind: str
    name: str
    model: weakref.ref[Any]
    count: int = 0


class CallRecorder:
    """An observer; its report is what came of the export."""

    def __init__(self, order: Order, folder: Path) -> None:
        self._order = order
        self._folder = folder
        self._ended = False  # before its end
        self._over = False  # the program is, and what is called now is ours
        self._losses = Losses()
        self._seen: list[_Seen] = []  # in the order of their first calls
        self._by_id: dict[int, _Seen] = {}
        self._chosen: KeptCalls | None = None  # its model is held, so that it is there at the end
        self._keras = KerasWatch(self.noted, rows=_ROWS_FOR_FPGA if order.target == FPGA else 0)

    def __call__(self, seams: Seams) -> None:
        seams.model_called.subscribe(self._called)
        seams.follows_forward = True  # else a child that is called first is taken for the model
        self._keras.listen(seams)
        if self._order.target == FPGA:
            seams.loss_computed.subscribe(self._losses.note)

    def goes_on(self) -> bool:
        """Asked when the program has called models for long enough."""
        self._ended = not self._order.to_end
        return not self._ended

    def report(self) -> dict[str, Any]:
        from overdrive.core.json_data import to_json

        return dict(to_json(self._made()))

    def noted(self, model: Any, make: Callable[[Any], KeptCalls], calls: int = 1) -> KeptCalls | None:
        """The program has called this model; what is kept of its calls where it is the one to be exported."""
        seen = self._known(model)
        seen.count += calls
        if seen.name != (self._order.model.removesuffix(":1") or self._seen[0].name):
            return None
        self._chosen = self._chosen or make(model)
        return self._chosen

    def _called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from overdrive.seams.torch import fetches
        from overdrive.seams.torch.modules import first_parameter

        if not self._over and not fetches.under_way() and first_parameter(model) is not None:
            from overdrive.seams.torch.tracing import uncompiled
            from overdrive.targets.child.torch.calls import CalledModel, own_model  # imports torch: it is there by now

            compiled, model = uncompiled(model) is not model, own_model(model)
            kept = self.noted(model, lambda model: CalledModel(model, losses=self._losses))
            if isinstance(kept, CalledModel):
                kept.note(args, kwargs, compiled)
        return call(*args, **kwargs)

    def _known(self, model: Any) -> _Seen:
        seen = self._by_id.get(id(model))
        if seen is None or seen.model() is not model:  # another one, which is gone, had this id
            name = type(model).__name__
            before = sum(each.kind == name for each in self._seen)
            seen = _Seen(name, f"{name}:{before + 1}" if before else name, weakref.ref(model))
            self._seen.append(seen)
            self._by_id[id(model)] = seen
        return seen

    def _made(self) -> Made:
        self._over = True
        self._keras.end()
        if not self._seen:
            return Made(
                refused="the program calls no model of PyTorch that has parameters, and none of Keras on TensorFlow "
                "outside of a function of its own"
            )
        called = self._chosen
        if called is None:
            names = listed_some([each.name for each in self._seen])
            return Made(refused=f"the program calls no model {self._order.model}, but {names}")
        name = type(called.model).__name__
        others = {each.name: each.count for each in self._seen if each.model() is not called.model}
        try:
            made = exporting.export(called, _subject_of(called), name, others, self._order, self._folder)
            if made.refused and others:
                told = f"{made.refused}; the program calls {listed_some(list(others))} too, and --model chooses"
                return replace(made, refused=told)
            return replace(made, notes=(*made.notes, _ENDED)) if self._ended and not made.refused else made
        except Exception as error:
            if os.environ.get("OVERDRIVE_DEBUG"):
                raise
            return Made(refused=f"{name} cannot be exported ({reason_of(error)[:300]})", model=name)


def _subject_of(called: KeptCalls) -> exporting.SubjectOf:
    """Imports the framework, which is there by now."""
    if called.framework == "keras":
        from overdrive.targets.child.keras.subject import subject_of

        return subject_of
    from overdrive.targets.child.torch import subject

    return subject.subject_of
