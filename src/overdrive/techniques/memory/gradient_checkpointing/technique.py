"""Technique `gradient_checkpointing`."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class GradientCheckpointing(Technique):
    """Keeps only what goes into a Keras model's blocks, and makes what they hold inside again in the backward pass.

    What it does: while the training step is traced, counts in a graph of its own what each block of the model (a
    layer with layers in it, or a layer by itself) keeps for the backward pass besides what goes in and comes out.
    Blocks that keep `least` times as much inside are called under `keras.remat`, the second time with the random
    numbers and the moving means that the first call found, and without writing to them.

    When it helps: models of like blocks (transformers), whose activations outweigh their parameters and which are
    short of memory. A transformer of 4 blocks (128 wide, 128 long, batch 32) took 1.13 GB at its peak instead of
    1.28 GB, Python and TensorFlow included (one run each, two cores of an AMD EPYC).

    When it hurts: always in time, as the blocks are computed twice. Nothing is gained where layers keep little
    inside, as convolutions and normalisations one after the other do. Left alone: blocks that add losses, take or
    give masks along with their tensors, draw random numbers outside of Keras or keep something on themselves; models
    that run eagerly; loops of the program's own, whose model is not compiled.

    What it watches: blocks, whenever the training step is traced; between two traces a step is a graph, which nothing
    changes. What would escape: effects of a block's Python code on anything but the block (a global counter, a line
    printed), which happen more often while a step is traced.

    Contract: exact. The same arithmetic once more, with the same random numbers. It falls to rounding where
    TensorFlow fuses the second call's operations otherwise.

    Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016; https://keras.io/api/utils/remat/
    """

    name = "gradient_checkpointing"
    frameworks = ("keras",)
    contract = Contract.EXACT
    fallback_contract = Contract.ROUNDING
    targets = ("forward", "backward")
    aims = ("memory",)
    order = 45
    knobs = (Knob("least", 1.0, "what a block keeps inside, over what goes in and comes out", low=0.0),)

    def applies(self, facts: Facts) -> str | None:
        if elsewhere := facts.not_on_tensorflow():
            return elsewhere
        return None if facts.modules else "the program compiles no model"

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        return [{"least": least} for least in (4.0, 1.0, 0.0)]

    def install(self, seams: Seams, settings: Settings) -> Handle:
        checkpointing = _Checkpointing(seams, float(settings["least"]))
        seams.train_function_made.subscribe(checkpointing.made)
        seams.step_ends.subscribe(checkpointing.first_step)
        seams.on_undo(checkpointing.undo)
        return seams.handle()


class _Checkpointing:
    def __init__(self, seams: Seams, least: float) -> None:
        self._seams = seams
        self._least = least
        self._placed: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._reasons: dict[str, int] = {}
        self._used = False

    def made(self, model: Any) -> None:
        import keras

        if keras.backend.backend() != "tensorflow":
            raise CannotInstall(f"Keras runs on {keras.backend.backend()} here")
        if not hasattr(keras, "remat"):
            raise CannotInstall("this Keras has no keras.remat (it came with 3.9)")
        if model.run_eagerly:
            raise CannotInstall("the model runs eagerly")
        from overdrive.techniques.memory.gradient_checkpointing.keras_blocks import RecomputedBlock, blocks

        for each in self._placed.pop(model, ()):
            each.take_out()
        self._placed[model] = [RecomputedBlock(block, self._chosen, self._tell) for block in blocks(model)]
        for each in self._placed[model]:
            each.put_in()

    def _chosen(self, kept: Any) -> bool:
        return bool(kept.inside > self._least * (kept.given + kept.returned))

    def _tell(self, reason: str) -> None:
        self._used |= not reason
        if reason:
            self._reasons[reason] = self._reasons.get(reason, 0) + 1

    def first_step(self, optimizer: Any) -> None:
        self._seams.step_ends.unsubscribe(self.first_step)
        if not self._used:
            raise CannotInstall(self._why())

    def _why(self) -> str:
        if not self._placed:
            return "no model was compiled"
        most = max(self._reasons, key=lambda each: self._reasons[each], default="was called in training")
        return f"none of the model's blocks can be called again: one {most}"

    def undo(self) -> None:
        for placed in self._placed.values():
            for each in placed:
                each.take_out()
