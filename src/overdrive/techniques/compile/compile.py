"""Technique `compile`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.kernels.build import cpp_compiler
from overdrive.seams.parameters import parameters_of
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams

_DYNAMIC = {"auto": None, "true": True, "false": False}
# Below this a GPU's step is mostly the launching of kernels (5 us each, some hundreds a step), which CUDA graphs save.
_LAUNCH_BOUND_SECONDS = 0.02
_SAVED_ON_A_GPU = 0.3  # share of a pass: fewer kernels, and launched at once
_TWICE = "the program differentiates gradients (create_graph), which compiled code cannot"


class Compile(Technique):
    """Compiles the model into fused kernels with `torch.compile`, in place.

    What it does: when the optimizer is made, calls `Module.compile` on the models that own its parameters, or,
    with `regional`, on the blocks that they repeat, which are compiled once for all. The first calls compile.
    A model that the compiler can take no part of, a compiler that crashes, and code that is compiled again
    and again, for ever new shapes say, take the technique out in mid-run: the model runs on as it was written.

    When it helps: many small element-wise operations, on a GPU above all: 1.4 times for training, as a
    geometric mean of 180 models. On a CPU 1.1 to 1.3 times for transformers.

    When it hurts: small convolutional networks on a CPU ran at 0.35 to 0.84 times the speed; every new shape
    compiles again; the first step takes tens of seconds. A GPT of 4 layers, 128 wide, on one core of a shared
    two-core machine gained nothing (0.98 times as fast [0.93, 1.03]) and was ready after 33 s instead of 5; its
    blocks alone after 20 s (0.95 [0.93, 0.98]). Recurrent layers (`nn.LSTM` and the like) it does not take. A program
    that differentiates gradients (a penalty on them, a physics-informed network) cannot run compiled: PyTorch's
    compiler has no second derivatives. A tune sees that beforehand; a plan by hand ends such a program.

    What it watches: what PyTorch's compiler guards (attributes, globals, shapes, modes), hooks on any module, and after
    each step whether compiling went well. What would escape: what a guard leaves out, such as state that C code keeps,
    or the content of what the program has the compiler take for constant.

    Contract: rounding. The same mathematics, other orders of summation. It falls to statistical where a program
    draws random numbers in its model: compiled dropout draws others.

    Source: Ansel et al., PyTorch 2, ASPLOS 2024; https://docs.pytorch.org/docs/stable/generated/torch.compile.html
    """

    name = "compile"
    programs = ("training", "inference")
    contract = Contract.ROUNDING
    fallback_contract = Contract.STATISTICAL
    targets = ("forward", "backward")
    expected_saving = 0.15
    usual_start = 30.0
    switchable = True
    lost_when_killed = "what it compiles depends, in its last bits, on the calls that came before"
    order = 40
    knobs = (
        Knob(
            "mode",
            "default",
            "what torch.compile optimises for",
            choices=("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
        ),
        Knob(
            "dynamic",
            "auto",
            "shapes as variables: auto (from the second shape on), true (at once) or false (each shape anew)",
            choices=tuple(_DYNAMIC),
        ),
        Knob("regional", False, "compile the blocks that the model repeats, not the whole"),
    )

    def expected_step_saving(self, facts: Facts) -> float:
        saving = _SAVED_ON_A_GPU if facts.device == "cuda" else self.expected_saving
        return facts.share(*self.targets) * saving

    def applies(self, facts: Facts) -> str | None:
        if facts.own_compile:
            return "the program compiles its model itself"
        if none := facts.without_module():
            return none
        if self.own(facts).get("differentiates_gradients"):
            return _TWICE
        if facts.device == "cpu" and not cpp_compiler():
            return "there is no C++ compiler for it on this machine"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        plain: list[Settings] = [{"mode": "default"}]
        if self.own(facts).get("repeated_blocks", 0) > 1:  # ready sooner, but seen to be no faster
            plain.append({"mode": "default", "regional": True})
        if facts.device != "cuda":
            return plain
        replayed: list[Settings] = [{"mode": "reduce-overhead"}]
        tuned: list[Settings] = [{"mode": "max-autotune-no-cudagraphs"}]
        launch_bound = 0.0 < facts.step_seconds < _LAUNCH_BOUND_SECONDS
        return [*replayed, *plain, *tuned] if launch_bound else [*plain, *replayed, *tuned]

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        models: list[Any] = []
        twice: list[bool] = []
        seams.optimizer_made.subscribe(lambda _, found: models.extend(found))

        def asked(outputs: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if _creates_graph(*args, **kwargs):
                twice.append(True)
            return call(*args, **kwargs)

        def found() -> dict[str, Any]:
            from overdrive.seams.torch.blocks import repeated_blocks

            blocks = max((len(repeated_blocks(model)) for model in models), default=0)
            return {"repeated_blocks": blocks, "differentiates_gradients": bool(twice)}

        seams.gradients_asked.subscribe(asked)

        return found

    def install(self, seams: Seams, settings: Settings) -> Handle:
        compiling = _Compiling(settings)

        def asked(outputs: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if compiling.calls and _creates_graph(*args, **kwargs):  # what was called by now may fail yet
                seams.leave_out(self.name, _TWICE)
            return call(*args, **kwargs)

        seams.gradients_asked.subscribe(asked)
        seams.optimizer_made.subscribe(compiling.made)
        seams.model_called.subscribe(compiling.called)
        seams.backward_done.subscribe(compiling.hand_over_gradients)
        seams.step_ends.subscribe(compiling.look_back)
        seams.on_undo(compiling.off)
        return seams.handle(compiling.on, compiling.off)


class _Compiling:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._active = True
        self._compiled: list[tuple[Any, Any]] = []  # a module and what was put in place of its call
        self._optimizers: list[weakref.ref[Any]] = []
        self._ours: dict[int, weakref.ref[Any]] = {}  # the copies of gradients, by the parameter's id
        self.calls = 0
        self._compiler: Any = None
        self._storm: Any = None
        self._own: tuple[bool, bool] | None = None  # the program's own settings, while ours are in force

    def made(self, optimizer: Any, models: list[Any]) -> None:
        import torch

        from overdrive.seams.torch.blocks import repeated_blocks
        from overdrive.seams.torch.compiler import Compiler, compiled_call
        from overdrive.seams.torch.tracing import compiled

        self._optimizers.append(weakref.ref(optimizer))
        dynamic = _DYNAMIC[str(self._settings["dynamic"])]
        if self._compiler is None:
            self._compiler = Compiler(str(self._settings["mode"]), dynamic)
        parts = models
        if self._settings["regional"]:
            parts = [block for model in models for block in repeated_blocks(model)]
        for part in parts:
            if not compiled(part):
                torch.nn.Module.compile(part, backend=self._compiler, dynamic=dynamic)
                self._compiled.append((part, compiled_call(part)))
        if models and not self._compiled and self._settings["regional"]:
            raise CannotInstall("the model repeats no block")
        (self.on if self._active else self.off)()

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._compiled:
            return call(*args, **kwargs)
        self.calls += 1
        result = call(*args, **kwargs)
        if not self._compiler.replays_graphs:
            return result
        import torch
        from torch.utils._pytree import tree_map_only

        # The next run of a CUDA graph overwrites what this one handed out, and the program may keep it.
        return tree_map_only(torch.Tensor, torch.clone, result)

    def look_back(self, optimizer: Any) -> None:
        """Whether compiling goes well, at the end of a step, where the model can be put back as it was."""
        if not self._compiled or not self.calls:
            return
        if self._compiler.failure or self._storm.failure:
            raise CannotInstall(f"the compiler failed ({self._compiler.failure or self._storm.failure})")
        if self._storm.reason:
            raise CannotInstall(self._storm.reason)
        if not self._compiler.graphs:
            raise CannotInstall(_nothing_compiled())
        if self._compiler.replays_graphs and len(self._optimizers) == 1:
            import torch

            # With several, another model's backward pass may still be to come.
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]

    def hand_over_gradients(self, loss: Any) -> None:
        """Take the gradients out of the graphs' memory, which the next micro-batch may write to: gradients that
        accumulate came out wrong (pytorch#169545, pytorch#96693). Once copied they are added to in place."""
        if not self._compiled or not self._compiler.replays_graphs:
            return
        import torch

        from overdrive.seams.torch.weights import copies_of

        optimizers = [each for ref in self._optimizers if (each := ref()) is not None]
        owners = [each for optimizer in optimizers for each in parameters_of(optimizer) if each.grad is not None]
        dense = [each for each in owners if each.grad.layout is torch.strided]
        fresh = [each for each in dense if (ours := self._ours.get(id(each))) is None or ours() is not each.grad]
        if fresh:
            for owner, copy in zip(fresh, copies_of([each.grad for each in fresh]), strict=True):
                owner.grad, self._ours[id(owner)] = copy, weakref.ref(copy)

    def on(self) -> None:
        self._active = True
        if self._compiler is None:
            return
        from overdrive.seams.torch.compiler import Storm, guard_hooks, set_compiled_call, suppress_errors

        if self._own is None:
            # What cannot be compiled runs uncompiled until the step ends: the program never fails for it.
            self._own = suppress_errors(True), guard_hooks(True)
            self._storm = Storm()
        for part, call in self._compiled:
            set_compiled_call(part, call)

    def off(self) -> None:
        self._active = False
        if self._compiler is None:
            return
        from overdrive.seams.torch.compiler import guard_hooks, set_compiled_call, suppress_errors

        for part, _ in self._compiled:
            set_compiled_call(part, None)
        if self._own is not None:
            suppress_errors(self._own[0])
            guard_hooks(self._own[1])
            self._own = None
            self._storm.close()


def _creates_graph(
    inputs: Any, grad_outputs: Any = None, retain_graph: Any = None, create_graph: Any = False, *_: Any, **__: Any
) -> bool:
    """Of `torch.autograd.grad`, whose arguments after the outputs these are."""
    return bool(create_graph)


def _nothing_compiled() -> str:
    from overdrive.seams.torch.compiler import graph_breaks

    because = graph_breaks()
    return "the compiler found nothing in the model that it can compile" + (f" ({because})" if because else "")
