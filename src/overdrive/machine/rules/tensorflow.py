"""Findings about TensorFlow: its build, and what it reported when it was loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from overdrive.core.installing import pip_install
from overdrive.machine.rules.finding import Basis, Finding, Severity, Sure, Survey, finding
from overdrive.machine.rules.gpus import gpus_of
from overdrive.machine.rules.software import import_fails, too_many_threads

_TF_THREADS = "https://www.tensorflow.org/api_docs/python/tf/config/threading/set_intra_op_parallelism_threads"


def _loaded(survey: Survey) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (survey.get("loaded") or {}).get("tensorflow") or {}
    return found


def build(survey: Survey) -> Iterator[Finding]:
    built, gpus = survey["software"].get("tensorflow"), gpus_of(survey)
    if not built or not gpus:
        return
    if not built["cuda"]:
        what, sure = "TensorFlow was built without CUDA", Sure.CERTAIN
    elif "gpus_seen" in _loaded(survey):
        return  # it was asked, see below
    elif "cuDNN" not in survey["software"].get("libraries", {}) and not survey["software"].get("cuda_toolkit"):
        what, sure = "TensorFlow was built for CUDA, but no cuDNN is installed", Sure.LIKELY
    else:
        return
    yield finding(
        "tensorflow_cpu",
        (Severity.WRONG, Basis.CITED, sure),
        f"{what}, and there is {gpus[0].get('name', 'an NVIDIA GPU')}.",
        "TensorFlow says so in one line at its start, and trains on the CPU.",
        "Install it together with NVIDIA's libraries.",
        pip_install("tensorflow[and-cuda]"),
        "https://www.tensorflow.org/install/pip",
    )


def fails(survey: Survey) -> Iterator[Finding]:
    """What it said when it was loaded."""
    loaded = _loaded(survey)
    if loaded.get("failed"):
        yield import_fails("tensorflow", loaded["failed"])
    elif gpus_of(survey) and loaded.get("cuda") and loaded.get("gpus_seen") == 0:
        yield finding(
            "tensorflow_sees_no_gpu",
            (Severity.WRONG, Basis.MEASURED, Sure.CERTAIN),
            f"TensorFlow sees no GPU: {loaded.get('no_gpu_because', 'it does not say why').rstrip('.')}.",
            "TensorFlow says so in one line at its start, and trains on the CPU.",
            "Install it together with NVIDIA's libraries; if they are there, see what the message says.",
            pip_install("tensorflow[and-cuda]"),
            "https://www.tensorflow.org/install/pip",
        )


def threads(survey: Survey) -> Iterator[Finding]:
    threads = _loaded(survey).get("threads")
    granted = survey["cpu"].get("granted_cores")
    if not threads or not granted:
        return
    chosen = survey["environment"].get("TF_NUM_INTRAOP_THREADS")
    if threads > granted:
        command = f"export TF_NUM_INTRAOP_THREADS={granted} TF_NUM_INTEROP_THREADS={granted}"
        yield too_many_threads("tensorflow_threads", "TensorFlow", threads, granted, command, _TF_THREADS)
    elif chosen and threads < granted / 2 and not gpus_of(survey):
        yield finding(
            "tensorflow_few_threads",
            (Severity.ADVICE, Basis.UNKNOWN, Sure.POSSIBLE),
            f"TF_NUM_INTRAOP_THREADS={chosen}, and this process may use {granted} cores.",
            "What is computed on the CPU leaves the other cores idle, unless other processes use them.",
            "Set the cores divided by the processes; `overdrive tune` tries technique tensorflow_threads.",
            f"export TF_NUM_INTRAOP_THREADS={granted}",
            _TF_THREADS,
        )


def onednn_off(survey: Survey) -> Iterator[Finding]:
    loaded = _loaded(survey)
    if loaded.get("onednn") is not False or survey["environment"].get("TF_ENABLE_ONEDNN_OPTS"):
        return  # set off by the variable: that has a finding of its own
    if gpus_of(survey) or not survey["cpu"].get("vector"):
        return
    yield finding(
        "tensorflow_without_onednn",
        (Severity.ADVICE, Basis.UNKNOWN, Sure.POSSIBLE),
        f"TensorFlow {loaded.get('version', '')} runs without oneDNN's kernels here.",
        "Convolutions and products of matrices may take several times as long.",
        "`overdrive tune` tries technique onednn; or set it yourself. Results differ in their rounding.",
        "export TF_ENABLE_ONEDNN_OPTS=1",
        "https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/util/port.cc",
    )


RULES = (build, fails, threads, onednn_off)
