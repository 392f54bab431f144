"""Several ranks, as a training starts them: what each machine reads, keeps and shares. Two processes under gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import BatchSampler, DistributedSampler  # noqa: E402

COUNT = 30

PROGRAM = """
    import json, os, sys, zlib, torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Dataset, DistributedSampler
    from overdrive.worker.session import Session
    from overdrive.datacache.manager import shared

    class Files(Dataset):
        def __init__(self, root):
            self.root, self.names = root, sorted(os.listdir(root))
        def __len__(self):
            return len(self.names)
        def __getitem__(self, index):
            os.write(99, b"%d\\n" % index)  # the log: forked processes fetch as well
            with open(os.path.join(self.root, self.names[index]), "rb") as file:
                return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).float(), index

    if __name__ == "__main__":
        root, meeting, log, rank, shuffle = sys.argv[1:]
        rank, shuffle = int(rank), shuffle == "shuffle"
        os.dup2(os.open(log, os.O_RDWR | os.O_APPEND), 99)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
        left_out, crcs, fetched = [], [], []
        with Session([("sample_cache", {})], on_left_out=lambda *why: left_out.append(why)) as session:
            data = Files(root)
            sampler = DistributedSampler(data, shuffle=shuffle)
            loader = DataLoader(data, 4, sampler=sampler)
            for epoch in range(3):
                sampler.set_epoch(epoch)
                crc = 0
                for x, y in loader:
                    dist.all_reduce(x.sum())
                    crc = zlib.crc32(y.numpy().tobytes(), zlib.crc32(x.numpy().tobytes(), crc))
                crcs.append(crc)
                dist.barrier()
                fetched.append(len(open(log).read().split()))
            kept = [each.table.count for each in shared(session.seams, 0.5).kept]
        dist.barrier()
        print(json.dumps({"left_out": left_out, "crcs": crcs, "kept": kept, "fetched": fetched}))
        dist.destroy_process_group()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    for number in range(COUNT):
        (root / f"{number:02d}.bin").write_bytes(bytes([number] * 10))
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    os.utime(script, (1e9, 1e9))
    return script


def plain(shuffle: bool) -> list[list[int]]:
    """What each rank's epochs come to without us."""
    found = []
    for rank in (0, 1):
        sampler: Any = DistributedSampler(range(COUNT), 2, rank, shuffle=shuffle)
        crcs = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            crc = 0
            for batch in BatchSampler(sampler, 4, False):
                x = torch.tensor([[float(index)] * 10 for index in batch])
                crc = zlib.crc32(torch.tensor(batch).numpy().tobytes(), zlib.crc32(x.numpy().tobytes(), crc))
            crcs.append(crc)
        found.append(crcs)
    return found


def ranks(program: Path, shuffle: bool, caches: list[Path]) -> list[dict[str, Any]]:
    """What both ranks told; with `reads`, how often each fetched which sample, trials included."""
    meeting = program.parent / "meeting"
    meeting.unlink(missing_ok=True)
    running, logs = [], []
    for rank, cache in enumerate(caches):
        log = program.parent / f"log-{rank}"
        log.write_text("")
        logs.append(log)
        words = [str(program.parent / "data"), str(meeting), str(log), str(rank), "shuffle" if shuffle else "fixed"]
        environment = {**os.environ, "OVERDRIVE_CACHE": str(cache)}
        command = [sys.executable, str(program), *words]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
    told = [json.loads(each.communicate(timeout=200)[0].splitlines()[-1]) for each in running]
    for each, log in zip(told, logs, strict=True):
        each["reads"] = Counter(map(int, log.read_text().split()))
    return told


def tables(folder: Path) -> list[dict[str, Any]]:
    assert not list(folder.glob("partial*"))
    return [json.loads(path.read_text()) for path in folder.glob("*/manifest.json")]


def test_each_machine_reads_and_keeps_only_its_share_where_the_sampler_is_fixed(program: Path, tmp_path: Path) -> None:
    caches = [tmp_path / "one", tmp_path / "two"]
    told = ranks(program, False, caches)
    for rank, (each, cache) in enumerate(zip(told, caches, strict=True)):
        assert each["left_out"] == [] and each["crcs"] == plain(False)[rank]
        assert set(each["reads"]) == set(range(rank, COUNT, 2))
        assert each["kept"] == [COUNT // 2] and [table["count"] for table in tables(cache)] == [COUNT // 2]
        assert each["fetched"][0] == each["fetched"][-1]  # nothing after the first epoch
    again = ranks(program, False, caches)
    for rank, each in enumerate(again):
        assert each["crcs"] == plain(False)[rank] and set(each["reads"]) <= set(range(rank, COUNT, 2))
        assert each["reads"].total() == each["fetched"][0] <= 16  # those that a stored table is compared by


def test_ranks_of_one_machine_keep_their_shares_side_by_side(program: Path, tmp_path: Path) -> None:
    caches = [tmp_path / "one", tmp_path / "one"]
    told = ranks(program, False, caches)
    assert [set(each["reads"]) for each in told] == [set(range(rank, COUNT, 2)) for rank in (0, 1)]
    assert [table["count"] for table in tables(caches[0])] == [COUNT // 2] * 2


def test_ranks_of_one_machine_that_shuffle_fill_one_table_each_with_what_it_reads(
    program: Path, tmp_path: Path
) -> None:
    caches = [tmp_path / "one", tmp_path / "one"]
    told = ranks(program, True, caches)
    for rank, each in enumerate(told):
        assert each["left_out"] == [] and each["crcs"] == plain(True)[rank] and each["kept"] == [COUNT]
        assert each["fetched"][0] == each["fetched"][-1]  # the other one's half lies there after the first epoch
    assert [table["count"] for table in tables(caches[0])] == [COUNT]
