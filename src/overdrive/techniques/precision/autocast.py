"""Technique `autocast`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import FORMATS, Facts
from overdrive.seams.parameters import looks_at_more, parameters_of
from overdrive.techniques.precision import no_16_bit_units, types_of_16_bits, unfit_for_16_bits
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class Autocast(Technique):
    """Does matrix products and convolutions of the forward pass in 16 bits.

    What it does: runs the outermost model call under `torch.autocast` while gradients are recorded (in a
    program that trains nothing: each of them), and hands its results back in 32 bits, and what the model keeps
    on its modules (attention that is looked at, a hidden state). Weights, loss, optimizer and evaluation stay as
    they were. With fp16, gradients are scaled against underflow and steps with infinities are skipped, as
    `torch.amp.GradScaler` does.

    When it helps: hardware with 16-bit matrix units: GPUs since 2017, CPUs with avx512_bf16 or AMX
    (1.5 to 2 times measured for small CNNs, LSTMs and ResNets on such a CPU).

    When it hurts: elsewhere it is slower. Networks fed with unnormalised data (0 to 255) have been seen to
    stop learning while their first steps looked fine. Programs with an autocast of their own are left alone,
    wherever they enter it: around the call, inside `forward`, by a decorator, or through Accelerate, Lightning
    or the HF Trainer. It is left out on a GPU that has no arithmetic for the type.

    What it watches: at each call, the type of the parameters and whether the program has an autocast of its own,
    wherever it enters one; in the first call of each mode, and in each 256th, what the model keeps. What would escape:
    code in the model that looks at the type of its activations; with fp16, gradients of anything but parameters (of an
    input, say), which come out multiplied by the scale, and overflows that a program drops by hand, without `zero_grad`
    and without a step, which leave the scale as it is; results within an object that is no dict, tuple, list or data
    class (a distribution, a cache), and activations that are added to a list or kept by a hook, which stay in 16 bits.

    Contract: statistical. Products are rounded to 8 (bf16) or 11 (fp16) significant bits.

    Source: Micikevicius et al., Mixed Precision Training, ICLR 2018; https://docs.pytorch.org/docs/stable/amp.html
    """

    name = "autocast"
    programs = ("training", "inference")
    contract = Contract.STATISTICAL
    targets = ("forward", "backward")
    expected_saving = 0.3
    switchable = True
    survives = True
    order = 50
    knobs = (Knob("dtype", "bfloat16", "the 16-bit type", choices=("bfloat16", "float16")),)

    def applies(self, facts: Facts) -> str | None:
        return unfit_for_16_bits(facts) or no_16_bit_units(facts)

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        return [{"dtype": each} for each in types_of_16_bits(facts)]

    def computes_in(self, settings: Settings) -> str:
        return FORMATS[str(settings["dtype"])]

    def install(self, seams: Seams, settings: Settings) -> Handle:
        own: list[Any] = []  # autocasts that the program entered
        scaling = _LossScaling(seams.loss_scaled.publish)
        kept: list[Any] = []  # what calls keep, once PyTorch is there

        def call_in_16_bits(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            import torch

            from overdrive.seams.torch.autocasts import quiet
            from overdrive.seams.torch.kept_by_calls import KeptByCalls
            from overdrive.seams.torch.modules import first_parameter
            from overdrive.seams.torch.weights import cast

            if own:
                raise CannotInstall("the program has an autocast of its own")
            first = first_parameter(model)
            evaluates = not torch.is_grad_enabled() and not seams.inference
            if first is None or first.dtype != torch.float32 or evaluates:
                return call(*args, **kwargs)
            kind = first.device.type
            if torch.is_autocast_enabled(kind):
                return call(*args, **kwargs)
            dtype = getattr(torch, str(settings["dtype"]))
            if kind == "cuda" and dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported(False):
                raise CannotInstall("this GPU has no bf16 arithmetic")
            if dtype == torch.float16:
                scaling.called(model)
            if not kept:
                kept.append(KeptByCalls(torch.float32, dtype))
            with kept[0].given_back(model), quiet(kind, dtype):
                result = call(*args, **kwargs)
            # The program was written for 32-bit results: numpy, for one, has no bfloat16.
            return cast(result, dtype, torch.float32)

        seams.autocast_entered.subscribe(own.append, always=True)
        seams.model_called.subscribe(call_in_16_bits)
        if settings["dtype"] != "float16":
            return seams.handle()
        seams.optimizer_made.subscribe(scaling.watch)
        seams.loss_backward.subscribe(scaling.scale_loss)
        seams.step_begins.subscribe(scaling.begins)
        seams.closure_called.subscribe(scaling.closure)
        seams.step_ends.subscribe(scaling.ends)
        seams.gradients_zeroed.subscribe(scaling.zeroed)
        seams.on_undo(scaling.off)
        seams.carry(scaling.told, scaling.take_back)
        return seams.handle(off=scaling.off)


class _LossScaling:
    """Dynamic loss scaling for a program that knows nothing of it.

    The loss is multiplied before it is sent backward; each parameter's gradient is divided just before it is added
    to `.grad`, and before hooks of the program's own, so that accumulation, clipping and whatever else the program does
    see true gradients. What overflowed is made NaN there: a program that clips values would make a finite one of an
    infinite one. A step whose gradients are not finite is skipped by taking them out of the optimizer's sight.
    """

    growth_interval = 2000  # finite steps until the scale is doubled; torch.amp.GradScaler's default

    def __init__(self, tell: Callable[[Any, Any], None]) -> None:
        """`tell`: is given each loss, without its graph, and what is sent backward in its place."""
        self._tell = tell
        self.scale = 65536.0  # 2**16, GradScaler's default
        self._finite_steps = 0
        self._backward_passes = 0
        self._looked = 0  # how many there had been when somebody looked at what they gave
        self._lowered = 0  # how many there had been when the scale was halved
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._new_models: list[weakref.ref[Any]] = []
        self._hooks: dict[int, tuple[weakref.ref[Any], Any]] = {}  # of parameters, by where they are
        self._steps: weakref.WeakKeyDictionary[Any, _Step] = weakref.WeakKeyDictionary()

    def told(self) -> list[float]:
        return [self.scale, self._finite_steps]

    def take_back(self, told: list[float]) -> None:
        self.scale, self._finite_steps = float(told[0]), int(told[1])

    def watch(self, optimizer: Any, models: list[Any]) -> None:
        self._optimizers.add(optimizer)

    def called(self, model: Any) -> None:
        """What no optimizer trains has gradients, too: a norm that is clipped may be of all of them."""
        if model not in self._models:
            self._models.add(model)
            self._new_models.append(weakref.ref(model))

    def off(self) -> None:
        for step in self._steps.values():
            step.put_back()
        for _, handle in list(self._hooks.values()):
            handle.remove()
        self._hooks.clear()
        self._models.clear()
        self._new_models.clear()

    def scale_loss(self, loss: Any) -> Any:
        import torch

        # Each time: since the last one, some may have been added, or be trained that were frozen.
        self._hook(chain.from_iterable(map(parameters_of, list(self._optimizers))))
        if not self._hooks:
            return loss
        for model in filter(None, (each() for each in self._new_models)):
            self._hook(model.parameters())
        self._new_models.clear()
        self._backward_passes += 1
        with torch.enable_grad():  # a program may send its loss backward without
            scaled = loss * self.scale
        self._tell(loss.detach(), scaled)  # else what is written down of a run is 65,536 times its loss
        return scaled

    def _hook(self, parameters: Iterable[Any]) -> None:
        """Each parameter once, however many optimizers have it."""
        from overdrive.seams.torch.hooks import hook_first
        from overdrive.seams.torch.internals import is_accumulated

        def divided(gradient: Any) -> Any:
            if not is_accumulated():  # what `torch.autograd.grad` gives of a loss was not scaled
                return gradient
            plain = gradient / self.scale
            return plain.add(plain, alpha=0)  # the same; NaN of what is infinite

        for parameter in parameters:
            place = id(parameter)
            if parameter.requires_grad and place not in self._hooks:
                alive = weakref.ref(parameter, partial(self._hooks.pop, place))
                self._hooks[place] = alive, hook_first(parameter, divided)

    def begins(self, optimizer: Any) -> None:
        """A step, whose gradients are there, or are yet to be made by its closure."""
        step = self._steps.setdefault(optimizer, _Step())
        step.hidden.clear()  # of a step that failed
        self._check(optimizer, step)

    def closure(self, optimizer: Any, call: Callable[[], Any]) -> Any:
        """The step's gradients are those that its closure makes, and what lay there before is the closure's matter."""
        if name := looks_at_more(optimizer):
            raise CannotInstall(f"{name} is given a closure, which it may call more than once in a step")
        step = self._steps.setdefault(optimizer, _Step())
        step.put_back()
        result = call()
        self._check(optimizer, step)
        return result

    def ends(self, optimizer: Any) -> None:
        step = self._steps.get(optimizer)
        if step is None:
            return
        step.put_back()
        if step.counted:
            return
        step.counted = True
        if not step.finite:
            self._lower()
            return
        self._finite_steps += 1
        if self._finite_steps >= self.growth_interval:
            self.scale, self._finite_steps = self.scale * 2, 0

    def zeroed(self, holder: Any, call: Callable[..., Any], *args: Any) -> Any:
        """A program that looks at its gradients itself drops those that overflowed, and makes no step with them."""
        if self._looked != self._backward_passes:
            hooked = [parameter for alive, _ in list(self._hooks.values()) if (parameter := alive()) is not None]
            if not self._are_finite([each for each in hooked if each.grad is not None]):
                self._lower()
        return call(*args)

    def _lower(self) -> None:
        """Once for a backward pass, however many optimizers have its gradients."""
        self._finite_steps = 0
        if self._lowered != self._backward_passes:
            self.scale, self._lowered = max(1.0, self.scale / 2), self._backward_passes

    def _check(self, optimizer: Any, step: _Step) -> None:
        having = [parameter for parameter in parameters_of(optimizer) if parameter.grad is not None]
        if not having or not self._hooks:
            return
        if step.backward_passes != self._backward_passes:
            step.finite, step.counted = self._are_finite(having), False
            step.backward_passes = self._backward_passes
        if not step.finite:
            step.hide(having)

    def _are_finite(self, having: list[Any]) -> bool:
        import torch

        from overdrive.seams.torch.layouts import strided_parts

        self._looked = self._backward_passes
        gradients = chain.from_iterable(strided_parts(each.grad) for each in having)
        return not having or bool(torch.stack([torch.isfinite(each).all() for each in gradients]).all())


@dataclass
class _Step:
    """An optimizer's last."""

    backward_passes: int = -1  # how many there had been when its gradients were looked at
    finite: bool = True
    counted: bool = True
    hidden: list[tuple[Any, Any]] = field(default_factory=list)  # parameters, and their gradients

    def hide(self, parameters: list[Any]) -> None:
        for each in parameters:
            self.hidden.append((each, each.grad))
            each.grad = None  # optimizers pass over parameters without a gradient

    def put_back(self) -> None:
        """The program may look at them after its step."""
        for parameter, gradient in self.hidden:
            parameter.grad = gradient
        self.hidden.clear()
