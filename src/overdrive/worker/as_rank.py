"""A worker that is one rank of its trial: which one, and where it writes."""

from __future__ import annotations

import os
from pathlib import Path

from overdrive.core.messages import Job
from overdrive.ranks.membership import SEED, Membership


def membership_of_trial() -> Membership | None:
    """None in a trial of one process, whatever launcher started the tune itself."""
    return Membership.of(os.environ) if SEED in os.environ else None


def scratch_of(job: Job, membership: Membership | None) -> Path:
    """A folder for this process's writes: each rank has its own view of the user's files."""
    folder = Path(job.scratch)
    if membership is None:
        return folder
    own = folder / f"rank{membership.rank}"
    own.mkdir(mode=0o700)
    return own
