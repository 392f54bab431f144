"""What watches a program of one framework in a trial, from the moment at which that framework is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from overdrive.core.trial_spec import BY_SAMPLE, TrialSpec
from overdrive.seams import frameworks
from overdrive.seams.hub import Seams
from overdrive.worker.observers import (
    DigestLog,
    Probe,
    ProductsWatch,
    TrainingCalls,
    make_digests,
    make_probe,
    make_products,
    make_replay,
    make_training_calls,
)

if TYPE_CHECKING:
    from overdrive.worker.profiling.recorder import Profiler
    from overdrive.worker.replay import Replay

# Batches are hashed for the first steps, before anything is timed.
HASHED_STEPS = 8


class Instruments:
    """What a trial's spec asks for; None where it does not."""

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.probe: Probe = make_probe(framework, HASHED_STEPS)
        self.digests: DigestLog | None = None
        self.replay: Replay | None = None
        self.products: ProductsWatch | None = None
        self.training_calls: TrainingCalls | None = None
        self.profiler: Profiler | None = None

    def subscribe(self, seams: Seams, spec: TrialSpec, gathers_facts: bool, recordings: str) -> None:
        """
        Args:
            recordings: folder for what a profile records.
        """
        if gathers_facts:
            self.probe(seams)
        if spec.deterministic:
            frameworks.seams_of(self.framework).refuse_chance()
        if spec.epoch:
            frameworks.seams_of(self.framework).shorten_epochs(spec.epoch)
        if spec.digests:
            self.digests = make_digests(self.framework, spec.digests, seams.inference)
        if spec.replay:
            order, folder = spec.replay, Path(spec.replay.folder)
            self.replay = make_replay(self.framework, order.role, order.steps, folder, seams.inference, order.rare)
        watching = [self.digests, self.replay]  # from the innermost on
        if spec.replay and spec.replay.role in BY_SAMPLE:
            # All calls are given what was recorded; what the program itself gives them shows outside of that alone.
            watching.reverse()
        for each in watching:
            if each:
                each(seams)
        if spec.products and (products := make_products(self.framework)):
            self.products = products
            products(seams)
        if not (seams.inference or spec.profiling):
            self.training_calls = make_training_calls(self.framework)
            if self.training_calls:
                self.training_calls(seams)
        if spec.profiling in ("times", "details"):
            from overdrive.worker.profiling.recorder import Profiler

            self.profiler = Profiler(self.framework, spec.profiling, recordings, seams)

    def stepped(self, steps: int) -> None:
        """So many steps are complete."""
        self.probe.stepped(steps)
        if self.digests:
            self.digests.stepped()
        if self.products:
            self.products.stepped()
