"""The memory techniques on a GPU. Skipped, saying so, where there is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.worker.session import Session
from tests.conftest import Run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU (CUDA), and there is none here")


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.relu, self.dropout = nn.ReLU(), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(self.relu(self.up(self.norm(x)))))


def train(techniques: list[tuple[str, dict[str, Any]]], dropout: bool = True, steps: int = 3) -> dict[str, Any]:
    """12 blocks at 8,192 rows of 512: about 1.5 GB of activations, 100 MB of parameters."""
    torch.manual_seed(0)
    torch.cuda.empty_cache()
    with Session(techniques) as session:
        model = nn.Sequential(*[Block(512) for _ in range(12)], nn.Linear(512, 10)).cuda()
        for module in model.modules():
            if isinstance(module, nn.Dropout) and not dropout:
                module.p = 0.0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        losses = []
        for step in range(steps):
            if step == 1:  # the first counts and tries
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            x, y = torch.randn(8192, 512, device="cuda"), torch.randint(10, (8192,), device="cuda")
            optimizer.zero_grad(set_to_none=False)
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        peak = torch.cuda.max_memory_allocated()
    return {
        "losses": losses, "peak": peak, "left_out": session.seams.left_out,
        "state": [each.cpu() for each in model.state_dict().values()], "chance": torch.cuda.get_rng_state(),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "settings", "share"),
    [
        ("activation_checkpointing", {"budget": 0.5}, 0.8),
        ("activation_checkpointing", {"budget": 0.0}, 0.5),
        ("offload", {"least_mib": 1}, 0.6),
    ],
)
def test_trains_to_the_same_bit_with_less_memory(name: str, settings: dict[str, Any], share: float) -> None:
    plain, again, found = train([]), train([]), train([(name, settings)])
    assert not found["left_out"]
    assert plain["losses"] == again["losses"], "this program does not repeat itself here"
    assert found["losses"] == plain["losses"]
    assert all(torch.equal(a, b) for a, b in zip(found["state"], plain["state"], strict=True))
    assert torch.equal(found["chance"], plain["chance"])
    assert found["peak"] < share * plain["peak"]


def test_a_batch_in_parts_needs_less_memory() -> None:
    plain, found = train([], dropout=False), train([("micro_batch", {"parts": 8})], dropout=False)
    assert not found["left_out"]
    assert found["losses"] == pytest.approx(plain["losses"], rel=1e-3)
    assert found["peak"] < 0.5 * plain["peak"]
    assert not train([("micro_batch", {"parts": 8})], dropout=True)["left_out"]


def test_parts_blocks_and_host_go_together() -> None:
    plain = train([], dropout=False)
    found = train(
        [("micro_batch", {"parts": 2}), ("activation_checkpointing", {"budget": 0.0}), ("offload", {"least_mib": 1})],
        dropout=False,
    )
    assert not set(found["left_out"]) - {"offload"}
    assert found["losses"] == pytest.approx(plain["losses"], rel=1e-3)
    assert found["peak"] < 0.5 * plain["peak"]


def test_what_has_been_copied_out_may_be_written_over() -> None:
    """Memory that is let go of is taken again at once: a copy that came too late would find the next values."""
    from overdrive.techniques.memory.offload.host import Shelf, Streams

    shelf = Shelf(Streams(torch.device("cuda", torch.cuda.current_device())), room=4 << 30, least=0)
    x = torch.ones(1 << 20, device="cuda", requires_grad=True)
    with shelf.hooks({x.untyped_storage().data_ptr()}):
        y, factors = x, []
        for number in range(40):
            factor = torch.full((1 << 20,), 1.0 + number / 64, device="cuda")
            y = y * factor.clone()
            factors.append(1.0 + number / 64)
    shelf.end_of_call()
    y.sum().backward()
    assert shelf.laid > 100 << 20
    expected = torch.ones((), dtype=torch.float64)
    for factor in factors:
        expected *= factor
    torch.testing.assert_close(x.grad.double().cpu(), expected.expand(1 << 20), rtol=1e-5, atol=0.0)  # type: ignore[union-attr]


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_what_exceeds_the_gpu_lies_in_the_main_memory() -> None:
    """The GPU's memory is made small by a limit of PyTorch's: nothing is asked of it that it has not."""
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        with Session([("unified_memory", {"gib": 1})]) as session:
            model = nn.Linear(8, 8).cuda()
            torch.optim.SGD(model.parameters(), lr=0.1)
            assert not session.seams.left_out
            torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / total)
            for _ in range(2):
                x = torch.arange(64 << 20, device="cuda", dtype=torch.float32)  # 256 MiB
                assert float(x[-1]) > 6.7e7 and float((x[:1024] + 1).sum()) == 524800.0
                del x
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(2 << 30, device="cuda", dtype=torch.uint8)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("setting", ["expandable_segments:True", "max_split_size_mb:256"])
def test_the_gpus_allocator_takes_its_setting(
    setting: str, script: Callable[[str], Path], overdrive: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    path = script(
        "import os, torch\n"
        "model = torch.nn.Linear(64, 64).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(4):\n"
        "    model(torch.randn(8, 64, device='cuda')).sum().backward(); optimizer.step()\n"
        "print(os.environ['PYTORCH_ALLOC_CONF'])\n"
    )
    plan, record = tmp_path / "plan.toml", tmp_path / "record.json"
    plan.write_text(
        'overdrive = 1\nprogram = "train.py"\ncontract = "exact"\n[[technique]]\nname = "allocator"\n'
        f'settings = {{library = "as it is", gpu = "{setting}"}}\n'
    )
    done = overdrive("run", "--plan", str(plan), "--record", str(record), path.name, cwd=path.parent)
    assert done.returncode == 0 and done.stdout.strip() == setting, done.stderr
    assert json.loads(record.read_text())["steps"] == 4
