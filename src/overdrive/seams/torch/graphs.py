"""The graph behind what was computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def nodes_behind(nodes: Iterable[Any], ends: Iterable[Any] = ()) -> Iterator[Any]:
    """These, and all that a backward pass from them comes to; but for `ends`, and what lies beyond those alone."""
    seen = set(ends)
    waiting = [each for each in nodes if each not in seen]
    seen.update(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
