"""Whether an answer depends on who else is in the batch: tried on made-up inputs, before requests are put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from overdrive.serve.model import Arrays, ServedModel, within
from overdrive.serve.waiting import apart, together

_ROUNDING = 64  # units in the last place of the largest number, that the size of the batch may move a number by
_LOUD = 100.0  # the others are made so much larger: what leaks is then seen


def found_together(model: ServedModel, most: int) -> tuple[bool, str]:
    """Whether up to `most` rows may be answered together, and a sentence about it without its full stop."""
    if not model.together:
        return False, "the export has no dimension that all inputs and outputs begin with"
    chance = np.random.default_rng(0)
    rows = [model.made_up(1, chance) for _ in range(most)]
    others = [_louder(model, model.made_up(1, chance)) for _ in range(most)]
    same = True
    try:
        alone = [model.answer(each) for each in rows]
        for size in sorted({2, 3, most} & set(range(2, most + 1))):
            quiet = _answers(model, rows[:size])
            for place in {0, size // 2, size - 1}:
                loud = _answers(model, [rows[n] if n == place else others[n] for n in range(size)])
                if not _same(quiet[place], loud[place]):
                    return False, f"of {size} inputs together the answer to one depends on the others"
                if not near(quiet[place], alone[place]):
                    return False, f"of {size} inputs together the answer to one is not the one that it has alone"
                same = same and _same(quiet[place], alone[place])
    except Exception as error:
        return False, f"the model failed on made-up inputs ({type(error).__name__}: {str(error)[:200]})"
    how = "the same in every bit as alone" if same else "the same as alone but for rounding by the size of the batch"
    return True, f"answers to up to {most} inputs together do not depend on each other, and are {how}"


def _answers(model: ServedModel, inputs: list[Arrays]) -> list[Arrays]:
    return apart(model.answer(together(inputs)), [1] * len(inputs))


def _louder(model: ServedModel, inputs: Arrays) -> Arrays:
    values = model.signature.get("values", {})
    return {
        name: within((each * _LOUD).astype(each.dtype), values.get(name, {})) if each.dtype.kind == "f" else each
        for name, each in inputs.items()
    }


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(each.tobytes() == other[name].tobytes() for name, each in one.items())


def near(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether they differ by no more than other orders of summation come to."""
    for name, each in one.items():
        wanted = other[name]
        if each.dtype.kind != "f":
            if not np.array_equal(each, wanted):
                return False
            continue
        size = float(np.abs(wanted.astype(np.float64)).max(initial=0.0))
        error = float(np.abs(each.astype(np.float64) - wanted).max(initial=0.0))
        if not error <= _ROUNDING * float(np.finfo(each.dtype).eps) * size:
            return False
    return True
