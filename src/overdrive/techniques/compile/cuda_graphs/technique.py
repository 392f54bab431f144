"""Technique `cuda_graphs`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.progress import log
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


_FORGOTTEN_STEPS = 200  # a model that is not called for so long gives up its graphs


class CudaGraphs(Technique):
    """Records a training step, from the model's call to the optimizer's step, and replays it at one launch.

    What it does: watches the first steps, carries one out in the form to be recorded, then captures it as a CUDA graph.
    From then on nothing is done when the program calls its model: it is given tensors that stand for the results, and
    what it does with them is compared, call by call, with what it did before. When the optimizer is about to step, the
    batch is copied in, all is replayed, and what stood for results gets its values, in memory of the program's own.
    Where a call is another one, or a value is looked at before, the calls so far are made for real, with the same
    random numbers, and the step goes on as written. Where such steps are the rule, the model's call, its backward pass
    and the optimizer's step are recorded each by itself (`parts = "all"`, or "model"), and replayed inside of the
    program's own loop. Learning rates follow the program's schedule. Evaluation, kinds of calls not seen before
    (shapes, types, autocast), and gradients of gradients run as written.

    When it helps: many small kernels. A launch from Python takes about 5 us, one within a graph 1.3 us: whole
    steps 1.1 to 1.7 times faster in MLPerf, above 2 times in some.

    When it hurts: large kernels, where copying in and out is lost time; memory, since graphs keep what a forward
    pass needs for themselves. Models that read values on the CPU, draw random numbers in Python, print, keep state or
    have hooks, and optimizers that torch cannot capture, are left as they are, with the reason. No whole steps have
    programs that read the loss before they step, add up gradients of several passes, train a model by two optimizers or
    use a GradScaler. Whole steps have not run on a GPU.

    What it watches: before each call, the model's layers, hooks, modes and memory, all of Python's that its code can
    reach, autocast and the precision of products; before each step, the optimizer's settings, parameters and state.
    What changes is recorded anew, or left as it is. What would escape: other settings of PyTorch's that a kernel is
    chosen by (cuDNN's, say), state that C code keeps, and C code that is handed a result of the model before the
    optimizer's step, for the first time after the recording: it finds not-a-numbers there.

    Contract: rounding. The same kernels for the model; the optimizer's formula with counts and learning rate on the
    GPU. It falls to statistical where a program draws random numbers in its model, whose stream may shift.

    Source: https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/; PyGraph, arXiv 2503.19779 (where it hurts)
    """

    name = "cuda_graphs"
    contract = Contract.ROUNDING
    fallback_contract = Contract.STATISTICAL
    targets = ("forward", "backward", "optimizer")
    expected_saving = 0.5
    # One step as written, two looked at, one carried out, then recorded. Parts, where a whole step is refused: three as
    # written, two carried out, then recorded (0.1 to 0.2 s a step of all, on an H100).
    settles_in = 8
    # `compile` has CUDA graphs of its own (mode reduce-overhead); the others call parts of the model out of turn.
    conflicts = ("compile", "activation_checkpointing", "micro_batch", "offload")
    switchable = True
    order = 80  # outside of what else happens in a model's call, which is recorded with it
    knobs = (Knob("parts", "step", "what is recorded", choices=("step", "all", "model", "optimizer")),)

    def applies(self, facts: Facts) -> str | None:
        if facts.device != "cuda":
            return f"the model is on the {facts.device}, and CUDA graphs are for GPUs by NVIDIA"
        if facts.own_compile:
            return "the program compiles its model itself"
        return None if facts.modules else "the trained parameters belong to no nn.Module"

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        return [{"parts": "step"}, {"parts": "all"}, {"parts": "model"}]

    def install(self, seams: Seams, settings: Settings) -> Handle:
        recorder = _Recorder(seams)
        parts = settings["parts"]
        if parts != "model":
            seams.optimizer_made.subscribe(recorder.watch)
        if parts != "optimizer":
            ahead = recorder.answer_ahead if parts == "step" else None
            seams.model_called.subscribe(recorder.called, replays=True, ahead=ahead)
        if parts == "step":
            recorder.take_whole_steps()
        seams.step_ends.subscribe(recorder.look_back)
        seams.on_undo(recorder.undo)
        return seams.handle(recorder.on, recorder.off)


class _Recorder:
    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._active = True
        self._steps = 0
        self._models: dict[int, tuple[Any, int]] = {}  # with the step of its last call
        # Weak: an optimizer that the program gives up goes, with its recordings.
        self._optimizers: list[weakref.ref[Any]] = []
        self._refused: dict[int, tuple[Any, str]] = {}  # what is left as it is, and why
        self._told: set[str] = set()
        self._whole: Any = None

    def take_whole_steps(self) -> None:
        """Where they cannot be had, what else is recorded stands."""
        seams = self._seams

        def arrived() -> None:
            from overdrive.techniques.compile.cuda_graphs import captured_graph as captured
            from overdrive.techniques.compile.cuda_graphs.whole_step import WholeStep

            with seams.owned_by(owner):
                self._whole = WholeStep(seams, captured.CudaGraphPool, self._recorded)

        owner = seams.owner
        seams.framework_arrived.subscribe(arrived)
        seams.step_spared.subscribe(lambda optimizer: self._whole.made_step_of(optimizer) or None)
        seams.gradients_zeroed.subscribe(
            lambda holder, call, *how: self._whole.zeroed(holder, call, *how),
            ahead=lambda *asked: self._whole.zero_ahead(*asked),
        )
        seams.gradients_clipped.subscribe(lambda given, call, *a, **k: self._whole.clipped(given, call, *a, **k))
        seams.loss_backward.subscribe(lambda loss: self._whole.sent(loss))
        seams.step_called.subscribe(lambda optimizer, closure: self._whole.step_called(optimizer, closure))

    def _recorded(self, optimizer: Any) -> Any:
        known = [each for ref in self._optimizers if (each := ref()) is not None]
        return next((each for each in known if each.is_of(optimizer)), None)

    def watch(self, optimizer: Any, models: list[Any]) -> None:
        from overdrive.techniques.compile.cuda_graphs import captured_graph as captured
        from overdrive.techniques.compile.cuda_graphs.steps import RecordedOptimizer

        recorded = RecordedOptimizer(optimizer, captured.CudaGraphPool, self._whole)
        self._optimizers.append(weakref.ref(recorded))
        if self._active:
            recorded.on()

    def on(self) -> None:
        self._active = True
        for recorded in filter(None, (each() for each in self._optimizers)):
            recorded.on()

    def off(self) -> None:
        self._active = False
        if self._whole is not None:
            self._whole.pause()
        for recorded in filter(None, (each() for each in self._optimizers)):
            recorded.off()

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from overdrive.seams.points import Again
        from overdrive.seams.torch.models import acting
        from overdrive.seams.torch.modules import first_parameter
        from overdrive.techniques.compile.cuda_graphs import captured_graph as captured
        from overdrive.techniques.compile.cuda_graphs.models import RecordedModel
        from overdrive.techniques.compile.cuda_graphs.refusal import Refused

        if first_parameter(model) is None:
            return call(*args, **kwargs)  # a loss, say
        if self._whole is not None and self._whole.under_way:
            self._whole.other_call()
        refused = self._refused.get(id(model))
        if refused and refused[0]() is model:
            return call(*args, **kwargs)  # left as it is
        if id(model) not in self._models:
            recorded_model = RecordedModel(
                model, captured.CudaGraphPool, captured.DEVICE, self._seams.inputs_copied.publish, self._whole
            )
            self._models[id(model)] = recorded_model, 0
        recorded = self._models[id(model)][0]
        self._models[id(model)] = recorded, self._steps
        around = tuple(acting(self._seams))
        try:
            return recorded(around, call, args, kwargs)
        except Refused as reason:
            told = str(reason)
        except Exception as error:  # the recording's, or the program's own, which will come again
            told = f"{type(error).__name__}: {error}"
        self._refused[id(model)] = weakref.ref(model), told
        self._models.pop(id(model))
        raise Again(told)

    def answer_ahead(self, model: Any, args: Any, kwargs: Any) -> Any:
        answer = self._whole.answer_ahead(model, args, kwargs)
        if answer is not None:
            self._models[id(model)] = self._models[id(model)][0], self._steps
        return answer

    def look_back(self, optimizer: Any) -> None:
        """Where nothing is left to be recorded, the technique leaves itself out."""
        self._steps += 1
        if self._whole is not None and self._whole.step_ended(optimizer):
            return
        for key, (_, last) in list(self._models.items()):
            if self._steps - last > _FORGOTTEN_STEPS:  # its memory may be wanted
                del self._models[key]
        optimizers = [each for ref in self._optimizers if (each := ref()) is not None]
        reasons = [reason for _, reason in self._refused.values()] + [each.refusal for each in optimizers]
        if self._whole is not None:
            reasons.append(self._whole.refusal)
        reasons = [reason for reason in reasons if reason]
        if reasons and not self._models and all(each.refusal for each in optimizers):
            raise CannotInstall("; ".join(dict.fromkeys(reasons)))
        for reason in reasons:
            if reason not in self._told:
                self._told.add(reason)
                log.info("a part of the step is not recorded as a CUDA graph: %s", reason)

    def undo(self) -> None:
        if self._whole is not None:
            self._whole.close()
        self._models.clear()
        for ref in self._optimizers:
            if (each := ref()) is not None:
                each.remove()
        self._optimizers.clear()
        self._refused.clear()
