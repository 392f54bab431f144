"""Seam *predict batched*: where Keras's `predict` on TensorFlow has a `tf.data` pipeline made for arrays.

Whoever answers gives an iterable of batches in its place; all else of `predict`, the calls of its callbacks, its bar
and how results are joined, stays Keras's own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if not hub.predict_batched.wanted:
        return []
    import tensorflow as tf
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    here = threading.local()
    predict, make = TensorFlowTrainer.predict, ArrayDataAdapter.get_tf_dataset

    @functools.wraps(predict)
    def predicting(model: Any, *args: Any, **kwargs: Any) -> Any:
        # Under a strategy of the program's own a data set is spread over devices.
        plain = not tf.distribute.has_strategy() and model.distribute_strategy is tf.distribute.get_strategy()
        before, here.predicts = getattr(here, "predicts", False), plain
        try:
            return predict(model, *args, **kwargs)
        finally:
            here.predicts = before

    @functools.wraps(make)
    def get_tf_dataset(adapter: Any) -> Any:
        batches = hub.predict_batched.ask(adapter) if getattr(here, "predicts", False) else None
        return make(adapter) if batches is None else batches

    patches.replace(TensorFlowTrainer, "predict", predicting)
    patches.replace(ArrayDataAdapter, "get_tf_dataset", get_tf_dataset)
    return []
