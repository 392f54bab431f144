"""What becomes of each technique on the stand-in for a GPU, by name: proved on programs, or not run, with the reason.

`test_every_technique.py` reads it, and fails for one that stands in none of the three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from overdrive.core.contract import Contract
from overdrive.core.settings import Chosen

TRAINING = ("images", "gpt", "scaled")  # what is said of each: `programs.py`


@dataclass(frozen=True)
class Case:
    """Settings of a technique under which it acts there, and the programs that it acts on.

    Attributes:
        beside: other techniques without which it does nothing.
        level: where these programs deny it the strictest that it can keep.
    """

    programs: tuple[str, ...]
    settings: dict[str, Any]
    beside: tuple[Chosen, ...] = ()
    level: Contract | None = None


_CACHED: tuple[Chosen, ...] = (("sample_cache", {}),)
PROVED: dict[str, list[Case]] = {
    "activation_checkpointing": [Case(("gpt", "images"), {"budget": 0.0})],
    "allocator": [Case(("images",), {"library": "as it is", "gpu": "expandable_segments:True"})],
    "autocast": [Case(("images", "gpt"), {"dtype": "bfloat16"}), Case(("images", "gpt"), {"dtype": "float16"})],
    "bf16_weights": [Case(("images", "gpt"), {})],
    "channels_last": [Case(("images",), {})],
    "cuda_graphs": [
        Case(("images", "gpt"), {"parts": "step"}),
        Case(("images", "gpt"), {"parts": "all"}),
        Case(TRAINING, {"parts": "model"}),
    ],
    "deferred_scalars": [Case(TRAINING, {})],
    "device": [Case(("on_the_cpu",), {})],
    "device_resident": [Case(("images", "scaled"), {}, _CACHED)],
    # With PyTorch's operator in the place of its kernel (`adapted.py`), which is in tests/kernels.
    "fast_cross_entropy": [Case(("images", "gpt"), {"least": 1})],
    "fft_convolution": [Case(("wide",), {})],
    "fp32_from_fp64": [Case(("doubles",), {"weights": "copied"}), Case(("doubles",), {"weights": "narrowed"})],
    "fused_optimizer": [Case(TRAINING, {"implementation": "fused"})],
    "library_autotune": [Case(("images",), {"benchmark": True})],
    "loader_workers": [Case(("images",), {"workers": 1, "prefetch": 2})],
    "micro_batch": [
        Case(("wide",), {"parts": 2}),
        Case(("gpt",), {"parts": 2}, level=Contract.STATISTICAL),  # dropout draws other masks for parts
    ],
    "no_grad": [Case(("answers",), {})],
    "offload": [Case(TRAINING, {"least_mib": 0})],
    "prefetch": [Case(("images", "scaled"), {}, _CACHED)],
    "sample_cache": [Case(("images",), {})],
    "tf32": [Case(("images", "gpt"), {"precision": "tf32"})],
}

# Their `applies` refuses a program on a GPU, which the test asks.
OF_THE_CPU = (
    *("fast_dropout", "fast_max_pool", "hugepages", "int8_products", "interop", "malloc_trim", "onednn"),
    *("onnxruntime", "openvino", "openvino_narrow", "tensorflow_threads", "threads", "waiting"),
)

_KERAS = "of Keras's: the stand-in is one for PyTorch, and TensorFlow and JAX come to their GPUs another way"
_RANKS = "of several processes that exchange gradients by NCCL: the stand-in is one GPU of one process"
_HOST = "of what is read before anything is sent to a GPU, the same with one and without: its tests are on the CPU"
NOT_RUN: dict[str, str] = {
    "affinity": "of cores and memory nodes, of which a usual machine lacks the choice; nothing of it asks for a GPU",
    "batch_size": "at `open` nothing is proved; tests/techniques/data/test_batch_size.py has the batches that it makes",
    "compile": "Inductor would write Triton's code and have it compiled; what surrounds it, and its graphs of CUDA, "
    "has a stand-in of its own in tests/techniques/compile/test_compile.py",
    "data_parallel": _RANKS,
    "data_pipeline": _KERAS,
    "direct_predict": _KERAS,
    "fast_decode": _HOST,
    "fp8": "torchao's weights are tensors of a kind of their own, whose memory the stand-in cannot tell; "
    "tests/techniques/test_switching.py has its products emulated on the CPU",
    "graph_call": _KERAS,
    "gradient_checkpointing": _KERAS,
    "jit_compile": _KERAS,
    "keras_backend": _KERAS,
    "mixed_precision": _KERAS,
    "pipeline_parallel": _RANKS,
    "prefix_cache": _HOST,
    "resident_arrays": _KERAS,
    "steps_per_execution": _KERAS,
    "tensor_parallel": _RANKS,
    "tensorflow_allocator": _KERAS,
    "unified_memory": "its pool is given memory by CUDA's runtime, which is called from C; "
    "tests/techniques/memory/test_unified_memory.py has a runtime in its place",
    "xla_clusters": _KERAS,
}
