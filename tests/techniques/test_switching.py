"""A technique that is switched off in a running program leaves no trace in what the program computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.rng import States
from overdrive.seams.hub import Handle, Seams
from overdrive.techniques import catalogue as catalogue_module
from overdrive.techniques.catalogue import also_in, catalogue
from overdrive.techniques.technique import Settings, Technique
from overdrive.worker.session import Session
from tests.fakes.cuda import fake_cuda

ROUNDS = 10
# Settings other than the default, where it does nothing here; several, where they are other code. A technique without a
# line is switched with its defaults.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "affinity": [{"hyper_threads": False}],
    "autocast": [{"dtype": "bfloat16"}, {"dtype": "float16"}],
    "compile": [{}, {"regional": True}],
    "fft_convolution": [{"least": 2}],
    "cuda_graphs": [{"parts": "step"}, {"parts": "all"}, {"parts": "model"}],
    "fp32_from_fp64": [{"weights": "copied"}, {"weights": "narrowed"}],
    "fused_optimizer": [{"implementation": "fused"}, {"implementation": "foreach"}],
    "offload": [{"least_mib": 0}],
    "tf32": [{"precision": "bf16"}],
    "threads": [{"count": 1}],
}
# These may change results, and change none here, by what they do or by the arithmetic of this machine.
UNSEEN = {"affinity", "threads", "fft_convolution", "fused_optimizer", "cuda_graphs"}


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 5, padding=2), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 12, 3), nn.ReLU()
        )
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(12 * 6 * 6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.features(x).flatten(1)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 48), nn.Dropout(0.2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inside(x)


class Sequence(nn.Module):
    """Blocks that repeat, without batch normalisation: it can be called in parts of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(3)])
        self.head = nn.Linear(48, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 16, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


SHAPES: dict[type[nn.Module], tuple[int, ...]] = {Images: (3, 16, 16), Sequence: (48,), Recurrent: (6, 12)}


class Program:
    """A loop with momentum whose state can be saved and loaded in place, as a state replay does."""

    def __init__(self, kind: type[nn.Module], dtype: torch.dtype, device: str = "cpu") -> None:
        torch.manual_seed(3)
        self.model = kind().to(device, dtype)
        self.shape, self.dtype, self.device = SHAPES[kind], dtype, device
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def step(self) -> list[torch.Tensor]:
        """One step and an evaluation; all that they left behind."""
        x, y = torch.randn(8, *self.shape, dtype=self.dtype).to(self.device), torch.randint(5, (8,)).to(self.device)
        self.model.train()
        self.optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        read = torch.tensor(loss.item())
        self.model.eval()
        with torch.no_grad():
            judged = self.model(x)
        return [each.detach().clone() for each in (loss, read, judged, *self.tensors())]

    def tensors(self) -> Iterator[torch.Tensor]:
        yield from (*self.model.parameters(), *self.model.buffers())
        yield from (each.grad for each in self.model.parameters() if each.grad is not None)
        for state in self.optimizer.state.values():
            yield from (each for each in state.values() if isinstance(each, torch.Tensor))

    def saved(self) -> Callable[[], None]:
        values, chance = [each.detach().clone() for each in self.tensors()], States.now()

        def load() -> None:
            with torch.no_grad():
                for each, value in zip(self.tensors(), values, strict=True):
                    each.copy_(value)
            chance.restore()

        return load


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


def switched(
    name: str, settings: dict[str, Any], kind: type[nn.Module], dtype: torch.dtype, device: str = "cpu"
) -> tuple[bool, bool, Any]:
    """Whether all steps with it off are as without it, whether any with it on is another, and why it was left out."""
    plain = Program(kind, dtype, device)
    expected = [plain.step() for _ in range(ROUNDS + 2)]
    with Session([(name, settings)]) as session:
        program = Program(kind, dtype, device)
        if name in session.seams.left_out:
            return True, False, session.seams.left_out[name]
        handle = session.handles[name]
        handle.off()
        alike, other = same(program.step(), expected[0]) and same(program.step(), expected[1]), False
        for round_ in range(ROUNDS):
            load = program.saved()
            handle.on()
            other |= not same(program.step(), expected[round_ + 2])
            program.step()
            handle.off()
            load()
            alike &= same(program.step(), expected[round_ + 2])
    return alike, other, session.seams.left_out.get(name)


def only_on_a_gpu(technique: Technique) -> bool:
    """By its own word: of programs that differ in nothing else."""
    here, there = (technique.applies(Facts(device=device, cores=2)) for device in ("cpu", "cuda"))
    return here is not None and here != there


def cases(on_a_gpu: bool = False) -> list[Any]:
    found = []
    for name, technique in catalogue().items():
        # Those of other kinds are in inference/test_at_calls.py and data/test_switching.py.
        usual = technique.is_for(False) and technique.family != "data"
        if technique.switchable and only_on_a_gpu(technique) is on_a_gpu and usual:
            for settings in SETTINGS.get(name, [{}]):
                found.append(pytest.param(name, settings, id="-".join((name, *map(str, settings.values())))))
    return found


def suits(name: str, settings: dict[str, Any]) -> tuple[type[nn.Module], torch.dtype]:
    if name in ("micro_batch", "activation_checkpointing", "fp8") or settings.get("regional"):
        return Sequence, torch.float32
    return Images, torch.float64 if name == "fp32_from_fp64" else torch.float32


def prepare(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "affinity":
        from overdrive.techniques.host import affinity

        monkeypatch.setattr(affinity, "one_a_core", lambda cores: frozenset(sorted(cores)[:1]))
    if name == "fast_dropout":
        from overdrive.kernels.dropout import operator

        monkeypatch.setattr(operator, "LEAST", 1)
    if name == "fast_cross_entropy":
        pytest.skip("its kernel runs on no stand-in; it is switched in test_fast_cross_entropy.py")
    if name == "fft_convolution":
        from overdrive.techniques.layout import fft_convolution

        monkeypatch.setattr(fft_convolution, "_is_faster", lambda *_: True)
    if name == "fp8":
        from torchao.float8 import Float8LinearConfig

        from overdrive.techniques.precision import fp8

        monkeypatch.setattr(fp8, "_config", lambda: Float8LinearConfig(emulate=True))
        monkeypatch.setattr(fp8, "_not_here", lambda layers: None)


@pytest.mark.parametrize(("name", "settings"), cases())
def test_with_it_off_the_program_computes_what_it_would_compute_without_it(
    name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(name, monkeypatch)
    alike, other, reason = switched(name, settings, *suits(name, settings))
    if reason and ("supported" in reason or "multiplies no bf16" in reason or "these cores only" in reason):
        pytest.skip(reason)
    assert reason is None and alike
    if catalogue()[name].contract is not Contract.EXACT and name not in UNSEEN:
        assert other  # else this test would tell nothing


@pytest.mark.parametrize(("name", "settings"), cases(on_a_gpu=True))
def test_what_is_for_a_gpu_is_switched_on_the_stand_in(
    name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := catalogue()[name].applies(Facts(device="cuda")):
        pytest.skip(reason)  # a library that is not installed
    prepare(name, monkeypatch)
    if name == "fp8":  # its products are emulated on the CPU, with tensors of a kind of their own
        alike, other, reason = switched(name, settings, *suits(name, settings))
    else:
        with fake_cuda() as gpu:
            alike, other, reason = switched(name, settings, *suits(name, settings), device="cuda")
        assert not gpu.order.found and (gpu.replays > 0) is (name == "cuda_graphs")
    assert reason is None and alike
    assert other is (catalogue()[name].contract is not Contract.EXACT and name not in UNSEEN)


@pytest.mark.parametrize("name", ["autocast", "bf16_weights", "compile", "threads"])
def test_a_recurrent_program_is_switched_as_well(name: str) -> None:
    alike, *_ = switched(name, SETTINGS.get(name, [{}])[0], Recurrent, torch.float32)
    assert alike  # whether it is taken or, as some processors do with an LSTM in 16 bits, left out


@pytest.mark.parametrize(
    ("name", "settings"), [each for each in cases() if catalogue()[each.values[0]].contract is Contract.EXACT]
)
def test_an_exact_technique_changes_nothing_however_often_it_is_switched(
    name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(name, monkeypatch)
    kind, dtype = suits(name, settings)
    plain = Program(kind, dtype)
    expected = [plain.step() for _ in range(2 * ROUNDS)]
    with Session([(name, settings)]) as session:
        if "these cores only" in session.seams.left_out.get(name, ""):
            pytest.skip(session.seams.left_out[name])
        program = Program(kind, dtype)
        for number, values in enumerate(expected):
            (session.handles[name].off if number % 2 else session.handles[name].on)()
            assert all(map(torch.equal, program.step(), values))
    assert not session.seams.left_out


class Stuck(Technique):
    """Halves what the model returns, also while it is switched off."""

    name = "stuck"
    contract = Contract.OPEN
    targets: ClassVar[tuple[str, ...]] = ("forward",)
    switchable = True

    def install(self, seams: Seams, settings: Settings) -> Handle:
        def halved(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs) / 2

        seams.model_called.subscribe(halved, always=True)
        return seams.handle()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(catalogue_module, "_also", [])
    also_in([__name__])
    yield
    monkeypatch.undo()
    catalogue.cache_clear()


def test_one_whose_off_does_nothing_is_seen(stuck: None) -> None:
    alike, other, reason = switched("stuck", {}, Images, torch.float32)
    assert not alike and other and reason is None


@pytest.mark.parametrize("name", catalogue())
def test_what_a_session_keeps_is_not_kept_on_the_catalogues_techniques(name: str) -> None:
    technique = catalogue()[name]
    if technique.family == "data" or "torch" not in technique.frameworks:
        return
    with Session([(name, {})]):
        Program(Images, torch.float32).step()
        assert not vars(technique)
    assert not vars(technique)


def test_what_must_be_there_before_the_process_starts_is_not_switched() -> None:
    of_processes = {name for name, each in catalogue().items() if each.process_level}
    assert {"allocator", "hugepages", "malloc_trim", "waiting"} <= of_processes
    assert not any(catalogue()[name].switchable for name in of_processes)
