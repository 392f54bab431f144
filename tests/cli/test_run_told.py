"""What `overdrive run` says of a run at its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.cli.whole_run import summary


def told(
    steps: int,
    seconds: float,
    samples: int = 0,
    inference: bool = False,
    plan: str | None = None,
    active: tuple[str, ...] = (),
    idle: tuple[str, ...] = (),
) -> str:
    recorder: Any = SimpleNamespace(
        clock=SimpleNamespace(steps=steps, inference=inference),
        samples_per_second=lambda: samples / seconds,
        seconds_per_step=lambda: seconds / steps,
    )
    session: Any = SimpleNamespace(active=list(active), idle=list(idle))
    return summary(recorder, session, plan)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"steps": 351, "seconds": 1.0, "samples": 11357}, "351 steps, 11,357 samples/s, no plan"),
        ({"steps": 12, "seconds": 36.0, "samples": 12}, "12 steps, 0.333 samples/s, no plan"),
        ({"steps": 2, "seconds": 60.0}, "2 steps, 30 s a step, no plan"),
        ({"steps": 1000, "seconds": 8.0}, "1,000 steps, 125 steps/s, no plan"),
        ({"steps": 1, "seconds": 0.5, "inference": True}, "1 call, 2 calls/s, no plan"),
    ],
)
def test_slow_steps_are_told_by_how_long_they_take(run: dict[str, Any], said: str) -> None:
    assert told(**run) == said


@pytest.mark.parametrize(
    ("active", "idle", "said"),
    [
        ((), (), "train.plan (nothing to apply)"),
        (("threads", "compile"), (), "train.plan (threads, compile)"),
        (("threads", "prefetch"), ("prefetch",), "train.plan (threads; nothing to do for prefetch)"),
        (
            ("prefetch", "sample_cache"),
            ("prefetch", "sample_cache"),
            "train.plan (nothing to do for prefetch and sample_cache)",
        ),
    ],
)
def test_techniques_that_had_nothing_to_do_are_told_apart(
    active: tuple[str, ...], idle: tuple[str, ...], said: str
) -> None:
    assert told(2, 60.0, plan="train.plan", active=active, idle=idle) == f"2 steps, 30 s a step, {said}"
