"""What libraries log while they build an engine is no line of the program's, and all else is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from overdrive.engines.runtime import unlogged
from tests.engines.test_answering import Served


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What the root logger's handler is given."""
    found: list[str] = []

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Noting()
    logging.getLogger().addHandler(handler)
    yield found
    logging.getLogger().removeHandler(handler)


def in_a_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def test_other_threads_log_meanwhile(lines: list[str]) -> None:
    requests = logging.getLogger("server.requests")
    with unlogged():
        in_a_thread(lambda: requests.warning("answered"))
        requests.warning("the exporter's")
        logging.getLogger("made.by.the.exporter").critical("the exporter's, too")
    requests.warning("afterwards")
    assert lines == ["answered", "afterwards"]


def test_the_program_may_disable_logging_meanwhile(lines: list[str]) -> None:
    log = logging.getLogger("server.requests")
    try:
        with unlogged():
            in_a_thread(lambda: logging.disable(logging.WARNING))
        log.warning("disabled")
        log.error("not disabled")
    finally:
        logging.disable(logging.NOTSET)
    assert lines == ["not disabled"]


def test_two_threads_that_build_at_once_are_silent_until_each_is_done(lines: list[str]) -> None:
    log, own = logging.getLogger("exporter"), logging.Logger.handle
    begun, may_end = threading.Event(), threading.Event()

    def other() -> None:
        with unlogged():
            begun.set()
            may_end.wait()
            log.warning("of the other")
        log.warning("of the other, afterwards")

    thread = threading.Thread(target=other)
    with unlogged(), unlogged():
        thread.start()
        begun.wait()
    log.warning("afterwards")
    may_end.set()
    thread.join()
    assert lines == ["afterwards", "of the other, afterwards"] and logging.Logger.handle is own


class Selects(nn.Module):
    """Its way hangs on its data: PyTorch's exporter warns of that, in a logger of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc(x)
        return result if result.sum() > 100 else result * 2


def test_what_the_exporter_tells_its_loggers_is_no_line_of_the_programs() -> None:
    heard: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    logger.addHandler(handler)
    try:
        with Served(Selects().eval()) as served:
            served.warm(torch.randn(3, 4))
    finally:
        logger.removeHandler(handler)
    assert not heard and not served.answers.answered
