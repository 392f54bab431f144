"""What is made of recorded calls: names, dimensions that may vary where that is proved, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from overdrive.targets.child import answers
from overdrive.targets.child.torch import subject
from overdrive.targets.order import calls_in
from tests.targets import fake_target
from tests.targets.fake_target import called, exported


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc, self.drop = nn.BatchNorm1d(6), nn.Linear(6, 3), nn.Dropout(0.5)

    def forward(self, rows: torch.Tensor, scale: float = 1.0) -> Any:
        scores = self.fc(self.drop(self.norm(rows))) * scale
        return {"scores": scores, "best": scores.argmax(1)}


def rows(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))


def test_the_batch_may_vary_and_all_has_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_target.install(monkeypatch)
    made, signature = exported(called(Net().eval(), *((rows(8, seed),) for seed in range(5)), (rows(3),)), tmp_path)
    assert not made.refused and all("largest that was tried" in each for each in made.notes)
    assert signature["inputs"] == [{"name": "rows", "shape": ["batch", 6], "dtype": "float32"}]
    assert [each["name"] for each in signature["outputs"]] == ["scores", "best"]
    assert signature["outputs"][0]["shape"] == ["batch", 3]
    assert signature["dimensions"] == {"batch": {"min": 1, "max": 512}}
    assert {1, 2, 3, 8, 9} <= set(made.sizes["batch"])
    assert (made.calls, made.recorded) == (6, 6)
    kinds = {path.stem.partition(" ")[2] for path in calls_in(tmp_path).iterdir()}
    assert kinds == {"recorded", "of another size"}


def test_a_size_of_the_answer_that_happens_to_be_the_batchs_is_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three samples, and three classes."""
    fake_target.install(monkeypatch)
    _, signature = exported(called(Net().eval(), *((rows(3, seed),) for seed in range(5))), tmp_path)
    assert [each["shape"] for each in signature["outputs"]] == [["batch", 3], ["batch"]]


def test_the_answers_kept_are_those_of_evaluation_mode_and_of_fp64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training script's last calls may be in training mode: batch statistics and dropout are none of the answer."""
    fake_target.install(monkeypatch)
    model = Net().train()
    made, _ = exported(called(model, (rows(8),), (rows(8, 1),), (rows(8, 2),)), tmp_path)
    assert any("training mode" in note for note in made.notes)
    with np.load(next(calls_in(tmp_path).glob("001*"))) as kept, torch.no_grad():
        model.eval()
        wanted = model(torch.from_numpy(kept["input 0"]))["scores"].numpy()
        assert np.array_equal(kept["own 0"], wanted)
        assert kept["exact 0"].dtype == np.float64 and 0 < np.abs(kept["exact 0"] - wanted).max() < 1e-5


def test_a_size_that_the_engine_answers_otherwise_is_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dynamic axis that is frozen inside: right for what the program sends, wrong for all else."""

    def frozen(inputs: dict[str, Any], made: list[Any]) -> list[Any]:
        return made if len(inputs["rows"]) == 8 else [each * 0 for each in made]

    fake_target.install(monkeypatch, frozen)
    made, signature = exported(called(Net().eval(), *((rows(8, seed),) for seed in range(4))), tmp_path)
    assert signature["inputs"][0]["shape"] == [8, 6] and signature["dimensions"] == {}
    assert "all shapes are fixed: with others it answers batch 1 otherwise" in made.notes[0]


class Weighed(Net):
    def forward(self, rows: torch.Tensor, weights: torch.Tensor) -> Any:  # type: ignore[override]
        return self.fc(rows) * weights.mean()


def test_sizes_that_were_always_equal_vary_together_where_they_cannot_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers' models look whether their mask hides anything, and with a shorter one that does not they answer; a
    graph looks up its places. For `input_ids` and `attention_mask` the exporter has a size each."""

    def alike(inputs: dict[str, Any], made: list[Any]) -> list[Any]:
        return made if len(inputs["rows"]) == len(inputs["weights"]) else [each * 0 for each in made]

    fake_target.install(monkeypatch, alike)
    calls = [(rows(count), rows(count, 1)) for count in (5, 7, 8, 6)]
    made, signature = exported(called(Weighed().eval(), *calls), tmp_path)
    assert [each["shape"] for each in signature["inputs"]] == [["batch", 6], ["batch", 6]]
    assert not any("fixed" in note for note in made.notes) and {1, 2, 3, 5, 6, 7, 8} <= set(made.sizes["batch"])


def test_calls_of_shapes_that_are_not_in_it_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed(Net):
        def forward(self, rows: torch.Tensor) -> Any:  # type: ignore[override]
            return self.fc(rows).view(8 if rows.shape[0] > 4 else 3, 3)

    fake_target.install(monkeypatch)
    calls = [(rows(8, seed),) for seed in range(4)]
    made, signature = exported(called(Fixed().eval(), *calls, (rows(3),)), tmp_path)
    assert signature["inputs"][0]["shape"] == [8, 6]
    assert dict(made.left) == {"their shapes are other ones, and its own are fixed": 1}


