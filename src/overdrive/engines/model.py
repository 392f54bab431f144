"""One model with the engines that answer in its place."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from overdrive.core.rng import States
from overdrive.engines.exported import NoEngine, exported, share_memory
from overdrive.engines.identity import identity
from overdrive.engines.kept import KeptEngines
from overdrive.engines.proved import Proved, array_of, plain_of
from overdrive.engines.runtime import Runtime
from overdrive.engines.signature import NUMERIC, Signature
from overdrive.engines.weights import Weights
from overdrive.model_state.later_backward import without_graph
from overdrive.model_state.quiet import quiet
from overdrive.model_state.state import State
from overdrive.seams.points import reason_of
from overdrive.seams.torch.internals import version_of
from overdrive.seams.torch.reads import noting_reads

_BUILT_AT = 2  # the call of a later signature in which its engine is built: one that comes once is not worth it
# Afterwards both make the first, second, fourth, eighth, … of its answers and each of so many; more where the model's
# own code looks at values (whether a mask hides anything, say), and exports another way for all of them.
_EVERY, _EVERY_OF_A_LOOKER = 512, 16
_MOST_ENGINES = 8  # of one model: as many copies of its weights
_MOST_CHANGES = 4  # of weights or attributes: a model that changes all the time is left alone
_MOST_GATHERED = 256 << 20  # bytes of the inputs that an engine is calibrated by

BY_BOTH = "made by both and compared"


@dataclass(frozen=True)
class Answer:
    result: Any
    left: str = ""  # why the model itself was called; empty where the engine answered


class ServedModel:
    """Its engines are kept by what its weights held, by signature and by how many threads PyTorch may use, which they
    take over: where these come back, so do they."""

    def __init__(self, model: torch.nn.Module, runtime: Runtime, kept: KeptEngines) -> None:
        self._model = weakref.ref(model)
        self._runtime = runtime
        self._kept = kept
        self._refused = ""
        self._state: State | None = None
        self._weights: Weights | None = None
        self._digest = ""
        self._looks = False  # its code has been seen to look at values
        self._changes = 0
        self._engines: dict[tuple[str, Any, int], Proved] = {}
        self._seen: dict[Any, int] = {}  # calls, by signature, since the model last changed
        # Inputs that engines are calibrated by, by signature.
        self._gathered: dict[Any, list[list[Any]]] = {}

    def answer(self, given: Signature, call: Callable[..., Any], args: Any, kwargs: Any) -> Answer:
        """The call's result, by an engine or by the model; an error of the model's own call passes."""
        model = self._model()
        if model is None or self._refused or not self._holds(model):
            return Answer(call(*args, **kwargs), self._refused or "the model was changed")
        engine = self._engines.get(self._place(given))
        if engine is None:
            return self._without_engine(model, given, call, args, kwargs)
        if engine.refused:
            return Answer(call(*args, **kwargs), engine.refused)
        if engine.due(_EVERY_OF_A_LOOKER if self._looks else _EVERY):
            result = call(*args, **kwargs)
            engine.compare(result, given)
            return Answer(result, engine.refused or BY_BOTH)
        return Answer(without_graph(model, lambda: engine.answer(given), lambda: call(*args, **kwargs)))

    def _place(self, given: Signature) -> tuple[str, Any, int]:
        return self._digest, given.key, torch.get_num_threads()

    def _holds(self, model: torch.nn.Module) -> bool:
        """Whether the model is what it was; else what it is now is looked at anew, as often as that may be."""
        if self._state is None or self._weights is None:
            return self._look(model)
        if self._state.changed():
            self._engines.clear()
            self._changes += 1
            self._look(model)
        elif self._weights.changed():
            self._changes += 1
            self._look(model)
        else:
            return True
        if self._changes > _MOST_CHANGES:
            self._refused = "the model changes from call to call"
            self._engines.clear()
        return False

    def _look(self, model: torch.nn.Module) -> bool:
        self._state = State([model])
        reach = self._state.reach
        self._seen.clear()
        self._gathered.clear()
        if reach.hidden or reach.outward:
            self._refused = f"the model's code can reach {reach.hidden or reach.outward}"
            return False
        if any(each.requires_grad for each in reach.tensors):
            self._refused = "a tensor that is no parameter of the model requires gradients"
            return False
        tensors = [*model.parameters(), *model.buffers(), *reach.tensors]
        if any(each.device.type != "cpu" or each.layout is not torch.strided or each.is_meta for each in tensors):
            self._refused = "not all of the model lies in the main memory"
            return False
        if any(each.training for each in model.modules()):
            # Not for good: eval() is a change of its state.
            self._weights = Weights(())
            return True
        self._weights = Weights(tensors)
        self._digest = self._weights.digest()
        return True

    def _without_engine(
        self, model: torch.nn.Module, given: Signature, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Answer:
        if any(each.training for each in model.modules()):
            return Answer(call(*args, **kwargs), "a part of the model is in training mode")
        if len(self._engines) >= _MOST_ENGINES:
            return Answer(call(*args, **kwargs), f"more than {_MOST_ENGINES} shapes of inputs")
        first = not self._seen and not self._changes  # with the set-up: what comes before the first answer
        seen = self._seen[given.key] = self._seen.get(given.key, 0) + 1
        result = self._watched(given, call, args, kwargs) if seen == 1 else call(*args, **kwargs)
        if self._refused or (seen < _BUILT_AT and not first):
            return Answer(result, self._refused or "a shape of inputs that is new")
        if not self._has_gathered(given):
            return Answer(result, "its inputs were gathered, for the ranges of values in the model")
        try:
            proved = self._built(model, given, args, kwargs, result)
        except NoEngine as error:
            proved = Proved(None, None, [], [], str(error))
        except Exception as error:  # of the library's: it takes no such model
            proved = Proved(None, None, [], [], f"{self._runtime.title} takes no such model ({reason_of(error)[:200]})")
        self._engines[self._place(given)] = proved
        return Answer(result, proved.refused or BY_BOTH)

    def _has_gathered(self, given: Signature) -> bool:
        """Whether so many calls of this signature were seen as an engine is calibrated by; this one is counted."""
        if not self._runtime.calibrating:
            return True
        gathered = self._gathered.setdefault(given.key, [])
        gathered.append([array_of(each).copy() for each in given.tensors])
        size = sum(each.nbytes for each in gathered[-1]) * (len(gathered) + 1)
        return len(gathered) >= self._runtime.calibrating or size > _MOST_GATHERED

    def _watched(self, given: Signature, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The model's own call; what it does besides computing leaves the model alone for good."""
        assert self._state is not None and self._weights is not None
        chance, versions = States.now(), [_version(each) for each in given.tensors]
        with noting_reads() as reads:
            result = call(*args, **kwargs)
        self._looks |= bool(reads)
        if not chance.same(States.now()):
            self._refused = "it draws random numbers"
        elif [_version(each) for each in given.tensors] != versions:
            self._refused = "a call writes to its inputs"
        elif self._state.changed():
            self._refused = f"a call changes {self._state.change() or 'the model'}"
        elif self._weights.changed():
            self._refused = "a call writes to the model's own tensors"
        return result

    def _built(self, model: torch.nn.Module, given: Signature, args: Any, kwargs: Any, result: Any) -> Proved:
        assert self._state is not None
        leaves, spec = tree_flatten(result)
        tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        for each in leaves:
            if not isinstance(each, (torch.Tensor, bool, int, float, str, type(None))):
                raise NoEngine(f"it returns a {type(each).__name__}")
        if not tensors or any(type(each) is not torch.Tensor or each.dtype not in NUMERIC for each in tensors):
            raise NoEngine("it returns what no engine gives")
        if share_memory(tensors, [*given.tensors, *model.parameters(), *model.buffers()]):
            raise NoEngine("its results share memory with each other, its inputs or its weights")
        examples = self._gathered.pop(given.key, None) or [[array_of(each) for each in given.tensors]]
        key = identity(model, given, self._runtime, examples)

        def proved(made: Any) -> Proved:
            engine = self._runtime.engine(made, torch.get_num_threads())
            found = Proved(engine, spec, plain_of(leaves), tensors, narrow=self._runtime.narrow)
            found.compare(result, given)
            return found

        if key and (found := self._as_kept(key, proved)):
            return found
        graph = exported(model, args, kwargs, self._state)
        with _said_nowhere():
            made = self._runtime.converted(graph, examples)
            found = proved(made)
            if key and not found.refused:
                with contextlib.suppress(Exception):  # one that cannot be written down answers all the same
                    self._kept.keep(key, self._runtime.saved(made))
        return found

    def _as_kept(self, key: str, proved: Callable[[Any], Proved]) -> Proved | None:
        """With the engine of an earlier run; None where there is none, or it does not answer as the model does."""
        parts = self._kept.take(key)
        if parts is None:
            return None
        with contextlib.suppress(Exception), _said_nowhere():
            found = proved(self._runtime.loaded(parts))
            if not found.refused:
                return found
        self._kept.remove(key)
        return None


@contextlib.contextmanager
def _said_nowhere() -> Iterator[None]:
    """What a library prints or warns of is no line of the program's."""
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        yield


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else version_of(tensor)
