"""The places where a running program can be observed and altered, whatever its framework.

A framework's seams publish here; techniques and observers subscribe. A subscriber that fails is
dropped together with its technique, by name and with the reason: it never fails the program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from overdrive.seams.points import Answer, Around, Event, Point, Transform, reason_of


class Handle:
    """A technique as a session has installed it.

    `off` and `on` are for the boundary between two steps, and for techniques that say `switchable`. One that fails
    to switch is left out, which undoes all of it.
    """

    def __init__(
        self, hub: Seams, on: Callable[[], object] | None, off: Callable[[], object] | None, notes: Any = None
    ) -> None:
        self.notes = notes  # what the technique keeps of this session, for those who look at it
        self.active = True
        self.switch_seconds = 0.0  # what the costliest switch took so far
        self._hub = hub
        self._owner = hub.owner
        self._on = on
        self._off = off

    def on(self) -> None:
        self._switch(True, self._on)

    def off(self) -> None:
        self._switch(False, self._off)

    def close(self) -> None:
        """Take it out for good."""
        self.active = False
        self._hub.remove(self._owner)

    def _switch(self, on: bool, act: Callable[[], object] | None) -> None:
        if self.active is on or self._owner in self._hub.left_out:
            return
        began = time.perf_counter()
        self.active = on
        self._hub.switch(self._owner, on)
        if act:
            with self._hub.owned_by(self._owner):
                try:
                    act()
                except Exception as error:
                    self._hub.leave_out(self._owner, reason_of(error))
        self.switch_seconds = max(self.switch_seconds, time.perf_counter() - began)


class Seams:
    """All points of one session, and the record of which techniques had to be left out."""

    def __init__(
        self,
        on_left_out: Callable[[str, str], None] | None = None,
        inference: bool = False,
        concerns: Callable[[str, str], bool] = lambda owner, framework: True,
    ) -> None:
        """
        Args:
            inference: the program trains nothing, and its model's calls are its steps (see `seams.answering`).
            concerns: whether an owner is to hear of a framework.
        """
        self.owner = "session"
        self.inference = inference
        # A forward that the program calls itself is a call of the model. Not in training: a trial under techniques and
        # one without would tell of other calls, in the first step.
        self.follows_forward = inference
        self.concerns = concerns
        self.left_out: dict[str, str] = {}
        self.off: set[str] = set()  # techniques that are switched off
        # Techniques that answer in a model's place, or have it called as the program does: not to blame for its errors.
        self.blameless: set[str] = set()
        self._on_left_out = on_left_out
        self.sparing: Any = None  # the optimizer of which `step_spared` will be asked, in this very step
        self.changes = 0  # how often who is told of something has become another
        self.carried: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {}  # by technique (see carry)
        self._undos: list[tuple[str, Callable[[], object]]] = []
        self.operators: dict[str, Answer] = {}  # by name (see operator_called)
        self.frameworks: list[str] = []  # those that have arrived, the latest last (see seams.frameworks)
        self._make_points()
        self._make_points_of_values()
        self._make_points_of_keras()

    def _make_points(self) -> None:
        self.framework_arrived = Event(self, always=True)  # () the last of `frameworks` has just been imported
        self.framework_ready = Event(self, always=True)  # () all of it is there, and its seams are entered
        self.optimizer_made = Event(self, always=True)  # (optimizer, models) parameters and their modules are known
        self.state_asked = Event(self)  # (optimizer) its `state` is about to be read, also by itself, or replaced
        self.state_shown = Event(self)  # (module or optimizer) a state_dict or a copy of it is about to be made
        self.module_cast = Event(self)  # (module, type) the program has asked for it in this type
        self.step_called = Event(self)  # (optimizer, closure or None), before all that is told that a step begins
        self.step_begins = Event(self)  # (optimizer)
        self.closure_called = Around(self)  # (optimizer) within its step, the program's closure; call()
        self.step_ends = Event(self)  # (optimizer) the clock of everything
        self.between_steps = Event(self)  # () no step is under way: a trial may stand still here
        self.at_work = Event(self)  # () the program lives, whether or not it makes steps
        self.model_begins = Event(self)  # (module) its outermost call is about to be made; see seams.torch.next_call
        self.model_called = Around(self, undone=True)  # (module) outermost call; may alter its arguments and its result
        self.submodule_called = Around(self)  # (module) within one, that somebody named; see seams.torch.submodules
        self.call_doubled = Event(self)  # () an outermost call takes the time of two, at the beginning of a run alone
        self.inputs_copied = Event(self)  # (module, tensors) its call is replayed on these, not on what it was given
        self.loss_backward = Transform(self)  # loss -> loss, before it is sent backward
        self.backward_done = Event(self)  # (loss)
        self.gradient_watched = Answer(self)  # (tensor, hook, plain) hooks on its gradient; with None, retain_grad
        self.gradients_asked = Around(self)  # (outputs) torch.autograd.grad; call(inputs, *args, **kwargs)
        self.port_chosen = Transform(self)  # port -> port, of a process group of this process alone
        self.random_drawn = Answer(self)  # (name, call, args, kwargs) PyTorch draws; see seams.torch.draws
        self.norm_taken = Answer(self)  # (call, gradients, kind, foreach) their norm together; see seams.torch.norms
        self.gradients_clipped = Around(self)  # (parameters) clip_grad_norm_; call(*args, **kwargs)
        self.gradients_zeroed = Around(self)  # (optimizer or module) its zero_grad; call(set_to_none)
        self.loader_made = Transform(self)  # (loader, arguments by name) that is about to be made with them
        self.loader_opens = Around(self)  # (loader) call() gives the iterator over one epoch's batches
        self.batch_awaited = Around(self)  # (iterator) call() waits for the next batch and gives it, or ends the epoch
        self.batch_fetched = Event(self)  # (iterator, batch, seconds waited)
        self.tensor_moved = Around(self)  # (tensor) its plain copy to another device; call(device) makes it
        self.call_checkpointed = Transform(self)  # function -> what a checkpoint is to call again in its place
        self.autocast_entered = Event(self)  # (autocast) of the program itself, that is enabled
        self.loss_scaled = Event(self)  # (loss, scaled) by a scaler, the program's or ours; the loss without its graph
        self.scalar_read = Around(self)  # (tensor) the program asks for a tensor's one number; call() gives it
        self.value_read = Around(self)  # (name) it takes something else from a tensor that it may decide by; call()
        self.function_called = Transform(self)  # (function, args, kwargs) of every call of a PyTorch function

    def _make_points_of_values(self) -> None:
        """Calls that may be left out as a whole, and values that Python takes from tensors (see overdrive.survive)."""
        self.optimizer_called = Around(self)  # (optimizer) its step without the hooks around it; call(*args, **kwargs)
        self.step_spared = Answer(self)  # (optimizer) True: all that its step computes is done; hooks are called
        self.backward_called = Around(self)  # (tensors) a backward pass; call()
        self.gradients_called = Around(self)  # (inputs) torch.autograd.grad; call()
        self.value_asked = Around(self)  # (name, tensor) Python asks for what a tensor holds; call() tells it
        self.loss_computed = Answer(self)  # (name, call, args, kwargs) by PyTorch's functions; see seams.torch.losses
        self.attribute_set = Event(self)  # (module, name) a module's attribute has another value
        self.samples_fetched = Around(self)  # (fetcher, indices) PyTorch's own fetch of a batch, in any thread; call()
        self.shape_asked = Around(self)  # (name, tensor) call() gives tensors whose shapes depend on what it holds
        self.choice_set = Around(self)  # (tensor) tensor[truth values] = value; call(value)

    def _make_points_of_keras(self) -> None:
        """Of Keras and TensorFlow (see docs/decisions/008-keras.md)."""
        self.model_compiled = Around(self)  # (model) its compile(); call(*args, **kwargs)
        self.fit_called = Around(self)  # (model) its fit(); call(*args, **kwargs)
        self.evaluation_asked = Around(self)  # (model) its evaluate() or predict(), but those that fit() itself calls
        self.data_opened = Event(self)  # (epoch iterator) made by fit(), evaluate() or predict(), on any backend
        self.train_function_made = Event(self)  # (model) its train_function is there, nothing has been traced
        self.optimizer_built = Event(self, always=True)  # (optimizer, rate, line) Keras's, before its first use
        self.rate_used = Transform(self)  # (optimizer, rate) -> the same: what a step of Keras is made with
        self.dropout_made = Transform(self)  # rate -> rate, above 0: a layer of Keras's is about to be made with it
        self.dataset_batched = Around(self)  # (tf.data.Dataset) its batch(); call(*args, **kwargs)
        self.dataset_opened = Event(self)  # (tf.data.Dataset) the program iterates over it
        self.dataset_grouped = Transform(self)  # tf.data.Dataset -> the same, which is about to be shuffled or batched
        self.part_run = Around(self)  # (kind) a call that is a part of a step, or traces one; call(*args, **kwargs)
        self.step_called = Event(self)  # (model, function, state, batch) on JAX: a train step is about to be called
        self.answer_called = Around(self)  # ((model, kind)) an outermost call that answers; see seams.keras.answers
        self.predict_batched = Answer(self)  # (adapter) predict() asks for the batches of arrays, as tensors
        self.keras_used = Event(self, always=True)  # () a model or an optimizer of Keras is about to be made
        self.keras_2_applied = Event(self)  # () by an optimizer of Keras 2, of which nothing else is told
        # Of Keras on TensorFlow (see seams.keras.executions)
        self.execution_called = Around(self)  # (Execution) a train, test or predict function; call(data)
        self.numbers_read = Around(self)  # ((what, thing)) eager, of variables, in between; call(*args, **kwargs)
        self.gradients_taped = Event(self)  # () a `GradientTape` of TensorFlow has given gradients of variables
        self.weights_kept = Event(self)  # (callback) an EarlyStopping looks at an epoch, and may keep all weights
        self.variable_made = Event(self)  # (variable of TensorFlow)
        self.optimizer_applied = Event(self)  # (optimizer) eagerly or while it is traced, in no function of Keras's
        self.written_past = Event(self)  # () TensorFlow itself writes the program's state into files
        self.moments_taken = Answer(self)  # (call, inputs, axes) Keras's batch normalisation does, on PyTorch
        self.seed_set = Transform(self)  # seed -> seed, wherever the program seeds a generator

    def operator_called(self, name: str) -> Answer:
        """The point of one operator, (call, args, kwargs); `seams.torch.operators` has the names."""
        return self.operators.setdefault(name, Answer(self))

    @contextmanager
    def owned_by(self, owner: str) -> Iterator[None]:
        """Subscriptions and undos made inside belong to `owner`."""
        before, self.owner = self.owner, owner
        try:
            yield
        finally:
            self.owner = before

    def on_undo(self, undo: Callable[[], object]) -> None:
        """`undo` is called when the owner is left out, or when the session ends."""
        self._undos.append((self.owner, undo))

    def carry(self, told: Callable[[], Any], take_back: Callable[[Any], object]) -> None:
        """What the owner keeps from step to step beside the program's tensors (see overdrive.survive).

        Args:
            told: gives it, as JSON.
            take_back: is given it in another process that has come as far.
        """
        self.carried[self.owner] = told, take_back

    def points(self) -> list[Point]:
        return [*(thing for thing in vars(self).values() if isinstance(thing, Point)), *self.operators.values()]

    def waits_in_vain(self, owner: str) -> bool:
        """Whether all that it waits for, but frameworks, has not come."""
        arrivals = self.framework_arrived, self.framework_ready
        waiting = [point for point in self.points() if point.waits(owner) and point not in arrivals]
        return bool(waiting) and not any(point.reached for point in waiting)

    def handle(
        self, on: Callable[[], object] | None = None, off: Callable[[], object] | None = None, notes: Any = None
    ) -> Handle:
        """What a technique's `install` returns; `on` and `off` do what switching it takes besides its subscriptions."""
        return Handle(self, on, off, notes)

    def switch(self, owner: str, on: bool) -> None:
        """From now on, let `owner` hear of what happens or not; its undos stay."""
        (self.off.discard if on else self.off.add)(owner)
        for point in self.points():
            point.select()

    def remove(self, owner: str) -> None:
        """Drop everything that belongs to `owner`, and undo what it did."""
        for point in self.points():
            point.forget(owner)
        for _, reason in self._undo(lambda name: name == owner):
            self._tell(owner, reason)

    def leave_out(self, owner: str, reason: str) -> None:
        """Drop everything that belongs to `owner`, undo what it did, and say so once."""
        for point in self.points():
            point.forget(owner)
        self._tell(owner, "; ".join((reason, *(why for _, why in self._undo(lambda name: name == owner)))))

    def close(self) -> None:
        """Undo everything, last first, and forget all subscribers."""
        for owner, reason in self._undo(lambda name: True):
            self._tell(owner, reason)
        for point in self.points():
            point.forget()

    def _tell(self, owner: str, reason: str) -> None:
        if owner not in self.left_out:
            self.left_out[owner] = reason
            if self._on_left_out:
                self._on_left_out(owner, reason)

    def _undo(self, belongs: Callable[[str], bool]) -> list[tuple[str, str]]:
        """Returns: whose changes could not all be put back, and why."""
        due = [(owner, undo) for owner, undo in reversed(self._undos) if belongs(owner)]
        self._undos = [(owner, undo) for owner, undo in self._undos if not belongs(owner)]
        failed = []
        for owner, undo in due:
            try:
                undo()
            except Exception as error:  # the others' are still to come, and the program goes on
                failed.append((owner, f"what it changed could not all be put back ({reason_of(error)})"))
        return failed
