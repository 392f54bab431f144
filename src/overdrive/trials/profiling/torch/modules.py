"""Knows in which module of the program's models the thread is, by torch's hooks on all modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class ModuleTrack:
    """Between `enter` and `leave`. Modules are named by their path in the outermost model: `SimpleCNN.conv1`."""

    def __init__(self, begin: Callable[[str], Any] | None = None, end: Callable[[Any], None] | None = None) -> None:
        self.path: list[str] = []
        self._begin, self._end = begin, end
        self._marks: list[Any] = []
        self._names: dict[int, str] = {}
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
        if not self.path and id(module) not in self._names:
            root = type(module).__name__
            for name, inner in module.named_modules():
                self._names.setdefault(id(inner), f"{root}.{name}" if name else root)
        name = self._names.get(id(module)) or (f"{self.current}.{type(module).__name__}".lstrip("."))
        self.path.append(name)
        self._marks.append(self._begin(name) if self._begin else None)

    def _left(self, module: Any, args: Any, result: Any) -> None:
        if torch.compiler.is_compiling() or not self.path:
            return
        self.path.pop()
        mark = self._marks.pop()
        if mark is not None and self._end:
            self._end(mark)
