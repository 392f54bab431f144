"""Slow ranks: found by what each takes for its own part, and named once."""

from __future__ import annotations

from pathlib import Path

import pytest

from overdrive.ranks.pace import Pace
from tests.conftest import Run

pytest.importorskip("torch")


def test_a_lap_is_the_work_without_the_waiting() -> None:
    now, waited = [10.0], [2.0]
    pace = Pace(0, lambda: waited[0], lambda: now[0])
    now[0], waited[0] = 13.0, 4.5
    assert pace.lap() == 500_000
    now[0], waited[0] = 14.0, 4.5
    assert pace.lap() == 1_000_000


def test_a_rank_is_slow_that_is_so_three_times_in_a_row_and_tells_it_once() -> None:
    slow, usual = Pace(1, lambda: 0.0), Pace(0, lambda: 0.0)
    laps = [[100_000, 260_000, 100_000], [110_000, 120_000, 100_000], *[[100_000, 260_000, 90_000]] * 4]
    said = [slow.slower(each, 16) for each in laps]
    assert [bool(each) for each in said] == [False, False, False, False, True, False]
    assert said[4] == "is slow: its own part of a step takes 2.7 times what the others' takes (16.2 ms, and 5.9)"
    assert not any(usual.slower(each, 16) for each in laps)
    close = Pace(1, lambda: 0.0)  # 1.5 ms in 16 steps are nobody's slowness
    assert not any(close.slower([1_000, 2_500], 16) for _ in range(5))


# What rank 1 prints goes to a file: by that it is known in the program, which knows of no ranks.
UNEVEN = """
import os, time, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
burden = 0.04 if "rank1.log" in os.readlink("/proc/self/fd/1") else 0.0
for step in range(80):
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(burden)
print(f"{loss.item():.9f}")
"""


@pytest.mark.cluster
@pytest.mark.fault("slow rank")
def test_a_slow_rank_names_itself(overdrive: Run, python: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNEVEN)
    told = overdrive("run", "--ranks", "2", "train.py", cwd=tmp_path)
    assert told.returncode == 0 and told.stderr.count("is slow") == 1, told.stderr
    assert "overdrive: rank 1 of 2 on " in told.stderr and " is slow: its own part of a step takes" in told.stderr
    assert float(told.stdout) == pytest.approx(float(python("train.py", cwd=tmp_path).stdout), rel=1e-5)
