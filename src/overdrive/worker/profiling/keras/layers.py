"""The layers of the program's models, and the path of them that an operation's name goes through."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from typing import Any

from overdrive.seams.keras.internals import layers_of

_NUMBER = re.compile(r"_\d+$")


def names_of(models: Iterable[Any]) -> frozenset[str]:
    return frozenset(each.name for each in layers_of(models))


def layer_of(name: str, layers: Set[str]) -> str:
    """`sequential.conv2d`, of the name that an operation has in its graph.

    Keras opens a layer's scope twice, to build it and to call it: the operations of `conv2d` lie in `conv2d_1`.
    """
    path = []
    for each in name.split("/"):
        first = _NUMBER.sub("", each)
        if first in layers or each in layers:
            path.append(first if first in layers else each)
    return ".".join(path)
