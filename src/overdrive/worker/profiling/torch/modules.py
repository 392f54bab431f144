"""Knows in which module of the program's models the thread is, by torch's hooks on all modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from overdrive.core.by_identity import ByIdentity
from overdrive.seams.torch.modules import first_parameter


class ModuleNames:
    """Modules by their path in the outermost model, `SimpleCNN.conv1`; a second model of a class is `SimpleCNN (2)`.

    One for all recordings of a program, which are matched by these names.
    """

    def __init__(self) -> None:
        self._names: ByIdentity[str] = ByIdentity()
        self._models: Counter[str] = Counter()
        self._roots: dict[str, Any] = {}  # class -> first parameter of a model of it -> the model's name

    def outermost(self, module: Any) -> None:
        """It is called by no other module that has been called before."""
        if module in self._names:
            return
        root = self._root(type(module).__name__, first_parameter(module))
        for name, inner in module.named_modules():
            self._names.setdefault(inner, f"{root}.{name}" if name else root)

    def _root(self, kind: str, first: Any) -> str:
        """What is made anew in each step is no other model: a loss function, or one put around the same parameters."""
        if first is None:
            return kind
        roots = self._roots.setdefault(kind, WeakIdKeyDictionary())
        if first not in roots:
            self._models[kind] += 1
            roots[first] = kind if self._models[kind] == 1 else f"{kind} ({self._models[kind]})"
        return str(roots[first])

    def get(self, module: Any) -> str | None:
        return self._names.get(module)


class ModuleTrack:
    """Between `enter` and `leave`: `current` is the name of the innermost module that is being called."""

    def __init__(
        self,
        names: ModuleNames,
        begin: Callable[[str], Any] | None = None,
        end: Callable[[Any], None] | None = None,
    ) -> None:
        self.path: list[str] = []
        self._begin, self._end = begin, end
        self._marks: list[Any] = []
        self._names = names
        self._handles: list[Any] = []

    @property
    def current(self) -> str:
        return self.path[-1] if self.path else ""

    def enter(self) -> None:
        self._handles = [
            register_module_forward_pre_hook(self._entered),
            register_module_forward_hook(self._left, always_call=True),
        ]

    def leave(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _entered(self, module: Any, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if not self.path:
            self._names.outermost(module)
        name = self._names.get(module) or (f"{self.current}.{type(module).__name__}".lstrip("."))
        self.path.append(name)
        self._marks.append(self._begin(name) if self._begin else None)

    def _left(self, module: Any, args: Any, result: Any) -> None:
        if torch.compiler.is_compiling() or not self.path:
            return
        self.path.pop()
        mark = self._marks.pop()
        if mark is not None and self._end:
            self._end(mark)
