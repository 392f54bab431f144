"""Cross-entropy of rows of logits, in Triton: what `operator.py` launches. Nothing else imports this file.

Each program of the grid has ROWS rows, and passes over their columns once, COLUMNS at a time. What it adds up is in
32 bits. Of a row it keeps two numbers: its largest logit, and the logarithm of the sum of exp(logit - largest). Their
sum alone would lose bits where logits are large.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "ignored"])
def forward(
    logits,
    targets,
    weights,  # or None
    losses,
    peaks,
    logsums,
    shares,  # of each row in what a mean divides by; or None
    rows,
    columns,
    row_stride,
    column_stride,
    target_stride,
    ignored,
    kept,  # 1 - label smoothing
    spread,  # label smoothing / columns
    SMOOTH: tl.constexpr,
    APART: tl.constexpr,  # the columns do not lie side by side
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    target = tl.load(targets + row * target_stride, mask=there, other=0)
    counts = there & (target != ignored)
    inside = (target >= 0) & (target < columns)
    known = counts & inside
    start = logits + row * row_stride
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    base = tl.zeros((ROWS,), tl.float32)  # the peak, or 0 while there is none
    total = tl.zeros((ROWS,), tl.float32)
    below = tl.zeros((ROWS,), tl.float32)  # sum of weight * (base - logit)
    seen = 0.0  # sum of the weights so far
    for first in range(0, columns, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        mask = there[:, None] & (column < columns)[None, :]
        beside = column.to(tl.int64) * column_stride if APART else column
        place = start[:, None] + beside[None, :]
        x = tl.load(place, mask=mask, other=float("-inf")).to(tl.float32)
        last, earlier = base, peak
        peak = tl.maximum(peak, tl.max(x, 1))
        base = tl.where(peak == float("-inf"), 0.0, peak)
        total = total * tl.exp(earlier - base) + tl.sum(tl.exp(x - base[:, None]), 1)
        if SMOOTH:
            below += seen * (base - last)
            under = tl.where(mask, base[:, None] - x, 0.0)
            if weights is not None:
                each = tl.load(weights + column, mask=column < columns, other=0.0).to(tl.float32)
                below += tl.sum(each[None, :] * under, 1)
                seen += tl.sum(each, 0)
            else:
                below += tl.sum(under, 1)
                seen += tl.minimum(columns - first, COLUMNS).to(tl.float32)
    logsum = tl.log(total)
    own = tl.where(counts, 1.0, 0.0)
    if weights is not None:
        own = tl.load(weights + target, mask=known, other=0.0).to(tl.float32)
    answer = tl.load(start + target * column_stride, mask=known, other=0.0).to(tl.float32)
    loss = kept * own * (logsum + (peak - answer))
    if SMOOTH:
        loss += spread * (seen * logsum + below)
    loss = tl.where(inside, loss, float("nan"))  # torch asserts on the device; nothing outside is read here
    tl.store(losses + row, tl.where(counts, loss, 0.0), mask=there)
    tl.store(peaks + row, peak, mask=there)
    tl.store(logsums + row, logsum, mask=there)
    if shares is not None:
        tl.store(shares + row, own, mask=there)


@triton.jit(do_not_specialize=["rows", "ignored"])
def backward(
    gradients,
    logits,
    targets,
    weights,  # or None
    peaks,
    logsums,
    count,  # what the mean was divided by; or None
    whole,  # sum of the weights; or None
    slopes,
    rows,
    columns,
    row_stride,
    column_stride,
    target_stride,
    gradient_stride,
    ignored,
    kept,
    spread,
    SMOOTH: tl.constexpr,
    APART: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    target = tl.load(targets + row * target_stride, mask=there, other=0)
    counts = there & (target != ignored)
    inside = (target >= 0) & (target < columns)
    scale = tl.load(gradients + row * gradient_stride, mask=counts, other=0.0).to(tl.float32)
    if count is not None:
        scale = scale / tl.load(count)
    scale = tl.where(counts, tl.where(inside, scale, float("nan")), 0.0)
    near = kept * scale
    if weights is not None:
        near *= tl.load(weights + target, mask=counts & inside, other=0.0).to(tl.float32)
    far = spread * scale
    peak = tl.load(peaks + row, mask=there, other=0.0)
    logsum = tl.load(logsums + row, mask=there, other=0.0)
    start = logits + row * row_stride
    for first in range(0, columns, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        mask = there[:, None] & (column < columns)[None, :]
        beside = column.to(tl.int64) * column_stride if APART else column
        place = start[:, None] + beside[None, :]
        x = tl.load(place, mask=mask, other=float("-inf")).to(tl.float32)
        likely = tl.exp((x - peak[:, None]) - logsum[:, None])
        hit = tl.where(column[None, :] == target[:, None], 1.0, 0.0)
        slope = near[:, None] * (likely - hit)
        if SMOOTH:
            if weights is not None:
                each = tl.load(weights + column, mask=column < columns, other=0.0).to(tl.float32)
                slope += far[:, None] * (tl.load(whole) * likely - each[None, :])
            else:
                slope += far[:, None] * (columns * likely - 1.0)
        into = slopes + (row * columns)[:, None] + column[None, :]
        tl.store(into, slope.to(slopes.dtype.element_ty), mask=mask)
