"""The variables of a trial's processes."""

from __future__ import annotations

import os
from pathlib import Path

from overdrive.core.places import samples_folder
from overdrive.core.trial_spec import TrialSpec
from overdrive.core.variables import set_in
from overdrive.ranks.trackers import MLFLOW_FOLDER, kept_here
from overdrive.techniques.catalogue import environment_for
from overdrive.trials.pool import TrialPool


def environment_of(pool: TrialPool, spec: TrialSpec, folder: Path) -> dict[str, str]:
    """`folder`: the trial's own."""
    environment = {
        **os.environ,
        **environment_for(spec.techniques),
        **spec.environment,
        "OVERDRIVE_PREFILL": "1",
        "OVERDRIVE_CACHE": str(samples_folder()),
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        "TORCHINDUCTOR_CACHE_DIR": str(pool.compiled),
    }
    set_in(environment, kept_here(environment, (folder / MLFLOW_FOLDER).as_uri()))
    if pool.bytecode:
        environment["PYTHONPYCACHEPREFIX"] = str(pool.bytecode)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if spec.deterministic:  # cuBLAS repeats itself with room of its own for each stream; without, PyTorch refuses it
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if spec.threads:
        environment |= {name: str(spec.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return environment
