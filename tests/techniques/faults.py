"""Errors put into techniques at random moments of a small real program, and what the program prints and leaves then.

A fault is raised once: by a subscriber of the technique (before it acts, in its middle, after it), by a function of the
technique's own modules, or by the program's model while the technique acts on it (as `.view()` does under another
layout). Events are counted in a run without a fault; which one fails, and how, a seed decides.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import pkgutil
import random
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from overdrive.core.contract import Contract
from overdrive.core.rng import States
from overdrive.seams import points
from overdrive.seams.torch.internals import in_backward
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.technique import Technique
from overdrive.worker.session import Session
from tests.settings import settings_kept

KINDS = ("subscriber", "function", "model")
EPOCHS, TRAINED, JUDGED, BATCH = 3, 32, 16, 8


class Injected(RuntimeError):
    pass


class Samples(Dataset[Any]):
    """Images (or rows), with an augmentation that draws from Python's generator, NumPy's and PyTorch's."""

    def __init__(self, count: int, shape: tuple[int, ...], dtype: torch.dtype, augment: bool) -> None:
        generator = torch.Generator().manual_seed(count)
        self.samples = torch.rand(count, *shape, dtype=dtype, generator=generator)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        sample = self.samples[index].clone()
        for _ in range(4):
            sample = sample.sqrt().square()
        if self.augment:
            if random.random() < 0.5:
                sample = sample.flip(-1)
            sample = sample + 0.1 * float(np.random.randn()) + 0.1 * torch.rand(1, dtype=sample.dtype)
        return sample, index % 5


class Brittle(nn.Module):
    """The identity, in the midst of a model, where a fault may be raised; it counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.raises: Callable[[], None] = lambda: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls % 7 == 0:
            print("call", self.calls)
        self.raises()
        return x


class Images(nn.Module):
    shape: tuple[int, ...] = (3, 16, 16)

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.drop = nn.Dropout(0.3)
        self.brittle = Brittle()
        self.second = nn.Sequential(nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12), nn.ReLU())
        self.head = nn.Linear(12 * 6 * 6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.brittle(self.drop(self.first(x)))).flatten(1))


class Rows(nn.Module):
    """Blocks that repeat, without batch normalisation or state: it can be called in parts, and its blocks again."""

    shape: tuple[int, ...] = (48,)

    def __init__(self) -> None:
        super().__init__()

        def block() -> nn.Module:
            return nn.Sequential(nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 48), nn.Dropout(0.2))

        self.first = nn.Sequential(block(), block())
        self.second = nn.Sequential(block(), nn.Linear(48, 5))
        self.raises: Callable[[], None] = lambda: None

    @property
    def brittle(self) -> Rows:
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        self.raises()
        return self.second(x)


@dataclass
class Case:
    """How a technique is run here."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    model: type[nn.Module] = Images
    dtype: torch.dtype = torch.float32
    workers: int = 0
    besides: tuple[Any, ...] = ()  # other techniques
    backward: bool = True  # whether faults are raised in the backward pass as well
    last: bool = False  # what its answers change of the program they change last, or put back: none fails after it

    def __str__(self) -> str:
        return "-".join((self.name, *map(str, self.settings.values())))


@dataclass
class Outcome:
    lines: list[str]
    state: dict[str, Any]
    error: BaseException | None
    left_out: dict[str, str]
    events: int = 0
    lines_then: int = -1  # how many lines had been printed when the fault was raised; -1: it was not


class Plan:
    """Which event fails and how; without a `target` events are only counted."""

    def __init__(self, target: int = -1, how: str = "before", off: bool = False) -> None:
        self.events = 0
        self.target = target
        self.how = how
        self.off = off  # the technique is switched off there instead
        self.switch: Callable[[], None] = lambda: None
        self.lines: Callable[[], int] = lambda: 0
        self.lines_then = -1
        self.backward, self.last = True, False

    def due(self) -> bool:
        if not self.backward and in_backward():
            return False
        self.events += 1
        if self.events - 1 != self.target:
            return False
        self.lines_then = self.lines()
        return True


