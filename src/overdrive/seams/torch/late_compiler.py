"""PyTorch's compiler, imported where something of it is used, and not by every optimizer.

Each optimizer imports `torch._dynamo`, to keep a compiler that may be at work out of its functions. That takes 1.3 s of
a start and more, and most programs never compile. While it is not loaded no compiler can be at work: a module that
stands in its place answers the two questions of optimizers, and becomes the real one when anything else is asked of it.

One trace remains: of an error inside such a function a traceback shows one frame of PyTorch's less.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch._compile

from overdrive.seams.torch import late_sympy

_NAME = "torch._dynamo"
_KEPT = "__dynamo_disable"  # where `torch._compile` keeps what `disable` answered, on the function itself
_around: Callable[[], AbstractContextManager[None]] = nullcontext  # is entered while the real one is imported


def stand_in() -> Callable[[], None]:
    """Put it into the compiler's place; returns what takes it away again. Nothing where that is loaded already."""
    if _NAME in sys.modules or not _keeps_answers():
        return lambda: None
    spec = find_spec(_NAME)
    if spec is None:
        return lambda: None
    late, forget = _Late(spec), late_sympy.keep_shown()

    def leave() -> None:
        late.leave()
        forget()

    return leave


def is_loaded() -> bool:
    return _NAME in sys.modules and not isinstance(sys.modules[_NAME], _Late)


def load_within(context: Callable[[], AbstractContextManager[None]]) -> None:
    """In this process, for good: its import is made in `context`, whenever it comes; now, where nothing can stand in
    its place."""
    global _around
    _around = context
    if not _keeps_answers() and _NAME not in sys.modules:
        _imported()


def _imported() -> ModuleType:
    with _around():
        return importlib.import_module(_NAME)


class _Late(ModuleType):
    """`torch._dynamo`, as far as optimizers ask for it. What is asked of it later goes to the real one."""

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(_NAME)
        own: dict[str, Any] = {"_real": None, "_lock": threading.RLock(), "_spared": [], "_submodules": _Submodules()}
        self.__dict__.update(own, __spec__=spec, __file__=spec.origin, __package__=_NAME)
        sys.modules[_NAME] = torch._dynamo = self
        sys.meta_path.insert(0, self._submodules)

    @property
    def __path__(self) -> Any:  # type: ignore[override]
        return self.real().__path__  # somebody imports a part of it

    def disable(self, function: Any = None, recursive: bool = True, **options: Any) -> Any:
        """`function` itself where PyTorch's own `inner` asks, which keeps the answer and asks no more."""
        if self._real is None and isinstance(function, FunctionType) and options == {"wrapping": False}:
            self._spared.append(function)
            return function
        return self.real().disable(function, recursive, **options)

    def graph_break(self, *words: Any, **options: Any) -> None:
        if self._real is not None:
            self._real.graph_break(*words, **options)

    def real(self) -> Any:
        with self._lock:
            if self._real is None:
                self._give_back()  # the finder stays: the import that asked may be one of a part
                self.__dict__["_real"] = _imported()
        return self._real

    def leave(self) -> None:
        """As if it had never been there."""
        self._give_back()
        if self._submodules in sys.meta_path:
            sys.meta_path.remove(self._submodules)

    def _give_back(self) -> None:
        for function in self._spared:
            if function.__dict__.get(_KEPT) is function:
                del function.__dict__[_KEPT]
        self._spared.clear()
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        if torch.__dict__.get("_dynamo") is self:
            del torch._dynamo

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and self._real is None:  # who looks over all modules asks for such names
            raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")
        return getattr(self.real(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.real(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.real(), name)

    def __dir__(self) -> list[str]:
        return dir(self.real())


class _Submodules(MetaPathFinder, Loader):
    """Importing a part of it asks for `__path__`, which loads all of it, that part too: it is there then."""

    _spec: ModuleSpec | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        there = fullname.startswith(_NAME + ".") and fullname in sys.modules and target is None
        return ModuleSpec(fullname, self) if there else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = sys.modules[spec.name]
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__spec__"] = self._spec  # some of them take only settings as attributes


def _keeps_answers() -> bool:
    """Whether this PyTorch keeps the answers where they can be taken back, as 2.13 does."""
    within = [torch._compile._disable_dynamo.__code__]
    for code in within:
        if _KEPT in (*code.co_consts, *code.co_names):
            return True
        within.extend(each for each in code.co_consts if isinstance(each, CodeType))
    return False
