"""The libraries behind `openvino` and `onnxruntime`, where they are installed; `make test-engines` brings them."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from overdrive.core.facts import Facts
from overdrive.engines.onnx_runtime import OnnxRuntime
from overdrive.engines.openvino import OpenVino
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.inference import answered_by
from overdrive.worker.session import Session
from tests.engines.graph_runtime import Graphs

RUNTIMES: dict[str, Any] = {"openvino": OpenVino(), "onnxruntime": OnnxRuntime()}


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm, self.conv2 = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 32, 3, 2)
        self.fc = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> Any:
        scores = self.fc(F.relu(self.conv2(F.relu(self.norm(self.conv1(x))))).mean((2, 3)))
        return scores, scores.argmax(1)


class Pooled(Convolutions):
    """Takes pictures of any size and type, and a plain number."""

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
        scores, found = super().forward(x.float() * scale)
        return {"scores": scores, "found": found}


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, layer = nn.Embedding(100, 32), nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, Any]:
        return {"hidden": self.encoder(self.embed(tokens), src_key_padding_mask=mask)}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(8, 16, 2, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.lstm(x)[0])


PROGRAMS: dict[str, Any] = {
    "convolutions": (Convolutions, lambda: (torch.randn(4, 3, 16, 16),)),
    "tokens": (Tokens, lambda: (torch.randint(100, (2, 12)), torch.arange(12).expand(2, 12) > 9)),
    "recurrent": (Recurrent, lambda: (torch.randn(2, 7, 8),)),
    "a plain number": (Pooled, lambda: (torch.randn(4, 3, 16, 16), 0.5)),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", RUNTIMES)
def test_the_library_answers_as_the_model(name: str, program: str, capfd: Any) -> None:
    if reason := RUNTIMES[name].missing():
        pytest.skip(reason)
    torch.manual_seed(0)
    kind, make = PROGRAMS[program]
    model = kind().eval()
    given = [make() for _ in range(12)]
    with torch.no_grad():
        expected = [model(*each) for each in given]
        with Session([(name, {})], inference=True) as session:
            found = [model(*each) for each in given]
    assert not session.seams.left_out
    answers = session.handles[name].notes.answers
    assert answers.answered == 10, answers.told()
    leaves = torch.utils._pytree.tree_leaves
    for one, other in zip(leaves(found), leaves(expected), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    assert capfd.readouterr() == ("", ""), "nothing is printed that the program did not print"


class Drawing(Convolutions):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x + torch.rand(()))


class Remembering(Convolutions):
    """Takes an object of a class of its own beside its input, as models with a cache of keys and values do."""

    def forward(self, x: torch.Tensor, memory: Any = None) -> Any:
        return super().forward(x)

    def __call__(self, x: torch.Tensor) -> Any:
        return super().__call__(x, Facts())


@pytest.mark.parametrize(
    ("kind", "calls", "why"),
    [
        (Drawing, 8, "it draws random numbers"),
        (Remembering, 8, "an input of a kind that no engine takes (Facts)"),
        (Convolutions, 30, ""),
    ],
)
def test_it_leaves_itself_out_where_it_will_never_answer(kind: Any, calls: int, why: str) -> None:
    """So its duel ends after some calls; another engine would answer as little."""
    model, x = kind().eval(), torch.randn(4, 3, 16, 16)
    with Session(inference=True) as session, torch.no_grad():
        with session.seams.owned_by("engine"):
            answered_by(Graphs(), "engine", session.seams)
        for call in range(calls):
            assert not session.seams.left_out, call
            model(x)
        assert session.seams.left_out == ({"engine": why} if why else {})
        model(x)


OF_ALL_LENGTHS: dict[str, Any] = {
    "tokens": (Tokens, lambda length: torch.randint(100, (2, length))),
    "recurrent": (Recurrent, lambda length: torch.randn(2, length, 8)),
}


@pytest.mark.parametrize("program", OF_ALL_LENGTHS)
@pytest.mark.parametrize("name", RUNTIMES)
def test_calls_of_all_lengths_are_answered_as_by_the_model(name: str, program: str) -> None:
    """By one engine, or, where the library freezes a length, by those for single lengths and the model itself."""
    if reason := RUNTIMES[name].missing():
        pytest.skip(reason)
    torch.manual_seed(0)
    kind, make = OF_ALL_LENGTHS[program]
    model = kind().eval()
    given = [make(length) for _ in range(6) for length in range(5, 15)]
    with torch.no_grad():
        expected = [model(each) for each in given]
        with Session([(name, {})], inference=True) as session:
            found = [model(each) for each in given]
    assert not session.seams.left_out
    answers = session.handles[name].notes.answers
    assert answers.answered >= 8, answers.told()
    leaves = torch.utils._pytree.tree_leaves
    for one, other in zip(leaves(found), leaves(expected), strict=True):
        assert one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    if program == "tokens":
        assert answers.answered > 20, answers.told()


_TYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", RUNTIMES)
def test_random_shapes_and_types_get_the_models_answers_or_its_errors(name: str, count: int) -> None:
    """Most come once; some come back, and some the model itself refuses."""
    if reason := RUNTIMES[name].missing():
        pytest.skip(reason)
    torch.manual_seed(0)
    chance = random.Random(count)
    model = Pooled().eval()
    usual = [(torch.Size((4, 3, 9, 9)), torch.float32), (torch.Size((2, 3, 12, 8)), torch.uint8)]
    given: list[tuple[Any, ...]] = []
    for _ in range(count):
        shape, kind = chance.choice(usual)
        if chance.random() < 0.5:
            shape = torch.Size((chance.randint(0, 5), chance.choice((3, 3, 3, 2)), *chance.choices(range(1, 20), k=2)))
            kind = chance.choice(_TYPES)
        x = (torch.randn(shape) * 3).to(kind)
        x = x.transpose(2, 3) if chance.random() < 0.2 else x
        given.append((x,) if chance.random() < 0.8 else (x, chance.choice((1.0, 0.5))))
    with torch.no_grad():
        expected = [_answer_or_error(model, each) for each in given]
        with Session([(name, {})], inference=True) as session:
            found = [_answer_or_error(model, each) for each in given]
    assert not session.seams.left_out
    answers = session.handles[name].notes.answers
    refused = sum(isinstance(each, RuntimeError) for each in found)
    # Of calls that the model refuses some are told as left to it, and some were to be watched.
    assert refused and count - refused <= answers.answered + answers.left.total() <= count
    assert answers.answered > count / 20, answers.told()
    for one, other, (x, *_) in zip(found, expected, given, strict=True):
        assert type(one) is type(other), (x.shape, x.dtype)
        if isinstance(one, dict):
            assert torch.allclose(one["scores"], other["scores"], rtol=1e-3, atol=1e-4, equal_nan=True), x.shape
            assert one["scores"].shape == other["scores"].shape and one["found"].dtype == other["found"].dtype
            clear = other["scores"].topk(2).values.diff().abs().flatten() > 1e-3
            assert torch.equal(one["found"][clear], other["found"][clear])


def _answer_or_error(model: Any, given: tuple[Any, ...]) -> Any:
    try:
        return model(*given)
    except RuntimeError as error:
        return error


@pytest.mark.parametrize("program", PROGRAMS)
def test_in_int8_it_answers_nearly_as_the_model_after_the_calls_that_it_is_calibrated_by(
    program: str, capfd: Any
) -> None:
    runtime = OpenVino("int8")
    if reason := runtime.missing():
        pytest.skip(reason)
    torch.manual_seed(0)
    kind, make = PROGRAMS[program]
    model = kind().eval()
    given = [make() for _ in range(30)]
    with torch.no_grad():
        expected = [model(*each) for each in given]
        with Session([("openvino_narrow", {"format": "int8"})], inference=True) as session:
            found = [model(*each) for each in given]
    assert not session.seams.left_out
    answers = session.handles["openvino_narrow"].notes.answers
    assert answers.answered >= 6, answers.told()
    assert answers.left["its inputs were gathered, for the ranges of values in the model"] == runtime.calibrating - 1
    leaves = [
        [each for each in torch.utils._pytree.tree_leaves(one) if each.is_floating_point()] for one in (found, expected)
    ]
    errors = [float((one - other).norm() / other.norm()) for one, other in zip(*leaves, strict=True)]
    assert max(errors[: runtime.calibrating]) < 1e-6, "the model itself"
    assert 1e-6 < max(errors) < 0.3, "in eight bits, and no other answer"
    assert capfd.readouterr() == ("", ""), "nothing is printed that the program did not print"


def test_openvino_tells_nobody() -> None:
    if reason := OpenVino().missing():
        pytest.skip(reason)
    import openvino as _  # noqa: F401

    assert "openvino_telemetry" not in sys.modules or sys.modules["openvino_telemetry"] is not None


@pytest.mark.parametrize("name", RUNTIMES)
def test_what_is_missing_is_said_with_what_brings_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{type(RUNTIMES[name]).__module__}.find_spec", lambda module: None)
    technique = catalogue()[name]
    reason = technique.applies(Facts(inference=True))
    assert reason is not None and " -m pip install " in reason
    with Session([(name, {})], inference=True) as session:
        model = nn.Linear(4, 2)
        model(torch.randn(2, 4))
    assert session.seams.left_out == {name: reason}
