"""What calls, questions and fetches, noted or answered, ask of the run that they belong to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from overdrive.survive.journal import Diverged, Entry

if TYPE_CHECKING:
    from overdrive.survive.in_parts import Parts
    from overdrive.survive.journal import Journal


class FetchingRun(Protocol):
    """What fetches of batches ask."""

    journal: Journal

    @property
    def skips_fetches(self) -> bool:
        """Whether they may be left out when it is made again."""

    @property
    def replaying(self) -> bool: ...

    @property
    def warming(self) -> bool:
        """Whether it is made again with its calls, since the plan's techniques settle in these."""

    def guarded(self, act: Callable[..., Any]) -> Callable[..., Any]: ...

    def aside(self) -> bool:
        """Whether what is called now is not the program's, or not to be noted."""

    def by_thread(self) -> None:
        """It is aside; in a thread of the program's it computes what counts."""

    def begin_anew(self, reason: str) -> NoReturn: ...


class JournaledRun(FetchingRun, Protocol):
    """What calls and questions ask besides.

    Attributes:
        steps: made so far.
        keeps_samples: its plan does.
        inside: a call that is skipped as a whole: what is asked in it is not told.
    """

    steps: int
    inside: bool
    keeps_samples: bool

    @property
    def parts(self) -> Parts | None:
        """What this rank has of parameters that are divided, once some are."""

    def beside(self) -> bool:
        """Whether it is not the program's, or within a call that is skipped as a whole."""

    def elsewhere(self) -> bool:
        """Whether it is in a thread or a process of the program's."""

    def cannot_skip(self, reason: str) -> None: ...


def next_entry(run: FetchingRun, kind: str, told: str, where: str = "") -> Entry:
    """Of its journal; where the program asks for something else, the run begins anew. `where`: that is, in words."""
    try:
        return run.journal.next(kind, told)
    except Diverged as error:
        run.begin_anew(f"{where}{error}")
