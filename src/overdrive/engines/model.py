"""One model with the engines that answer in its place."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from overdrive.core.rng import States
from overdrive.engines.answers import (
    BY_BOTH,
    CHANGED,
    CHANGES_ALWAYS,
    GATHERED,
    ITS_OWN,
    NEW,
    NOT_FINITE,
    OF_INPUTS,
    OUTSIDE,
    Answer,
)
from overdrive.engines.building import Builder, Call
from overdrive.engines.gathering import Gathering
from overdrive.engines.identity import settings
from overdrive.engines.kept import KeptEngines
from overdrive.engines.proved import Proved
from overdrive.engines.ranges import finite
from overdrive.engines.runtime import Runtime
from overdrive.engines.signature import Signature, same_things
from overdrive.engines.sizes import Sizes, Wide
from overdrive.engines.weights import Weights
from overdrive.model_state.later_backward import Parts, wants_gradients, without_graph
from overdrive.model_state.state import State
from overdrive.seams.torch.hooks import all_modules_have_hooks, hooks_of
from overdrive.seams.torch.internals import storage_id, writes_to
from overdrive.seams.torch.layouts import as_array
from overdrive.seams.torch.reads import noting_reads

_BUILT_AT = 2  # the call of a later signature in which its engine is built: one that comes once is not worth it
_MOST_ENGINES = 8  # of one model: as many copies of its weights
_MOST_SIZES = 1024  # that engines answer for
_MOST_FORMS = 64  # kinds of inputs and plain values: a number that is another one in each call has no engine
_MOST_CHANGES = 4  # of weights or attributes: a model that changes all the time is left alone


class AnsweredTorchModel:
    """Its engines are kept by what its weights held, by signature, by how many threads PyTorch may use, which they take
    over, and by its settings: where these come back, so do they. One may answer for many sizes, each of which is proved
    by itself."""

    def __init__(self, model: torch.nn.Module, runtime: Runtime, kept: KeptEngines) -> None:
        self._model = weakref.ref(model)
        self._runtime = runtime
        self._builder = Builder(runtime, kept)
        self._refused = ""
        self._in_training = ""  # why no engine answers for it as it is now, which eval() may change
        self._state: State | None = None
        self._weights: Weights | None = None
        self._own: frozenset[int] = frozenset()  # the ids of its tensors
        # ... and of what they lie in: while these hold the same, what is read of them decides the same.
        self._memories: frozenset[int] = frozenset()
        self._parts: Parts | None = None  # of the model as it was looked at
        self._digest = ""
        self._hooks: list[dict[int, Any]] = []  # where hooks would be, while the model is what it was
        self._looks = False  # its code has been seen to look at values, as it is now
        self._changes = 0
        self._engines: dict[tuple[Any, Any], Proved] = {}
        self._wide: dict[Any, list[Wide]] = {}  # by all but the signature
        self._copies = 0  # engines that were built
        self._sizes: dict[Any, Sizes] = {}  # by form, since the model last changed
        self._seen: dict[Any, int] = {}  # calls, by signature, since the model last changed
        self._gathered = Gathering(runtime.calibrating)

    @property
    def refused(self) -> str:
        """Why no engine answers for it, nor for any size of its inputs so far; empty where one does or may."""
        reasons = [each.refused for each in self._engines.values()]
        return self._refused or (reasons[0] if reasons and all(reasons) else "")

    def hooked(self, model: torch.nn.Module) -> bool:
        """Whether the program has put hooks on it, as far as it is what it was when it was looked at."""
        if any(self._hooks):
            self._hooks = hooks_of(model)
        return all_modules_have_hooks() or any(self._hooks)

    @property
    def answers(self) -> bool:
        """Whether an engine answers for it as it is, or did."""
        return any(each.established and not each.refused for each in self._engines.values())

    def answer(
        self, given: Signature, call: Callable[..., Any], apart: Callable[..., Any], args: Any, kwargs: Any
    ) -> Answer:
        """The call's result, by an engine or by the model; an error of the model's own call passes.

        Args:
            apart: makes the call, too, where no engine will ever answer such a one.
        """
        model = self._model()
        if self._refused:
            return Answer(apart(*args, **kwargs), self._refused)
        if model is None or not self._holds(model):
            return Answer(call(*args, **kwargs), self._refused or CHANGED)
        if not self._own.isdisjoint(map(id, given.tensors)):
            return Answer(call(*args, **kwargs), ITS_OWN)
        arrays = given.arrays()
        if not finite(arrays):
            return Answer(call(*args, **kwargs), NOT_FINITE)
        engine = self._engines.get((self._circumstances(), given.key))
        if engine is None:
            return self._without_engine(model, given, call, args, kwargs)
        if engine.refused:
            return Answer(apart(*args, **kwargs), engine.refused)
        if engine.ranges.outside(arrays):
            result = call(*args, **kwargs)
            engine.try_beyond(result, given)
            return Answer(result, OUTSIDE)
        if wants_gradients(given.tensors, engine.requiring):
            return Answer(call(*args, **kwargs), OF_INPUTS)
        assert self._parts is not None
        kind = tuple([each.requires_grad for each in given.tensors])
        requiring = engine.requiring.of(self._parts, kind)
        if engine.due() or requiring is None:
            settles, early = not engine.established, engine.early
            result = call(*args, **kwargs)
            engine.compare(result, given)
            engine.requiring.note(self._parts, result, kind)
            return Answer(result, engine.refused or BY_BOTH, settles, early)

        def by_engine() -> Any:
            try:
                return engine.answer(given)
            except Exception as error:
                failed = error
            call(*args, **kwargs)  # where the model raises as well the engine is not to blame: the program sees that
            raise failed

        return Answer(without_graph(self._parts, by_engine, call, args, kwargs, requiring, engine.requiring))

    def _circumstances(self) -> Any:
        """What engines are kept by beside the signature."""
        return self._digest, torch.get_num_threads(), settings()

    def _holds(self, model: torch.nn.Module) -> bool:
        """Whether the model is what it was; else what it is now is looked at anew, as often as that may be."""
        if self._state is None or self._weights is None:
            return self._look(model)
        if self._state.changed():
            self._forget()
            self._changes += 1
            self._look(model)
        elif self._weights.changed():
            self._changes += 1
            self._look(model)
        else:
            return True
        if self._changes > _MOST_CHANGES:
            self._refused = CHANGES_ALWAYS
            self._forget()
        return False

    def _forget(self) -> None:
        self._engines.clear()
        self._wide.clear()
        self._copies = 0

    def _look(self, model: torch.nn.Module) -> bool:
        self._state, self._parts = State([model]), Parts(model)
        self._hooks = hooks_of(model)
        reach = self._state.reach
        self._in_training = ""
        self._looks = False
        self._seen.clear()
        self._sizes.clear()
        self._gathered.forget()
        if reach.hidden or reach.outward:
            self._refused = f"the model's code can reach {reach.hidden or reach.outward}"
            return False
        if any(each.requires_grad for each in reach.tensors):
            self._refused = "a tensor that is no parameter of the model requires gradients"
            return False
        tensors = [*model.parameters(), *model.buffers(), *reach.tensors]
        self._own = frozenset(map(id, tensors))
        self._memories = frozenset(map(storage_id, tensors))
        if any(each.device.type != "cpu" or each.layout is not torch.strided or each.is_meta for each in tensors):
            self._refused = "not all of the model lies in the main memory"
            return False
        self._weights = Weights(tensors)
        self._digest = self._weights.digest()
        return True

    def _without_engine(
        self, model: torch.nn.Module, given: Signature, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Answer:
        if why := self._in_training or self._too_many(given):
            return Answer(call(*args, **kwargs), why)
        wide = self._fitting(given)
        most, there = (_MOST_SIZES, len(self._engines)) if wide else (_MOST_ENGINES, self._copies)
        if there >= most:
            return Answer(call(*args, **kwargs), f"more than {most:,} shapes of inputs")
        first = not self._seen and not self._changes  # with the set-up: what comes before the first answer
        seen = self._seen[given.key] = self._seen.get(given.key, 0) + 1
        sizes = self._sizes.setdefault(given.form, Sizes())
        if seen == 1:
            sizes.note(given)
        result = self._watched(given, call, args, kwargs) if seen == 1 else call(*args, **kwargs)
        if (why := self._refused or self._in_training) or (seen < _BUILT_AT and not first and not wide):
            return Answer(result, why or NEW, settles=True)
        if not self._gathered.enough(given.key, [as_array(each) for each in given.tensors]):
            return Answer(result, GATHERED, settles=True)
        made = Call(model, given, args, kwargs, result)
        proved = self._builder.reused(wide, made) if wide else self._built(made, sizes)
        if wide and proved.refused:  # what holds for one size need not for the next: each has its own from now on
            self._wide.clear()
            sizes.stiff = True
            return Answer(result, proved.refused, settles=True)
        proved.looks = self._looks
        self._engines[self._circumstances(), given.key] = proved
        return Answer(result, proved.refused or BY_BOTH, settles=True)

    def _too_many(self, given: Signature) -> str:
        """Why no further calls are watched, which takes longer than to make them; where no engine has come of any, none
        will."""
        if given.form not in self._sizes and len(self._sizes) >= _MOST_FORMS:
            why = f"more than {_MOST_FORMS} kinds of inputs, or of values of its other arguments"
        elif given.key not in self._seen and len(self._seen) >= _MOST_SIZES:
            why = f"more than {_MOST_SIZES:,} shapes of inputs"
        else:
            return ""
        if not any(each.established for each in self._engines.values()):
            self._refused = why
            self._forget()
            self._seen.clear()
            self._sizes.clear()
        return why

    def _fitting(self, given: Signature) -> Wide | None:
        """An engine for several sizes, these among them."""
        return next((each for each in self._wide.get(self._circumstances(), ()) if each.fits(given)), None)

    def _built(self, made: Call, sizes: Sizes) -> Proved:
        """For this call's sizes, and for all that may come where many have come."""
        assert self._state is not None
        examples = self._gathered.taken(made.given.key, [as_array(each) for each in made.given.tensors])
        places = () if self._runtime.calibrating else sizes.varying(made.given)
        for wanted in (places, ()) if places else ((),):
            self._copies += 1
            built, proved = self._builder.built(made, self._state, examples, wanted)
            if built and wanted and not proved.refused:
                wide = Wide.of(built.engine, made.given, wanted, built.bounds, proved.tally)
                self._wide.setdefault(self._circumstances(), []).append(wide)
            if not proved.refused:
                break
            sizes.stiff = True
        return proved

    def _watched(self, given: Signature, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The model's own call; what it does besides computing leaves the model alone for good."""
        assert self._state is not None and self._weights is not None
        chance, versions = States.now(), list(map(writes_to, given.tensors))
        before = tree_flatten((args, kwargs))
        with noting_reads(self._memories) as reads:
            result = call(*args, **kwargs)
        self._looks |= bool(reads)
        why = ""
        if not chance.same(States.now()):
            why = "it draws random numbers"
        elif list(map(writes_to, given.tensors)) != versions or not same_things(before, (args, kwargs)):
            why = "a call writes to its inputs"
        elif self._state.changed():
            why = f"a call changes {self._state.change() or 'the model'}"
        elif self._weights.changed():
            why = "a call writes to the model's own tensors"
        if why and self._parts is not None and any(each.training for each in self._parts.modules):
            # Not for good: dropout and batch statistics end with eval(), which is a change of its state.
            self._in_training = f"a part of the model is in training mode, and {why}"
            self._weights = Weights(())  # batch statistics change them in each call
        else:
            self._refused = why
        return result
