"""What `make gpu` looks at and makes before anything runs: a short time with a GPU is not spent on finding it out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Overdrive's own, as in pyproject.toml, by module: the name of its wheel.
NEEDS = {name: name for name in ("click", "jinja2", "numpy", "psutil", "rich", "tomlkit")} | {"pynvml": "nvidia_ml_py"}
_RENDER_SECONDS = 110.0


def no_gpu() -> str | None:
    """Why this Python has no GPU, or None."""
    if find_spec("torch") is None:
        return f"{sys.executable} has no PyTorch. With another Python: make gpu PYTHON=/path/to/its/python"
    import torch

    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None and torch.version.hip is None and os.path.exists("/dev/nvidiactl"):
        return (
            f"There is a GPU here, and PyTorch {torch.__version__} of {sys.executable} was built without CUDA. "
            "With another Python: make gpu PYTHON=/path/to/its/python"
        )
    return "There is no GPU here: nothing was run, and benchmarks/results stays as it is."


def use_carried_wheels(folder: Path) -> str | None:
    """Put what the machine lacks where this process and its children find it; the reason where that fails."""
    missing = _missing()
    lacking = [NEEDS[name] for name in missing]
    places = [str(ROOT / "src"), str(ROOT / "benchmarks")]
    wheels = sorted((ROOT / ".whl").glob("*.whl"))
    if missing and wheels:
        site = folder / "site"
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(site)]
        wanted = [str(wheel) for wheel in wheels if wheel.name.split("-")[0].lower().replace(".", "_") in lacking]
        done = subprocess.run([*pip, *wanted], capture_output=True, text=True) if wanted else None
        if done and done.returncode:
            return f"the wheels in .whl/ cannot be installed: {done.stderr.strip()[-300:]}"
        places.append(str(site))
    sys.path[:0] = places
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])])
    if missing := _missing():
        return f"missing here: {', '.join(missing)}. Run `make gpu-wheels` where there is a network, and bring .whl/"
    return None


def _missing() -> list[str]:
    return [name for name in NEEDS if find_spec(name) is None]


def one_process_only(reported: Mapping[str, Any] | None = None) -> bool:
    """Whether the GPU takes one process at a time, as on many clusters.

    Args:
        reported: by `overdrive.machine.nvml`, which is asked where this is not given.
    """
    from overdrive.machine.nvml import nvml

    found = nvml() if reported is None else reported
    return any(gpu.get("compute_mode") == "Exclusive_Process" for gpu in found.get("gpus", []))


def render_images(examples: Path = ROOT / "examples") -> str | None:
    """Have the example make its images, 9,000 files: each of its trials would, for what these write is thrown away.

    Returns: why its rows will not run, or None.
    """
    command = [sys.executable, "-c", "import cifar_cnn; cifar_cnn.prepare_data(None)"]
    try:
        done = subprocess.run(command, cwd=examples, capture_output=True, text=True, timeout=_RENDER_SECONDS)
    except subprocess.TimeoutExpired:
        return f"the example's images were not there after {_RENDER_SECONDS:.0f} s"
    if done.returncode:
        return f"the example has no images: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}"
    return None
