"""Seam *submodule called*: within an outermost call of a model, those of modules that somebody has named for it.

A model's own `__call__` comes to a hundred others. They are looked at only while a call of `within` is under way, in
its thread.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from overdrive.seams.hub import Seams
from overdrive.seams.torch.internals import keeps_saved_tensors_elsewhere

Named = Mapping[int, weakref.ref[torch.nn.Module]]  # modules, by id


class _Thread(threading.local):
    named: Named | None = None


_thread = _Thread()


@contextmanager
def within(named: Named | None) -> Iterator[None]:
    """Calls of these modules, in this thread, are told for the length of this; of none of them within one of them."""
    before, _thread.named = _thread.named, named
    try:
        yield
    finally:
        _thread.named = before


def is_named(module: torch.nn.Module) -> bool:
    """Whether its call is to be told."""
    named = _thread.named
    if named is None or (found := named.get(id(module))) is None or found() is not module:
        return False
    # A checkpoint counts what is saved within it, and makes the call again as it is written.
    return not keeps_saved_tensors_elsewhere()


def tell(hub: Seams, plain: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    with within(None):
        return hub.submodule_called.run(module, functools.partial(plain, module), *args, **kwargs)
