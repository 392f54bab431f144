"""One model with the engines that answer in its place."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from overdrive.core.rng import States
from overdrive.engines.exported import NoEngine, exported, share_memory
from overdrive.engines.runtime import Engine, Runtime
from overdrive.engines.signature import NUMERIC, Signature
from overdrive.engines.weights import Weights
from overdrive.model_state.later_backward import without_graph
from overdrive.model_state.quiet import quiet
from overdrive.model_state.state import State
from overdrive.seams.points import reason_of
from overdrive.seams.torch.internals import version_of
from overdrive.seams.torch.reads import noting_reads

_BUILT_AT = 2  # the call of a later signature in which its engine is built: one that comes once is not worth it
_COMPARED = 2  # calls that both make before the engine answers by itself
# Afterwards both make the first, second, fourth, eighth, … of its answers and each of so many; more where the model's
# own code looks at values (whether a mask hides anything, say), and exports another way for all of them.
_EVERY, _EVERY_OF_A_LOOKER = 512, 16
_MOST_ENGINES = 8  # of one model: as many copies of its weights
_MOST_CHANGES = 4  # of weights or attributes: a model that changes all the time is left alone
# The error's root mean square, as a share of the answer's. Engines in fp32 come to 1e-7 to 1e-5, a wrong formula to
# more.
_CLOSE = 1e-4
_CLOSE_EACH = 1e-2  # any single element's
_CLOSE_NARROW = 0.3  # in fewer bits, where a plan's proof says how much is lost: what is worse is no rounding at all
_MOST_GATHERED = 256 << 20  # bytes of the inputs that an engine is calibrated by

BY_BOTH = "made by both and compared"


@dataclass(frozen=True)
class Answer:
    result: Any
    left: str = ""  # why the model itself was called; empty where the engine answered


class ServedModel:
    """Its engines are kept by what its weights held and by signature: where weights come back, so do they."""

    def __init__(self, model: torch.nn.Module, runtime: Runtime) -> None:
        self._model = weakref.ref(model)
        self._runtime = runtime
        self._refused = ""
        self._state: State | None = None
        self._weights: Weights | None = None
        self._digest = ""
        self._looks = False  # its code has been seen to look at values
        self._changes = 0
        self._engines: dict[tuple[str, Any], _Proved] = {}
        self._seen: dict[Any, int] = {}  # calls, by signature, since the model last changed
        # Inputs that engines are calibrated by, by signature.
        self._gathered: dict[Any, list[list[Any]]] = {}

    def answer(self, given: Signature, call: Callable[..., Any], args: Any, kwargs: Any) -> Answer:
        """The call's result, by an engine or by the model; an error of the model's own call passes."""
        model = self._model()
        if model is None or self._refused or not self._holds(model):
            return Answer(call(*args, **kwargs), self._refused or "the model was changed")
        engine = self._engines.get((self._digest, given.key))
        if engine is None:
            return self._without_engine(model, given, call, args, kwargs)
        if engine.refused:
            return Answer(call(*args, **kwargs), engine.refused)
        if engine.due(_EVERY_OF_A_LOOKER if self._looks else _EVERY):
            result = call(*args, **kwargs)
            engine.compare(result, given)
            return Answer(result, engine.refused or BY_BOTH)
        return Answer(without_graph(model, lambda: engine.answer(given), lambda: call(*args, **kwargs)))

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
            proved = _Proved(None, None, [], [], str(error))
        except Exception as error:  # of the library's: it takes no such model
            proved = _Proved(
                None, None, [], [], f"{self._runtime.title} takes no such model ({reason_of(error)[:200]})"
            )
        self._engines[self._digest, given.key] = proved
        return Answer(result, proved.refused or BY_BOTH)

    def _has_gathered(self, given: Signature) -> bool:
        """Whether so many calls of this signature were seen as an engine is calibrated by; this one is counted."""
        if not self._runtime.calibrating:
            return True
        gathered = self._gathered.setdefault(given.key, [])
        gathered.append([_array(each).copy() for each in given.tensors])
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

    def _built(self, model: torch.nn.Module, given: Signature, args: Any, kwargs: Any, result: Any) -> _Proved:
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
        graph = exported(model, args, kwargs, self._state)
        examples = self._gathered.pop(given.key, None) or [[_array(each) for each in given.tensors]]
        with warnings.catch_warnings(), quiet():
            warnings.simplefilter("ignore")
            engine = self._runtime.build(graph, examples, torch.get_num_threads())
        proved = _Proved(engine, spec, _plain(leaves), tensors, narrow=self._runtime.narrow)
        proved.compare(result, given)
        return proved


class _Proved:
    """An engine, with the form of the results that the model gave. `refused`: why it does not answer."""

    def __init__(
        self,
        engine: Engine | None,
        spec: Any,
        leaves: list[Any],
        tensors: list[torch.Tensor],
        refused: str = "",
        narrow: bool = False,
    ) -> None:
        self.refused = refused
        self._narrow = narrow
        self._compared = 0
        self._answered = 0
        self._engine = engine
        self._spec = spec
        self._constants = leaves
        self._forms = [(each.shape, each.dtype, each.stride()) for each in tensors]

    def due(self, every: int) -> bool:
        """Whether the next call is to be made by the model too. `every`: of so many answers one is."""
        self._answered += self._compared >= _COMPARED
        count = self._answered
        return self._compared < _COMPARED or count & (count - 1) == 0 or count % every == 0

    def answer(self, given: Signature) -> Any:
        made = iter(self._results(given))
        return tree_unflatten([next(made) if each is _TENSOR else each for each in self._constants], self._spec)

    def compare(self, result: Any, given: Signature) -> None:
        """With what the model came to; it is refused where they differ by more than its number format does."""
        leaves, spec = tree_flatten(result)
        tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        if spec != self._spec or _plain(leaves) != self._constants or len(tensors) != len(self._forms):
            self.refused = "the form of its results is not always the same"
            return
        for one, other in zip(tensors, self._results(given), strict=True):
            if one.shape != other.shape or not close(one, other, self._narrow):
                self.refused = "an engine's answer was another one"
                return
        self._compared += 1

    def _results(self, given: Signature) -> list[torch.Tensor]:
        assert self._engine is not None
        made = self._engine([_array(each) for each in given.tensors])
        return [_like(form, array) for form, array in zip(self._forms, made, strict=True)]


_TENSOR = object()


def _plain(leaves: list[Any]) -> list[Any]:
    """All that is no tensor; in the place of each tensor a mark."""
    return [_TENSOR if isinstance(each, torch.Tensor) else each for each in leaves]


def _array(tensor: torch.Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


def _like(form: tuple[Any, ...], array: Any) -> torch.Tensor:
    """The result as the model would give it: its type, and its strides."""
    shape, dtype, strides = form
    made = torch.from_numpy(np.ascontiguousarray(array)).to(dtype)
    if made.shape != shape or made.stride() == strides:
        return made
    return torch.empty_strided(shape, strides, dtype=dtype).copy_(made)


def close(one: torch.Tensor, other: torch.Tensor, narrow: bool = False) -> bool:
    """Whether they differ by rounding. Where the model's has no finite number, the engine's has the same there.

    Args:
        narrow: of an engine in fewer bits, whose labels fall another way now and then: they are the proof's.
    """
    if not one.is_floating_point():
        return narrow or torch.equal(one, other)
    mine, its = one.detach().double(), other.double()
    finite = mine.isfinite()
    if not torch.equal(finite, its.isfinite()) or not torch.equal(
        mine[~finite].nan_to_num(), its[~finite].nan_to_num()
    ):
        return False
    if not bool(finite.any()):
        return True
    errors, size = (mine - its)[finite], mine[finite].square().mean().sqrt()
    error = errors.square().mean().sqrt()
    if narrow:
        return bool(error <= _CLOSE_NARROW * size)
    return bool(error <= _CLOSE * size) and bool(errors.abs().max() <= _CLOSE_EACH * size)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else version_of(tensor)
