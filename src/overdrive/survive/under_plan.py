"""What a run that survives has to know of the plan that it runs under."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overdrive.seams.points import OBSERVER

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams


class OtherPlan(Exception):
    """The run that came here has other techniques in force; the message names one."""


class UnderPlan:
    """
    Attributes:
        keeps_samples: a technique may serve samples in place of the data set.
        settling: steps that are made, and not skipped, when the run is made again: by then its techniques have done
            what they do once, on the numbers of the first time.
    """

    def __init__(self, keeps_samples: bool = False, settling: int = 0) -> None:
        self.keeps_samples, self.settling = keeps_samples, settling
        self._seams: Seams | None = None

    def follow(self, seams: Seams) -> None:
        self._seams = seams

    def told(self) -> dict[str, Any]:
        """As JSON, for a snapshot."""
        if self._seams is None:
            return {}
        carried = {name: told() for name, (told, _) in self._seams.carried.items() if name not in self._seams.left_out}
        return {"left out": self._left_out(self._seams), "carried": carried}

    def take_back(self, told: dict[str, Any]) -> None:
        """Have the techniques be as they were.

        Raises:
            OtherPlan: one that had been left out is in force, or the other way round.
        """
        if self._seams is None:
            return
        then, now = told["left out"], self._left_out(self._seams)
        if then != now:
            name = next(each for each in [*then, *now] if each not in then or each not in now)
            if name in then:
                raise OtherPlan(f"{name} was left out then, and is in force now")
            raise OtherPlan(f"{name} was in force then, and is left out now ({self._seams.left_out[name]})")
        for name, value in told["carried"].items():
            self._seams.carried[name][1](value)

    @staticmethod
    def _left_out(seams: Seams) -> list[str]:
        return sorted(name for name in seams.left_out if not name.startswith(OBSERVER))
