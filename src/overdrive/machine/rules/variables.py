"""Environment variables that hurt: a table, one row for each, read by `environment`.

What only a program can set (anomaly detection, deterministic algorithms) has no variable in PyTorch, and is
not here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from overdrive.machine.rules.finding import Severity, Sure

_CUDA = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables"
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TORCH_CUDA = "https://docs.pytorch.org/docs/stable/cuda_environment_variables.html"
_TORCH_DISTRIBUTED = "https://docs.pytorch.org/docs/stable/distributed.html"
_TORCH_COMPILE = "https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html"
_CUBLAS = "https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility"
_TF = "https://www.tensorflow.org/api_docs/python/tf/config/experimental/enable_op_determinism"
_GLIBC = "https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html"
_MALLOC = "https://man7.org/linux/man-pages/man3/mallopt.3.html"
_PYTHON = "https://docs.python.org/3/using/cmdline.html"
_ONEDNN = "https://uxlfoundation.github.io/oneDNN/dev_guide_verbose.html"
_ONEDNN_ISA = "https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html"
_MKL = "https://www.intel.com/content/www/us/en/docs/onemkl/developer-guide-linux/current/overview.html"
_OPENMP = "https://github.com/joblib/threadpoolctl/blob/master/multiple_openmp.md"
_TF_ONEDNN = "https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/util/port.cc"
_TF_KERAS = "https://keras.io/getting_started/#tensorflow--keras-2-backwards-compatibility"
_ROCM_DEBUG = "https://rocm.docs.amd.com/projects/HIP/en/latest/how-to/debugging.html"
_MIOPEN = "https://rocm.docs.amd.com/projects/MIOpen/en/latest/how-to/debug-log.html"
_XLA = "https://openxla.org/xla/flags_guidance"

_CHECKERS = ("asan", "tsan", "ubsan", "valgrind", "efence")

WRONG, ADVICE, NOTE = Severity.WRONG, Severity.ADVICE, Severity.NOTE


def is_on(value: str) -> bool:
    return value.strip().lower() not in ("", "0", "false", "off", "no", "n")


def is_off(value: str) -> bool:
    return value.strip().lower() in ("0", "false", "off", "no", "n")


def is_set(value: str) -> bool:
    return bool(value.strip())


def says(*words: str) -> Callable[[str], bool]:
    return lambda value: value.strip().lower() in words


def above_zero(value: str) -> bool:
    return value.strip().isdigit() and int(value) > 0


@dataclass(frozen=True)
class Variable:
    """`hurts(value)` says whether this value does; `needs` names what must be there for it to matter."""

    name: str
    hurts: Callable[[str], bool]
    severity: Severity
    cost: str
    source: str
    needs: str = ""  # "gpu", "gpus" (two or more), "amd", "rdma", "bytecode" (that is missing) or nothing
    sure: Sure = Sure.CERTAIN


# fmt: off
VARIABLES = (
    Variable("CUDA_LAUNCH_BLOCKING", is_on, WRONG,
             "The program waits for every kernel before it starts the next.", _CUDA, "gpu"),
    Variable("CUDA_CACHE_DISABLE", is_on, ADVICE,
             "Kernels compiled for this GPU are compiled at every start.", _CUDA, "gpu"),
    Variable("CUDA_FORCE_PTX_JIT", is_on, ADVICE,
             "All kernels are compiled at the start, for nothing.", _CUDA, "gpu"),
    Variable("CUDA_MODULE_LOADING", says("eager"), NOTE,
             "All kernels are loaded at the start: time and memory.", _CUDA, "gpu"),
    Variable("HIP_LAUNCH_BLOCKING", is_on, WRONG,
             "The program waits for every kernel before it starts the next.", _ROCM_DEBUG, "amd"),
    Variable("AMD_SERIALIZE_KERNEL", above_zero, WRONG,
             "The program waits for every kernel, before it or after it.", _ROCM_DEBUG, "amd"),
    Variable("AMD_SERIALIZE_COPY", above_zero, WRONG, "The program waits for every copy.", _ROCM_DEBUG, "amd"),
    Variable("AMD_LOG_LEVEL", above_zero, ADVICE, "HIP prints what it does.", _ROCM_DEBUG, "amd"),
    Variable("MIOPEN_ENABLE_LOGGING", is_on, ADVICE, "MIOpen prints a line for every call.", _MIOPEN, "amd"),
    Variable("NVIDIA_TF32_OVERRIDE", is_off, ADVICE,
             "No library may use TF32, whatever the program sets.", _CUBLAS, "gpu"),
    Variable("CUBLAS_WORKSPACE_CONFIG", says(":16:8"), ADVICE,
             "cuBLAS has so little room that it must choose slower kernels; :4096:8 is deterministic, too.", _CUBLAS,
             "gpu"),
    Variable("NCCL_DEBUG", says("trace"), WRONG, "NCCL prints a line for every call.", _NCCL, "gpu"),
    Variable("NCCL_IB_DISABLE", is_on, WRONG,
             "InfiniBand and RoCE are not used: machines talk over TCP.", _NCCL, "rdma"),
    Variable("NCCL_NET", says("socket"), WRONG,
             "InfiniBand and RoCE are not used: machines talk over TCP.", _NCCL, "rdma"),
    Variable("NCCL_P2P_DISABLE", is_on, WRONG,
             "GPUs do not talk directly (NVLink, PCIe), but through the main memory.", _NCCL, "gpus", Sure.LIKELY),
    Variable("NCCL_P2P_LEVEL", says("loc", "0"), WRONG, "GPUs do not talk directly (level LOC).", _NCCL, "gpus"),
    Variable("NCCL_SHM_DISABLE", is_on, ADVICE,
             "GPUs that cannot talk directly talk over the network card.", _NCCL, "gpus"),
    Variable("NCCL_NET_GDR_LEVEL", says("loc", "0"), ADVICE,
             "Network cards never read a GPU's memory directly.", _NCCL, "rdma"),
    Variable("NCCL_DMABUF_ENABLE", is_off, NOTE, "GPUDirect RDMA then needs nvidia_peermem.", _NCCL, "rdma"),
    Variable("NCCL_ALGO", is_set, NOTE, "One algorithm for all sizes; NCCL's docs call this debugging.", _NCCL, "gpus"),
    Variable("NCCL_PROTO", is_set, NOTE, "One protocol for all sizes; NCCL's docs call this debugging.", _NCCL, "gpus"),
    Variable("TORCH_NCCL_BLOCKING_WAIT", is_on, ADVICE,
             "Python waits for each collective; no overlap.", _TORCH_DISTRIBUTED, "gpu"),
    Variable("NCCL_BLOCKING_WAIT", is_on, ADVICE,
             "Python waits for each collective; no overlap.", _TORCH_DISTRIBUTED, "gpu"),
    Variable("TORCH_DISTRIBUTED_DEBUG", says("detail"), WRONG,
             "Every collective is checked over all ranks; PyTorch's docs say: for debugging only.", _TORCH_DISTRIBUTED),
    Variable("TORCH_NCCL_NAN_CHECK", is_on, ADVICE,
             "Every buffer that is sent is searched for NaN.", _TORCH_DISTRIBUTED, "gpu"),
    Variable("PYTORCH_NO_CUDA_MEMORY_CACHING", is_on, WRONG,
             "Each tensor is a cudaMalloc and a cudaFree, which waits for the GPU.", _TORCH_CUDA, "gpu"),
    Variable("TORCHDYNAMO_DISABLE", says("1"), ADVICE, "torch.compile does nothing.", _TORCH_COMPILE),
    Variable("TORCH_COMPILE_DISABLE", says("1"), ADVICE, "torch.compile does nothing.", _TORCH_COMPILE),
    Variable("PYTORCH_JIT", is_off, ADVICE, "TorchScript models run as plain Python.", _TORCH_COMPILE),
    Variable("TORCHINDUCTOR_FORCE_DISABLE_CACHES", is_on, ADVICE,
             "Each start compiles everything again.", _TORCH_COMPILE),
    Variable("TORCH_COMPILE_DEBUG", is_on, ADVICE, "torch.compile writes out all that it does.", _TORCH_COMPILE),
    Variable("TORCH_LOGS", is_set, NOTE, "PyTorch writes logs while it compiles and runs.", _TORCH_COMPILE),
    Variable("ATEN_CPU_CAPABILITY", is_set, ADVICE,
             "PyTorch's own CPU kernels are held at these instructions.", _TORCH_COMPILE),
    Variable("TF_ENABLE_ONEDNN_OPTS", is_off, ADVICE,
             "TensorFlow does without oneDNN's kernels on the CPU.", _TF_ONEDNN),
    Variable("TF_DETERMINISTIC_OPS", is_on, ADVICE, "TensorFlow takes slower kernels that always add alike.", _TF),
    Variable("TF_CUDNN_DETERMINISTIC", is_on, ADVICE,
             "cuDNN's kernels are chosen among the deterministic.", _TF, "gpu"),
    Variable("TF_CUDNN_USE_AUTOTUNE", is_off, ADVICE,
             "TensorFlow does not try which convolution is fastest.", "", "gpu"),
    Variable("TF_CPP_MAX_VLOG_LEVEL", above_zero, ADVICE, "TensorFlow writes logs for each operation.", ""),
    Variable("TF_CPP_VMODULE", is_set, ADVICE, "TensorFlow writes logs for each operation.", ""),
    Variable("TF_USE_LEGACY_KERAS", is_on, NOTE,
             "tf.keras is Keras 2, which Overdrive does not follow.", _TF_KERAS),
    Variable("XLA_FLAGS", lambda value: "xla_cpu_multi_thread_eigen=false" in value, ADVICE,
             "What XLA compiles for the CPU runs on one thread.", _XLA),
    Variable("XLA_FLAGS", lambda value: "xla_dump_to" in value, ADVICE,
             "XLA writes all that it compiles to disk.", _XLA),
    Variable("ONEDNN_VERBOSE", is_on, ADVICE, "oneDNN prints a line for every operation.", _ONEDNN),
    Variable("DNNL_VERBOSE", is_on, ADVICE, "oneDNN prints a line for every operation.", _ONEDNN),
    Variable("MKL_VERBOSE", is_on, ADVICE, "MKL prints a line for every call.", _MKL),
    Variable("ONEDNN_MAX_CPU_ISA", is_set, ADVICE, "oneDNN is held at these instructions.", _ONEDNN_ISA),
    Variable("DNNL_MAX_CPU_ISA", is_set, ADVICE, "oneDNN is held at these instructions.", _ONEDNN_ISA),
    Variable("MKL_ENABLE_INSTRUCTIONS", is_set, ADVICE, "MKL is held at these instructions.", _MKL),
    Variable("MKL_CBWR", is_set, ADVICE, "MKL takes the same path on every processor, not the fastest.", _MKL),
    Variable("KMP_DUPLICATE_LIB_OK", is_on, WRONG, "OpenMP's own message: may crash, or give wrong results.", _OPENMP),
    Variable("MALLOC_CHECK_", above_zero, ADVICE, "Each malloc and free checks the heap.", _GLIBC),
    Variable("MALLOC_PERTURB_", above_zero, ADVICE,
             "All memory is written to when it is taken and given back.", _MALLOC),
    Variable("MALLOC_ARENA_MAX", says("1"), ADVICE, "All threads share one heap, and wait for it.", _MALLOC),
    Variable("MALLOC_MMAP_THRESHOLD_", lambda value: value.isdigit() and int(value) < 131072, ADVICE,
             "Even small tensors are mapped and given back each time: page faults.", _MALLOC),
    Variable("PYTHONDEVMODE", is_on, ADVICE, "Python checks its memory and much else.", _PYTHON),
    Variable("PYTHONMALLOC", lambda value: "debug" in value or value == "malloc", ADVICE,
             "Python's small objects go through slower allocators.", _PYTHON),
    Variable("PYTHONTRACEMALLOC", is_on, ADVICE, "Python records where each object was made.", _PYTHON),
    Variable("PYTHONDONTWRITEBYTECODE", is_on, NOTE, "Modules without bytecode are compiled at every start.", _PYTHON,
             "bytecode"),
    Variable("LD_PRELOAD", lambda value: any(word in value for word in _CHECKERS), WRONG,
             "Each access to memory is checked.", "https://github.com/google/sanitizers/wiki/AddressSanitizer"),
)
# fmt: on
