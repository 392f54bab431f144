"""What a trial asks of Keras's backend: seeds, waiting for the device, memory, determinism, what it computes on.

TensorFlow may be there before Keras is; nothing here starts it up, since a program may still set its devices and
threads.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
BACKENDS = ("tensorflow", "jax", "torch")  # those that train


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
    """Wait for the device, where the backend may still be at work."""
    context = started()
    if context is not None:
        context.sync_executors()
        if context.list_physical_devices("GPU"):
            sys.modules["tensorflow"].test.experimental.sync_devices()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if backend() == "jax":  # steps are given to the CPU ahead, too
        jax = sys.modules["jax"]
        jax.block_until_ready([each for each in jax.live_arrays() if not each.is_deleted()])


def peak_memory() -> int:
    """Bytes of the GPUs in use, as the backend's allocator counts; 0 where none is used. On PyTorch those that it
    holds, as for PyTorch's own programs: the memory of CUDA graphs is in no tensor's use between two replays."""
    if backend() == "torch":
        cuda = sys.modules["torch"].cuda
        used = range(cuda.device_count()) if cuda.is_initialized() else ()
        return sum(int(cuda.max_memory_reserved(each)) for each in used)
    if backend() == "jax":
        counted = [device.memory_stats() for device in sys.modules["jax"].local_devices() if device.platform == "gpu"]
        return sum(int((each or {}).get("peak_bytes_in_use", 0)) for each in counted)
    context = started()
    if context is None or not context.list_physical_devices("GPU"):
        return 0
    names = [f"GPU:{number}" for number in range(len(context.list_logical_devices("GPU")))]
    return sum(int(context.get_memory_info(name)["peak"]) for name in names)


def gpus() -> int:
    """GPUs that the backend computes on; all keep to the first unless they are told otherwise."""
    if backend() == "torch":
        return int(sys.modules["torch"].cuda.device_count())
    if backend() == "jax":
        return sum(device.platform == "gpu" for device in sys.modules["jax"].local_devices())
    tensorflow = sys.modules.get("tensorflow")
    return len(tensorflow.config.list_logical_devices("GPU")) if tensorflow is not None else 0


def threads() -> int:
    """That one operation may use on the CPU."""
    from overdrive.machine.cpu import granted_cores  # with psutil 0.01 s, and PyTorch's seams come past this file

    if backend() == "torch":
        return int(sys.modules["torch"].get_num_threads())
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and backend() != "jax":
        return int(tensorflow.config.threading.get_intra_op_parallelism_threads()) or granted_cores()
    return granted_cores()


def refuse_chance() -> None:
    """Have operations fail that may differ from run to run."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        tensorflow.config.experimental.enable_op_determinism()


def shorten_epochs(samples: int) -> None:
    """Left as they are: an epoch of `fit` is made of calls whose number the program can ask for."""


def compute_carefully() -> None:
    """On one thread, with deterministic operations, as far as what is there allows; may be called again."""
    tensorflow, torch = sys.modules.get("tensorflow"), sys.modules.get("torch")
    if tensorflow is not None and started() is None:
        tensorflow.config.threading.set_intra_op_parallelism_threads(1)
        tensorflow.config.experimental.enable_op_determinism()
    if backend() == "torch" and torch is not None:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
    if backend() == "jax" and _ONE_THREAD not in os.environ.get("XLA_FLAGS", ""):  # read when JAX starts to compute
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_ONE_THREAD} --xla_gpu_deterministic_ops=true"


def started() -> Any:
    """TensorFlow's context, where it has begun to compute; else None."""
    if "tensorflow" not in sys.modules:
        return None
    from tensorflow.python.eager import context

    found = context.context_safe()
    return found if found is not None and found._initialized else None