def test_calls_of_more_shapes_than_are_kept_are_told_where_it_does_not_answer_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OfThese(Net):
        """`view` to what the code has of it: another number of rows is refused by the model, and by its graph."""

        def forward(self, rows: torch.Tensor) -> Any:  # type: ignore[override]
            return self.fc(rows).view({2: 2, 3: 3}.get(int(rows.shape[0]), -1), 3)

    fake_target.install(monkeypatch)
    calls = [(rows(count),) for count in (*range(2, 14), 13)]
    (tmp_path / "varies").mkdir()
    made, signature = exported(called(Net().eval(), *calls), tmp_path / "varies")
    assert signature["inputs"][0]["shape"] == ["batch", 6] and not made.left
    (tmp_path / "fixed").mkdir()
    made, signature = exported(called(OfThese().eval(), *calls), tmp_path / "fixed")
    assert signature["inputs"][0]["shape"] == [2, 6] and sum(made.left.values()) == 12


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 4), nn.Embedding(8, 4)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))


class Asserts(Positions):
    def forward(self, tokens: torch.Tensor) -> Any:
        assert tokens.shape[1] <= 8
        return super().forward(tokens)


@pytest.mark.parametrize("model", [Positions, Asserts])
def test_a_dimension_ends_where_the_model_takes_no_more(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond its table of positions PyTorch fails, and OpenVINO answers with zeros."""
    fake_target.install(monkeypatch)
    made, signature = exported(called(model().eval(), *((torch.ones(3, n).long(),) for n in range(2, 7))), tmp_path)
    assert not made.refused and signature["inputs"][0]["shape"] == ["batch", "size_1"]
    assert signature["dimensions"] == {"batch": {"min": 1, "max": 192}, "size_1": {"min": 1, "max": 8}}
    assert list(made.notes) == ["batch ends at 192, the largest that was tried: it may be that the model takes more"]


@pytest.mark.parametrize(("long", "end"), [(-1.0, 16), (float("inf"), 512)], ids=["its calls are long", "64 times"])
def test_a_dimension_ends_at_the_largest_size_that_was_tried(
    long: float, end: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies beyond is unknown: a table of positions may end there, say."""
    fake_target.install(monkeypatch)
    monkeypatch.setattr("overdrive.targets.child.dimensions._LONG", long)
    made, signature = exported(called(Net().eval(), *((rows(8, seed),) for seed in range(4))), tmp_path)
    assert signature["dimensions"] == {"batch": {"min": 1, "max": end}}
    assert list(made.notes) == [f"batch ends at {end}, the largest that was tried: it may be that the model takes more"]


def test_times_of_a_model_that_the_program_calls_on_a_gpu_are_told_as_the_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_target.install(monkeypatch)
    monkeypatch.setattr(subject, "_places", lambda model: ["cuda"])
    made, _ = exported(called(Net().eval(), *((rows(8, seed),) for seed in range(4))), tmp_path)
    assert [note for note in made.notes if note.startswith("the program calls it on cuda")]


def test_what_the_program_computes_otherwise_than_the_artefact_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under autocast its answers are of 16 bits, and its dropout may be meant to stay on."""
    fake_target.install(monkeypatch)
    model = Net().eval()
    model.drop.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kept = called(model, *((rows(8, seed),) for seed in range(4)))
    kept.note((rows(8, 5),), {}, compiled=True)
    made, _ = exported(kept, tmp_path)
    autocast, compiled, modes = made.notes[:3]
    assert "under autocast (bfloat16)" in autocast and "compiles it" in compiled
    assert "has drop in training mode" in modes
    (tmp_path / "plain").mkdir()
    made, _ = exported(called(Net().eval(), *((rows(8, seed),) for seed in range(4))), tmp_path / "plain")
    assert not any("the program" in note for note in made.notes)


def test_plain_values_are_part_of_the_artefact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_target.install(monkeypatch)
    kept = called(Net().eval(), *((rows(8, seed),) for seed in range(4)), scale=2.0)
    kept.note((rows(8),), {"scale": 3.0})
    made, _ = exported(kept, tmp_path)
    assert sum(made.left.values()) == 1
    with np.load(next(calls_in(tmp_path).glob("001*"))) as call, torch.no_grad():
        wanted = kept.model(torch.from_numpy(call["input 0"]), scale=2.0)["scores"].numpy()
        assert np.array_equal(call["own 0"], wanted)


class Pairs(Net):
    """Takes two rows at a time, which no graph tells."""

    def forward(self, rows: torch.Tensor, scale: float = 1.0) -> Any:
        if not torch.compiler.is_exporting() and len(rows) % 2:
            raise ValueError("pairs are wanted")
        return super().forward(rows, scale)


class Middle(Net):
    def forward(self, rows: torch.Tensor, scale: float = 1.0) -> Any:
        if not torch.compiler.is_exporting() and 10 < len(rows) < 20:
            raise ValueError("neither few nor many")
        return super().forward(rows, scale)


@pytest.mark.parametrize(("model", "count", "gap"), [(Pairs, 8, 3), (Middle, 32, 16)])
def test_a_size_that_the_model_refuses_between_those_it_takes_fixes_all(
    model: type[Net], count: int, gap: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_target.install(monkeypatch)
    made, signature = exported(called(model().eval(), *((rows(count, seed),) for seed in range(4))), tmp_path)
    assert signature["inputs"][0]["shape"] == [count, 6] and signature["dimensions"] == {}
    assert f"but not {gap}" in made.notes[0]


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.table = nn.Embedding(50, 4), nn.Parameter(torch.randn(99, 4))

    def forward(self, tokens: torch.Tensor, places: torch.Tensor, x: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.embed(tokens) + self.table[places + 3] + x + mask.float()[..., None]


@pytest.mark.parametrize("value", [1.0, -torch.inf])
def test_the_signature_tells_the_values_that_were_proved(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_target.install(monkeypatch)
    monkeypatch.setattr("overdrive.targets.child.values._LOSING_NAN", ("fake",))
    whole, x = torch.randint(10, 20, (3, 8)), torch.full((3, 8, 4), value)
    whole[0, :2] = torch.tensor([10, 19])
    _, signature = exported(called(Tables().eval(), *[(whole, whole, x, whole > 12)] * 3), tmp_path)
    assert signature["values"] == {
        "tokens": {"min": 0, "max": 49},
        "places": {"min": 10, "max": 19},
        **({"x": {"finite": True}} if value == 1.0 else {}),
    }


class Coded(nn.Module):
    """Its first column is a code; all are fractions, as tables of data are."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc = nn.Embedding(50, 4), nn.Linear(3, 4)

    def forward(self, x: torch.Tensor, more: torch.Tensor) -> Any:
        return self.embed(x[:, 0].long()) + self.fc(x[:, 1:].nan_to_num(0.0)) + more


@pytest.mark.parametrize(
    ("value", "told"), [(-2.5, {"min": -2.5, "max": 19.0}), (torch.nan, {"min": 0.25, "max": 19.0})]
)
def test_fractions_that_places_are_made_of_have_ends(
    value: float, told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine answers for a row that is in no table; so it does where the number of the row was a fraction."""
    fake_target.install(monkeypatch)
    x = torch.full((8, 4), 0.25)
    x[0, 0], x[1, 1] = 19.0, value
    made, signature = exported(called(Coded().eval(), *[(x, torch.full((8, 4), 99.0))] * 3), tmp_path)
    assert not made.refused and signature["values"] == {"x": told}


def test_a_disturbed_input_keeps_to_what_was_proved() -> None:
    x, chance = np.array([-2.5, 0.5, 19.0, np.nan], np.float32), np.random.default_rng(0)
    for _ in range(9):
        made = answers._disturbed(x, {"min": -2.5, "max": 19.0}, chance)
        assert made[0] >= -2.5 and made[1] != 0.5 and made[2] <= 19.0 and np.isnan(made[3])


def test_infinity_that_the_program_gives_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_target.install(monkeypatch)
    x = torch.full((8, 4), 0.25)
    x[1, 1] = torch.inf
    _, signature = exported(called(Coded().eval(), *[(x, torch.full((8, 4), 99.0))] * 3), tmp_path)
    assert signature["values"] == {"x": {"min": 0.25}}


class Draws(Net):
    def forward(self, rows: torch.Tensor) -> Any:  # type: ignore[override]
        return self.fc(rows + torch.randn_like(rows))


class Branches(Net):
    def forward(self, rows: torch.Tensor) -> Any:  # type: ignore[override]
        return self.fc(rows) if rows.sum() > 0 else self.fc(-rows)


class Counts(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, rows: torch.Tensor) -> Any:  # type: ignore[override]
        self.seen += 1
        return self.fc(rows) * self.seen


class Returns(Net):
    def forward(self, rows: torch.Tensor) -> Any:  # type: ignore[override]
        return self.fc(rows), object()


@pytest.mark.parametrize(
    ("model", "reason"),
    [(Draws, "random numbers"), (Branches, "data-dependent"), (Counts, "buffer"), (Returns, "returns a object")],
)
def test_what_cannot_be_exported_is_refused_by_name(
    model: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_target.install(monkeypatch)
    made, _ = exported(called(model().eval(), (rows(8),)), tmp_path)
    assert made.refused.startswith(f"{model.__name__} cannot be exported: ") and reason in made.refused.lower()


@pytest.mark.parametrize(("given", "told"), [(object(), "a object"), (torch.zeros(0, 6), "an empty tensor")])
def test_an_input_that_no_engine_takes_is_refused_by_its_type(given: Any, told: str, tmp_path: Path) -> None:
    made, _ = exported(called(Net().eval(), ({"rows": given},)), tmp_path)
    assert made.refused == f"Net cannot be exported: it is given {told} in 1 call"


def test_a_model_that_writes_to_what_it_is_given_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Recurrent(nn.Linear):
        def forward(self, x: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
            state["h"] = super().forward(x) + state["h"]
            return state["h"] * 2

    fake_target.install(monkeypatch)
    given = [(rows(8, seed), {"h": torch.zeros(8, 6)}) for seed in range(5)]
    made, _ = exported(called(Recurrent(6, 6).eval(), *given), tmp_path)
    assert "writes to what it is given" in made.refused
