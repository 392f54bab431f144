"""What a trial asks of Keras's backend: seeds, waiting for the device, memory, determinism.

TensorFlow may be there before Keras is; nothing here starts it up, since a program may still set its devices and
threads.
"""

from __future__ import annotations

import sys
from typing import Any


def seed(seed: int) -> None:
    """Layers without a seed of their own draw theirs from Python's `random`, which is seeded by who calls this."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        tensorflow.random.set_seed(seed)
    if backend() == "torch":
        sys.modules["torch"].manual_seed(seed)


def backend() -> str:
    """Of a Keras that has been imported: "tensorflow", "torch" or "jax"; "" while it has not."""
    keras = sys.modules.get("keras")
    return str(keras.backend.backend()) if keras is not None and hasattr(keras, "backend") else ""


def synchronize() -> None:
    """Wait for the device, where TensorFlow or PyTorch is at work on one."""
    started = _started()
    if started is not None:
        started.sync_executors()
        if started.list_physical_devices("GPU"):
            sys.modules["tensorflow"].test.experimental.sync_devices()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def peak_memory() -> int:
    """Of TensorFlow's GPUs, as its allocator counts; 0 where none is used."""
    started = _started()
    if started is None or not started.list_physical_devices("GPU"):
        return 0
    names = [f"GPU:{number}" for number in range(len(started.list_logical_devices("GPU")))]
    return sum(int(started.get_memory_info(name)["peak"]) for name in names)


def refuse_chance() -> None:
    """Have operations fail that may differ from run to run."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        tensorflow.config.experimental.enable_op_determinism()


def _started() -> Any:
    """TensorFlow's context, where it has begun to compute."""
    if "tensorflow" not in sys.modules:
        return None
    from tensorflow.python.eager import context

    found = context.context_safe()
    return found if found is not None and found._initialized else None
