"""One Keras model with what answers in its place, and what is watched so that each answer stays the model's own.

The first call of a signature is made by the model and watched; the next two are made by both, and the model's answers
are handed out. Only where they agree are later ones answered without it, but for one now and then that both make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras
import numpy as np

from overdrive.engines.answers import (
    BY_BOTH,
    CHANGED,
    CHANGES_ALWAYS,
    GATHERED,
    NEW,
    NOT_FINITE,
    OF_NO_KIND,
    OUTSIDE,
    Answer,
)
from overdrive.engines.closeness import close
from overdrive.engines.gathering import Gathering
from overdrive.engines.keras.given import Given
from overdrive.engines.keras.standing import Standing, frozen, own_code
from overdrive.engines.ranges import Ranges, finite
from overdrive.engines.runtime import Array, NoEngine
from overdrive.engines.tally import Compared
from overdrive.seams.keras.internals import mask_of

_MOST_SIGNATURES = 8  # of one model: each is traced, which takes some tenths of a second, and has weights of its own
_MOST_CHANGES = 4  # of a model's attributes, or of weights that an engine has a copy of


class Made(Protocol):
    """What answers calls of one signature.

    Attributes:
        places_of_fractions: whether it makes whole numbers of fractions, which may be places in a table.
    """

    @property
    def places_of_fractions(self) -> bool: ...

    def run(self, given: Given) -> list[Any]:
        """The leaves of the answer, as tensors."""

    def changed(self) -> bool:
        """Whether what it is made of is not what the model reads now."""


Agrees = Callable[[Made], bool]  # whether its answer is the one that the model has just given


class Maker(Protocol):
    """Makes it.

    Attributes:
        kinds: of calls that are answered (see `seams.keras.answers`).
        calibrating: calls whose inputs it is made from; 0: it is from none.
        narrow: it computes in fewer bits than the model.
        one_at_a_time: it answers one thread at a time.
        as_tensorflow: it raises where TensorFlow does, and keeps NaN: TensorFlow itself computes.
    """

    kinds: Sequence[str]
    one_at_a_time: bool
    as_tensorflow: bool

    @property
    def calibrating(self) -> int: ...

    @property
    def narrow(self) -> bool: ...

    def takes(self, given: Given) -> bool:
        """Whether it answers calls that are given such things."""

    def made(self, model: Any, given: Given, examples: Sequence[Sequence[Array]], agrees: Agrees) -> Made | None:
        """For calls like this one; None where its answer is another one.

        Raises:
            NoEngine: there can be none for this model.
        """


class _Signature(Compared):
    """Calls that are alike. `made` is None until one comes a second time."""

    def __init__(self) -> None:
        super().__init__()
        self.made: Made | None = None
        self.ranges: Ranges | None = None
        self._form: Any = None

    def agreed(self, result: Any, given: Given) -> None:
        if self.ranges is None:
            arrays = given.arrays() if given.numeric else []
            kinds = "iuf" if self.made is not None and self.made.places_of_fractions else "iu"
            steering = [number for number, each in enumerate(arrays) if each.dtype.kind in kinds]
            self.ranges = Ranges(dict.fromkeys(steering), [arrays])
        self.compared += 1
        self._form = keras.tree.map_structure(lambda _: 0, result)

    def answer(self, given: Given) -> Any:
        assert self.made is not None
        return keras.tree.pack_sequence_as(self._form, self.made.run(given))


class AnsweredModel:
    """`refused`: why the model makes all its calls itself, for good."""

    def __init__(self, model: Any, maker: Maker) -> None:
        self.refused = ""
        self._model = model
        self._maker = maker
        self._standing: Standing | None = None
        self._changes = 0
        self._signatures: dict[Any, _Signature] = {}
        self._gathering = Gathering(maker.calibrating)

    def answer(self, kind: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Answer:
        """The call's result, by what was made or by the model; an error of the model's own call passes."""
        if self.refused or not self._model.built:
            return Answer(call(*args, **kwargs), self.refused or "the model is not built yet")
        given = Given.of(kind, args, kwargs)
        if given is None or not self._maker.takes(given):
            return Answer(call(*args, **kwargs), OF_NO_KIND)
        signature = self._signatures.get(given.key)
        if not self._holds(signature):
            return Answer(call(*args, **kwargs), self.refused or CHANGED)
        elsewhere = given.numeric and not self._maker.as_tensorflow
        if elsewhere and not finite(given.arrays()):
            return Answer(call(*args, **kwargs), NOT_FINITE)
        if signature is None:
            if len(self._signatures) >= _MOST_SIGNATURES:
                return Answer(call(*args, **kwargs), f"more than {_MOST_SIGNATURES} shapes of inputs")
            return Answer(self._first(given.key, call, args, kwargs), self.refused or NEW, settles=True)
        if elsewhere and signature.ranges is not None and signature.ranges.outside(given.arrays()):
            result = call(*args, **kwargs)
            if (made := signature.made) is not None:
                signature.ranges.try_beyond(given.arrays(), lambda: self._agreeing(result, given)(made))
            return Answer(result, OUTSIDE)
        if not signature.due():
            try:
                return Answer(signature.answer(given))
            except Exception as error:
                failed = error
            call(*args, **kwargs)  # it is not to blame where the model raises as well: that is what the program sees
            raise failed
        settles, early = not signature.established, signature.early
        result = call(*args, **kwargs)
        if signature.made is None and self._maker.calibrating and not self._gathering.enough(given.key, given.arrays()):
            return Answer(result, GATHERED, settles)
        self._compare(signature, result, given)
        return Answer(result, self.refused or BY_BOTH, settles, early)

    def _holds(self, signature: _Signature | None) -> bool:
        """Whether model and weights are what they were; else what was made of them is gone."""
        if self._standing is None:
            self._look()
            return not self.refused
        same = self._standing.same()
        if same and (signature is None or signature.made is None or not signature.made.changed()):
            return True
        self._changes += 1
        self._signatures.clear()
        self._gathering.forget()
        if not same:
            self._look()
        if self._changes > _MOST_CHANGES:
            self.refused = CHANGES_ALWAYS
        return False

    def _look(self) -> None:
        self._standing = Standing(self._model)
        self.refused = own_code(self._model)

    def _first(self, key: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The model's own call; what it does besides computing leaves the model alone for good."""
        model = self._model
        before, losses = frozen(model), len(model.losses)
        result = call(*args, **kwargs)
        self._standing = Standing(model)  # it may have been built by it
        if not all(map(np.array_equal, before, frozen(model))):
            self.refused = "a call changes what the model holds, or draws random numbers"
        elif len(model.losses) > losses:  # those of regularised weights were there before
            self.refused = "a call adds losses"
        elif any(mask_of(each) is not None for each in keras.tree.flatten(result)):
            self.refused = "its answers have masks"
        else:
            self._signatures[key] = _Signature()
        return result

    def _agreeing(self, result: Any, given: Given) -> Agrees:
        leaves = keras.tree.flatten(result)

        def agrees(made: Made) -> bool:
            others = made.run(given)
            same = len(leaves) == len(others)
            return same and all(_alike(*pair, self._maker.narrow) for pair in zip(leaves, others, strict=True))

        return agrees

    def _compare(self, signature: _Signature, result: Any, given: Given) -> None:
        agrees = self._agreeing(result, given)
        try:
            if signature.made is None:
                examples = self._gathering.taken(given.key, given.arrays()) if self._maker.calibrating else ()
                signature.made = self._maker.made(self._model, given, examples, agrees)
                found = signature.made is not None
            else:
                found = agrees(signature.made)
        except NoEngine as error:
            self.refused = str(error)
        except Exception as error:  # of tracing or compiling: the model has its own call
            self.refused = f"no graph can be made of it ({type(error).__name__})"
        else:
            if not found:
                self.refused = "an answer in its place was another one"
            signature.agreed(result, given)


def _alike(one: Any, other: Any, narrow: bool) -> bool:
    mine, its = np.array(one), np.array(other)
    return mine.shape == its.shape and mine.dtype == its.dtype and close(mine, its, narrow)
