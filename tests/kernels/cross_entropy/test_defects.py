"""Faults that kernels of this kind have had, put into ours: each is caught.

Those of Liger Kernel that its issues tell of: gradients of `reduction="none"` (#678, #968), a mean that counts ignored
rows or is left out of the gradient (#1082: a norm a hundred times too large), label smoothing with ignored rows (pull
request #198), a gradient written over the logits (pull request #262), sums of few bits (#512 diverges, its cause is not
told there), a probability near 1 that is rounded before 1 is taken from it (pull request #1329). #777 and #827 tell of
results alone.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from overdrive.kernels import cross_entropy
from overdrive.kernels.cross_entropy import operator
from overdrive.kernels.cross_entropy.comparison import CrossEntropy, worse
from overdrive.kernels.cross_entropy.operator import MEAN, NONE, SUM, Call, computed
from tests.conftest import ROOT
from tests.kernels.cross_entropy.cases import case, needs_interpreter, simple

pytestmark = needs_interpreter
SOURCE = Path(operator.__file__).with_name("kernel.py")
# What is written in the kernel, what is put in its place, and a call in which it shows.
CALLS: dict[str, Callable[[], Call]] = {
    "none": lambda: simple(6, 10, reduction=NONE),
    "mean": lambda: simple(6, 10, reduction=MEAN),
    "ignored": lambda: ignoring(simple(6, 10, reduction=MEAN)),
    "smooth": lambda: ignoring(simple(6, 10, reduction=SUM, smoothing=0.2)),
    "smooth none": lambda: simple(6, 10, reduction=NONE, smoothing=0.2),
    "weighted": lambda: replace(simple(6, 10, reduction=MEAN), weight=torch.rand(10) + 0.5),
    "weighted smooth": lambda: replace(simple(6, 10, reduction=MEAN, smoothing=0.2), weight=torch.rand(10) + 0.5),
    "sure": lambda: sure(simple(6, 10, torch.bfloat16, NONE)),
    "long": lambda: simple(3, 9000, reduction=NONE),
    "rows with gaps": lambda: replace(simple(6, 10), logits=torch.randn(6, 20)[:, :10]),
    "transposed": lambda: replace(simple(6, 10), logits=torch.randn(10, 6).t()),
}
Defect = tuple[str, str, str]
SEEDED: dict[str, Defect] = {
    "a gradient that comes back is taken for 1": (
        "scale = tl.load(gradients + row * gradient_stride, mask=counts, other=0.0).to(tl.float32)",
        "scale = tl.where(counts, 1.0, 0.0)",
        "mean",
    ),
    "the first row's gradient for all": ("gradients + row * gradient_stride", "gradients + row * 0", "none"),
    "a mean counts ignored rows": ("own = tl.where(counts, 1.0, 0.0)", "own = tl.where(there, 1.0, 0.0)", "ignored"),
    "a gradient is not divided by the mean's count": ("scale = scale / tl.load(count)", "pass", "mean"),
    "a mean of weighted rows counts rows": ("tl.store(shares + row, own", "tl.store(shares + row, 1.0", "weighted"),
    "weights are left out of the gradient": (
        "near *= tl.load(weights + target",
        "near += 0 * tl.load(weights + target",
        "weighted",
    ),
    "ignored rows have a smooth loss": ("losses + row, tl.where(counts, loss, 0.0)", "losses + row, loss", "smooth"),
    "ignored rows have a gradient": (
        'tl.where(counts, tl.where(inside, scale, float("nan")), 0.0)',
        "tl.load(gradients + row * gradient_stride, mask=there, other=0.0).to(tl.float32)",
        "smooth",
    ),
    "smoothing is left out of the gradient": ("far = spread * scale", "far = 0.0 * scale", "smooth none"),
    "smoothing is not taken from the target": ("near = kept * scale", "near = scale", "smooth none"),
    "smoothing goes without weights": ("seen * logsum + below", "columns * logsum + below", "weighted smooth"),
    "sums in 16 bits": (
        "total = total * tl.exp(earlier - base) + tl.sum(tl.exp(x - base[:, None]), 1)",
        "total = total * tl.exp(earlier - base) + tl.sum(tl.exp(x - base[:, None]), 1)\n"
        "        total = total.to(tl.bfloat16).to(tl.float32)",
        "long",
    ),
    "the target's probability is rounded before 1 is taken from it": (
        "slope = near[:, None] * (likely - hit)",
        "slope = near[:, None] * (likely.to(slopes.dtype.element_ty).to(tl.float32) - hit)",
        "sure",
    ),
    "the sum is not carried to a new peak": ("total * tl.exp(earlier - base) +", "total +", "long"),
    "the last block is forgotten": ("range(0, columns, COLUMNS)", "range(0, columns - COLUMNS, COLUMNS)", "long"),
    "what is beyond the last column counts": (
        'mask=mask, other=float("-inf")).to(tl.float32)\n        last',
        "mask=mask, other=0.0).to(tl.float32)\n        last",
        "none",
    ),
    "one number is kept of a row": (
        "tl.exp((x - peak[:, None]) - logsum[:, None])",
        "tl.exp(x - (peak + logsum)[:, None])",
        "none",
    ),
    "rows are thought to lie side by side": (
        "start = logits + row * row_stride",
        "start = logits + row * columns",
        "rows with gaps",
    ),
    "columns are thought to lie side by side": (
        "column.to(tl.int64) * column_stride if APART else column",
        "column",
        "transposed",
    ),
}


def ignoring(call: Call) -> Call:
    call.target[1] = call.target[4] = call.ignored
    return call


def sure(call: Call) -> Call:
    call.logits[torch.arange(6), call.target] += 9
    return call


def with_defect(old: str, new: str, folder: Path) -> Any:
    text = SOURCE.read_text()
    assert old in text, old
    path = folder / "seeded_kernel.py"
    path.write_text(text.replace(old, new))
    spec = importlib.util.spec_from_file_location("seeded_kernel", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SEEDED)
def test_a_seeded_defect_is_seen_where_a_program_computes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, kind = SEEDED[name]
    assert CrossEntropy().differs_on(F.cross_entropy, CALLS[kind]()) is None
    monkeypatch.setattr(cross_entropy, "kernel", with_defect(old, new, tmp_path), raising=False)
    assert CrossEntropy().differs_on(F.cross_entropy, CALLS[kind]()) or worse(F.cross_entropy, CALLS[kind]())
    assert any(worse(F.cross_entropy, case(number)) for number in range(400))


def test_a_gradient_over_the_logits_is_seen_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "_room", lambda logits: logits)
    leaf = CALLS["mean"]().logits.requires_grad_()
    before = leaf.detach().clone()
    loss = computed(replace(CALLS["mean"](), logits=leaf))
    first = torch.autograd.grad(loss, leaf, retain_graph=True)[0].clone()
    second = torch.autograd.grad(loss, leaf)[0]
    assert not torch.equal(leaf, before) and not torch.equal(first, second)


def test_places_in_32_bits_end_in_other_memory(tmp_path: Path) -> None:
    """In a process of its own, which reads what is not its, and may be ended for it."""
    code = (
        "import sys, torch; from pathlib import Path\n"
        "from tests.kernels.cross_entropy import test_defects as t, test_numbers\n"
        "if sys.argv[1] == 'seeded':\n"
        "    wide, narrow = 'tl.program_id(0).to(tl.int64) *', 'tl.program_id(0) *'\n"
        "    t.cross_entropy.kernel = t.with_defect(wide, narrow, Path(sys.argv[2]))\n"
        "test_numbers.test_rows_that_lie_two_thousand_million_numbers_apart()\n"
    )
    ended = []
    for how in ("sound", "seeded"):
        words = (sys.executable, "-c", code, how, str(tmp_path))
        ended.append(subprocess.run(words, cwd=ROOT, capture_output=True, timeout=200).returncode)
    assert ended[0] == 0 and ended[1] != 0
