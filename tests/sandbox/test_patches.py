"""Functions in the place of Python's own, put back wherever they are held."""

from __future__ import annotations

import io
import os
import sys
import types

import pytest

from overdrive.sandbox.patches import Patches


def test_a_module_that_took_a_function_meanwhile_has_the_plain_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("imported_meanwhile")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    plain, listdir = io.open, os.listdir
    patches = Patches()
    patches.set(io, "open", lambda *args: plain(*args))
    patches.set_os("listdir", lambda *args: listdir(*args))
    exec("from io import open\nfrom os import listdir as listed\nnothing = False", vars(module))
    assert module.open is not plain and module.listed is not listdir
    patches.undo()
    assert io.open is plain and os.listdir is listdir
    assert module.open is plain and module.listed is listdir and module.nothing is False
