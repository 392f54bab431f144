"""Programs that are killed and gone on with, beside one that is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overdrive.techniques.catalogue import catalogue

# DIES is a step at which the process dies as it asks for the time: where no handler and no `finally` helps.
PICTURES = """
import os, random, signal
import torch
nn, F = torch.nn, torch.nn.functional
torch.manual_seed(3); random.seed(4)
AUGMENTS = "AUGMENTS" in os.environ
KIND = torch.float64 if "DOUBLE" in os.environ else torch.float32

class Pictures(torch.utils.data.Dataset):
    def __init__(self):
        self.raw = torch.randint(0, 256, (50, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    def __len__(self):
        return 50
    def __getitem__(self, i):
        x = self.raw[i].to(KIND) / 255
        for _ in range(20):
            x = (x - x.mean()).tanh()
        if AUGMENTS:
            if random.random() < 0.5:
                x = x.flip(2)
            x = x.roll(int(torch.randint(0, 4, (1,))), 1)
        return x, int(self.raw[i].sum().item()) % 4  # asked of a tensor where the sample is fetched, and only there

class Block(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.conv = nn.Conv2d(a, b, 3, padding=1)
        self.norm = nn.Identity() if "NO_NORM" in os.environ else nn.BatchNorm2d(b)
    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = Block(3, 16), Block(16, 16), Block(16, 16)
        self.pool, self.drop, self.out = nn.MaxPool2d(2), nn.Dropout(0.3), nn.Linear(16 * 16, 4)
    def forward(self, x):
        return self.out(self.drop(self.pool(self.c(self.b(self.pool(self.a(x))))).flatten(1)))

model = Net().to(KIND)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
workers = int(os.environ.get("WORKERS", 0))
loader = torch.utils.data.DataLoader(Pictures(), batch_size=8, shuffle=True, num_workers=workers)
step, best = 0, 9.0
for epoch in range(4):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if "OVERFLOWS" in os.environ and step in (5, 15):
            loss = loss * 1e38
        loss.backward(); optimizer.step(); schedule.step(); step += 1
        if loss < best:
            best = loss.item(); torch.save(model.state_dict(), "best.pt")
        print(step, f"{loss:.9f}", random.random(), os.urandom(2).hex())
        if step == int(os.environ.get("DIES", 0)) and not os.path.exists(os.environ.get("DIED", "")):
            os.kill(os.getpid(), int(os.environ.get("BY", signal.SIGKILL)))
    model.eval()
    with torch.no_grad():
        print("accuracy", sum((model(x).argmax(1) == y).sum().item() for x, y in loader))
print(*(f"{p.double().sum().item():.17g}" for p in model.parameters()))
"""


def survive(place: Path, name: str, text: str, *options: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """Runs a script to its end; see `started`."""
    process = started(place, name, text, *options, **how)
    try:
        out, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def started(
    place: Path,
    name: str,
    text: str,
    *options: str,
    dies: int = 0,
    by: int = signal.SIGKILL,
    every: str = "0.001s",
    variables: dict[str, str] | None = None,
    launcher: Sequence[str] = (),
    under: Sequence[str] = (),
    words: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """A script that runs in a folder of its own in `place`, with snapshots all the time.

    Args:
        name: of the folder; the same name goes on with the same run.
        dies: the step at which it is killed.
        variables: of the environment, for the program.
        launcher: Python's words before `-m overdrive`.
        under: the command that starts Python, with its words.
        words: the script's.
    """
    folder = place / name
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(text)
    own = {"OVERDRIVE_SURVIVE_SEED": "1", "OVERDRIVE_CACHE": str(place / f"{name}-cache"), "BY": str(int(by))}
    environment = {**os.environ, **own, "DIES": str(dies), **(variables or {})}
    command = [*launcher, "-m", "overdrive", "run", f"--survive=../{name}-run", "--every", every, *options]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [*under, sys.executable, *command, "train.py", *words], cwd=folder, env=environment, text=True, **pipes
    )


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def plan_of(folder: Path, *techniques: str, program: str = "train.py", **settings: str) -> Path:
    """A plan of these techniques; `settings` are those of each, as TOML."""
    path = folder / "plan.toml"
    parts = [f'overdrive = 1\nprogram = "{program}"\ncontract = "open"']
    for name in techniques:
        part = f'[[technique]]\nname = "{name}"\ncontract = "{catalogue()[name].contract}"'
        parts.append(part + (f"\n\n[technique.settings]\n{settings[name]}" if name in settings else ""))
    path.write_text("\n\n".join(parts) + "\n")
    return path


def told_of_going_on(tmp_path: Path, text: str, dies: int = 17) -> tuple[str, str]:
    """Sees that a program that is killed at a step goes on, prints on and leaves the same files as one that is not.

    Returns: what the killed run and the one that went on said on standard error.
    """
    whole = survive(tmp_path, "whole", text)
    assert whole.returncode == 0, whole.stderr
    first = survive(tmp_path, "killed", text, dies=dies)
    assert first.returncode == -signal.SIGKILL, first.stderr
    second = survive(tmp_path, "killed", text)
    assert second.returncode == 0 and "gone on after step" in second.stderr, first.stderr + second.stderr
    assert first.stdout + second.stdout == whole.stdout
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")
    return first.stderr, second.stderr
