"""Removed techniques: since when, and why. A plan that names one is used without it."""

from __future__ import annotations

from collections.abc import Mapping

# See docs/decisions/013-what-was-let-go.md for the figures.
REMOVED: Mapping[str, str] = {
    "batch_fetch": "removed on 2026-11-24: it was in no tuned plan; sample_cache gathers such samples too",
    "buffer_reuse": "removed on 2026-11-24: it was in no tuned plan, and of its three duels one was lost",
    "cache_blocking": "removed on 2026-11-24: it won no duel; allocator takes the same page faults away",
    "fold_normalisation": "removed on 2026-11-29: it was in no tuned plan; openvino and onnxruntime fold as well",
    "packed_files": "removed on 2026-11-24: reading a file from a shard took no less time than opening it",
    "pool_before_relu": "removed on 2026-11-24: beside allocator and fast_max_pool it gained 1 to 3 % of a step",
    "vectorised_transforms": "removed on 2026-11-24: it was in no tuned plan; prefix_cache keeps what comes before the "
    "first random transform",
}
