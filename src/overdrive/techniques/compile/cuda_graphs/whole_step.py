"""Steps that are one graph from the model's call to the end of the optimizer's step.

Nothing is done when the script calls its model: it is given tensors that stand for the results, and what it does with
these is compared, call by call, with what it did in the steps before. When the optimizer is about to step, all that the
step needs is known; it is replayed at once, and what stood for results has their values. Where a call is another one,
or a value is looked at before, the calls so far are made for real, in their order, and the step goes on as written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from overdrive.seams.patch import plain_of
from overdrive.seams.points import reason_of
from overdrive.seams.torch.internals import function_modes, in_backward, unseen_by_modes
from overdrive.seams.torch.tracing import traced
from overdrive.techniques.compile.cuda_graphs.captured_graph import GraphPool
from overdrive.techniques.compile.cuda_graphs.foretold import ForetoldStep
from overdrive.techniques.compile.cuda_graphs.held_step import NOTHING, HeldStep
from overdrive.techniques.compile.cuda_graphs.refusal import Refused
from overdrive.techniques.compile.cuda_graphs.sequence import Kind, StepSequence
from overdrive.techniques.compile.cuda_graphs.step_graph import own_tensors
from overdrive.techniques.compile.cuda_graphs.steps import RecordedOptimizer
from overdrive.techniques.compile.cuda_graphs.told_functions import ToldFunctions
from overdrive.techniques.compile.cuda_graphs.watched_step import WatchedStep

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams
    from overdrive.seams.points import Point
    from overdrive.techniques.compile.cuda_graphs.models import RecordedModel

_STEPS_BEFORE = 1  # the program's own, which are not looked at
_MOST_TRIES = 4  # sequences that came to nothing
_FORGOTTEN_STEPS = 200  # after so many others, a graph is given up
_MOST_FALLEN = 3  # steps in a row that were other ones than foretold, after which it is looked anew


class StepFailed(BaseException):
    """The program's own calls failed when they were made later than it called them: what it was given has no values,
    so that it cannot go on. No `Exception`, which the seams would take for a failure of this technique's."""


