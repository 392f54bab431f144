"""What a run that survives does about its data: batches of this process and of workers; what fetches left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overdrive.survive.batches import Batches
from overdrive.survive.deliveries import Deliveries

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams
    from overdrive.survive.journaled_run import FetchingRun

Told = list[Any]  # what data sets hold, None where that cannot be told; places in files; epochs with workers under way


class Fetching:
    def __init__(self, run: FetchingRun, passed_through: Callable[[], None]) -> None:
        self.batches = Batches(run, passed_through)
        self._deliveries = Deliveries(run, self.batches)
        self._guarded = run.guarded

    def follow(self, seams: Seams) -> None:
        self.batches.follow(seams)
        seams.loader_opens.subscribe(self._guarded(self._deliveries.opened))

    def goes_to(self, told: Told) -> None:
        """The run is made again up to the snapshot that has this."""
        self._deliveries.going = told[2]

    def told(self, folder: Path) -> Told:
        """For a snapshot, as JSON. `folder`: the run's, whose files do not count."""
        from overdrive.survive import data_sets

        held = data_sets.digest_of(self.batches.data_sets())
        return [held, data_sets.reading(folder), self._deliveries.told()]

    def compare(self, folder: Path, then: Told, follows: bool) -> None:
        """Where fetches were left out: have they left behind what they did then?

        Args:
            follows: this process has other files open than the one that took the snapshot.

        Raises:
            OtherState: no.
        """
        from overdrive.survive.refusals import OtherState

        if not self.batches.skipped:
            return
        (held, places, _), (held_then, places_then, _) = self.told(folder), then
        if held != held_then:
            raise OtherState("a data set holds something else")
        other = [each for each in [*places, *places_then] if (each in places) != (each in places_then)]
        if other and not follows:
            raise OtherState(f"{other[0][0]} is read at another place")

    def go_on(self, then: Told) -> None:
        """All numbers are put back.

        Raises:
            OtherState: epochs are under way that were not.
        """
        self._deliveries.go_on(then[2])
