"""What TensorFlow reports once it is loaded, in a child process of its own.

Of its own, since it takes seconds, and programs that load PyTorch do not load it beside that: its libraries would
show as loaded twice. `main` runs in the child, and prints one JSON object.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from overdrive.machine.command import start_of
from overdrive.machine.loaded import MARK, answer_of

_START = start_of("overdrive.machine.loaded_tensorflow")
# Lines in which TensorFlow tells why it takes no GPU; it goes on without one.
_NO_GPU = re.compile(
    r"(Cannot dlopen[^.]*|failed call to cuInit[^\n]*|Could not find cuda[^\n]*|no CUDA-capable[^\n]*)"
)


def tensorflow(environment: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """TensorFlow's version, build, threads and GPUs, or `failed` and why; None where the child gave no answer."""
    return answer_of(_START, environment)


def _look() -> dict[str, Any]:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"  # what it tells of its GPUs must not be hidden
    try:
        tensorflow = importlib.import_module("tensorflow")
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    found: dict[str, Any] = {"version": tensorflow.__version__}
    with contextlib.suppress(Exception):
        build = tensorflow.sysconfig.get_build_info()
        found["cuda"] = build.get("cuda_version") if build.get("is_cuda_build") else None
        found["cudnn"] = build.get("cudnn_version") if build.get("is_cuda_build") else None
        found["architectures"] = list(build.get("cuda_compute_capabilities", ()))
    with contextlib.suppress(Exception):
        port = importlib.import_module("tensorflow.python.util._pywrap_util_port")
        found["onednn"] = bool(port.IsMklEnabled())
    with contextlib.suppress(Exception):
        # 0 stands for as many as the process may run on; a container's quota is not looked at.
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        chosen = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
        found["threads"] = int(chosen) if chosen.isdigit() and int(chosen) else allowed
    gpus: list[Any] = []
    with contextlib.suppress(Exception):
        printed = _printed(lambda: gpus.extend(tensorflow.config.list_physical_devices("GPU")))
        found["gpus_seen"] = len(gpus)
        if not gpus and (reason := _NO_GPU.search(printed)):
            found["no_gpu_because"] = " ".join(reason.group(1).split())[:300]
    return found


def _printed(act: Callable[[], object]) -> str:
    """What is written to the standard error output meanwhile, by C++ too."""
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            act()
        finally:
            os.dup2(before, 2)
            os.close(before)
        file.seek(0)
        return file.read().decode(errors="replace")


def main() -> None:
    print(MARK + json.dumps(_look()), flush=True)
    sys.stdout.flush()
    os._exit(0)  # without TensorFlow's own cleaning up
