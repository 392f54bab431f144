"""An error in a technique, at whatever moment, does not end the program: it goes on as plain Python would."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from overdrive.techniques.catalogue import catalogue
from tests.kernels.cross_entropy.standin import by_torch
from tests.techniques.compile.standin import stand_in
from tests.techniques.faults import KINDS, Case, Rows, check

SEEDS = 20
FEW = 1  # of them is for every run of the tests
SLOW = ("compile", "prefetch", "prefix_cache", "sample_cache")  # seconds each

# Settings other than the default, where it does nothing here.
CASES = [
    # What fails as a block is called again, in the backward pass, ends the program: the graph is used up by then.
    Case("activation_checkpointing", {"budget": 0.0}, Rows, backward=False),
    Case("affinity", {"hyper_threads": False}),
    Case("autocast", {"dtype": "bfloat16"}),
    Case("autocast", {"dtype": "float16"}),
    Case("batch_size", {"times": 2}),
    Case("bf16_weights"),
    Case("channels_last"),
    Case("compile"),
    # Whole steps: tests/techniques/compile/test_whole_steps.py. This stand-in's recordings carry out what they record.
    Case("cuda_graphs", {"parts": "all"}),
    Case("deferred_scalars"),
    Case("fast_cross_entropy", {"least": 1}),
    Case("fast_dropout", last=True),
    Case("fast_max_pool"),
    Case("fft_convolution", {"least": 2}),
    Case("fp32_from_fp64", {"weights": "copied"}, dtype=torch.float64),
    Case("fp32_from_fp64", {"weights": "narrowed"}, dtype=torch.float64),
    Case("fused_optimizer", {"implementation": "fused"}),
    Case("fused_optimizer", {"implementation": "foreach"}),
    Case("interop"),
    Case("library_autotune", {"benchmark": False, "flush_denormals": True}),
    Case("loader_workers", {"workers": 1}),
    Case("micro_batch", {}, Rows),
    Case("offload", {"least_mib": 0}),
    Case("prefetch", besides=(("sample_cache", {}),)),
    Case("prefix_cache"),
    Case("sample_cache"),
    Case("tf32", {"precision": "bf16"}),
    Case("threads", {"count": 1}),
]


class AtOnce:
    """A stand-in for the GPU that `deferred_scalars` reads from."""

    def serves(self, tensor: Any) -> bool:
        return True

    def mark(self, tensor: Any) -> None:
        return None

    def read(self, tensor: Any, mark: Any) -> Any:
        return tensor.detach().reshape(()).tolist()


def prepare_plainly(case: Case) -> None:
    prepare(case, pytest.MonkeyPatch())


def prepare(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a technique takes to act on this machine."""
    if case.name == "affinity":
        from overdrive.techniques.host import affinity

        monkeypatch.setattr(affinity, "one_a_core", lambda cores: frozenset(sorted(cores)[:1]))
    if case.name == "cuda_graphs":
        stand_in(monkeypatch)
    if case.name == "deferred_scalars":
        monkeypatch.setattr(type(catalogue()["deferred_scalars"]), "line", AtOnce)
    if case.name == "offload":
        from overdrive.techniques.memory.offload import host, technique

        monkeypatch.setattr(technique, "DEVICE", "cpu")
        monkeypatch.setattr(host, "Streams", host.NoStreams)
    if case.name == "fast_cross_entropy":
        by_torch(monkeypatch)
    if case.name == "fast_dropout":
        from overdrive.kernels.dropout import operator

        monkeypatch.setattr(operator, "LEAST", 1)
    if case.name == "fft_convolution":
        from overdrive.techniques.layout import fft_convolution

        monkeypatch.setattr(fft_convolution, "_is_faster", lambda *_: True)


def cases() -> list[Any]:
    """Each with the kinds of faults that it can have here, and the seeds; few are for every run of the tests."""
    found = []
    for case in CASES:
        for kind in KINDS:
            for number in range(SEEDS):
                marks = [] if number < FEW and case.name not in SLOW else [pytest.mark.faults]
                found.append(pytest.param(case, kind, number, id=f"{case}-{kind}-{number}", marks=marks))
    return found


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """Runs without a fault."""
    return {}


@pytest.mark.parametrize(("case", "kind", "number"), cases())
@pytest.mark.fault(1)
def test_a_program_goes_on_as_without_the_technique(
    case: Case, kind: str, number: int, known: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(case, monkeypatch)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        wrong = check(case, kind, number, known.setdefault(str(case), {}))
    finally:
        torch.set_num_threads(threads)
    if wrong.startswith(("nothing to fail", "no fault was reached")):
        pytest.skip(wrong)
    assert not wrong
