"""Every command of the documentation that names a program, run in earnest, in a folder that has what pages speak of."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.conftest import IMPORT_TORCH, Run
from tests.test_docs import COMMANDS_IN_DOCS, STANDS_FOR

pytestmark = [pytest.mark.long, pytest.mark.timeout(280)]

TRAIN = f"""{IMPORT_TORCH}
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--batch-size", type=int, default=8)
options, _ = parser.parse_known_args()  # of all pages

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 1200

    def __getitem__(self, index):
        return torch.randn(8, generator=torch.Generator().manual_seed(index)), index % 2

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
right = seen = 0
for epoch in range(8):
    for samples, labels in torch.utils.data.DataLoader(Samples(), options.batch_size, shuffle=True):
        outputs = model(samples)
        loss = torch.nn.functional.cross_entropy(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right, seen = right + int((outputs.argmax(1) == labels).sum()), seen + len(labels)
print(f"Accuracy: {{100 * right / seen:.2f}}")
"""
SHORT = TRAIN.replace("range(8)", "range(1)")  # for a search, which runs it some twelve times
INFER = f"""{IMPORT_TORCH}
torch.manual_seed(0)
model = torch.nn.Linear(512, 512).eval()
with torch.no_grad():
    print(sum(int(model(torch.randn(64, 512)).argmax(1).sum()) for _ in range(3000)))
"""
PLAN = 'overdrive = 1\nprogram = "{}"\ncontract = "rounding"\n{}[[technique]]\nname = "{}"\n'
PLANS = {
    **dict.fromkeys(
        ("train.overdrive.toml", "other.toml", "A", "B", "samples/plan.toml"),
        PLAN.format("train.py", "", "fused_optimizer"),
    ),
    "infer.overdrive.toml": PLAN.format("infer.py", "inference = true\n", "channels_last"),
    "answers.txt": "an answer\n",
}
ELSEWHERE = ("--ranks", "mnist_keras", "--pool", "doctor --fresh")  # make test-cluster, make test-keras; takes a minute
ELSEWHERE += ("overdrive export",)  # tests/targets: it takes all of PyTorch, and its engine
SBATCH = "#!/bin/sh\ncat > given.sh\necho 41\n"
BUDGETS = {"tune": "6s", "search": "90s"}
WAYS = {"doctor": (0, 1), "tune": (0,)}


def commands() -> list[list[str]]:
    """Without those that only name an option, which nobody could type; one of those that differ in the script's."""
    found = sorted({line for _, line in COMMANDS_IN_DOCS})
    alone = ("overdrive report A B", "overdrive report train.overdrive.toml", "overdrive techniques", "doctor --quick")
    named = [line for line in found if re.search(r"\.py\b|SCRIPT", line) or line.removeprefix("overdrive ") in alone]
    named += [line for line in alone if line in found]
    given = [words_of(line) for line in dict.fromkeys(named) if not any(part in line for part in ELSEWHERE)]
    own = r" (ARGS\.\.\.|--epochs \d+|--data \w+)$"
    return list({re.sub(own, "", " ".join(words)): words for words in given}.values())


def words_of(line: str) -> list[str]:
    """As a shell gives them, with a budget that a test has."""
    plain = re.sub(r"\[ARGS\]\.\.\.|…|\|\|.*", "", line).replace("[", "").replace("]", "")
    words = [STANDS_FOR.get(word, word) for word in shlex.split(plain)][1:]
    words = [re.sub(r"^/scratch/", "scratch/", word.replace("=/scratch/", "=scratch/")) for word in words]
    program = next((place for place, word in enumerate(words) if word.endswith(".py")), 0)
    if "--budget" in words[:program]:
        words[words.index("--budget") + 1] = BUDGETS.get(words[0], "6s")
    elif words[0] in BUDGETS:
        words[1:1] = ["--budget", BUDGETS[words[0]]]
    return words


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_of_the_docs_does_what_it_is_shown_for(
    words: list[str], tmp_path: Path, overdrive: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train.py", "run_glue.py", "infer.py", "server.py"):
        train = SHORT if words[0] == "search" else TRAIN
        (tmp_path / name).write_text(INFER if name in ("infer.py", "server.py") else train)
    for name, text in PLANS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    if words[0] == "pack":
        shutil.rmtree(tmp_path / "samples")
    (tmp_path / "scratch").mkdir()
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(SBATCH)
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:{os.environ['PATH']}")
    done = overdrive(*words, cwd=tmp_path)
    assert done.returncode in WAYS.get(words[0], (0,)), done.stderr
    assert "Traceback" not in done.stderr and "defect of its own" not in done.stderr
