"""Every technique: its card is whole, it does what the card says, and it leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts, LoaderFacts
from overdrive.core.settings import Chosen
from overdrive.core.trial_spec import SWITCHED
from overdrive.techniques.catalogue import catalogue, conflict, environment_for
from overdrive.techniques.technique import Technique
from overdrive.worker.session import Session
from overdrive.worker.switching import switch, switched_on

CARD = ("What it does:", "When it helps:", "When it hurts:", "What it watches:", "Contract:", "Source:")
FACTS = Facts(
    cores=4,
    threads=4,
    shares={"data": 0.5, "forward": 0.2, "backward": 0.2, "optimizer": 0.1},
    loaders=(LoaderFacts(32, 0, True, 1000, 0.01),),
    own={"fused_optimizer": {"optimizers": ["SGD"]}},
    parameter_dtypes=("torch.float32",),
    convolutions=2,
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.conv(x)).mean((2, 3)))


def train(techniques: list[Chosen], optimizer_class: Any = torch.optim.SGD, steps: int = 12) -> dict[str, Any]:
    torch.manual_seed(0)
    seen: dict[str, Any] = {"losses": [], "workers": []}
    data = TensorDataset(torch.randn(8 * steps, 3, 8, 8), torch.randint(4, (8 * steps,)))
    with Session(techniques) as session:
        model = Net()
        optimizer = optimizer_class(model.parameters(), lr=0.05)
        loader = DataLoader(data, batch_size=8, shuffle=True)
        for x, y in loader:
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen["losses"].append(loss.item())
        seen.update(
            channels_last=model.conv.weight.is_contiguous(memory_format=torch.channels_last),
            threads=torch.get_num_threads(),
            dtype=logits.dtype,
            rounded=bool((logits == logits.bfloat16().float()).all()),
            compiled=model._compiled_call_impl is not None,
            fused=optimizer.state_dict()["param_groups"][0]["fused"],
            during=loader.num_workers,
        )
    seen.update(left_out=session.seams.left_out, model=model, loader=loader)
    return seen


@pytest.mark.parametrize("name", catalogue())
def test_a_card_has_all_its_parts(name: str) -> None:
    technique = catalogue()[name]
    assert all(part in technique.card() for part in CARD)
    assert technique.summary().endswith(".") and len(technique.summary()) < 110
    assert isinstance(technique.contract, Contract) and technique.targets
    for knob in technique.knobs:
        assert knob.fault(knob.default) is None and knob.fault(object()) is not None


@pytest.mark.parametrize("name", catalogue())
def test_a_card_says_what_would_escape(name: str) -> None:
    """After the proof a program may change anything: what of it is seen, and what is not."""
    watches = catalogue()[name].card().split("What it watches:")[1].split("Contract:")[0]
    assert "escape" in watches


@pytest.mark.parametrize("name", catalogue())
def test_candidates_are_valid_settings(name: str) -> None:
    technique = catalogue()[name]
    knobs = {knob.name: knob for knob in technique.knobs}
    for settings in technique.candidates(FACTS):
        assert all(knobs[key].fault(value) is None for key, value in settings.items())


def test_conflicts_name_techniques_and_are_seen_from_both_sides() -> None:
    for name, technique in catalogue().items():
        assert set(technique.conflicts) <= set(catalogue()) - {name}
        assert set(technique.aims) <= {"time", "memory"} and technique.aims
        for other in technique.conflicts:
            assert conflict(name, [other]) == other and conflict(other, [name]) == name
    assert conflict("threads", ["allocator"]) is None


def test_of_two_that_cannot_go_together_the_first_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(catalogue()["threads"]), "conflicts", ("channels_last",))
    seen = train([("threads", {"count": 3}), ("channels_last", {})])
    assert seen["threads"] == 3 and "cannot go with threads" in seen["left_out"]["channels_last"]


def test_where_techniques_are_switched_those_that_exclude_each_other_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(catalogue()["threads"]), "conflicts", ("channels_last",))
    monkeypatch.setenv(*next(iter(SWITCHED.items())))
    with Session([("threads", {"count": 3}), ("channels_last", {})]) as session:
        assert not session.seams.left_out and switched_on(session) == ("threads",)
        switch(session, ["channels_last"])
        assert switched_on(session) == ("channels_last",)


@pytest.mark.parametrize("name", catalogue())
def test_what_a_trial_found_out_is_judged_without_an_error(name: str) -> None:
    for facts in (Facts(), FACTS):
        assert catalogue()[name].applies(facts) != ""


def test_reasons_are_given_where_a_technique_cannot_help() -> None:
    own: dict[str, dict[str, Any]] = {
        **{name: {} for name in ("device", "unified_memory", "interop", "fft_convolution")},
        "compile": {},
        "fast_dropout": {},
        "fast_max_pool": {},
        "deferred_scalars": {"reads": 0},
        "fp8": {"layers": 0},
        "fused_optimizer": {"optimizers": []},
    }
    still = Facts(device="cuda", modules=False, own_autocast=True, own_compile=True, own=own)
    for name, technique in catalogue().items():
        facts_of_its_own = type(technique).observe is not Technique.observe and name not in own
        # Two depend on the machine; a new technique whose own facts decide has a test of its own.
        if "torch" in technique.frameworks and name not in ("allocator", "affinity") and not facts_of_its_own:
            assert technique.applies(still), name


def test_channels_last_changes_the_weights_format_and_puts_it_back() -> None:
    seen = train([("channels_last", {})])
    assert not seen["left_out"]
    assert seen["channels_last"]
    assert seen["model"].conv.weight.is_contiguous()
    assert seen["losses"] == pytest.approx(train([])["losses"], rel=1e-5)


def test_autocast_computes_in_16_bits_and_hands_back_32() -> None:
    seen = train([("autocast", {})])
    assert seen["dtype"] is torch.float32 and seen["rounded"]
    assert seen["losses"] == pytest.approx(train([])["losses"], rel=0.05)


def test_autocast_leaves_evaluation_alone() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    with Session([("autocast", {})]):
        model = Net()
        torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.no_grad():
            inside = model(x)
    with torch.no_grad():
        assert torch.equal(inside, model(x))


def test_fp16_gradients_are_scaled_and_handed_on_unscaled() -> None:
    plain = train([])
    seen = train([("autocast", {"dtype": "float16"})])
    assert seen["losses"] == pytest.approx(plain["losses"], rel=0.02)


def test_fp16_skips_a_step_whose_gradients_are_not_finite() -> None:
    with Session([("autocast", {"dtype": "float16"})]):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model.weight.detach().clone()
        moved = []
        for step in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).mean().backward()
            if step == 0:
                model.weight.grad.fill_(float("inf"))  # type: ignore[union-attr]
            optimizer.step()
            moved.append(not torch.equal(model.weight, before))
        assert moved[0] is False and moved[-1] is True
        assert torch.isfinite(model.weight).all()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_a_fused_optimizer_steps_alike_and_checkpoints_do_not_show_it(optimizer: Any) -> None:
    seen = train([("fused_optimizer", {})], optimizer)
    assert not seen["left_out"]
    assert not seen["fused"]
    assert seen["losses"] == pytest.approx(train([], optimizer)["losses"], rel=1e-4)


def test_a_fused_optimizer_leaves_other_classes_alone() -> None:
    class Own(torch.optim.SGD):
        pass

    assert train([("fused_optimizer", {})], Own)["losses"] == train([], Own)["losses"]


def test_threads_are_set_and_put_back() -> None:
    before = torch.get_num_threads()
    assert train([("threads", {"count": 3})])["threads"] == 3
    assert torch.get_num_threads() == before


def test_workers_fetch_the_very_same_batches_and_are_gone_afterwards() -> None:
    seen = train([("loader_workers", {"workers": 2})])
    assert seen["during"] == 2 and seen["losses"] == train([])["losses"]
    assert seen["loader"].num_workers == 0 and seen["loader"]._iterator is None


def test_workers_leave_iterable_data_sets_alone() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(64))

    with Session([("loader_workers", {"workers": 2})]):
        loader = DataLoader(Stream(), batch_size=4)
        assert sum(len(batch) for batch in loader) == 64 and loader.num_workers == 0


def test_compile_is_in_force_and_taken_away() -> None:
    seen = train([("compile", {})], steps=3)
    assert not seen["left_out"]
    assert seen["compiled"]
    assert seen["model"]._compiled_call_impl is None
    assert seen["losses"] == pytest.approx(train([], steps=3)["losses"], rel=1e-4)


def test_the_allocator_is_there_before_the_process_or_not_at_all() -> None:
    assert "MALLOC_TOP_PAD_" in catalogue()["allocator"].environment({"library": "glibc"})
    assert "before the process starts" in train([("allocator", {})])["left_out"]["allocator"]


@pytest.mark.parametrize("name", [name for name, each in catalogue().items() if each.process_level])
def test_variables_that_the_user_has_set_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.techniques.memory.allocator.library", lambda name: f"/usr/lib/lib{name}.so")
    technique = catalogue()[name]
    knobs = [{knob.name: choice} for knob in technique.knobs for choice in knob.choices or (knob.default,)]
    for settings in [{}, *knobs]:
        for variable in technique.environment({**technique.defaults(), **settings}):
            monkeypatch.setenv(variable, "the-users")
            value = environment_for([(name, settings)]).get(variable, "the-users")
            assert value.split(":")[0].split(" ")[0] == "the-users" or technique.replaces_variables
            monkeypatch.delenv(variable)
