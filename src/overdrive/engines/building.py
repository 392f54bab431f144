"""Builds an engine from a call that the model has made, or takes the one that an earlier run has built."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from overdrive.engines.bounds import bounds_of
from overdrive.engines.exported import exported, for_sizes_that_vary, share_memory
from overdrive.engines.identity import identity
from overdrive.engines.kept import KeptEngines
from overdrive.engines.proved import Proved, plain_of
from overdrive.engines.ranges import Bounds, Ranges
from overdrive.engines.runtime import PLAIN, Array, Engine, NoEngine, Place, Runtime, said_nowhere
from overdrive.engines.signature import NUMERIC, Signature
from overdrive.engines.sizes import Wide, as_exported, vary
from overdrive.engines.tally import Tally
from overdrive.model_state.state import State
from overdrive.seams.points import reason_of

_BOUNDS = "bounds"  # what they are kept as, beside the library's own parts


@dataclass(frozen=True)
class Call:
    """One that the model itself has made."""

    model: torch.nn.Module
    given: Signature
    args: Any
    kwargs: Any
    result: Any

    def compared(self, engine: Engine, bounds: Bounds, narrow: bool, tally: Tally | None = None) -> Proved:
        """The engine with what the model came to in this call."""
        leaves, spec = tree_flatten(self.result)
        ranges = Ranges(bounds, [self.given.arrays()])
        found = Proved(engine, spec, plain_of(leaves), self.tensors(), narrow=narrow, tally=tally, ranges=ranges)
        found.compare(self.result, self.given)
        return found

    def tensors(self) -> list[torch.Tensor]:
        """Its results.

        Raises:
            NoEngine: an engine cannot give them.
        """
        leaves = tree_flatten(self.result)[0]
        tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        for each in leaves:
            if not isinstance(each, (torch.Tensor, *PLAIN)):
                raise NoEngine(f"it returns a {type(each).__name__}")
        if not tensors or any(type(each) is not torch.Tensor or each.dtype not in NUMERIC for each in tensors):
            raise NoEngine("it returns what no engine gives")
        if share_memory(tensors, [*self.given.tensors, *self.model.parameters(), *self.model.buffers()]):
            raise NoEngine("its results share memory with each other, its inputs or its weights")
        return tensors


@dataclass(frozen=True)
class Built:
    engine: Engine
    bounds: Bounds


class Builder:
    """By one library."""

    def __init__(self, runtime: Runtime, kept: KeptEngines) -> None:
        self._runtime = runtime
        self._kept = kept

    def built(
        self, call: Call, state: State, examples: Sequence[Sequence[Array]], places: Sequence[Place]
    ) -> tuple[Built | None, Proved]:
        """For calls like this one, and for other sizes in these places; None where there can be none.

        Args:
            examples: what calls got, for the ranges of values.
        """
        try:
            call.tensors()
            key = identity(call.model, call.given, self._runtime, examples, places)
            if key and (found := self._as_kept(key, call)):
                return found
            subject = call.model, call.args, call.kwargs
            if places:
                subject = for_sizes_that_vary(*subject)
            graph = exported(*subject, state, as_exported(call.given, places, *subject))
            if places and not vary(graph, places):
                raise NoEngine("its sizes are constants of the exported graph")
            with said_nowhere():
                made = self._runtime.converted(graph, examples, places)
                built, proved = self._compared(made, bounds_of(graph), call)
                if key and not proved.refused:
                    with contextlib.suppress(Exception):  # one that cannot be written down answers all the same
                        self._kept.keep(key, {**self._runtime.saved(made), _BOUNDS: _written(built.bounds)})
            return built, proved
        except NoEngine as error:
            return None, refused(str(error))
        except Exception as error:  # of the library's: it takes no such model
            return None, refused(f"{self._runtime.title} takes no such model ({reason_of(error)[:200]})")

    def reused(self, wide: Wide, call: Call) -> Proved:
        """One that was built for several sizes, for those of this call."""
        try:
            return call.compared(wide.engine, wide.bounds, self._runtime.narrow, wide.tally)
        except Exception as error:
            return refused(f"{self._runtime.title} takes no such sizes ({reason_of(error)[:200]})")

    def _compared(self, made: Any, bounds: Bounds, call: Call) -> tuple[Built, Proved]:
        engine = self._runtime.engine(made, torch.get_num_threads())
        return Built(engine, bounds), call.compared(engine, bounds, self._runtime.narrow)

    def _as_kept(self, key: str, call: Call) -> tuple[Built, Proved] | None:
        """That of an earlier run; None where there is none, or it does not answer as the model does."""
        parts = self._kept.take(key)
        if parts is None:
            return None
        with contextlib.suppress(Exception), said_nowhere():
            built, proved = self._compared(self._runtime.loaded(parts), _read(parts[_BOUNDS]), call)
            if not proved.refused:
                return built, proved
        self._kept.remove(key)
        return None


def refused(why: str) -> Proved:
    """No engine, for good."""
    return Proved(None, None, [], [], why)


def _written(bounds: Bounds) -> bytes:
    return json.dumps([[number, ends] for number, ends in bounds.items()]).encode()


def _read(text: bytes) -> Bounds:
    return {number: ends and (ends[0], ends[1]) for number, ends in json.loads(text)}
