"""What the techniques that divide the work of ranks begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overdrive.techniques.technique import CannotInstall

if TYPE_CHECKING:
    from overdrive.ranks.rank import Rank


def this_rank() -> Rank:
    """This process, as one rank of a run.

    Raises:
        CannotInstall: it is alone.
    """
    from overdrive.ranks.rank import current  # with it come ranks and sandbox, and the catalogue is read by all

    rank = current()
    if rank is None:
        raise CannotInstall("it divides the work of ranks, and there is one process: `overdrive run --ranks N`")
    return rank
