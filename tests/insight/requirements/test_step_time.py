"""Predictions by a roofline, on operators whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overdrive.insight.requirements.gpus import Gpu, gpus, known
from overdrive.insight.requirements.needs import Needs, Operator
from overdrive.insight.requirements.step_time import least_here, on_gpu, on_threads
from tests.machine.test_limits import limits_of, told

GPU = Gpu("a GPU", "a GPU", 10e9, 1e12, {"fp64": 1e12, "fp32": 10e12, "tf32": 50e12, "bf16": 100e12}, "")


def needs(*operators: Operator, **besides: float) -> Needs:
    memory = {"parameters": 100, "gradients": 100, "optimizer states": 200, "activations": 500, "workspace": 100}
    seconds = sum(each.seconds for each in operators)
    return replace(Needs("cpu", 1, memory, 1000, operators, samples=6, step_seconds=seconds), **besides)  # type: ignore[arg-type]


def product(flops: int, moved: int, seconds: float = 0.0, name: str = "mm", calls: int = 1) -> Operator:
    return Operator(name, "float32", 10**6, flops, moved, calls, seconds)


@pytest.mark.parametrize(
    ("operator", "half", "seconds", "bound_by"),
    [
        (product(10**12, 10**9), False, 0.1, "arithmetic"),
        (product(10**12, 10**9), True, 0.01, "arithmetic"),
        (product(10**12, 10**9, name="convolution"), False, 0.02, "arithmetic"),
        (product(10**9, 10**12), False, 1.0, "memory"),
        (product(0, 10**12), True, 1.0, "memory"),
        (product(10**3, 10**3, calls=10**6), False, 6.0, "launches"),
    ],
)
def test_a_step_takes_as_long_as_what_it_is_bound_by(
    operator: Operator, half: bool, seconds: float, bound_by: str
) -> None:
    found = on_gpu(needs(operator), GPU, half=half)
    assert (found.least, found.bound_by) == (pytest.approx(seconds, rel=0.01), bound_by)
    assert found.usual >= found.least


def test_waiting_for_data_stays() -> None:
    found = on_gpu(needs(product(10**12, 0), data_seconds=3.0), GPU)
    assert (found.least, found.bound_by) == (pytest.approx(3.1), "data")


def test_on_more_threads_an_operator_gains_as_its_roof_does_and_python_does_not() -> None:
    limits = limits_of(told())  # arithmetic four times as fast with four threads, memory three times
    arithmetic, memory = product(10**9, 1, seconds=1.0), product(0, 3 * 10**9, seconds=1.0)
    assert on_threads(needs(arithmetic), limits, 4) == pytest.approx(0.25)
    assert on_threads(needs(memory), limits, 4) == pytest.approx(1 / 3)
    assert on_threads(needs(arithmetic, step_seconds=1.5), limits, 4) == pytest.approx(0.75)
    small = replace(memory, elements=100)
    assert on_threads(needs(small), limits, 4) == pytest.approx(1.0), "one thread computes so few elements"
    assert on_threads(needs(arithmetic), limits, 1) == pytest.approx(1.0)


def test_of_what_is_lost_beyond_the_roof_half_is_taken_to_change_with_it() -> None:
    limits = limits_of(told())
    lossy = product(10**9, 1, seconds=3.0)  # two of them beyond its roof
    assert on_threads(needs(lossy), limits, 4) == pytest.approx(0.25 + (0.5 + 2.0) / 2)


def test_the_roofline_here_is_the_sum_over_the_operators() -> None:
    assert least_here(needs(product(10**9, 1), product(0, 3 * 10**9, calls=2)), limits_of(told())) == pytest.approx(3.0)


def test_the_largest_batch_fills_the_memory_that_is_left() -> None:
    assert needs().largest_batch(400 + 100 * 77) == 77
    assert needs().largest_batch(300) == 0


def test_the_catalogue_is_whole() -> None:
    for gpu in gpus():
        assert gpu.source.startswith("https://")
        assert 10e9 < gpu.memory < 300e9 and 100e9 < gpu.bandwidth < 10e12
        for dtype in ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn"):
            assert 1e11 < gpu.rate(dtype, False, False) <= gpu.rate(dtype, True, True) or dtype.startswith("float8")
    found = known("NVIDIA H100 80GB HBM3")
    assert found and found.name == "H100 SXM"
    assert known("Voodoo 2") is None