class Faulty:
    """Stands in for a subscriber or a function, and is equal to it."""

    def __init__(self, act: Callable[..., Any], plan: Plan, point: Any = None) -> None:
        self.act, self.plan, self.point = act, plan, point

    def __eq__(self, other: object) -> bool:
        return other == self.act

    def __hash__(self) -> int:
        return hash(self.act)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        plan = self.plan
        if not plan.due():
            return self.act(*args, **kwargs)
        if plan.off:
            return self._switched_off(args, kwargs)
        if plan.how == "before" or (plan.last and self.point is points.Answer):
            raise Injected("before")
        if plan.how == "middle" and self.point is points.Around:

            def call(*given: Any, **named: Any) -> Any:
                args[1](*given, **named)
                raise Injected("in the middle")

            return self.act(args[0], call, *args[2:], **kwargs)
        self.act(*args, **kwargs)
        raise Injected("after")

    def _switched_off(self, args: Any, kwargs: Any) -> Any:
        """What it makes of a call or a tensor is of no use when it fails; what it changed on an event is there."""
        if self.point is points.Event and self.plan.how != "before":
            self.act(*args, **kwargs)
        self.plan.switch()
        if self.point is points.Around:
            return args[1](*args[2:], **kwargs)
        return args[0] if self.point is points.Transform else None


@contextlib.contextmanager
def faulty_subscribers(name: str, plan: Plan) -> Iterator[None]:
    """All subscribers of a technique are counted, and one fails."""
    plain, innermost = points.Point.subscribe, points.Point.subscribe_innermost

    def wrapped(point: Any, act: Any) -> Any:
        return Faulty(act, plan, type(point)) if point.hub.owner == name else act

    points.Point.subscribe = lambda self, act, always=False: plain(self, wrapped(self, act), always)  # type: ignore
    points.Point.subscribe_innermost = lambda self, act: innermost(self, wrapped(self, act))  # type: ignore
    try:
        yield
    finally:
        points.Point.subscribe, points.Point.subscribe_innermost = plain, innermost  # type: ignore


def modules_of(technique: Technique) -> list[types.ModuleType]:
    module = importlib.import_module(type(technique).__module__)
    if not module.__name__.endswith(".technique"):
        return [module]
    package = importlib.import_module(module.__name__.rpartition(".")[0])
    return [
        importlib.import_module(f"{package.__name__}.{each.name}")
        for each in pkgutil.iter_modules(package.__path__)
        if "keras" not in each.name
    ]


@contextlib.contextmanager
def faulty_functions(name: str, plan: Plan) -> Iterator[None]:
    """All functions and methods of a technique's own modules are counted, and one fails."""
    replaced: list[tuple[Any, str, Any]] = []

    def stand_in(function: Any) -> Any:
        faulty = Faulty(function, plan)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return faulty(*args, **kwargs)

        return wrapped

    def replace(holder: Any, own: str) -> None:
        for key, value in list(vars(holder).items()):
            if isinstance(value, types.FunctionType) and value.__module__ == own and not key.startswith("__"):
                replaced.append((holder, key, value))
                setattr(holder, key, stand_in(value))

    for module in modules_of(catalogue()[name]):
        for value in list(vars(module).values()):
            others = (Technique, torch.autograd.Function, BaseException)
            if isinstance(value, type) and value.__module__ == module.__name__ and not issubclass(value, others):
                replace(value, module.__name__)
        replace(module, module.__name__)
    try:
        yield
    finally:
        for holder, key, value in reversed(replaced):
            setattr(holder, key, value)


def run(case: Case, plan: Plan | None = None, kind: str = "", techniques: bool = True) -> Outcome:
    """The program under the technique (or plainly), with a fault."""
    plan = plan or Plan()
    plan.backward, plan.last = case.backward, case.last
    gc.collect()
    chosen = [(case.name, case.settings), *case.besides] if techniques else []
    output = io.StringIO()
    plan.lines = lambda: output.getvalue().count("\n")
    injecting: Any = contextlib.nullcontext()
    if kind == "subscriber":
        injecting = faulty_subscribers(case.name, plan)
    elif kind == "function":
        injecting = faulty_functions(case.name, plan)
    seed()
    error: BaseException | None = None
    state: dict[str, Any] = {}
    # What a fault in undoing leaves is none of the next run's.
    with settings_kept(), tempfile.TemporaryDirectory() as cache, pytest.MonkeyPatch.context() as patch, injecting:
        patch.setenv("OVERDRIVE_CACHE", cache)
        session = Session(chosen)
        try:
            with session:
                plan.switch = lambda: session.handles[case.name].off()
                with contextlib.redirect_stdout(output):
                    state = program(case, plan if kind == "model" else None, session)
        except BaseException as raised:  # whatever comes out would have ended the program
            error = raised
    lines = output.getvalue().splitlines()
    return Outcome(lines, state, error, dict(session.seams.left_out), plan.events, plan.lines_then)


def acting(seams: Any) -> set[str]:
    """Whose subscribers may make a model's call another one."""
    waited_for = (seams.model_called, seams.function_called, *seams.operators.values())
    return {each.owner for point in waited_for for each in point.subscribers}


