"""Technique `vectorised_transforms`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.samples.batchwise.serving import AugmentKeeper
    from overdrive.seams.hub import Handle, Seams


class VectorisedTransforms(Technique):
    """Decodes each image once, and does random crops and flips on whole batches, with the same random numbers.

    What it does: finds the data set's list of torchvision transforms (versions 1 and 2) and cuts it before the first
    random one. What comes out of the head is always the same, so it is kept as `sample_cache` keeps samples, on disk
    and from run to run; pictures as bytes. The tail (RandomCrop, RandomHorizontalFlip, RandomVerticalFlip, ColorJitter
    and RandomGrayscale on pictures, RandomErasing, ToTensor, Normalize, changes of dtype) is done on each batch at
    once. The numbers that the transforms would draw, image by image, are drawn from the same generator; those for
    crops and flips all at once. Where others come between (RandomResizedCrop, rotations, TrivialAugmentWide, one of
    the user's own), the program's own are called up to the last of these, image by image; what follows is done on
    the batch.

    When it helps: where images are augmented, which `sample_cache` refuses, and decoding and transforming them one by
    one takes a good part of a step.

    When it hurts: where the images are too large or too many for the memory (then it refuses), or are used once.
    With workers, all of them are decoded before the first batch; transforms that are done image by image are then
    refused, for the workers do them side by side, and so they are where nothing follows them. Nothing is done on a
    GPU: the program gets its batch in main memory, where it may look at it, so that it must be made there anyhow.

    Contract: exact. In a forked process the program's own batches and ours are made from the same random states and
    must be equal in every bit and stride and leave all generators in the same states; a data set that does anything
    else to an image after its transforms is found out by that, and each image is compared when it is taken into the
    table. Workers' generators are followed one by one.

    Source: the idea of doing augmentation on batches is that of Kornia, https://arxiv.org/abs/1910.02190, and FFCV,
    https://arxiv.org/abs/2306.12517; both draw other random numbers.
    """

    name = "vectorised_transforms"
    family = "data"
    contract = Contract.EXACT
    targets = ("data",)
    expected_saving = 0.5
    order = 11
    knobs = (Knob("memory_share", 0.5, "share of the available memory that images may take", low=0.05, high=0.9),)

    def __init__(self) -> None:
        self.manager: AugmentKeeper | None = None  # of the session that came last

    def applies(self, facts: Facts) -> str | None:
        return facts.no_samples_to_gain_by()

    def install(self, seams: Seams, settings: Settings) -> Handle:
        self.manager = None

        def opens(loader: Any, call: Callable[[], Any]) -> Any:
            from overdrive.datacache.manager import fills_at_once
            from overdrive.samples.batchwise.serving import AugmentKeeper, serve

            self.manager = self.manager or AugmentKeeper(float(settings["memory_share"]), fills_at_once())
            return self.manager.open(loader, call, serve, lambda reason: seams.leave_out(self.name, reason))

        def close() -> None:
            if self.manager is not None:
                self.manager.close()

        seams.loader_opens.subscribe(opens)
        seams.on_undo(close)
        return seams.handle()
