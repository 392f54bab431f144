"""Seam *dropout made*: a layer of Keras's that drops out is about to be made, with a rate above 0.

A rate is another before the layer is made with it, on every backend: what was traced of it would keep the old one. With
a rate of 0 a layer has no generator of random numbers, and attention makes one for whoever asks for none: these stay.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from keras import layers

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches

# By the class that a rate is given to, its argument's names: attention and spatial dropout make a Dropout of their own,
# a recurrent layer its cell.
_RATES = {
    layers.Dropout: ("rate",),
    layers.AlphaDropout: ("rate",),
    layers.GaussianDropout: ("rate",),
    layers.LSTMCell: ("dropout", "recurrent_dropout"),
    layers.GRUCell: ("dropout", "recurrent_dropout"),
    layers.SimpleRNNCell: ("dropout", "recurrent_dropout"),
}


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.dropout_made.wanted:
        for kind, names in _RATES.items():
            patches.replace(kind, "__init__", _making(hub, kind.__init__, names))
    return []


def _making(hub: Seams, make: Callable[..., None], names: tuple[str, ...]) -> Callable[..., None]:
    signature = inspect.signature(make)

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(self, *args, **kwargs)
        except TypeError:
            make(self, *args, **kwargs)  # the program's own error
            return
        for name in names:
            rate = given.arguments.get(name)
            if isinstance(rate, (int, float)) and 0 < rate < 1:
                given.arguments[name] = hub.dropout_made.apply(rate)
        make(*given.args, **given.kwargs)

    # Keras asks for the names of a layer's arguments in two ways, of which one looks through no wrapper.
    __init__.__signature__ = signature  # type: ignore[attr-defined]
    return __init__
