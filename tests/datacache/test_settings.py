"""Settings of the process that samples may depend on."""

from __future__ import annotations

import decimal
import sys

import numpy as np
import pytest

from overdrive.datacache.key import Settings

torch = pytest.importorskip("torch")


def test_a_module_that_is_imported_late_is_no_change_and_its_setting_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of ours imported `decimal`, and kept samples were let go for it: the demo's plan gained nothing."""
    monkeypatch.delitem(sys.modules, "decimal")
    with decimal.localcontext(decimal.DefaultContext):
        settings = Settings()
        monkeypatch.setitem(sys.modules, "decimal", decimal)
        assert not settings.changed()
        decimal.getcontext().prec = 5
        assert settings.changed()


def test_other_settings_are_seen() -> None:
    settings = Settings()
    assert not settings.changed()
    with np.errstate(divide="raise"):
        assert settings.changed()
    assert not settings.changed()
    with torch.backends.mkldnn.flags(enabled=False):
        assert settings.changed()
    torch.use_deterministic_algorithms(True)
    try:
        assert settings.changed()
    finally:
        torch.use_deterministic_algorithms(False)
    assert not settings.changed()
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert settings.changed()
    finally:
        torch.set_num_threads(threads)
