"""What the program calls, noted the first time, and skipped when it is made again."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from os import getpid
from typing import TYPE_CHECKING, Any

from overdrive.core.rng import States, same_mark
from overdrive.survive import answers
from overdrive.survive.fetched import FetchQuestions
from overdrive.survive.fetching import Fetching
from overdrive.survive.journal import NOTHING
from overdrive.survive.optimizers import Optimizers
from overdrive.survive.ours import asked_by_technique
from overdrive.survive.questions import Questions
from overdrive.survive.refusals import CannotTake
from overdrive.survive.times import Times

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams
    from overdrive.seams.points import Point
    from overdrive.survive.gradients import Gradients
    from overdrive.survive.in_keras import InKeras
    from overdrive.survive.journaled_run import JournaledRun
    from overdrive.survive.optimizer_states import OptimizerStates
    from overdrive.survive.results import Results
    from overdrive.survive.ways_back import WaysBack


class Calls:
    """
    Attributes:
        made: the optimizers that the program made.
        gradients, states: of their parameters, and what they keep; from PyTorch's arrival on.
        fetching: None where fetches are always made.
        times: that are asked for.
        under_way: the kind of the call that is made as a whole; "" where none is.
    """

    def __init__(self, run: JournaledRun) -> None:
        self._run, self._process = run, getpid()
        self.under_way = ""
        self.made = Optimizers()
        self.gradients: Gradients
        self.states: OptimizerStates
        self._results: Results
        self._ways_back: WaysBack
        self._restful: tuple[Point, ...]  # points where nobody is to be asked while a call is made
        self.in_keras: InKeras | None = None  # from its arrival on
        self.fetching = None if run.keeps_samples else Fetching(run, self.passed_through)
        fetched = self.fetching.batches if self.fetching is not None else FetchQuestions(run.journal)
        self._questions = Questions(run, fetched)
        self.times = Times(run, self._questions.answer, self._questions.note)

    def follow(self, seams: Seams) -> None:
        from overdrive.seams.torch.modules import still_lazy
        from overdrive.survive.gradients import Gradients
        from overdrive.survive.optimizer_states import OptimizerStates
        from overdrive.survive.results import Results

        self._still_lazy = still_lazy  # a call of such a model makes what the program does next with its parameters
        self._results = Results()
        self._restful = seams.value_asked, seams.shape_asked, seams.state_asked
        guarded = self._run.guarded
        self.gradients, self.states = Gradients(lambda: self._run.parts), OptimizerStates()
        seams.optimizer_made.subscribe(self._optimizer_made)
        seams.model_called.subscribe(guarded(self._model_called))
        seams.attribute_set.subscribe(guarded(self._attribute_set))
        seams.optimizer_called.subscribe(guarded(self._step_called))
        seams.backward_called.subscribe(guarded(self._backward_called))
        seams.gradients_called.subscribe(guarded(self._gradients_called))
        self._questions.follow(seams)
        seams.state_asked.subscribe(guarded(self._state_asked))
        if self.fetching is not None:
            self.fetching.follow(seams)
        if self._run.replaying:
            from overdrive.survive.losses import Losses
            from overdrive.survive.ways_back import WaysBack

            self._losses, self._ways_back = Losses(self.passed_through), WaysBack()
            seams.gradient_watched.subscribe(guarded(self._gradient_watched))
            seams.random_drawn.subscribe(guarded(self._random_drawn))
            seams.loss_computed.subscribe(guarded(self._loss_computed))
            seams.choice_set.subscribe(guarded(self._choice_set))

    @property
    def optimizers(self) -> list[Any]:
        """That the program made and still has."""
        return [optimizer for _, optimizer in self.made.there()]

    def _optimizer_made(self, optimizer: Any, models: list[Any]) -> None:
        self.made.add(optimizer)  # its models are looked for where somebody asks

    def _wake(self) -> None:
        """A fetch of samples that is under way does more than to read its own tensors."""
        if self.fetching is not None:
            self.fetching.batches.wake()

    def _state_asked(self, optimizer: Any) -> None:
        """Steps that are skipped make none: it is made before the program reads it."""
        if self._run.aside() or asked_by_technique():
            return
        stepped = self.states.asked(optimizer)
        self._made(lambda: self._tell_state("state", optimizer, stepped))

    def _tell_state(self, kind: str, optimizer: Any, due: bool) -> None:
        """`due`: where it may be another one than was told last."""
        self._wake()
        kind = f"{kind} {self.made.number_of(optimizer)}"
        try:
            with self._as_it_is():  # who makes it whole for the program has done so
                if self._run.replaying:
                    self.states.answer(kind, optimizer, self._run.journal)
                elif due:
                    self.states.note(kind, optimizer, self._run.journal)
        except CannotTake as error:
            self._run.cannot_skip(str(error))

    def _random_drawn(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return answers.drawn(name, args, kwargs) if self._skips() else None

    def _loss_computed(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self._losses.loss(name, call, args, kwargs) if self._skips() else None

    def _choice_set(self, tensor: Any, call: Callable[[Any], Any], value: Any) -> Any:
        """The choice is made by zeros: it has another number of rows than what was asked for has."""
        try:
            return call(value)
        except (IndexError, RuntimeError):
            if not self._skips() or isinstance(value, (int, float)):
                raise
            return call(value.sum())

    def _as_it_is(self) -> AbstractContextManager[None]:
        """Within it, nothing that this rank has a part of is made whole."""
        parts = self._run.parts
        return contextlib.nullcontext() if parts is None else parts.as_it_is()

    def _skips(self) -> bool:
        """Whether what the program computes now is left out."""
        if not self._run.replaying or self._run.warming or self._run.aside():
            return False
        return self.fetching is None or not self.fetching.batches.rests

    def _skipped(
        self, kind: str, told: str, given: Any, call: Callable[[], Any], model: Any = None, follow: bool = False
    ) -> Any:
        """
        Args:
            model: whose call it is, if it is one's.
            follow: make it when the run is made again, too.
        """
        self._wake()
        if self._run.replaying:
            return self._again(kind, told, given, call, model, follow or self._run.warming)
        before = States.mark_of_host()
        if model is not None:
            self._results.set.begin()
        result = self._made(call, kind)
        self._note_result(kind, told, result, given, model)
        if not same_mark(before, States.mark_of_host()):
            from overdrive.survive import state

            self._run.journal.add("host", state.host_told())
        return result

    def _again(self, kind: str, told: str, given: Any, call: Callable[[], Any], model: Any, warm: bool) -> Any:
        from overdrive.survive import set_in_calls, state, structure

        result = self._made(call, kind) if warm else None  # first: a closure in it is told of by itself
        entry = self._questions.next(kind, told)
        if self._run.journal.peek("host"):
            state.set_host(self._run.journal.next("host", "")[1])
        if warm:
            return result
        if len(entry) == 2:
            return structure.made(entry[1], given, self.passed_through)
        result, *values = structure.made(entry[1], (given, list(model.parameters())), self.passed_through)
        set_in_calls.set_again(model, entry[2], values)
        return result

    def _note_result(self, kind: str, told: str, result: Any, given: Any, model: Any) -> None:
        if result is None and model is None:  # of a backward pass, and of an optimizer's step
            self._run.journal.add(kind, NOTHING)
            return
        from overdrive.survive import structure

        try:
            with self._as_it_is():
                self._results.note(self._run.journal, kind, result, given, model)
        except structure.CannotTell as error:
            self._run.cannot_skip(f"{told} returns {error}")

    def _made(self, call: Callable[[], Any], kind: str = "") -> Any:
        """The call itself, with nothing that is asked in it told."""
        before, self.under_way = self.under_way, kind
        self._set_inside(True)
        try:
            return call()
        finally:
            self._set_inside(False)
            self.under_way = before

    def _set_inside(self, inside: bool) -> None:
        self._run.inside = inside
        for point in self._restful:
            if inside:
                point.rest(True)
            else:
                point.rests = False

    def holds_step(self, optimizer: Any) -> bool:
        """Whether this step was made within a call that is skipped as a whole: within another step it counts as that,
        as of the optimizer that SAM is given. A backward pass on a GPU has threads of its own."""
        if not self._run.inside or getpid() != self._process:
            return False
        if self.under_way == "step":
            self.states.stepped(optimizer)
        else:
            reason = "it makes steps within a backward pass or a call of its model, and none after it"
            self._run.begin_anew(reason) if self._run.replaying else self._run.cannot_skip(reason)
        return True

    def passed_through(self) -> None:
        if not self._run.replaying:
            self._run.begin_anew("a loss goes back through a step before the snapshot")

    def _model_called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._run.aside():
            self._run.by_thread()
            return call(*args, **kwargs)
        if self._run.replaying and not self._run.warming and self._run.parts is not None:
            self._run.parts.called(model)
        told, given = f"a call of {type(model).__name__}", (args, kwargs)
        follow = self._run.replaying and self._still_lazy(model)
        return self._skipped("model", told, given, lambda: call(*args, **kwargs), model, follow)

    def _attribute_set(self, module: Any, name: str) -> None:
        if self._run.inside and not self._run.elsewhere():
            self._results.set.heard(module, name)

    def _gradient_watched(self, tensor: Any, hook: Any, plain: Callable[[Any], Any]) -> None:
        if self._skips():
            self._ways_back.watched(tensor, hook, plain)

    def _gradients_called(self, inputs: Any, call: Callable[[], Any]) -> Any:
        if self._run.aside():
            return call()
        return self._skipped("gradients", "torch.autograd.grad", inputs, call)

    def _backward_called(self, tensors: Any, call: Callable[[], Any]) -> Any:
        if self._run.aside():
            return call()
        follow = self._skips() and self._ways_back.are_followed(tensors, self.optimizers)
        result = self._skipped("backward", "a backward pass", (), call, follow=follow)
        act = self.gradients.make if self._run.replaying else self.gradients.note
        act(self.made.there(), self._run.journal)
        return result

    def _step_called(self, optimizer: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._run.aside():
            self._run.by_thread()
            return call(*args, **kwargs)
        if (touched := self.states.touched(optimizer)) or self._run.replaying:
            self._made(lambda: self._tell_state("loaded", optimizer, touched))
        closure, args, kwargs = answers.closure_of(args, kwargs)
        if closure is None:
            result = self._skipped("step", "an optimizer's step", (), lambda: call(*args, **kwargs))
        else:
            result = self._step_with_closure(closure, lambda counted: call(*args, closure=counted, **kwargs))
        self.states.stepped(optimizer)
        return result

    def _step_with_closure(self, closure: Callable[[], Any], call: Callable[[Any], Any]) -> Any:
        losses: list[Any] = []  # one of which it mostly returns: then it is the very same tensor
        if self._run.replaying and not self._run.warming:
            while self._run.journal.peek("closure"):
                self._run.journal.next("closure", "")
                with sys.modules["torch"].enable_grad():
                    losses.append(closure())
            return self._skipped("step", "an optimizer's step", losses, lambda: None)

        def counted() -> Any:
            if self._run.replaying:
                self._questions.next("closure", "a closure's loss")
            else:
                self._run.journal.add("closure")
            self._set_inside(False)
            try:
                losses.append(closure())
                return losses[-1]
            finally:
                self._set_inside(True)

        return self._skipped("step", "an optimizer's step", losses, lambda: call(counted))
