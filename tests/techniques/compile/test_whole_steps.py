"""Whole steps as one graph, on the stand-in for a GPU: what they compute is what the program computes, whatever it does
between its model's call and its optimizer's step. It has not run on a GPU.
"""

from __future__ import annotations

import copy
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from overdrive.seams import points
from overdrive.seams.torch.internals import function_modes
from overdrive.techniques.compile.cuda_graphs import held_step, sequence, step_graph, whole_step
from overdrive.worker.session import Session
from tests.fakes.cuda import fake_cuda
from tests.fakes.gpu import FakeGpu
from tests.techniques.compile.test_cuda_graphs import Net, Recurrent, adam, gan, plain_step, same, sgd, train

STEPS = 14
STEP = {"parts": "step"}
RECORDED_AT = 4  # one step as written, two that are looked at, one carried out
Loop = Callable[[Any, torch.optim.Optimizer, int], Any]


@pytest.fixture
def gpu() -> Iterator[FakeGpu]:
    with fake_cuda() as gpu:
        yield gpu
        assert not gpu.order.found


@pytest.fixture
def wholes(monkeypatch: pytest.MonkeyPatch) -> list[whole_step.WholeStep]:
    made: list[whole_step.WholeStep] = []

    class Kept(whole_step.WholeStep):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(whole_step, "WholeStep", Kept)
    return made


class Dropping(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.dropout(torch.relu(self.body(self.norm(x))), 0.5, self.training))


def batch(step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(6, 8, device="cuda"), torch.randint(4, (6,), device="cuda")


def usual(model: Any, optimizer: torch.optim.Optimizer, step: int, then: Callable[..., Any] | None = None) -> Any:
    """`then`: called between the backward pass and the step, with model, optimizer, step, batch, result and loss."""
    x, labels = batch()
    out = model(x)
    loss = F.cross_entropy(out, labels)
    optimizer.zero_grad()
    loss.backward()
    if then is not None:
        then(model, optimizer, step, x, out, loss)
    optimizer.step()
    return loss


@pytest.mark.parametrize("make", [Net, Recurrent, Dropping])
@pytest.mark.parametrize("optimizer_of", [sgd, adam])
def test_steps_are_one_replay_and_train_alike(gpu: FakeGpu, wholes: Any, make: Any, optimizer_of: Any) -> None:
    assert not same(gpu, make=make, optimizer_of=optimizer_of, loop=usual, settings=STEP, steps=STEPS)
    assert gpu.captures == 1 and gpu.replays == wholes[0].replayed == STEPS - RECORDED_AT


def test_a_step_without_pytorchs_own_function_around_it(gpu: FakeGpu, wholes: Any, monkeypatch: Any) -> None:
    """As in a program's process, where the session is there before the first optimizer of a class."""
    hooked: Any = torch.optim.SGD.step
    plain = hooked.__wrapped__ if getattr(hooked, "hooked", False) else hooked
    monkeypatch.setattr(torch.optim.SGD, "step", plain)
    marks: list[str] = []
    hooks = [
        register_optimizer_step_pre_hook(lambda *_: marks.append("before")),
        register_optimizer_step_post_hook(lambda *_: marks.append("after")),
    ]
    try:
        losses, left_out, model, _ = train(gpu, loop=usual, settings=STEP, steps=STEPS)
    finally:
        for each in hooks:
            each.remove()
    torch.optim.SGD.step = plain  # type: ignore[method-assign]
    expected, _, other, _ = train(None, loop=usual, steps=STEPS)
    assert losses == expected and not left_out and wholes[0].replayed == STEPS - RECORDED_AT
    assert marks == ["before", "after"] * STEPS
    assert all(torch.allclose(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))


# -- what scripts do in between ---------------------------------------------------------------------------------------


def clipping(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    norms: list[Any] = []

    def clip(*_: Any) -> None:
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05))

    usual(model, optimizer, step, clip)
    return norms[0]


