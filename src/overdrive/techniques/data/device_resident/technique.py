"""Technique `device_resident`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.datacache.offers import OffersHandle
from overdrive.techniques.technique import Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.data.device_resident.resident import Residence

_HOST_SHARE = 0.5


class DeviceResident(Technique):
    """Holds all samples on the GPU, and gathers each batch there.

    What it does: where the samples of a deterministic data set are kept (see `sample_cache`) and complete, they
    are sent to the GPU once. The program gets its batches in main memory as ever; its own `.to(device)` or
    `.cuda()` of such a batch is answered by gathering the same samples on the GPU.

    When it helps: where batches are large and the way to the GPU is what the step waits for.

    When it hurts: where the GPU's memory is needed for something else. For small batches gathering takes as many
    calls as the copy that it saves. The first epoch, in which samples are still collected, is as before. The batch in
    main memory is gathered too, though the program may never read it: in its way, or by the thread of `prefetch`.

    What it watches: before each batch, as `sample_cache` does; and of each batch whether it is that very tensor, and
    how often it was written to. What would escape, beside what escapes `sample_cache`: a write to a batch in main
    memory through a numpy view or `.data` before it is sent to the GPU.

    Contract: exact. The samples are proved as for `sample_cache`; the gathered batch has the bits, strides and
    dtype of a copy, and is given for that very tensor only, once, and only if nothing has been written to it
    since.

    Source: keeping small data sets on the device is a known habit, as in
    https://github.com/KellerJordan/cifar10-airbench.
    """

    name = "device_resident"
    contract = Contract.EXACT
    computes = False
    targets = ("data", "other")  # the copy to the GPU is made between the parts
    expected_saving = 0.6
    switchable = True
    order = 13  # after those who gather samples or start workers, before who would fetch them ahead
    knobs = (Knob("memory_share", 0.3, "share of the GPU's free memory that samples may take", low=0.01, high=0.9),)

    def applies(self, facts: Facts) -> str | None:
        if facts.device != "cuda":
            return "the program runs on the CPU"
        if not any(loader.map_style for loader in facts.loaders):
            return "the program has no map-style DataLoader"
        return None

    def install(self, seams: Seams, settings: Settings) -> Handle:
        return ResidentHandle(seams, float(settings["memory_share"]))


class ResidentHandle(OffersHandle):
    """While it is off, batches are fetched by whom they would be without it."""

    def __init__(self, seams: Seams, memory_share: float) -> None:
        self.residence: Residence | None = None
        self._memory_share = memory_share
        self._iterators: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # opened while it was off; their loaders
        super().__init__(
            seams, lambda: seams.leave_out(DeviceResident.name, "this PyTorch knows no GPU"), self._turn_on
        )

    def opens(self, loader: Any, call: Callable[[], Any]) -> Any:
        iterator = call()
        if self.active:
            self._attend(loader, iterator, new=True)
        elif not loader.num_workers:
            self._iterators[iterator] = loader
        return iterator

    def undo(self) -> None:
        if self.residence is not None:
            self.residence.close()

    def _turn_on(self) -> None:
        for iterator, loader in list(self._iterators.items()):
            self._attend(loader, iterator)
        self._iterators.clear()

    def _attend(self, loader: Any, iterator: Any, new: bool = False) -> None:
        """`new`: it was just opened, and has drawn nothing yet."""
        from overdrive.techniques.data.device_resident.resident import Residence

        if self._trained.device is not None:
            self.residence = self.residence or Residence(self._memory_share, self.offers, wanted=lambda: self.active)
            self.residence.attend(_served(self._seams, loader, iterator), self._trained.device, loader if new else None)


def _served(seams: Seams, loader: Any, iterator: Any) -> Any:
    """The iterator, gathering from the session's kept samples, whether `sample_cache` is in force or not."""
    from overdrive.datacache.loader import is_served
    from overdrive.datacache.manager import shared

    manager = shared(seams, _HOST_SHARE, user=DeviceResident.name)
    if is_served(iterator) or loader.num_workers:
        return iterator
    kept = manager.kept_for(loader)
    return iterator if kept is None else manager.serve(kept, loader, lambda: iterator)
