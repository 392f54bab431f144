"""Predicts the time of a training step on other hardware, from what its operators compute and move.

A roofline, operator by operator (Williams, Waterman and Patterson, 2009, https://doi.org/10.1145/1498765.1498785):
none takes less than its arithmetic at the peak, or its bytes at the memory's rate. Between processors of one kind, the
time that an operator took is scaled by how its roof differs, as Habitat does between GPUs (Yu et al., USENIX ATC 2021,
https://www.usenix.org/conference/atc21/presentation/yu): what it loses against the roof, it loses there too.
"""

from __future__ import annotations

from overdrive.core.facts import FORMATS
from overdrive.core.requirements_result import Prediction
from overdrive.insight.requirements.gpus import Gpu
from overdrive.insight.requirements.needs import Needs, Operator
from overdrive.machine.limits import Limits, Roofline

# PyTorch gives no thread less than this many elements of an element-wise operation (at::internal::GRAIN_SIZE).
GRAIN = 32768
# Bytes that a core's own caches hold: what an operation moves within them does not wait for the memory.
_OWN_CACHE = 1 << 20
# Seconds to give a GPU one thing to do, where none is here to be measured: 4 to 6 us were measured of the driver on an
# RTX 5070 Ti (https://susun-blog.com/blog/pegainfer-3-cuda-graph), and PyTorch's own part comes on top.
LAUNCH = 6e-6
# Of the peak arithmetic, 40 to 58 % are reached by well-made training of large language models: 46.2 % in PaLM
# (https://arxiv.org/abs/2204.02311, table 3), 150 to 180 of 312 TFLOP/s on an A100 (stas00/ml-engineering).
USUAL_SHARE = 0.4


def on_gpu(needs: Needs, gpu: Gpu, half: bool = False, launch: float = LAUNCH) -> Prediction:
    """The step time on a GPU that is not here, by its data sheet; `half`: autocast in bf16, or fp16 without bf16.

    The step takes as long as the longest of: the GPU's work; giving it out, operator by operator; and
    waiting for data as now, since the next batch is not fetched meanwhile.
    """
    arithmetic = memory = work = 0.0
    for each in needs.operators:
        rate = gpu.rate(each.dtype, each.is_convolution, half)
        moved = each.bytes / (2 if half and each.flops and each.dtype == "float32" else 1)
        by_flops, by_bytes = each.calls * each.flops / rate, each.calls * moved / gpu.bandwidth
        work += max(by_flops, by_bytes)
        if by_flops > by_bytes:
            arithmetic += by_flops
        else:
            memory += by_bytes
    # Python's own time of a step was measured on this machine's CPU; another CPU has another.
    given_out = needs.calls * launch + needs.host_seconds
    least = max(work, given_out) + needs.data_seconds
    usual = max(work / USUAL_SHARE, given_out) + needs.data_seconds
    costs = {"arithmetic": arithmetic, "memory": memory, "launches": given_out, "data": needs.data_seconds}
    if given_out < work:
        del costs["launches"]
    else:
        del costs["arithmetic"], costs["memory"]
    return Prediction(least, usual, max(costs, key=lambda name: costs[name]))


def least_here(needs: Needs, limits: Limits) -> float:
    """Seconds that a step takes at least here, by the measured roofline; comparing it shows what a roofline misses."""
    roof = limits.roofline(needs.device, needs.threads if needs.device == "cpu" else 0)
    return sum(each.calls * _roof(each, roof) for each in needs.operators) + needs.data_seconds


def on_threads(needs: Needs, limits: Limits, threads: int) -> float:
    """Seconds of a step on this CPU with another number of threads than it was measured with."""
    here, there = limits.roofline("cpu", needs.threads), limits.roofline("cpu", threads)
    operation = limits.measures["cpu.operation"].value if "cpu.operation" in limits.measures else 0.0
    inside = sum(each.seconds for each in needs.operators)
    # Operators were timed in a trial that counts; that they took together is scaled to the step that nothing watched.
    share = min(1.0, (needs.step_seconds - needs.data_seconds) / inside) if inside else 0.0
    total = needs.step_seconds - share * inside
    for each in needs.operators:
        seconds = share * each.seconds
        fixed = min(seconds, each.calls * operation)
        total += fixed + _on_other(each, seconds - fixed, here, there)
    return total


def _on_other(operator: Operator, seconds: float, here: Roofline, there: Roofline) -> float:
    """What all its calls take under another roof.

    What an operator needs beyond its roof is lost by every thread alike (caches missed, instructions that are no
    arithmetic), and then changes as the roof does; or it is lost while threads wait for one another, and stays. Nothing
    tells which: the middle between the two is taken. With the first alone every gain from a second thread was
    predicted too large, by up to 19 % (benchmarks/results/requirements.json, first round).
    """
    if not operator.flops and operator.elements < 2 * GRAIN:
        return seconds  # one thread computes it, however many there are
    before, after = _roof(operator, here), _roof(operator, there)
    if not before or not after:
        return seconds
    all_changes = seconds * after / before
    at_roof = min(seconds, operator.calls * before)
    rest_stays = at_roof * after / before + seconds - at_roof
    return (all_changes + rest_stays) / 2


def _roof(operator: Operator, roof: Roofline) -> float:
    """Seconds of one call at least."""
    flops = roof.peak_flops.get(FORMATS.get(operator.dtype, "fp32")) or roof.peak_flops.get("fp32", 0.0)
    memory = roof.memory_bytes_per_second
    if roof.device == "cpu" and operator.bytes < _OWN_CACHE * roof.threads:
        memory = max(memory, roof.cache_bytes_per_second)
    return max(operator.flops / flops if flops else 0.0, operator.bytes / memory if memory else 0.0)
