"""What ranks above 0 print: into a file, whose place is told when something fails."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from overdrive.ranks.membership import LOGS, Membership


class Output:
    """Attributes: `log`: where it goes; None for rank 0."""

    def __init__(self, membership: Membership) -> None:
        self._real = os.dup(2)
        self.log: Path | None = None
        if membership.rank:
            folder = os.environ.pop(LOGS, "") or tempfile.mkdtemp(prefix="overdrive-ranks-")
            self.log = Path(folder) / f"rank{membership.rank}.log"
            handle = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            os.close(handle)
        os.environ.pop(LOGS, None)

    def tell(self, text: str) -> None:
        """On the real standard error, whatever the rank."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(self._real, text.encode(errors="replace"))

    def say(self, sentence: str) -> None:
        self.tell(f"overdrive: {sentence}\n")
