"""What the libraries report once they are loaded.

`main` runs in a child process, and prints one JSON object. The parent asks it with `libraries()`, and never loads any
of them itself.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
from collections.abc import Mapping
from typing import Any

from overdrive.machine.command import ask, in_python, start_of

_WAIT_SECONDS = 90.0  # a cold import of PyTorch from a network file system took a minute and more
# Those that training programs load side by side; each may bring an OpenMP runtime and a BLAS of its own.
_TOGETHER = ("numpy", "torch", "sklearn")
# Names of shared objects, with what pip's repair tool adds to them: libgomp-a34b3233.so.1.0.0
_OPENMP = re.compile(r"/lib(gomp|iomp5|omp)(?:-[0-9a-f]+)?\.(?:so|dylib)")
_BLAS = re.compile(r"/lib(openblas|scipy_openblas|mkl_rt|mkl_core|blis|flexiblas|nvpl_blas|armpl|satlas)")
_ALLOCATOR = re.compile(r"/lib(jemalloc|tcmalloc|mimalloc|tbbmalloc)")
MARK = "overdrive-loaded "
_START = start_of("overdrive.machine.loaded")


def libraries(environment: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """`openmp`, `blas`, `allocators` found loaded, and what PyTorch tells; None where the child gave no answer."""
    return answer_of(_START, environment)


def answer_of(start: str, environment: Mapping[str, str] | None, wait: float = _WAIT_SECONDS) -> dict[str, Any] | None:
    """What a child process that runs `start` prints after MARK; None if it fails, or takes longer than `wait`."""
    answer = ask(in_python(start), wait, environment)
    for line in (answer or "").splitlines():
        if line.startswith(MARK):
            found: dict[str, Any] = json.loads(line[len(MARK) :])
            return found
    return None


def _look() -> dict[str, Any]:
    failed: dict[str, str] = {}
    modules: dict[str, Any] = {}
    for name in _TOGETHER:
        try:
            modules[name] = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                failed[name] = str(error)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    maps = ""
    with contextlib.suppress(OSError), open("/proc/self/maps", errors="replace") as file:
        maps = file.read()
    paths = sorted({line.split(maxsplit=5)[5] for line in maps.splitlines() if len(line.split(maxsplit=5)) == 6})
    return {
        "imported": sorted(modules),
        "failed": failed,
        "openmp": [
            {"runtime": f"lib{found.group(1)}", "of": _package(path)}
            for path in paths
            if (found := _OPENMP.search(path))
        ],
        "blas": [{"library": found.group(1), "of": _package(path)} for path in paths if (found := _BLAS.search(path))],
        "allocators": sorted({found.group(1) for path in paths if (found := _ALLOCATOR.search(path))}),
        "torch": _torch(modules["torch"]) if "torch" in modules else None,
    }


def _package(path: str) -> str:
    """The package that a shared object belongs to, from its path: the user's folders are not named."""
    parts = path.split("/")
    for place in ("site-packages", "dist-packages"):
        if place in parts:
            return parts[len(parts) - parts[::-1].index(place)].removesuffix(".libs")
    return "the system"


def _torch(torch: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"threads": torch.get_num_threads(), "interop_threads": torch.get_num_interop_threads()}
    config = ""
    with contextlib.suppress(Exception):
        config = torch.__config__.show()
    blas = re.search(r"BLAS_INFO=(\w+)", config)
    found["blas"] = blas.group(1) if blas else None
    capability = re.search(r"CPU capability usage:\s*(\S+)", config)
    found["cpu_capability"] = capability.group(1) if capability else None
    with contextlib.suppress(Exception):
        found["onednn"] = bool(torch.backends.mkldnn.is_available())
    if torch.version.cuda or torch.version.hip:
        with contextlib.suppress(Exception):
            found["architectures"] = torch._C._cuda_getArchFlags().split()
        with contextlib.suppress(Exception):
            found["cudnn"] = torch.backends.cudnn.version()
        with contextlib.suppress(Exception):
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        try:
            torch.cuda.init()
            found["gpus_seen"] = torch.cuda.device_count()
        except Exception as error:
            found["gpus_seen"] = 0
            found["no_gpu_because"] = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
    return found


def main() -> None:
    print(MARK + json.dumps(_look()), flush=True)
