"""`overdrive doctor --pool` among two processes of this machine (gloo)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.schemas import held


@pytest.mark.cluster
def test_a_pool_of_two_processes(overdrive: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    told = overdrive("doctor", "--pool", "--quick", "--json", "-", cwd=tmp_path)
    result = json.loads(told.stdout)
    held("pool", result)
    assert told.returncode == any(each["severity"] == "wrong" for each in result["findings"]), told.stderr
    assert result["backend"] == "gloo" and len(result["ranks"]) == 2 and result["link"] is None
    names = {row["operation"] for row in result["measured"]}
    assert names == {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "point_to_point"} == set(result["fits"])
    assert {row["bytes"] for row in result["measured"]} == {1 << power for power in range(10, 24, 2)}
    assert result["pairs"][0]["ranks"] == [0, 1] and not result["left_out"]


@pytest.mark.cluster
def test_a_pool_under_torchrun(python: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    told = python(*launcher, "-m", "overdrive", "doctor", "--pool", "--quick", cwd=tmp_path)
    assert told.stdout.count("2 ranks on this machine, gloo") == 1, told.stderr
