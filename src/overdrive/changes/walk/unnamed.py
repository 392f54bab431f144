"""What comes into samples though nothing of a data set refers to it: memory around views, functions hooked in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from overdrive.changes.walk.walk import Walk

# With one of these names, code may read what lies in the same memory beside the elements of an array or a tensor.
_BEYOND = frozenset(("base", "_base", "as_strided", "storage", "untyped_storage", "data_ptr", "ctypes"))
_OURS = __name__.split(".")[0]


def visit_around(walk: Walk, names: set[str]) -> None:
    """The memory of all views, where code uses such names."""
    if _BEYOND.isdisjoint(names):
        return
    torch = sys.modules.get("torch")
    for memory in list(walk.views):
        if torch is not None and isinstance(memory, torch.UntypedStorage):
            walk.watch.state(memory.nbytes)
            memory = torch.empty(0, dtype=torch.uint8).set_(memory)
        walk.visit(memory)


def visit_hooks(walk: Walk, tensor: Any) -> None:
    """What is called with gradients of a leaf."""
    from overdrive.seams.torch.hooks import accumulation_hooks, gradient_hooks

    _visit_called(walk, lambda: (gradient_hooks(tensor), accumulation_hooks(tensor)))


def visit_hooks_of_all(walk: Walk, kinds: Iterable[type]) -> None:
    """What is called for every module, if there is one among these classes."""
    torch = sys.modules.get("torch")
    if torch is None or not any(torch.nn.Module in kind.__mro__ for kind in kinds):
        return
    from overdrive.seams.torch.hooks import global_hooks

    _visit_called(walk, global_hooks)


def _visit_called(walk: Walk, hooks: Callable[[], Iterable[dict[int, Any] | None]]) -> None:
    def now() -> list[Any]:
        found = [hook for each in hooks() for hook in (each or {}).values()]
        return [hook for hook in found if str(getattr(hook, "__module__", "")).split(".")[0] != _OURS]

    walk.visit(now())
    walk.watch.state(now)
