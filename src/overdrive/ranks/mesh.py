"""The ranks of a run as replicas of a row: neighbours are of one replica."""

from __future__ import annotations

from overdrive.ranks.group import Group


class Mesh:
    """Made on all ranks at the same time.

    Attributes:
        row: the ranks of this rank's replica.
        column: those in this rank's place of each replica.
    """

    def __init__(self, group: Group, replicas: int) -> None:
        length = group.size // replicas
        replica, place = divmod(group.rank, length)
        self.row = group.part("row", range(replica * length, (replica + 1) * length))
        self.column = group.part("column", range(place, group.size, length))