class WholeStep:
    """The one graph of a program's steps.

    Attributes:
        refusal: why there is none, once that is certain.
        replayed: steps so far.
    """

    def __init__(
        self,
        seams: Seams,
        graph_pool: Callable[[torch.device], GraphPool],
        optimizer_of: Callable[[Any], RecordedOptimizer | None],
    ) -> None:
        self.refusal = ""
        self.replayed = 0
        self._owner = seams.owner
        self._ahead = -1  # while nobody is told of anything else than now (`Seams.changes`), calls are answered ahead
        self._seams, self._graph_pool, self._optimizer_of = seams, graph_pool, optimizer_of
        self._told = ToldFunctions(self._function_called)
        self._steps = self._tries = self._fallen = self._idle = 0
        self._fell = False  # in this very step
        self._watched: WatchedStep | None = None
        self._held: HeldStep | None = None
        self._sequence: StepSequence | None = None  # of the last step that was looked at
        self._foretold: ForetoldStep | None = None
        self._stepping: Any = None  # the optimizer whose step is made, until its hooks have been called

    @property
    def under_way(self) -> bool:
        return self._held is not None or self._watched is not None

    # -- what others ask ------------------------------------------------------------------------------

    @property
    def prepares(self) -> bool:
        return not self.refusal and self._foretold is None

    @property
    def trained(self) -> list[torch.Tensor]:
        return self._foretold.graph.trained if self._foretold is not None else []

    def made_step_of(self, optimizer: Any) -> bool:
        return self._stepping is optimizer

    def is_spared(self, optimizer: Any) -> bool:
        return self._seams.sparing is optimizer

    # -- what the program does ------------------------------------------------------------------------

    def model_called(self, recorded: RecordedModel, kind: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What the program is given; NOTHING where this is not one of ours."""
        if self.refusal or self._told.elsewhere:
            return NOTHING
        if self._watched is not None:  # the second call of a step, by which it is refused
            return call(*args, **kwargs)
        self._told.end()
        foretold = self._foretold
        if self._is_observed():
            if foretold is None:
                self._failed("the program looks at each function, or transforms them")
            return NOTHING
        if foretold is None:
            return self._look(recorded, kind, call, args, kwargs)
        if not foretold.is_of(recorded, self._kind(recorded, kind)):
            if foretold.is_out_of_date(recorded):
                self._begin_anew("the model changes again and again")
            return NOTHING  # of a batch of another size, say
        if foretold.graph.recorded:
            recorded.note()
            self._ahead = self._seams.changes
        return self._hold(foretold, args, kwargs)

    def answer_ahead(self, model: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """As `model_called`, where nothing at all is another than in the last step; else None."""
        foretold = self._foretold
        if foretold is None or model is not foretold.recorded.module or self._ahead != self._seams.changes:
            return None
        if self._told.in_force or self._is_observed() or in_backward() or not foretold.recorded.is_as_noted():
            return None
        answer = self._hold(foretold, args, kwargs)
        return None if answer is NOTHING else answer

    def other_call(self, what: str = "models are called more than once before the optimizer steps") -> None:
        """Something is about to be done that is no part of a step of ours: a second call of a model, say."""
        if self._told.elsewhere:
            return
        if self._watched is not None:
            self._watched.refuse(what)
        self._fall_back(what)

    def zero_ahead(self, holder: Any, how: tuple[bool], none: dict[str, Any]) -> bool | None:
        """True where it is held; None where it has to be asked for in the usual way."""
        if self._held is None or self._told.elsewhere:
            return None

        def zero(set_to_none: bool) -> None:
            plain_of(type(holder).zero_grad)(holder, set_to_none)

        return None if self._held.answer(Kind.ZEROED, holder, zero, how, none) is NOTHING else True

    def zeroed(self, holder: Any, call: Callable[..., Any], set_to_none: bool) -> Any:
        if self._told.elsewhere:
            return call(set_to_none)
        if self._watched is not None:
            return self._watched.zero(holder, call, set_to_none)
        return self._answered(Kind.ZEROED, holder, call, (set_to_none,), {})

    def clipped(self, parameters: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._told.elsewhere:
            return call(*args, **kwargs)
        if self._watched is not None:
            return self._watched.clip(parameters, call, args, kwargs)
        of = (id(parameters),) if isinstance(parameters, torch.Tensor) else tuple(map(id, parameters))
        return self._answered(Kind.CLIPPED, of, call, args, kwargs)

    def sent(self, loss: Any) -> Any:
        """A loss is about to be sent backward, for real."""
        if not self._told.elsewhere:
            if self._watched is not None:
                self._watched.sent(loss)
            self._fall_back("a loss is sent backward by another way than its own `backward`")
        return loss

    def step_called(self, optimizer: Any, closure: Any) -> None:
        self._steps += 1
        self._stepping = None
        if closure is not None:
            self.other_call("the optimizer is given a closure")
        try:
            self._step_begins(optimizer)
        finally:
            self._fell = False

    def _step_begins(self, optimizer: Any) -> None:
        if self._told.elsewhere:
            return
        if self._watched is not None:
            watched, self._watched = self._watched, None
            self._told.end()
            self._looked_at(watched, watched.end(optimizer))
        elif self._held is not None:
            self._complete(self._held, optimizer)
        else:
            self._told.end()
            self._step_passed()

    def step_ended(self, optimizer: Any) -> bool:
        """Whether it was made here."""
        made, self._stepping = self._stepping is optimizer, None
        return made

    def pause(self) -> None:
        """Nothing is held any more."""
        self._watched = None
        self._fall_back("the technique is switched off")
        self._told.end()

    def close(self) -> None:
        self.pause()
        self._forget()

    def _function_called(self, function: Any, args: Any, kwargs: Any) -> Any:
        if self._held is not None:
            kind = Kind.BACKWARD if function is torch.Tensor.backward else Kind.FUNCTION
            try:
                answer = self._held.answer(kind, function, function, args, kwargs)
            except Exception as error:  # ours, from which no point of the seams keeps the program here
                answer, self._tries = NOTHING, _MOST_TRIES
                self._fall_back(reason_of(error), told=True)
            if answer is not NOTHING:
                return answer
        if function in self._told.harmless:
            return function(*args, **kwargs)
        if self._watched is not None:
            return self._watched.call_function(function, args, kwargs)
        name = getattr(function, "__name__", function)
        self._fall_back(f"the program calls {name} where it did not before", told=True)
        return function(*args, **kwargs)

    # -- steps that are looked at -----------------------------------------------------------------------

    def _look(self, recorded: RecordedModel, kind: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._steps < _STEPS_BEFORE:
            return call(*args, **kwargs)
        watched = WatchedStep(recorded, self._kind(recorded, kind), own_tensors(recorded.module))
        result = watched.call_model(call, args, kwargs)
        self._watched = watched
        self._told.begin()
        return result

    def _looked_at(self, watched: WatchedStep, sequence: StepSequence | None) -> None:
        if sequence is None:
            self._failed(watched.refusal)
            return
        before, self._sequence = self._sequence, sequence
        if before is None or not before.same(sequence):
            self._tries += before is not None
            if self._tries >= _MOST_TRIES:
                self._give_up("the program does other things between its model's call and its optimizer's step")
            return
        optimizer = self._optimizer_of(sequence.optimizer)
        if optimizer is None or optimizer.refusal:
            self._give_up(optimizer.refusal if optimizer is not None else "the optimizer is none of PyTorch's")
            return
        pool = self._graph_pool(sequence.made[0].device)
        self._foretold = ForetoldStep(self._seams, self._owner, pool, sequence, optimizer)

    def _step_passed(self) -> None:
        """Of which the model's call was none of ours."""
        self._idle += 1
        if self._foretold is not None and self._idle > _FORGOTTEN_STEPS:  # its memory may be wanted
            self._forget()
        elif self._foretold is None and self._steps > _STEPS_BEFORE and not (self.refusal or self._fell):
            self._failed("the optimizer steps without a call of a model that can be recorded")

    def _kind(self, recorded: RecordedModel, kind: Any) -> Any:
        """Of a call: all that the graph was recorded under."""
        seams = self._seams
        points: list[Point] = [seams.loss_backward, seams.gradients_zeroed, seams.gradients_clipped, seams.norm_taken]
        points += [seams.optimizer_called, seams.loss_computed, seams.random_drawn, seams.gradients_asked]
        return recorded.looks, kind, [each.techniques for each in points]

    # -- steps that are held ----------------------------------------------------------------------------

    def _hold(self, foretold: ForetoldStep, args: Any, kwargs: Any) -> Any:
        self._held, answer = foretold.hold(args, kwargs)
        if self._held is not None:
            self._told.begin()
        return answer

    def _answered(self, kind: Kind, what: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._held is None:
            return call(*args, **kwargs)
        with unseen_by_modes():
            answer = self._held.answer(kind, what, call, args, kwargs)
        if answer is not NOTHING:
            return answer
        self._fall_back(f"the program calls {kind.value} where it did not before")
        return call(*args, **kwargs)

    def _complete(self, held: HeldStep, optimizer: Any) -> None:
        """All calls were those of the sequence, or it falls back."""
        foretold = self._foretold
        assert foretold is not None
        self._told.end()
        try:
            reason = foretold.make(held, optimizer)
        except Exception as error:
            reason = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
            self._tries = _MOST_TRIES
        if reason:
            self._fall_back(reason)
            return
        self._held, self._stepping = None, optimizer
        self._fallen = self._idle = 0
        self.replayed += foretold.graph.recorded
        if len(self._seams.loss_backward.subscribers) > 1 or self._seams.backward_done.subscribers:  # others than us
            self._seams.loss_backward.apply(held.loss)
            self._seams.backward_done.publish(held.loss)

    def _fall_back(self, reason: str, told: bool = False) -> None:
        """The calls so far are made for real.

        Args:
            told: an error goes from here to the program; else a point of the seams would take it for ours.
        """
        held, self._held = self._held, None
        if held is None:
            return
        assert self._foretold is not None
        try:
            self._foretold.carry_out(held)
        except Exception as error:
            if told:
                raise
            raise StepFailed(f"{type(error).__name__}: {error}") from error
        self._fallen += 1
        self._fell = True
        if self._fallen >= _MOST_FALLEN or self._tries >= _MOST_TRIES:
            self._begin_anew(reason)

    def _begin_anew(self, reason: str) -> None:
        self._tries += 1 if self._foretold is not None and self._foretold.graph.steps else 2
        self._fallen = 0
        self._forget()
        if self._tries >= _MOST_TRIES:
            self._give_up(reason)

    def _failed(self, reason: str) -> None:
        self._tries += 1
        self._sequence = None
        if self._tries >= _MOST_TRIES:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        self._forget()
        self.refusal = f"the step as a whole: {reason}"

    def _forget(self) -> None:
        self._foretold = self._sequence = None
        self._ahead, self._idle = -1, 0

    def _is_observed(self) -> bool:
        return function_modes() or traced() or torch.is_anomaly_enabled()
