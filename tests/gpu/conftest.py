"""Tells of a failed test at once: a run that is cut short, as one on a lent GPU may be, still says why."""

from __future__ import annotations

import pytest


class _AtOnce:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\n!! {report.nodeid}\n{report.longreprtext}\n!! end")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # with pytest-xdist: not in its workers
        config.pluginmanager.register(_AtOnce(config))
