"""Technique `direct_predict`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.seams.answering import kinds_asked
from overdrive.techniques.technique import Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.technique import Settings


class DirectPredict(Technique):
    """Has Keras's `predict` take its batches from the arrays themselves, not from a `tf.data` pipeline.

    What it does: on TensorFlow, each `predict` of arrays builds a pipeline of data sets, starts its threads and throws
    it away. Here the batches are cut from the arrays, by Keras's own conversion and in its order and sizes. Callbacks,
    the progress bar and how results are joined stay Keras's own.

    When it helps: `predict` in a loop, on one sample or a few at a time, where building the pipeline takes most of the
    call.

    When it hurts: large arrays in many batches, whose next batch a pipeline would have cut meanwhile. Left alone: data
    that is no plain array (data sets, generators, sparse or ragged tensors), strategies that spread it over devices,
    JAX and PyTorch, where Keras builds no pipeline.

    What it watches: at each call, the kind of its data and the strategy in force. What would escape: nothing.

    Contract: exact. The model is given the same batches.

    Source: https://keras.io/api/models/model_training_apis/ (predict is for batches at scale)
    """

    name = "direct_predict"
    frameworks = ("keras",)
    programs = ("inference",)
    contract = Contract.EXACT
    targets = ("data", "forward", "other")  # a pipeline is built inside the call
    expected_saving = 0.5

    def applies(self, facts: Facts) -> str | None:
        if facts.backend not in ("", "tensorflow"):
            return f"Keras runs on {facts.backend} here, where predict builds no pipeline"
        if self.own(facts).get("predicts") is False:
            return "the program does not call predict()"
        return None

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        kinds = kinds_asked(seams)
        return lambda: {"predicts": "predict" in kinds} if kinds else {}

    def install(self, seams: Seams, settings: Settings) -> Handle:
        def batches(adapter: Any) -> Any:
            from overdrive.seams.keras.internals import batches_of

            found = batches_of(adapter)
            return None if found is None else _Batches(*found)

        seams.predict_batched.subscribe(batches)
        return seams.handle()


class _Batches:
    """Of a structure of arrays that have as many samples each, as tensors."""

    def __init__(self, arrays: Any, size: int) -> None:
        self._arrays = arrays
        self._size = size

    def __iter__(self) -> Iterator[Any]:
        import keras
        import tensorflow as tf

        count = len(keras.tree.flatten(self._arrays)[0])
        for start in range(0, count, self._size):
            end = start + self._size
            yield keras.tree.map_structure(lambda each: tf.convert_to_tensor(each[start:end]), self._arrays)  # noqa: B023
