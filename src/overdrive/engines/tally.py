"""When an answer is made by the model too, and compared."""

from __future__ import annotations

COMPARED = 2  # calls that both make before an engine answers by itself
EVERY = 512  # afterwards the 32nd, 64th, … and each of so many
# Answers until the next such call, then twice as many, and so on. From the first on, half of the calls of a duel were
# made by both, of a ResNet-18 of 0.4 s a call: OpenVINO, 1.59x, came out at 1.02x [0.68, 1.54].
_AGAIN = 32


class Tally:
    """Of an engine's answers, for all sizes that it answers for.

    Attributes:
        refused: why it answers for none any more.
        early: the call that was asked for last is due at the beginning of a run alone. There are four of them at most,
            more than one in a hundred of a trial's calls and next to none of a run's.
    """

    def __init__(self) -> None:
        self.refused = ""
        self.early = False
        self._answers = 0

    def due(self, every: int = EVERY) -> bool:
        """Whether the model gives the next one too: the 32nd, 64th, … and each of so many."""
        self._answers += 1
        always = self._answers % every == 0
        self.early = not always and self._answers >= _AGAIN and self._answers & (self._answers - 1) == 0
        return always or self.early


class Compared:
    """What answers calls of one kind, by how many of its answers were compared with the model's.

    Attributes:
        compared: how many; what counts them is who compares.
        tally: of its answers from then on.
    """

    def __init__(self, tally: Tally | None = None) -> None:
        """`tally`: that of the answers for other sizes, too."""
        self.compared = 0
        self.tally = tally or Tally()

    @property
    def established(self) -> bool:
        """Whether enough of its answers were compared for it to answer by itself."""
        return self.compared >= COMPARED

    def due(self, every: int = EVERY) -> bool:
        """Whether the next call is to be made by the model too. `every`: of so many answers one is."""
        return not self.established or self.tally.due(every)

    @property
    def early(self) -> bool:
        """See `Tally`; of the call that is due now."""
        return self.established and self.tally.early
