"""What is found in real programs, and that what is set arrives: each test is some short trials."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from overdrive.core.hyperparameters import OPTIMIZER, OPTION, Hyperparameters, ValuePlace
from overdrive.core.metric import Metric
from overdrive.core.program import Program
from overdrive.core.records import TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.search.conduct import _chosen
from overdrive.search.domain import DomainError, Wish, domain_of
from overdrive.search.listing import CannotList, ParameterList, listing
from overdrive.search.model_tree import tree_diff
from overdrive.search.names import USUAL
from overdrive.search.parameters import Parameter, Values, find, set_in
from overdrive.search.search import CannotSearch
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial
from tests.conftest import IMPORT_TORCH
from tests.warm_trials import WarmPool

pytest.importorskip("torch")

START = f"""{IMPORT_TORCH}
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x, y = torch.randn(96, 5), torch.randn(96, 1)
"""
LOOP = """
for epoch in range(2):
    for a, b in loader:
        with torch.no_grad():
            for c, _ in DataLoader(TensorDataset(x, y), batch_size=48):
                pass
        print("given", len(a), "dropout", [m.p for m in model if isinstance(m, nn.Dropout)])
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
LITERALS = f"""{START}
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.25), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
print("batches", len(loader))
before = [p.detach().clone() for p in model.parameters()]
{LOOP}
print("moved", sum(float((p - q).abs().sum()) for p, q in zip(model.parameters(), before)))
"""
NAMED = f"""
BATCH = 16
config = {{"lr": 0.05}}
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--width", type=int, default=16)
args = parser.parse_args()
{START}
loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)
model = nn.Sequential(nn.Linear(5, args.width), nn.Linear(args.width, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=args.momentum)
{LOOP}
"""
FIELDS = NAMED.replace(
    """
BATCH = 16
""",
    """
from dataclasses import dataclass, fields
@dataclass
class Args:
    lr: float = 0.05
    patience: int = 7
BATCH = 16
""",
).replace(
    "args = parser.parse_args()",
    'for each in fields(Args): parser.add_argument("--" + each.name, type=float, default=each.default)\n'
    "args = parser.parse_args()",
)
BY_HAND = f"""
lr = 0.05
bs = 8
{START}
model = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 1))
for step in range(100000):
    i = torch.randint(0, 96, (bs,))
    nn.functional.mse_loss(model(x[i]), y[i]).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * p.grad
            p.grad = None
"""
NAMELESS = f"""{START}
model = nn.RNN(5, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
def get_batch(n, length=7):
    return torch.randn(length, n, 5)
def evaluate():
    return model(get_batch(32))[0].mean()
for step in range(4):
    given = get_batch(32)
    print("given", given.shape[1], given.shape[0])
    loss = model(given)[0].pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
print("at the end", float(evaluate()))
"""
VARIABLES = f"""
import os
{START}
loader = DataLoader(TensorDataset(x, y), batch_size=int(os.environ.get("BATCH_SIZE", 16)), shuffle=True)
model = nn.Sequential(nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=float(os.getenv("RATE", "0.05")))
seed = int(os.environ.get("SOME_NUMBER", "7"))
{LOOP}
"""
CONFIGURED = f"""
batch = 16
rate = 0.05
import sys
for word in sys.argv[1:]:
    if "=" in word:
        name, _, value = word[2:].partition("=")
        globals()[name] = type(globals()[name])(float(value))
    else:
        exec(open(word).read())
{START}
model = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for step in range(8):
    i = torch.randint(0, 96, (batch,))
    print("given", len(i))
    loss = nn.functional.mse_loss(model(x[i]), y[i])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
IN_A_MODULE = f"""
import own_settings
from own_settings import BATCH, Config
def main():
    {START.replace(chr(10), chr(10) + "    ")}
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)
    model = nn.Sequential(nn.Linear(5, own_settings.HIDDEN), nn.Linear(own_settings.HIDDEN, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=Config.lr)
    {LOOP.replace(chr(10), chr(10) + "    ")}
    print("at the end", model[0].out_features, own_settings.OTHER)
main()
"""
COMMANDS = f"""
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
train = parser.add_subparsers(dest="what", required=True).add_parser("train")
train.add_argument("--bs", type=int, default=16)
args = parser.parse_args()
{START}
loader = DataLoader(TensorDataset(x, y), batch_size=args.bs)
model = nn.Sequential(nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
{LOOP}
"""
IN_A_FUNCTION = BY_HAND.replace("lr = 0.05\nbs = 8", "lr = 0.05").replace(
    "model = nn", "def size():\n    batch_size = 24\n    return batch_size\nbs = size()\nmodel = nn"
)
RANDINT = "torch.randint(0, 64, (64,))"
DRAWN = f"""{START}
model = nn.Linear(5, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(4):
    drawn = {RANDINT}
    print("given", len(drawn))
    loss = model(x[drawn]).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
DEEP = f"""
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=4)
args = parser.parse_args()
{START}
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(5, 24), nn.Linear(24, 5)
    def forward(self, x):
        return x + self.down(self.up(x).relu())
model = nn.Sequential(nn.Sequential(*[Block() for _ in range(args.layers)]), nn.Linear(5, 12), nn.Linear(12, 1))
model[1].register_forward_hook(lambda module, given, result: result.view(-1, 12))  # it has no other size
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
{LOOP}
print("at the end", len(model[0]), "hidden", model[0][0].up.weight.shape[0])
"""
OF_TWO_MODELS = f"""{START}
class Generator(nn.Sequential): pass
class Critic(nn.Sequential): pass
generator = Generator(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 5))
critic = Critic(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 1))
loader = DataLoader(TensorDataset(x, y), batch_size=16)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.05) for each in (generator, critic)]
for epoch in range(2):
    for a, b in loader:
        nn.functional.mse_loss(critic(generator(a)), b).backward()
        for each in optimizers:
            each.step()
print("hidden", generator[0].out_features, critic[0].out_features)
"""
DELICATE = NAMED.replace("args = parser.parse_args()", "args = parser.parse_args()\nassert args.momentum == 0.9")


@pytest.fixture
def pool() -> Iterator[TrialPool]:
    with WarmPool() as made:
        yield made


def listed(pool: TrialPool, path: Path, *words: str) -> dict[str, Parameter]:
    return {each.name: each for each in listing(pool, Program(str(path), words)).parameters if each.told}


def test_values_that_stand_nowhere_by_name_are_found_at_the_seams(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    found = listed(pool, script(LITERALS))
    assert {name: each.default for name, each in found.items()} == {
        "lr": 0.05,
        "batch-size": 16,  # the training's, not the evaluation's
        "weight-decay": 0.0,
        "momentum": 0.9,
        "anneal": 0.0,
        "dropout": 0.25,
        "width": 8,
    }
    assert found["lr"].place.startswith("learning rate of SGD (train.py:")
    changed = {"lr": 0.5, "batch-size": 32, "dropout": 0.5}
    plain, other = output(pool, script(LITERALS), {}), output(pool, script(LITERALS), changed)
    assert "batches 6" in plain and "given 16 dropout [0.25]" in plain
    assert "batches 3" in other and "given 32 dropout [0.5]" in other
    moved = [float(text.split("moved ")[1].split()[0]) for text in (plain, other)]
    assert moved[1] > 2 * moved[0]


def test_options_and_constants_that_decide_a_seams_value_are_named(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    found = listed(pool, script(NAMED))
    assert found["lr"].place.startswith("constant config.lr") and found["lr"].tried
    assert "learning rate of SGD" in found["lr"].effect
    assert found["batch-size"].place.startswith("constant BATCH")  # --width has the same value
    assert found["momentum"].place == "option --momentum"
    assert found["width"].place == "option --width" and found["width"].effect == "hidden size of Sequential.0"
    assert "given 32" in output(pool, script(NAMED), {"batch-size": 32})


def test_a_field_of_a_data_class_that_an_option_sets_is_that_option(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    found = listed(pool, script(FIELDS), "--patience", "9")
    assert found["patience"].place == "option --patience" and found["patience"].default == 9
    assert not any(each.place.startswith("constant Args.") for each in found.values())


def test_where_other_values_break_the_program_equal_ones_are_all_that_is_known(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    found = listed(pool, script(DELICATE))
    assert found["momentum"].place == "option --momentum" and not found["momentum"].tried
    assert "by its value" in found["momentum"].effect


ODD = """
import torch

class Odd(torch.nn.Linear):
    def children(self):
        raise NotImplementedError("not of this one")

net = Odd(4, 1)
optimizer = torch.optim.SGD(list(net.parameters()), lr=0.05)
for _ in range(12):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).sum().backward()
    optimizer.step()
"""


def test_of_a_model_that_cannot_be_looked_into_all_else_is_listed(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    found = listed(pool, script(ODD))
    assert found["lr"].default == 0.05 and "width" not in found


def test_a_program_without_an_optimizer_has_its_names(pool: TrialPool, script: Callable[[str], Path]) -> None:
    found = listed(pool, script(BY_HAND))
    assert found["lr"].place.startswith("constant lr")
    assert "batch size of the model's input" in found["batch-size"].effect


def test_variables_of_the_environment_that_decide_a_value(pool: TrialPool, script: Callable[[str], Path]) -> None:
    found = listed(pool, script(VARIABLES))
    assert found["batch-size"].place == "variable BATCH_SIZE of the environment" and found["batch-size"].tried
    assert found["lr"].place == "variable RATE of the environment" and found["lr"].default == 0.05
    assert not any(each.default == 7 for each in found.values())  # it may be anything
    assert "given 32" in output(pool, script(VARIABLES), {"batch-size": 32})


@pytest.mark.parametrize(
    ("text", "place", "given"),
    [
        (NAMELESS, r"number in get_batch\(\) \(train.py:\d+:23\)", "given 8 7"),  # not what it evaluates on
        (DRAWN, r"number in randint\(\) \(train.py:\d+:35\)", "given 8"),
        pytest.param(
            DRAWN.replace(RANDINT, "torch.randperm(96).split(64)[0]"),
            r"number in split\(\) .*",
            "given 8",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_batch_size_that_is_a_number_in_a_call_is_found_by_what_it_moves(
    text: str, place: str, given: str, pool: TrialPool, script: Callable[[str], Path]
) -> None:
    found = listed(pool, script(text))
    assert re.fullmatch(place, found["batch-size"].place) and found["batch-size"].tried
    assert found["batch-size"].effect == "batch size of the model's input"
    assert [each.places[0].kind for each in found.values()].count("literal") == 1
    told = output(pool, script(text), {"batch-size": 8})
    assert told.count(given) == 4, told


def test_constants_of_a_module_that_the_program_imports(pool: TrialPool, script: Callable[[str], Path]) -> None:
    path = script(IN_A_MODULE)
    own = path.with_name("own_settings.py")
    own.write_text("BATCH = 16\nHIDDEN = 12\nOTHER = 16\nclass Config:\n    lr = 0.05\n")
    found = listed(pool, path)
    assert found["lr"].place == "constant Config.lr (own_settings.py:5)" and found["lr"].tried
    assert found["batch-size"].place == "constant BATCH (own_settings.py:1)"
    assert found["width"].place == "constant HIDDEN (own_settings.py:2)"
    assert not any(each.places[0].name == "OTHER" for each in found.values())  # it may be anything
    told = output(pool, path, {"batch-size": 32, "width": 24, "other": 5})  # but it is set where it is asked for
    assert "given 32" in told and "at the end 24 5" in told
    assert own.read_text().startswith("BATCH = 16")


def test_constants_of_a_package_that_pip_put_into_another_folder_are_no_programs(
    pool: TrialPool, script: Callable[[str], Path], tmp_path: Path
) -> None:
    """As `pip install --target` does, on machines whose Python is not the user's to write to."""
    folder = tmp_path / "libs"
    (folder / "painter-1.0.dist-info").mkdir(parents=True)
    (folder / "painter-1.0.dist-info" / "RECORD").write_text("painter.py,sha256=x,9\npainter-1.0.dist-info/RECORD,,\n")
    (folder / "painter.py").write_text("depth = 3\n")
    (folder / "mine.py").write_text("depth = 2\n")
    found = listed(pool, script(f"import sys\nsys.path.append({str(folder)!r})\nimport painter, mine\n{LITERALS}"))
    assert [each.places[0].value for each in found.values() if each.places[0].kind == "imported"] == [2]


def test_words_that_a_program_reads_itself_are_found_where_a_file_has_set_what_they_would(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    path = script(CONFIGURED)
    path.with_name("small.py").write_text("batch = 24\nrate = 0.1\n")
    found = listed(pool, path, str(path.with_name("small.py")))
    assert found["batch-size"].place == "option --batch" and found["batch-size"].default == 24
    assert found["lr"].place == "option --rate" or found["lr"].place.startswith("learning rate of SGD")
    deaf = script(CONFIGURED.replace('if "=" in word:', 'if "=" in word:\n        continue\n    if False:'))
    assert "batch-size" not in listed(pool, deaf, str(path.with_name("small.py")))


def test_an_option_of_a_parser_with_commands(pool: TrialPool, script: Callable[[str], Path]) -> None:
    found = listed(pool, script(COMMANDS), "train")
    assert found["lr"].place == "option --lr" and found["batch-size"].place == "option --bs"
    assert found["lr"].tried and found["batch-size"].tried


def test_a_batch_size_that_a_function_names(pool: TrialPool, script: Callable[[str], Path]) -> None:
    found = listed(pool, script(IN_A_FUNCTION))
    assert found["batch-size"].place.startswith("number in size.batch_size (train.py:")


def test_a_rate_that_the_program_sets_before_each_step_is_scaled(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    own = "optimizer.param_groups[0]['lr'] = 0.05 / (1 + epoch)"
    path = script(LITERALS.replace("loss.backward();", f"loss.backward(); {own};"))
    moved = [float(output(pool, path, each).split("moved ")[1].split()[0]) for each in ({}, {"lr": 0.0005})]
    assert 0 < moved[1] < moved[0] / 20


def test_what_a_schedule_has_of_its_own_is_not_listed(pool: TrialPool, script: Callable[[str], Path]) -> None:
    """`OneCycleLR` sets the momentum in each step, whatever the optimizer was made with."""
    cycle = 'torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=20)\nprint("batches"'
    found = listed(pool, script(LITERALS.replace('print("batches"', cycle)))
    assert "momentum" not in found and "weight-decay" in found and "lr" in found


def test_trials_of_smaller_models_are_made_only_where_these_are_wanted(
    pool: TrialPool, script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(str(script(LITERALS)))
    monkeypatch.setattr("overdrive.search.listing._that_can_change", lambda *_: pytest.fail("it is not wanted"))
    found = {each.meaning for each in listing(pool, program, models=False).parameters}
    assert {"lr", "batch-size"} <= found and not found & {"depth", "width"}


def test_depth_and_width_of_a_model_are_found_where_the_program_lives_with_others(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    found = listed(pool, script(DEEP))
    assert found["depth"].place == "option --layers" and found["depth"].tried
    assert found["depth"].effect == "number of blocks in Sequential.0"
    assert (
        found["width"].place
        == "hidden size of " + ", ".join(f"Sequential.0.{at}.up" for at in range(3)) + " and 1 more"
    )
    assert not any(each.default == 12 for each in found.values())
    assert (str(domain_of(found["depth"])), str(domain_of(found["width"]))) == ("2..8", "6, 8, 24, 48")
    other = output(pool, script(DEEP), {"depth": 2, "width": 48})
    assert "at the end 2 hidden 48" in other
    literal = script(DEEP.replace("range(args.layers)", "range(3)"))
    depth = listed(pool, literal)["depth"]
    assert depth.place == "number of blocks in Sequential.0" and str(domain_of(depth)) == "1..3"
    assert "at the end 5 hidden 24" in output(pool, literal, {"depth": 5})


def test_a_size_that_two_models_have_is_told_by_the_layers_of_both(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    """Of a public GAN, "hidden size of model.0" was told of what sets a layer of its other model, too."""
    found = listed(pool, script(OF_TWO_MODELS))
    assert found["width"].place == "hidden size of Generator.0; Critic.0"
    assert "hidden 48 48" in output(pool, script(OF_TWO_MODELS), {"width": 48})


def test_the_batch_size_of_a_loader_whose_batches_another_one_takes(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    """As Accelerate makes one of its own of the program's; a constant of the same value is seen to be none."""
    path = script(f"""MAX_BATCH_SIZE = 16
{START}
first = DataLoader(TensorDataset(x, y), batch_size=int("16"), shuffle=True)
loader = DataLoader(first.dataset, batch_sampler=first.batch_sampler)
model = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
{LOOP}
""")
    found = listed(pool, path)
    assert found["batch-size"].place.startswith("batch size of DataLoader")
    assert found["max-batch-size"].places[0].name == "MAX_BATCH_SIZE"
    assert "given 8 " in output(pool, path, {"batch-size": 8})


def test_a_limit_is_not_taken_for_what_it_limits(pool: TrialPool, script: Callable[[str], Path]) -> None:
    """Of Accelerate's example, `MAX_GPU_BATCH_SIZE` was varied as the batch size: with 32 and 64 nothing changed."""
    limited = 'batch_size=min(int("16"), MAX_BATCH_SIZE)'
    path = script("MAX_BATCH_SIZE = 16\n" + LITERALS.replace("batch_size=16", limited))
    assert listed(pool, path)["batch-size"].place.startswith("batch size of DataLoader")
    assert "given 32 " in output(pool, path, {"batch-size": 32})


def test_a_program_that_fails_is_told_so(pool: TrialPool, script: Callable[[str], Path]) -> None:
    with pytest.raises(CannotList, match=r"fails by itself: ValueError: no data\.$"):
        listing(pool, Program(str(script("raise ValueError('no data')"))))


def output(pool: TrialPool, path: Path, values: Values) -> str:
    """What the program prints under these values."""
    parameters = listing(pool, Program(str(path))).parameters
    for name in values:
        find(parameters, name)
    program, keys = set_in(Program(str(path)), parameters, values)
    trial = Trial(pool, TrialSpec(program, hyperparameters=Hyperparameters(keys)))
    try:
        trial.first_step()
        while True:
            trial.run(100)
    except TrialOver as over:
        assert over.exit_reason.kind == "ended"
        return trial.output_tail(1 << 20)
    finally:
        trial.stop()


ATTENDING = f"""{IMPORT_TORCH}
import argparse
from torch import nn
torch.manual_seed(0)
parser = argparse.ArgumentParser()
parser.add_argument("--nhead", type=int, default=4)
args = parser.parse_args()
layer = nn.TransformerEncoderLayer(12, args.nhead, 20, 0.0, batch_first=True)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen, self.layer = nn.Conv1d(1, 12, 3, padding=1), layer
    def forward(self, x):
        return self.layer(self.seen(x).transpose(1, 2))
model = Net()
optimizer = torch.optim.Adam(model.parameters(), 0.01)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(2, 1, 6)).mean().backward()
    optimizer.step()
print("at the end", model.layer.self_attn.num_heads, model.seen.kernel_size, model.seen.padding)
"""


def test_the_time_for_the_first_step_is_what_the_caller_has(pool: TrialPool, script: Callable[[str], Path]) -> None:
    path = script("lr = 0.1\nimport time\ntime.sleep(5)")
    with pytest.raises(CannotList, match="No training step was seen within 1 s"):
        listing(pool, Program(str(path)), patience=1.0)
    assert [each.name for each in listing(pool, Program(str(path)), patience=60.0).parameters] == ["lr"]


def test_a_batch_size_is_not_judged_by_the_loss_of_its_batches(pool: TrialPool, script: Callable[[str], Path]) -> None:
    found = listing(pool, Program(str(script(LITERALS))), models=False)
    assert set(_chosen(found, [], False, Metric())[1]) == {"lr"}
    assert set(_chosen(found, [], False, Metric("Accuracy"))[1]) == {"lr", "batch-size"}
    with pytest.raises(CannotSearch, match=r"batch-size cannot be judged by the training loss.* --metric"):
        _chosen(found, [Wish("batch-size")], False, Metric())
    several = replace(found, parameters=(*found.parameters, Parameter("accum", (ValuePlace(OPTION, "--accum", 4),))))
    with pytest.raises(CannotSearch, match="anneal and accum cannot be varied together"):
        _chosen(several, [Wish("anneal"), Wish("accum")], False, Metric("Accuracy"))


def test_a_batch_size_that_is_worked_out_later_is_not_varied_unasked() -> None:
    """As in CleanRL's PPO, whose field `batch_size: int = 0` is filled in at run time: the search ended at once."""
    places = [ValuePlace(OPTIMIZER, "lr", 0.1), ValuePlace(OPTION, "--batch-size", 0)]
    found = ParameterList(tuple(Parameter(usual, (each,)) for usual, each in zip(USUAL, places, strict=True)), None)
    assert set(_chosen(found, [], False, Metric("Reward"))[1]) == {"lr"}
    with pytest.raises(DomainError, match="batch-size has no range of its own"):
        _chosen(found, [Wish("batch-size")], False, Metric("Reward"))


def test_heads_and_kernels_are_found_and_an_option_that_decides_them_is_what_is_varied(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    path = script(ATTENDING)
    found = listed(pool, path)
    assert found["heads"].place == "option --nhead" and found["heads"].tried
    assert found["heads"].effect == "number of heads of layer.self_attn" and str(domain_of(found["heads"])) == "2, 4"
    assert found["kernel"].place == "kernel size of seen" and str(domain_of(found["kernel"])) == "1, 3, 5"
    assert "at the end 2 (5,) (2,)" in output(pool, path, {"heads": 2, "kernel": 5})
    program = Program(str(path))
    parts = listing(pool, program)
    diff = tree_diff(pool, program, parts, {"kernel": 5})
    assert [line[0] for line in diff if line[0] in "+-"] == ["-", "+"] and "kernel_size=(5,)" in diff[-2] + diff[-1]
    assert tree_diff(pool, program, parts, {"lr": 0.1}) == ()
    domains = _chosen(parts, [Wish("lr")], True, Metric())[1]
    assert {"lr", "heads", "kernel", "width"} <= set(domains)
