"""What each operation of a compiled step is for, by the name that it had when it was traced. Imports no framework.

XLA makes a few operations of many; each keeps the name of the last that it was made of. Names made while gradients were
asked for tell forward (`jvp(dense)`) from backward (`transpose(jvp(dense))`), and the optimizer's stand in its scope;
all others are the loss and metrics, and count as forward, as on TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Set

from overdrive.worker.profiling.keras.layers import layer_of
from overdrive.worker.profiling.keras.on_jax.hlo import Module

_WITHIN = re.compile(r"(?:\w+\()+([^()]*)\)+")  # "transpose(jvp(dense))" is of dense
_ORDER = ("forward", "backward", "optimizer")


def purposes(module: Module, layers: Set[str], scopes: Set[str]) -> dict[str, tuple[str, str]]:
    """What each operation is for, and the layer that it is of. One whose name was lost is for what it was computed
    from, the latest of that; or else for what first uses it. `scopes`: of optimizers."""
    found: dict[str, tuple[str, str]] = {}
    for name, each in module.instructions.items():  # computations that are called come before those that call them
        if each.opcode in ("parameter", "constant"):
            continue
        traced = each.traced or next((inner.traced for inner in module.inside(each) if inner.traced), "")
        if traced:
            found[name] = _purpose(traced, scopes), layer_of(_WITHIN.sub(r"\1", traced), layers)
        elif before := [found[operand] for operand in each.operands if operand in found]:
            found[name] = max(before, key=lambda one: _ORDER.index(one[0]))
    later: dict[str, tuple[str, str]] = {}
    for name, each in reversed(module.instructions.items()):
        use = found.get(name) or later.get(name)
        if use is not None:
            later.update((operand, use) for operand in each.operands if operand not in found)
    return {**later, **found}


def _purpose(traced: str, scopes: Set[str]) -> str:
    if "transpose(" in traced:
        return "backward"
    return "optimizer" if "jvp(" not in traced and scopes & set(traced.split("/")) else "forward"
