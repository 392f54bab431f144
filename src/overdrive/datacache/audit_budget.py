"""How often audits may be made: a share of the run's time pays for them, by what they are measured to cost."""

from __future__ import annotations

from collections.abc import Callable

SHARE = 0.004  # of the run's time: under half a percent, though an audit may cost more than those before it
_FIRST = 20e-3  # seconds that an audit without its samples is taken to cost before one was measured
_LEAST = 1e-4  # that it is taken to cost however little was measured
_MOST = 2.0  # seconds that are saved up, where nothing was to be audited for long: 400 s of the run
LONGEST = 1.0  # seconds of processor time for the samples of one audit


class Budget:
    """Counts what audits cost, in seconds of the program: its own where it waited for a fork, and those of a forked
    process divided by the cores that there are.

    Half of what an ordinary audit costs is for making samples. It leaves as much again unspent, for the start of an
    epoch and for what comes unforeseen: then all may be spent.
    """

    def __init__(self, cores: int, clock: Callable[[], float]) -> None:
        self._cores = cores
        self._clock = clock
        self._began = clock()
        self._spent = 0.0
        self._forking = _FIRST
        self._copying = 0.0

    @property
    def _fixed(self) -> float:
        """What an audit costs without its samples."""
        return self._forking + self._copying

    @property
    def credit(self) -> float:
        """What has been earned and not been spent."""
        credit = SHARE * (self._clock() - self._began) - self._spent
        most = max(_MOST, 4 * self._fixed)
        self._spent += max(0.0, credit - most)
        return min(credit, most)

    @property
    def next_at(self) -> float:
        """The time before which `allowance` is 0."""
        return self._began + (self._spent + 2 * self._fixed) / SHARE

    def allowance(self, soon: bool, all_of_it: bool) -> float:
        """Seconds of processor time that the samples of an audit may take now; 0 where it is too early for one.

        Args:
            soon: as soon as one can be paid.
            all_of_it: make as many samples as can be paid.
        """
        least = 2 * self._fixed
        kept = 0.0 if soon else least
        credit = self.credit
        if credit < least + kept:
            return 0.0
        spend = credit - kept if all_of_it else least
        return min((spend - self._fixed) * self._cores, LONGEST)

    def spend(self, in_program: float, beside: float) -> None:
        """
        Args:
            in_program: seconds that the program did not go on.
            beside: seconds of processor time of the forked process.
        """
        self._spent += in_program + beside / self._cores

    def pay(self, in_program: float, beside: float, samples: float) -> None:
        """For an audit of which so many seconds of processor time went into samples."""
        self.spend(in_program, beside)
        self._forking = max(_LEAST, in_program + (beside - samples) / self._cores)

    def expect(self, seconds: float) -> None:
        """The first is taken to cost this. For before it: what it does cost is known then."""
        self._forking = max(_FIRST, seconds)

    def fail(self, in_program: float, beside: float) -> None:
        """For an audit that told nothing: the next one waits twice as long."""
        self.spend(in_program, beside)
        self._forking = 2 * max(self._forking, in_program + beside / self._cores)

    def copied(self, seconds: float) -> None:
        """What the last fork has cost the program after it."""
        self.spend(seconds, 0.0)
        self._copying = seconds
