"""When an answer is made by the model too, and compared."""

from __future__ import annotations

COMPARED = 2  # calls that both make before an engine answers by itself
_EVERY = 512  # afterwards the 32nd, 64th, … and each of so many
# More where the model's own code looks at values (whether a mask hides anything, say), and exports another way for all
# of them: each 16th at first, each 128th after a thousand, each 256th after two. Each 16th for ever took an eighth of a
# call, where an engine is twice as fast as the model; each 128th is nearly one in a hundred, and so near to p99.
_OF_A_LOOKER = (16, 32, 64, 128, 256)
_AT_EACH = 16  # comparisons
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

    def due(self, looks: bool = False) -> bool:
        """Whether the model gives the next one too.

        Args:
            looks: its own code looks at values.
        """
        self._answers += 1
        steps = (each for each in _OF_A_LOOKER[:-1] if self._answers < _AT_EACH * each)
        every = next(steps, _OF_A_LOOKER[-1]) if looks else _EVERY
        always = self._answers % every == 0
        self.early = not always and self._answers >= _AGAIN and self._answers & (self._answers - 1) == 0
        return always or self.early


class Compared:
    """What answers calls of one kind, by how many of its answers were compared with the model's.

    Attributes:
        compared: how many; what counts them is who compares.
        looks: the code that it answers for looks at values.
        tally: of its answers from then on.
    """

    def __init__(self, tally: Tally | None = None) -> None:
        """`tally`: that of the answers for other sizes, too."""
        self.compared = 0
        self.looks = False
        self.tally = tally or Tally()

    @property
    def established(self) -> bool:
        """Whether enough of its answers were compared for it to answer by itself."""
        return self.compared >= COMPARED

    def due(self) -> bool:
        """Whether the next call is to be made by the model too."""
        return not self.established or self.tally.due(self.looks)

    @property
    def early(self) -> bool:
        """See `Tally`; of the call that is due now."""
        return self.established and self.tally.early