def seed() -> None:
    random.seed(5)
    np.random.seed(6)
    torch.manual_seed(7)


def program(case: Case, plan: Plan | None, session: Session) -> dict[str, Any]:
    model = case.model().to(case.dtype)
    shape = model.shape
    if plan is not None:

        def raises() -> None:
            if case.name in acting(session.seams) and plan.due():
                raise Injected("the model's")

        model.brittle.raises = raises
    data = [Samples(count, shape, case.dtype, augment) for count, augment in ((TRAINED, True), (JUDGED, False))]
    trained = DataLoader(data[0], BATCH, shuffle=True, num_workers=case.workers)
    judged = DataLoader(data[1], BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(EPOCHS):
        model.train()
        for step, (x, y) in enumerate(trained):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=bool(step % 2))
            loss.backward()
            optimizer.step()
            print(f"{epoch} {step} {loss.item():.9f}")
        model.eval()
        with torch.no_grad():
            found = sum(nn.functional.cross_entropy(model(x), y, reduction="sum").item() for x, y in judged)
        print(f"epoch {epoch}: {found / JUDGED:.9f}, {random.random()} {np.random.rand()} {torch.rand(1).item()}")
    state: dict[str, Any] = {key: value.detach().clone() for key, value in model.state_dict().items()}
    for place, each in enumerate(optimizer.state.values()):
        state[f"momentum {place}"] = each["momentum_buffer"].clone()
    if isinstance(model.brittle, Brittle):
        state["calls"] = model.brittle.calls
    state["chance"] = States.now().digest()
    return state


def same(one: Outcome, other: Outcome) -> str:
    """In what two runs differ; nothing where they do not."""
    if one.error or other.error:
        return f"it raised {one.error or other.error!r}"
    for place, (mine, theirs) in enumerate(zip(one.lines, other.lines, strict=False)):
        if mine != theirs:
            return f"line {place} is {mine!r}, not {theirs!r}"
    if len(one.lines) != len(other.lines):
        return f"{len(one.lines)} lines, not {len(other.lines)}"
    for key in one.state.keys() | other.state.keys():
        mine, theirs = one.state.get(key), other.state.get(key)
        tensors = isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor)
        if not (torch.equal(mine, theirs) if tensors else mine == theirs):
            return f"{key} differs at the end"
    return ""


def like(one: Outcome, clean: Outcome, plain: Outcome) -> str:
    """What is wrong with a run that is not exact: as under the technique until the fault, and the same lines but for
    digits; nothing where it is well."""
    if one.error:
        return f"it raised {one.error!r}"
    for place in range(min(one.lines_then, len(clean.lines))):
        if one.lines[place] != clean.lines[place]:
            return f"line {place}, before the fault, is {one.lines[place]!r}, not {clean.lines[place]!r}"
    shapes = [[shape_of(line) for line in each.lines] for each in (one, clean, plain)]
    if shapes[1] == shapes[2] != shapes[0]:  # under some techniques a program prints less, or makes fewer steps
        return f"other lines: {one.lines[-3:]}"
    return ""


def shape_of(line: str) -> str:
    return "".join("0" if each.isdigit() else each for each in line).replace("0", "").replace("e-", "")


def check(case: Case, kind: str, number: int, known: dict[str, Any]) -> str:
    """What is wrong with the run of this seed; nothing where all is well.

    Args:
        known: runs without a fault, which are made once for each case.
    """
    if "plain" not in known:
        known["plain"] = run(case, techniques=False)
        known["clean"] = run(case)
    plain, clean = known["plain"], known["clean"]
    if kind not in known:
        known[kind] = run(case, Plan(), kind)
    counted = known[kind]
    if not counted.events:
        return f"nothing to fail ({clean.left_out.get(case.name, kind)})"
    choice = random.Random(f"{case} {kind} {number}")
    for _ in range(5):  # where other processes fill a cache, events are fewer at times
        target, how = choice.randrange(counted.events), choice.choice(("before", "middle", "after"))
        found = run(case, Plan(target, how), kind)
        if found.lines_then >= 0:
            break
    else:
        return "no fault was reached"
    where = f"event {target} of {counted.events}, {how}: "
    technique = catalogue()[case.name]
    if technique.contract is Contract.EXACT:
        wrong = same(found, plain)
        return wrong and where + wrong
    wrong = like(found, clean, plain)
    if not wrong and kind == "subscriber" and technique.switchable and found.left_out:
        off = run(case, Plan(target, how, off=True), kind)
        wrong = same(found, off)
        wrong = wrong and f"not as switched off there: {wrong}"
    return wrong and where + wrong
