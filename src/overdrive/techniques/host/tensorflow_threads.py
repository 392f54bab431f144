"""Technique `tensorflow_threads`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class TensorflowThreads(Technique):
    """Sets how many threads TensorFlow uses within an operation, and how many operations run at once.

    What it does: calls `tf.config.threading` as soon as TensorFlow has been imported, before it computes anything;
    it stays so when a session in a notebook ends, since TensorFlow allows it once in a process. A program that sets
    the numbers itself has the last word.

    When it helps: small models, where sharing a tiny operation among threads costs more than it saves; machines whose
    cores are counted wrong (containers with a quota, hyper-threads).

    When it hurts: large operations with too few threads; input pipelines, which share them.

    What it watches: nothing after TensorFlow was imported; a program that sets the numbers later has the last word.
    What would escape: a program that asks for them.

    Contract: rounding. Sums are split differently among threads, so their last bits differ.

    Source: https://www.tensorflow.org/api_docs/python/tf/config/threading
    """

    name = "tensorflow_threads"
    frameworks = ("keras",)
    programs = ("training", "inference")
    contract = Contract.ROUNDING
    targets = ("forward", "backward", "optimizer", "other")
    order = 15
    knobs = (
        Knob("within", 0, "threads of one operation; 0 leaves it to TensorFlow", low=0, high=1024),
        Knob("between", 1, "operations at once; 0 leaves it to TensorFlow", low=0, high=1024),
    )

    def applies(self, facts: Facts) -> str | None:
        if elsewhere := facts.not_on_tensorflow():
            return elsewhere
        if facts.device != "cpu":
            return "the work is done on the GPU"
        return "this process has one core" if facts.cores == 1 else None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        return [{"within": 0, "between": 1}, {"within": 1, "between": 1}, {"within": 1, "between": facts.cores}]

    def install(self, seams: Seams, settings: Settings) -> Handle:
        def set_threads() -> None:
            import tensorflow as tf

            threading = tf.config.threading
            try:
                if settings["within"]:
                    threading.set_intra_op_parallelism_threads(int(settings["within"]))
                if settings["between"]:
                    threading.set_inter_op_parallelism_threads(int(settings["between"]))
            except RuntimeError:
                raise CannotInstall("TensorFlow has begun to compute in this process") from None

        seams.framework_arrived.subscribe(set_threads)
        return seams.handle()