def clips_by_value(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    return usual(model, optimizer, step, lambda *_: nn.utils.clip_grad_value_(model.parameters(), 0.01))


def cast(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    x, labels = batch()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    loss.float().backward()
    optimizer.step()
    return loss


def accuracy(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    x, labels = batch()
    optimizer.zero_grad(set_to_none=True)
    out = model(x)
    assert out.shape == (6, 4) and out.size(0) == len(out) == 6 and out.requires_grad and out.device.type == "cuda"
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)(out, labels.view(-1)) / 2
    with torch.no_grad():
        right = (out.argmax(1) == labels).float().mean()
    loss.backward()
    optimizer.step()
    return loss.item() + right.item() + out.sum().item()


def penalised(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    x, labels = batch()
    loss = F.cross_entropy(model(x), labels) + 0.01 * sum(each.square().sum() for each in model.parameters())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def scheduled(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    optimizer.param_groups[0]["lr"] *= 0.8
    return usual(model, optimizer, step)


@pytest.mark.parametrize("loop", [clipping, cast, accuracy, penalised, scheduled, plain_step])
@pytest.mark.parametrize("optimizer_of", [sgd, adam])
def test_what_scripts_do_is_a_part_of_it(gpu: FakeGpu, wholes: Any, loop: Loop, optimizer_of: Any) -> None:
    assert not same(gpu, loop=loop, optimizer_of=optimizer_of, settings=STEP, steps=STEPS)
    assert wholes[0].replayed == STEPS - RECORDED_AT and gpu.captures == 1


# -- steps that are other ones ----------------------------------------------------------------------------------------


def reads_at_times(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    read: list[float] = []
    then = (lambda *given: read.append(given[-1].item())) if step % 3 == 1 and step > 4 else None
    loss = usual(model, optimizer, step, then)
    return read[0] if read else loss


def reads_results_at_times(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    x, labels = batch()
    out = model(x)
    if step % 4 == 1:
        labels = out.argmax(1)
    loss = F.cross_entropy(out, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def looks_at_gradients_at_times(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    seen: list[Any] = []
    then = (lambda *_: seen.append(model.head.weight.grad.norm())) if step % 3 == 1 and step > 4 else None
    loss = usual(model, optimizer, step, then)
    return seen[0] if seen else loss


def another_loss_from_now_on(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    x, labels = batch()
    loss = F.cross_entropy(model(x), labels, label_smoothing=0.2 if step > 7 else 0.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def another_batch_size_at_times(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    x, labels = batch()
    count = 4 if step % 5 == 4 else 6
    loss = F.cross_entropy(model(x[:count]), labels[:count])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def leaves_steps_out(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    x, labels = batch()
    loss = F.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    if step % 4 == 3:
        return loss
    loss.backward()
    if step % 4 != 2:
        optimizer.step()
    return loss


def keeps_parts(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    x, labels = batch()
    out = model(x)
    flat, same_labels = out.view(-1), labels.view(-1)
    loss = F.cross_entropy(flat.view(6, 4), same_labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        out.zero_()
        labels.fill_(3)
    return loss + flat.sum() + same_labels.sum()


def mostly_another_one(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    read: list[float] = []
    loss = usual(model, optimizer, step, (lambda *given: read.append(given[-1].item())) if step % 5 > 1 else None)
    return read[0] if read else loss


def evaluates(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    loss = usual(model, optimizer, step)
    if step % 3:
        return loss
    model.eval()
    with torch.no_grad():
        score = model(batch()[0]).sum()
    model.train()
    return score


def calls_the_model_in_between(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    """Its running means hang on the order."""
    found: list[Any] = []

    def look(*_: Any) -> None:
        with torch.no_grad():
            found.append(model(batch()[0]).sum())

    loss = usual(model, optimizer, step, look if step % 4 == 1 and step > 4 else None)
    return found[0] if found else loss


def reads_running_means(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    found: list[Any] = []
    then = (lambda *_: found.append(model.norm.running_mean.sum())) if step in (7, 9) else None
    loss = usual(model, optimizer, step, then)
    return found[0] if found else loss


def overwrites_its_batch(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    def write(model: Any, optimizer: Any, step: int, x: torch.Tensor, out: Any, loss: Any) -> None:
        x.zero_()

    return usual(model, optimizer, step, write if step in (7, 10) else None)


def leaves_training_mode_and_reads(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    found: list[float] = []

    def read(model: Any, optimizer: Any, step: int, x: Any, out: torch.Tensor, loss: Any) -> None:
        model.eval()
        found.append(out.sum().item())
        model.train()

    loss = usual(model, optimizer, step, read if step % 3 == 1 and step > 4 else None)
    return found[0] if found else loss


def seeds_in_between(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    return usual(model, optimizer, step, (lambda *_: torch.cuda.manual_seed(step)) if step > 6 else None)


def sends_by_the_other_way(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    x, labels = batch()
    loss = F.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    if step == 8:
        torch.autograd.backward(loss)
    else:
        loss.backward()
    optimizer.step()
    return loss


def fails_in_between(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    try:
        return usual(model, optimizer, step, (lambda *_: {}["none"]) if step in (7, 8) else None)
    except KeyError:
        return model.norm.running_var.sum()


def another_momentum_from_now_on(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    if step == 6:
        optimizer.param_groups[0].update({"momentum": 0.5, "betas": (0.5, 0.9)})
    return usual(model, optimizer, step)


def loads(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    if step == 7:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        model.load_state_dict({name: each * 0.9 for name, each in model.state_dict().items()})
    return usual(model, optimizer, step)


def assigns(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    if step == 7:
        for each in model.parameters():
            each.data = each.data * 0.9
    return usual(model, optimizer, step)


def freezes(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    if step == 7:
        model.body.requires_grad_(False)
    return usual(model, optimizer, step)


def hooks_a_layer(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    if step == 7:
        model.head.register_forward_hook(lambda layer, given, result: result * 0.5)
    return usual(model, optimizer, step)


def hooks_a_gradient(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    if step == 7:
        model.head.weight.register_hook(lambda gradient: gradient / 2)
    return usual(model, optimizer, step)


def takes_parameters_away(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    if step == 7:
        group = optimizer.param_groups[0]
        group["params"] = [each for each in group["params"] if each is not model.head.bias]
    return usual(model, optimizer, step)


def takes_one_out_of_the_list(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    if step == 7:
        del optimizer.param_groups[0]["params"][1]
    return usual(model, optimizer, step)


def sets_a_part_of_the_state(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    if step == 7:
        held = optimizer.state[model.head.weight]
        held.update({name: each * 0.5 for name, each in held.items() if isinstance(each, torch.Tensor) and each.dim()})
    return usual(model, optimizer, step)


def sets_all_of_the_state(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    if step == 7:
        others = {name: dict(held) for name, held in optimizer.state.items() if name is not model.head.weight}
        optimizer.state = defaultdict(dict, others)
    return usual(model, optimizer, step)


def is_looked_at_for_anomalies(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    with torch.autograd.set_detect_anomaly(step == 9):
        return usual(model, optimizer, step)


def steps_on_another_stream(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    x, labels = batch()
    loss = F.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    if step in (7, 9):
        other = torch.cuda.Stream()
        loss.backward()
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            optimizer.step()
        torch.cuda.current_stream().wait_stream(other)
    else:
        loss.backward()
        optimizer.step()
    return loss


def gives_a_closure_at_times(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    x, labels = batch()

    def closure() -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        return loss

    loss = closure()
    optimizer.step(closure if step in (7, 9) else None)  # type: ignore[arg-type]
    return loss


OTHER = [
    *(takes_one_out_of_the_list, sets_a_part_of_the_state, sets_all_of_the_state),
    *(takes_parameters_away, is_looked_at_for_anomalies, steps_on_another_stream, gives_a_closure_at_times),
    *(reads_at_times, reads_results_at_times, looks_at_gradients_at_times, another_loss_from_now_on),
    *(another_batch_size_at_times, evaluates, calls_the_model_in_between, reads_running_means),
    *(overwrites_its_batch, leaves_training_mode_and_reads, seeds_in_between, sends_by_the_other_way, fails_in_between),
    *(another_momentum_from_now_on, loads, assigns, freezes, hooks_a_layer, hooks_a_gradient),
]


@pytest.mark.parametrize("loop", OTHER)
def test_a_step_that_is_another_one_is_made_as_written(gpu: FakeGpu, wholes: Any, loop: Loop) -> None:
    """With dropout: what is made later than it was called draws what it would have drawn."""
    assert not same(gpu, make=Dropping, loop=loop, optimizer_of=sgd, settings=STEP, steps=STEPS)
    assert wholes[0].replayed >= 2


@pytest.mark.parametrize("loop", [another_momentum_from_now_on, loads, reads_at_times, sets_a_part_of_the_state])
def test_the_same_of_an_optimizer_that_counts_its_steps(gpu: FakeGpu, wholes: Any, loop: Loop) -> None:
    assert not same(gpu, loop=loop, optimizer_of=adam, settings=STEP, steps=STEPS)
    assert wholes[0].replayed >= 2


@pytest.mark.parametrize("loop", [leaves_steps_out, mostly_another_one, keeps_parts])
def test_what_is_never_the_same_twice_trains_alike(gpu: FakeGpu, loop: Loop) -> None:
    assert not same(gpu, make=Dropping, loop=loop, settings=STEP, steps=20)


# -- programs that are refused ----------------------------------------------------------------------------------------


def reads_always(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    return usual(model, optimizer, step, lambda *given: given[-1].item())


def accumulates(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    optimizer.zero_grad()
    for _ in range(2):
        x, labels = batch()
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
    optimizer.step()
    return loss


def adds_up_gradients(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    x, labels = batch()
    F.cross_entropy(model(x), labels).backward()
    loss = F.cross_entropy(model(x), labels)
    loss.backward()
    optimizer.step()
    if step % 2:
        optimizer.zero_grad()
    return loss


def weighs_anew(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    x, labels = batch()
    loss = F.cross_entropy(model(x), labels) * (1 + step / 10)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def writes_to_its_own(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    if step == 0:
        optimizer.total = torch.zeros((), device="cuda")  # type: ignore[attr-defined]
    usual(model, optimizer, step, lambda *given: optimizer.total.add_(given[-1].detach()))  # type: ignore[attr-defined]
    return optimizer.total.clone()  # type: ignore[attr-defined]


def keeps_a_graph(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    x, labels = batch()
    out = model(x)
    loss = F.cross_entropy(out, labels)
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()
    return loss


def two_optimizers(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    if step == 0:
        head = list(model.head.parameters())
        optimizer.param_groups[0]["params"] = [  # type: ignore[index]
            each for each in optimizer.param_groups[0]["params"] if all(each is not one for one in head)
        ]
        optimizer.other = torch.optim.SGD(head, lr=0.1)  # type: ignore[attr-defined]
    x, labels = batch()
    loss = F.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    optimizer.other.zero_grad()  # type: ignore[attr-defined]
    loss.backward()
    optimizer.step()
    optimizer.other.step()  # type: ignore[attr-defined]
    return loss


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        return given.square().mean() / 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return torch.full((6, 4), 0.01, device="cuda") * gradient


def has_a_function_of_its_own(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    x, labels = batch()
    out = model(x)
    loss = F.cross_entropy(out, labels) + Halved.apply(out)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def scales(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
    if step == 0:
        optimizer.scaler = torch.amp.GradScaler("cuda", init_scale=4.0)  # type: ignore[attr-defined]
    scaler: Any = optimizer.scaler  # type: ignore[attr-defined]
    x, labels = batch()
    loss = F.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss


@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        (reads_always, "is told a float"),
        (accumulates, "more than once"),
        (adds_up_gradients, "more than once"),
        (weighs_anew, "other things between"),
        (writes_to_its_own, "writes to a tensor"),
        (keeps_a_graph, "a graph that is kept"),
        (two_optimizers, "another optimizer's"),
        (scales, ""),
        (clips_by_value, "parts of a tensor"),
        (has_a_function_of_its_own, "tells nobody of"),
    ],
)
def test_programs_that_are_refused_train_alike(gpu: FakeGpu, wholes: Any, loop: Loop, reason: str) -> None:
    assert not same(gpu, make=Dropping, loop=loop, settings=STEP, steps=STEPS)
    assert not wholes[0].replayed and wholes[0].refusal and reason in wholes[0].refusal
    assert gpu.captures > 1  # the parts are recorded in its place


def test_a_model_that_two_optimizers_train_in_turn(gpu: FakeGpu, wholes: Any) -> None:
    """A GAN: the gradient of one goes through the model of the other, and a result is used after the first's step."""
    expected, _ = gan("", STEPS)
    losses, left_out = gan("step", STEPS)
    assert losses == pytest.approx(expected, rel=1e-4) and not left_out
    assert wholes[0].refusal and not wholes[0].replayed


# -- what the program is given ----------------------------------------------------------------------------------------


def test_what_the_program_keeps_is_not_overwritten(gpu: FakeGpu, wholes: Any) -> None:
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keeping(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
        results: list[torch.Tensor] = []
        loss = usual(model, optimizer, step, lambda *given: results.append(given[-2]))
        kept.extend([(results[0].detach(), results[0].detach().clone()), (loss.detach(), loss.detach().clone())])
        return loss

    assert not same(gpu, loop=keeping, settings=STEP, steps=STEPS)
    assert wholes[0].replayed and all(torch.equal(now, then) for now, then in kept)


def test_gradients_that_the_program_keeps_are_not_overwritten(gpu: FakeGpu, wholes: Any) -> None:
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keeping(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
        loss = usual(model, optimizer, step)
        gradient = model.head.weight.grad
        if step >= 8:
            kept.append((gradient if step % 2 else gradient.view(-1), gradient.clone().view(gradient.shape)))
        return gradient.norm() + loss

    assert not same(gpu, loop=keeping, settings=STEP, steps=STEPS)
    assert wholes[0].replayed and all(torch.equal(now.view(then.shape), then) for now, then in kept)


def test_a_checkpoint_is_that_of_the_program(gpu: FakeGpu, wholes: Any) -> None:
    found: list[Any] = []

    def saving(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
        loss = usual(model, optimizer, step)
        if step == 9:
            found.append(copy.deepcopy((model.state_dict(), optimizer.state_dict())))
        return loss

    assert not same(gpu, loop=saving, optimizer_of=adam, settings=STEP, steps=STEPS)
    (plain, plain_state), (model, state) = found
    assert wholes[0].replayed == STEPS - RECORDED_AT
    assert all(torch.allclose(model[name].float(), each.float(), rtol=1e-4, atol=1e-6) for name, each in plain.items())
    for key, each in plain_state["state"].items():
        assert {name: value.device for name, value in each.items()} == {
            name: value.device for name, value in state["state"][key].items()
        }
        assert all(torch.allclose(state["state"][key][name], each[name], rtol=1e-4, atol=1e-6) for name in each)


def test_a_process_that_is_forked_in_between_is_none_of_it(gpu: FakeGpu, wholes: Any) -> None:
    found: list[int] = []

    def forking(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
        def fork(*_: Any) -> None:
            if process := os.fork():
                found.append(os.waitpid(process, 0)[1])
                return
            fell = wholes[-1]._fallen
            total = torch.ones(3) + torch.ones(3)  # as a data set does
            os._exit(0 if wholes[-1]._fallen == fell and wholes[-1].under_way and float(total.sum()) == 6 else 1)

        return usual(model, optimizer, step, fork if step == 9 and wholes else None)

    assert not same(gpu, loop=forking, settings=STEP, steps=STEPS)
    assert found == [0] and wholes[0].replayed == STEPS - RECORDED_AT


def test_a_loss_that_is_sent_backward_again_fails_as_it_would(gpu: FakeGpu) -> None:
    def again(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
        loss = usual(model, optimizer, step)
        assert loss.requires_grad and loss.grad_fn is not None
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        return loss

    assert not same(gpu, loop=again, settings=STEP, steps=STEPS)


def test_observers_see_losses_and_gradients_of_each_step(gpu: FakeGpu, wholes: Any) -> None:
    def seen(on: bool) -> list[float]:
        torch.manual_seed(0)
        found: list[float] = []

        def watch(hub: Any) -> None:
            def sent(loss: torch.Tensor) -> torch.Tensor:
                found.append(loss.item())
                return loss

            hub.loss_backward.subscribe(sent)
            hub.step_begins.subscribe(lambda optimizer: found.append(model.head.weight.grad.norm().item()))
            hub.step_ends.subscribe(lambda optimizer: found.append(model.head.weight.detach().sum().item()))

        with Session([("cuda_graphs", STEP)] if on else [], [watch]) as session:
            model: Any = Net().cuda()
            optimizer = sgd(model.parameters())
            for step in range(STEPS):
                usual(model, optimizer, step)
        assert not session.seams.left_out
        return found

    assert seen(True) == pytest.approx(seen(False), rel=1e-5)
    assert wholes[0].replayed == STEPS - RECORDED_AT


def test_it_is_switched_off_and_on(gpu: FakeGpu, wholes: Any) -> None:
    def switched(on: bool) -> list[float]:
        torch.manual_seed(0)
        with Session([("cuda_graphs", STEP)] if on else []) as session:
            model = Dropping().cuda()
            optimizer = adam(model.parameters())
            losses = []
            for step in range(STEPS):
                if on and step in (6, 9):
                    handle = session.handles["cuda_graphs"]
                    handle.off() if step == 6 else handle.on()
                losses.append(usual(model, optimizer, step).item())
        assert not session.seams.left_out
        return losses

    assert switched(True) == pytest.approx(switched(False), rel=1e-5)
    assert wholes[0].replayed == STEPS - RECORDED_AT - 3


# -- it never does worse than not to be there -------------------------------------------------------------------------


def test_a_recording_that_fails_is_made_as_written(gpu: FakeGpu, wholes: Any) -> None:
    gpu.fails = True
    left_out = same(gpu, make=Dropping, loop=usual, optimizer_of=adam, settings=STEP, steps=STEPS)
    assert "operation not permitted" in wholes[0].refusal and "operation not permitted" in left_out["cuda_graphs"]


def test_a_replay_that_fails_is_made_as_written(gpu: FakeGpu, wholes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replay, replays = gpu.replay, list[int]()

    def fails(tape: Any) -> None:
        replays.append(1)
        if len(replays) == 3:
            raise RuntimeError("no such function")
        replay(tape)

    monkeypatch.setattr(gpu, "replay", fails)
    assert not same(gpu, make=Dropping, loop=usual, settings=STEP, steps=STEPS)
    assert "no such function" in wholes[0].refusal


def test_an_error_of_ours_between_two_calls_of_the_programs_is_not_the_programs(
    gpu: FakeGpu, wholes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = held_step.HeldStep.answer

    def fails(self: Any, kind: Any, *args: Any) -> Any:
        if kind is sequence.Kind.FUNCTION and wholes[0].replayed == 2:
            raise AttributeError("no such function")
        return answer(self, kind, *args)

    monkeypatch.setattr(held_step.HeldStep, "answer", fails)
    assert not same(gpu, make=Dropping, loop=usual, settings=STEP, steps=STEPS)
    assert "no such function" in wholes[0].refusal


def test_a_model_that_fails_when_it_is_called_later_is_called_again_without_techniques(
    gpu: FakeGpu, wholes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, failed = points.Around.inside, list[int]()

    def fails(self: Any, *args: Any) -> Any:
        if wholes[0].replayed and not failed:
            failed.append(1)
            return lambda *given, **by_name: {}["none"]
        return inside(self, *args)

    monkeypatch.setattr(points.Around, "inside", fails)
    left_out = same(gpu, make=Dropping, loop=reads_at_times, settings=STEP, steps=STEPS)
    assert failed and "the model's call failed with it (KeyError" in left_out["cuda_graphs"]
    assert not function_modes()  # though it was told of a function when it was left out


def test_a_step_that_cannot_be_made_later_ends_the_program(
    gpu: FakeGpu, wholes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was given has no values: it must not go on with these."""

    def fails(self: Any) -> None:
        raise RuntimeError("CUDA out of memory")

    def calls_twice(model: Any, optimizer: torch.optim.Optimizer, step: int) -> Any:
        return usual(model, optimizer, step, (lambda *given: model(given[3])) if step == 9 else None)

    monkeypatch.setattr(held_step.HeldStep, "carry_out", fails)
    with pytest.raises(whole_step.StepFailed, match="out of memory"):
        train(gpu, loop=calls_twice, settings=STEP, steps=STEPS)
    with pytest.raises(RuntimeError, match="out of memory"):
        train(gpu, loop=reads_at_times, settings=STEP, steps=STEPS)
    assert wholes[0].replayed


@pytest.mark.parametrize("defect", ["a label", "an input", "a call"])
def test_defects_are_seen(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    """Seeded: these tests can fail."""
    if defect == "a call":
        monkeypatch.setattr(held_step.HeldStep, "_fit", lambda self, wanted, leaves: _fit_all(self, wanted, leaves))
    else:
        name = {"a label": "copy_others", "an input": "copy_inputs"}[defect]
        copy = getattr(step_graph.StepGraph, name)
        monkeypatch.setattr(
            step_graph.StepGraph, name, lambda self, given: None if self.recorded else copy(self, given)
        )
    loop = another_loss_from_now_on
    plain, *_ = train(None, loop=loop, steps=STEPS)
    losses, *_ = train(gpu, loop=loop, settings=STEP, steps=STEPS)
    assert losses != pytest.approx(plain, rel=1e-3)


_fit = held_step.HeldStep._fit


def _fit_all(self: Any, wanted: list[Any], leaves: list[Any]) -> bool:
    """Whatever constants there are."""
    pairs = zip(wanted, leaves, strict=True)
    return _fit(self, wanted, [each if isinstance(each, torch.Tensor) else want for want, each in pairs])
