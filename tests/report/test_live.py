"""What a tune shows while it works, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from overdrive.report import live


@pytest.mark.parametrize("terminal", [True, False])
def test_reading_samples_is_told_now_and_then(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    with live.Live(Console(file=shown, force_terminal=terminal, width=120), 60.0) as told:
        told.stage("sample_cache against plain")
        now = told._began
        for seconds in (0.5, 11, 12, 13, 30):
            monkeypatch.setattr(live.time, "monotonic", lambda now=now + seconds: now)
            told.filling(int(1000 * seconds), 50_000)
            if told._status:
                told._status._live.refresh()
    text = shown.getvalue()
    assert "11,000 of 50,000 samples read" in text and "30,000 of 50,000" in text
    assert ("12,000 of" in text) is terminal
