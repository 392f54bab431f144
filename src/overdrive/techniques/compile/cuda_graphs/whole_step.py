"""Steps that are one graph from the model's call to the end of the optimizer's step.

Nothing is done when the script calls its model: it is given tensors that stand for the results, and what it does with
these is compared, call by call, with what it did in the steps before. When the optimizer is about to step, all that the
step needs is known; it is replayed at once, and what stood for results has their values. Where a call is another one,
or a value is looked at before, the calls so far are made for real, in their order, and the step goes on as written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from overdrive.seams.patch import plain_of
from overdrive.seams.torch.functions import push, remove
from overdrive.seams.torch.internals import (
    beside_the_program,
    function_modes,
    in_backward,
    storage_id,
    unseen_by_modes,
)
from overdrive.seams.torch.models import call_inside
from overdrive.seams.torch.tracing import traced
from overdrive.techniques.compile.cuda_graphs.captured_graph import GraphPool
from overdrive.techniques.compile.cuda_graphs.held_step import NOTHING, HeldStep, Placeholders
from overdrive.techniques.compile.cuda_graphs.refusal import Refused
from overdrive.techniques.compile.cuda_graphs.sequence import Kind, StepSequence
from overdrive.techniques.compile.cuda_graphs.step_graph import StepGraph, own_tensors
from overdrive.techniques.compile.cuda_graphs.steps import RecordedOptimizer
from overdrive.techniques.compile.cuda_graphs.watched_step import WatchedStep

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams
    from overdrive.seams.points import Point
    from overdrive.techniques.compile.cuda_graphs.models import RecordedModel

_STEPS_BEFORE = 1  # the program's own, which are not looked at
_MOST_TRIES = 4  # sequences that came to nothing
_MOST_FALLEN = 3  # steps in a row that were other ones than foretold, after which it is looked anew
# Told of a tensor without its content.
_PROPERTIES = ("shape", "dtype", "device", "layout", "ndim", "is_cuda", "is_cpu", "requires_grad", "itemsize", "nbytes")
_METHODS = ("size", "dim", "numel", "nelement", "ndimension", "stride", "element_size", "is_floating_point", "__len__")


class _Told(TorchFunctionMode):
    """Told of the functions that the script calls from its model's call on."""

    def __init__(self, tell: Callable[[Any, Any, Any], Any]) -> None:
        self._tell = tell

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._tell(func, args, kwargs or {})


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
        self._mode = _Told(self._function_called)
        self._pushed = self._fell = False
        self._thread = 0
        self._steps = self._tries = self._fallen = 0
        self._watched: WatchedStep | None = None
        self._held: HeldStep | None = None
        self._sequence: StepSequence | None = None
        self._graph: StepGraph | None = None
        self._placeholders: Placeholders | None = None
        self._own: list[torch.Tensor] = []
        self._memory: set[int] = set()
        self._shared: list[int] = []  # results that share their memory
        self._recorded: RecordedModel | None = None
        self._surroundings: Any = None
        self._stepping: Any = None  # the optimizer whose step is made, until its hooks have been called
        self._pool: GraphPool | None = None
        asked = [getattr(torch.Tensor, name).__get__ for name in _PROPERTIES if hasattr(torch.Tensor, name)]
        asked += [getattr(torch.Tensor, name) for name in _METHODS]
        self._asked = frozenset((*asked, torch.numel, *beside_the_program()))  # which are no part of the sequence

    @property
    def under_way(self) -> bool:
        return self._held is not None or self._watched is not None

    # -- what others ask ------------------------------------------------------------------------------

    @property
    def prepares(self) -> bool:
        return not self.refusal and self._graph is None

    @property
    def trained(self) -> list[torch.Tensor]:
        return self._graph.trained if self._graph is not None else []

    def made_step_of(self, optimizer: Any) -> bool:
        return self._stepping is optimizer

    def is_spared(self, optimizer: Any) -> bool:
        return self._seams.sparing is optimizer

    # -- what the program does ------------------------------------------------------------------------

    def model_called(self, recorded: RecordedModel, kind: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What the program is given; NOTHING where this is not one of ours."""
        if self.refusal or self._thread_is_another():
            return NOTHING
        if self._watched is not None:  # the second call of a step, by which it is refused
            return call(*args, **kwargs)
        self._leave()
        if self._is_observed():
            if self._graph is None:
                self._failed("the program looks at each function, or transforms them")
            return NOTHING
        if self._graph is None:
            if self._steps < _STEPS_BEFORE:
                return call(*args, **kwargs)
            watched = WatchedStep(recorded, self._kind(recorded, kind), own_tensors(recorded.module))
            result = watched.call_model(call, args, kwargs)
            self._watched = watched
            self._enter()
            return result
        assert self._sequence is not None
        if self._sequence.model is not recorded or self._sequence.kind != self._kind(recorded, kind):
            self._other_kind(recorded)
            return NOTHING
        if self._graph.recorded:
            recorded.note()
            self._ahead = self._seams.changes
        return self._hold(args, kwargs)

    def answer_ahead(self, model: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """As `model_called`, where nothing at all is another than in the last step; else None."""
        recorded = self._recorded
        if recorded is None or model is not recorded.module or self._ahead != self._seams.changes:
            return None
        if self._pushed or self._is_observed() or in_backward() or not recorded.is_as_noted():
            return None
        answer = self._hold(args, kwargs)
        return None if answer is NOTHING else answer

    def other_call(self, what: str = "models are called more than once before the optimizer steps") -> None:
        """Something is about to be done that is no part of a step of ours: a second call of a model, say."""
        if self._thread_is_another():
            return
        if self._watched is not None:
            self._watched.refuse(what)
        self._fall_back(what)

    def zero_ahead(self, holder: Any, how: tuple[bool], none: dict[str, Any]) -> bool | None:
        """True where it is held; None where it has to be asked for in the usual way."""
        if self._held is None or self._thread_is_another():
            return None

        def zero(set_to_none: bool) -> None:
            plain_of(type(holder).zero_grad)(holder, set_to_none)

        return None if self._held.answer(Kind.ZEROED, holder, zero, how, none) is NOTHING else True

    def zeroed(self, holder: Any, call: Callable[..., Any], set_to_none: bool) -> Any:
        if self._thread_is_another():
            return call(set_to_none)
        if self._watched is not None:
            return self._watched.zero(holder, call, set_to_none)
        return self._answered(Kind.ZEROED, holder, call, (set_to_none,), {})

    def clipped(self, parameters: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._thread_is_another():
            return call(*args, **kwargs)
        if self._watched is not None:
            return self._watched.clip(parameters, call, args, kwargs)
        of = (id(parameters),) if isinstance(parameters, torch.Tensor) else tuple(map(id, parameters))
        return self._answered(Kind.CLIPPED, of, call, args, kwargs)

    def sent(self, loss: Any) -> Any:
        """A loss is about to be sent backward, for real."""
        if not self._thread_is_another():
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
        if self._thread_is_another():
            return
        if self._watched is not None:
            watched, self._watched = self._watched, None
            self._leave()
            self._looked_at(watched, watched.end(optimizer))
        elif self._held is not None:
            self._complete(self._held, optimizer)
        else:
            self._leave()
            if self._graph is None and self._steps > _STEPS_BEFORE and not (self.refusal or self._fell):
                self._failed("the optimizer steps without a call of a model that can be recorded")

    def step_ended(self, optimizer: Any) -> bool:
        """Whether it was made here."""
        made, self._stepping = self._stepping is optimizer, None
        return made

    def pause(self) -> None:
        """Nothing is held any more."""
        self._watched = None
        self._fall_back("the technique is switched off")
        self._leave()

    def close(self) -> None:
        self.pause()
        self._forget()

    def _function_called(self, function: Any, args: Any, kwargs: Any) -> Any:
        if self._held is not None:
            answer = self._held.answer(
                Kind.BACKWARD if function is torch.Tensor.backward else Kind.FUNCTION, function, function, args, kwargs
            )
            if answer is not NOTHING:
                return answer
        if function in self._asked:
            return function(*args, **kwargs)
        if self._watched is not None:
            return self._watched.call_function(function, args, kwargs)
        self._fall_back(
            f"the program calls {getattr(function, '__name__', function)} where it did not before", told=True
        )
        return function(*args, **kwargs)

    # -- steps that are looked at -----------------------------------------------------------------------

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
        recorded = sequence.model
        pool = self._graph_pool(sequence.made[0].device)
        self._own = own_tensors(recorded.module)
        self._placeholders = Placeholders(sequence.made)
        self._shared = [number for number, kind in enumerate(sequence.made) if not kind.apart]
        self._memory = {*map(storage_id, self._own), *self._placeholders.memory}
        self._recorded, self._pool = recorded, pool
        self._graph = StepGraph(pool, sequence, recorded.module, optimizer, self._call)

    def _kind(self, recorded: RecordedModel, kind: Any) -> Any:
        """Of a call: all that the graph was recorded under."""
        seams = self._seams
        points: list[Point] = [seams.loss_backward, seams.gradients_zeroed, seams.gradients_clipped, seams.norm_taken]
        points += [seams.optimizer_called, seams.loss_computed, seams.random_drawn, seams.gradients_asked]
        return recorded.looks, kind, [each.techniques for each in points]

    def _other_kind(self, recorded: RecordedModel) -> None:
        """A batch of another size, say; or the model is another one now, and the graph is of no use."""
        assert self._sequence is not None
        if self._sequence.model is recorded and self._sequence.kind[0] != recorded.looks:
            self._begin_anew("the model changes again and again")

    # -- steps that are held ----------------------------------------------------------------------------

    def _call(self, args: Any, kwargs: Any) -> Any:
        assert self._recorded is not None
        return call_inside(self._seams, self._owner, self._recorded.module, args, kwargs)

    def _call_as_it_was(self, *args: Any, **kwargs: Any) -> Any:
        assert self._recorded is not None
        return self._recorded.call_as_it_was(self._call, args, kwargs)

    def _hold(self, args: Any, kwargs: Any) -> Any:
        assert self._sequence is not None and self._graph is not None and self._placeholders is not None
        assert self._pool is not None and self._recorded is not None
        held = HeldStep(self._sequence, self._own, self._memory, self._placeholders)
        held.stream = self._pool.stream()
        answer = held.answer(Kind.MODEL, self._recorded, self._call_as_it_was, args, kwargs)
        if answer is NOTHING:
            return NOTHING
        if self._graph.draws:
            held.random_state = self._pool.random_state()
        self._graph.copy_inputs(held.given)
        if self._graph.recorded and self._seams.inputs_copied.subscribers:
            self._seams.inputs_copied.publish(self._recorded.module, self._graph.inputs)
        self._held = held
        self._enter()
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
        graph = self._graph
        assert graph is not None and self._sequence is not None
        self._leave()
        if not held.complete or self._sequence.optimizer is not optimizer:
            self._fall_back("the optimizer steps earlier than before")
            return
        try:
            reason = self._reason_against(held, graph)
            values = [] if reason else graph.run(held.given[len(graph.inputs) :])
        except Exception as error:
            reason = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
            self._tries = _MOST_TRIES
        if reason:
            self._fall_back(reason)
            return
        self._held = None
        self._fallen = 0
        self.replayed += graph.recorded
        self._stepping = optimizer
        loss = held.loss
        held.give(values)
        if len(self._seams.loss_backward.subscribers) > 1 or self._seams.backward_done.subscribers:  # others than this
            self._seams.loss_backward.apply(loss)
            self._seams.backward_done.publish(loss)

    def _reason_against(self, held: HeldStep, graph: StepGraph) -> str:
        """Why the step cannot be this one, which is found now."""
        assert self._pool is not None
        if held.random_state is not None and not torch.equal(held.random_state, self._pool.random_state()):
            return "the program has set the state of the random generator"
        if held.stream != self._pool.stream():
            return "the program steps on another stream than it calls its model on"
        if not graph.fits():
            return "the optimizer's settings or state are others"
        if graph.gradients_are_kept():
            self._tries = _MOST_TRIES
            return "the program keeps gradients of earlier steps"
        if any(map(held.is_kept, self._shared)):
            return "the program keeps parts of a tensor beside it"
        return ""

    def _fall_back(self, reason: str, told: bool = False) -> None:
        """The calls so far are made for real.

        Args:
            told: an error goes from here to the program; else a point of the seams would take it for ours.
        """
        held, self._held = self._held, None
        if held is None:
            return
        pool, recorded = self._pool, self._recorded
        assert pool is not None and recorded is not None
        state = pool.random_state() if held.random_state is not None else None
        if held.random_state is not None:
            pool.set_random_state(held.random_state)
        try:
            held.carry_out()
        except Exception as error:
            if told:
                raise
            raise StepFailed(f"{type(error).__name__}: {error}") from error
        if state is not None and not torch.equal(state, held.random_state):
            pool.set_random_state(state)
        self._fallen += 1
        self._fell = True
        if self._fallen >= _MOST_FALLEN or self._tries >= _MOST_TRIES:
            self._begin_anew(reason)

    def _begin_anew(self, reason: str) -> None:
        self._tries += 1 if self._graph is not None and self._graph.steps else 2
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
        self._graph = self._sequence = self._placeholders = self._recorded = self._pool = None
        self._own, self._memory, self._ahead = [], set(), -1

    # -- the mode -----------------------------------------------------------------------------------------

    def _enter(self) -> None:
        self._thread = threading.get_ident()
        push(self._mode)
        self._pushed = True

    def _leave(self) -> None:
        if self._pushed:
            self._pushed = False
            remove(self._mode)

    def _is_observed(self) -> bool:
        return function_modes() or traced() or torch.is_anomaly_enabled()

    def _thread_is_another(self) -> bool:
        return self._pushed and self._thread != threading.get_ident()
