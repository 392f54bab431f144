"""What each technique alone has to know of a program (`Technique.observe`), gathered in a trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from overdrive.seams.hub import Seams
from overdrive.seams.points import OBSERVER
from overdrive.techniques.catalogue import catalogue


class OwnFacts:
    """An observer. Each technique's subscriptions have an owner of their own: one that fails leaves the others."""

    def __init__(self) -> None:
        self._seams: Seams | None = None
        self._watching = True
        self._reports: dict[str, Callable[[], Mapping[str, Any]]] = {}

    def __call__(self, seams: Seams) -> None:
        self._seams = seams
        for name, technique in catalogue().items():
            with seams.owned_by(_owner(name)):
                report = technique.observe(seams)
            if report is not None:
                self._reports[name] = report

    def watch(self, on: bool) -> None:
        """Hear of what happens, or not: while a program is timed nobody listens."""
        if self._seams is not None and on is not self._watching:
            self._watching = on
            for name in self._reports:
                self._seams.switch(_owner(name), on)

    def gathered(self, framework: str) -> dict[str, dict[str, Any]]:
        """By technique; what could not be found out is missing, which means unsure."""
        found: dict[str, dict[str, Any]] = {}
        for name, report in self._reports.items():
            failed = self._seams is None or _owner(name) in self._seams.left_out
            if failed or framework not in catalogue()[name].frameworks:
                continue
            try:
                found[name] = dict(report())
            except Exception:  # a trial does not fail for what one technique wants to know
                continue
        return found


def _owner(name: str) -> str:
    return f"{OBSERVER} for {name}"
