"""Technique `library_autotune`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.seams.parameters import parameters_of
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams
    from overdrive.seams.torch.denormals import Denormals

# A denormal in a product of matrices costs 150 cycles for the eight numbers beside it, which take half a cycle: one of
# a million makes it slower by a quarter of a percent.
_LEAST_DENORMALS = 1e-6
_NOTHING_ON_CPU = "on a CPU it only makes denormal numbers zero, which `flush_denormals` asks for"
_LOOKS = 2  # calls of the model, and steps, in which they are looked for


class LibraryAutotune(Technique):
    """Lets the libraries below PyTorch choose the fastest kernel by trying, and denormals be zero.

    What it does: on a GPU, has cuDNN try its convolution algorithms for each new shape and keep the fastest
    (`benchmark`), or takes matrix products to cuBLASLt in place of cuBLAS (`blas`). On a CPU it makes denormal
    numbers zero (`flush_denormals`), where the program's first steps have any; oneDNN, which chooses its kernels by
    itself, has nothing to be tried there: its formats are `channels_last`, its arithmetic `autocast`. All when the
    optimizer is made.

    When it helps: convolutions of fixed shapes on a GPU. Denormals, where a network has them (activations that
    decay towards zero), cost a CPU a hundred cycles each.

    When it hurts: shapes that change at each step are tried anew each time. A program that asks for
    deterministic algorithms is left alone: the choice may differ from run to run.

    What it watches: at the end of each step, whether the program asks for deterministic algorithms. What would escape:
    a setting of these libraries that the program makes itself later, which stands; and denormal numbers on threads of
    the program's own, which may be kept.

    Contract: rounding. Other algorithms sum in another order, and some (Winograd's) are less exact: there it
    falls to statistical, and so it does with denormals flushed, which is another arithmetic.

    Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html;
    https://docs.pytorch.org/docs/stable/backends.html
    """

    name = "library_autotune"
    contract = Contract.ROUNDING
    fallback_contract = Contract.STATISTICAL
    targets = ("forward", "backward")
    expected_saving = 0.05
    # Not switchable: cuDNN keeps the algorithms that it has tried for a shape, and threads that were started while
    # denormals were zero stay so.
    lost_when_killed = "which kernels are fastest is found anew in each process: two runs need not have the same bits"
    order = 20
    knobs = (
        Knob("benchmark", True, "cuDNN tries its algorithms for each new shape"),
        Knob(
            "blas", "default", "which library multiplies matrices on a GPU", choices=("default", "cublas", "cublaslt")
        ),
        Knob("flush_denormals", False, "denormal numbers are zero on the CPU"),
    )

    def applies(self, facts: Facts) -> str | None:
        if self.candidates(facts):
            return None
        if facts.device == "cpu" and facts.modules:
            return "there are no denormal numbers in what its layers compute, its gradients and its optimizer"
        return "there is no convolution to try algorithms for"

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        if facts.device == "cpu":
            any_there = self.own(facts).get("denormals", 1.0) > _LEAST_DENORMALS
            return [{"benchmark": False, "flush_denormals": True}] if facts.modules and any_there else []
        tried = [{"benchmark": True}] if facts.convolutions else []
        return [*tried, {"benchmark": bool(tried), "blas": "cublaslt"}] if facts.modules else tried

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        look = _Look(seams)
        seams.model_called.subscribe(look.at_call)
        seams.step_begins.subscribe(look.at_step)
        return look.found

    def install(self, seams: Seams, settings: Settings) -> Handle:
        undos: list[Callable[[], object]] = []

        def look(*_: Any) -> None:
            import torch

            if torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic:
                raise CannotInstall("the program asks for deterministic algorithms")

        def choose(optimizer: Any, models: list[Any]) -> None:
            import torch

            if undos:
                return  # another optimizer of the same program
            look()
            on_gpu = any(parameter.is_cuda for parameter in parameters_of(optimizer))
            if on_gpu and settings["benchmark"] and not torch.backends.cudnn.benchmark:
                torch.backends.cudnn.benchmark = True
                undos.append(lambda: setattr(torch.backends.cudnn, "benchmark", False))
            if on_gpu and settings["blas"] != "default":
                before = torch.backends.cuda.preferred_blas_library()
                torch.backends.cuda.preferred_blas_library(str(settings["blas"]))
                undos.append(lambda: torch.backends.cuda.preferred_blas_library(before))
            if not on_gpu and settings["flush_denormals"]:
                if not _denormals_are_kept():
                    raise CannotInstall("denormal numbers are zero already")
                if not torch.set_flush_denormal(True):
                    raise CannotInstall("this processor cannot flush denormal numbers")
                undos.append(lambda: torch.set_flush_denormal(False))
            if not undos:
                off = not on_gpu and not settings["flush_denormals"]
                raise CannotInstall(_NOTHING_ON_CPU if off else "the program has these settings itself")

        def undo() -> None:
            while undos:
                undos.pop()()

        seams.optimizer_made.subscribe(choose)
        seams.step_ends.subscribe(look)
        seams.on_undo(undo)
        return seams.handle()


class _Look:
    """Looks for denormal numbers in some of the first calls of the model and steps, not in the very first."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._denormals: Denormals | None = None
        self._calls = self._steps = 0

    def at_call(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from overdrive.seams.torch.tracing import compiled

        self._calls += bool(self._steps)
        if not 0 < self._calls <= _LOOKS or self._changes_the_call() or any(map(compiled, model.modules())):
            return call(*args, **kwargs)
        with self._counting():
            return call(*args, **kwargs)

    def _changes_the_call(self) -> bool:
        """Techniques that act in calls stand aside where somebody sees all operations, and so does what is compiled."""
        return any(point.techniques for point in (self._seams.model_called, *self._seams.operators.values()))

    def at_step(self, optimizer: Any) -> None:
        self._steps += 1
        if not 1 < self._steps <= 1 + _LOOKS:
            return
        denormals = self._counting()
        for parameter in parameters_of(optimizer):
            kept = optimizer.state.get(parameter, {})
            for each in (parameter, parameter.grad, *(kept.values() if isinstance(kept, dict) else ())):
                denormals.look_at(each)

    def found(self) -> dict[str, float]:
        seen = self._denormals
        return {"denormals": seen.denormal / seen.numbers} if seen and seen.numbers else {}

    def _counting(self) -> Denormals:
        from overdrive.seams.torch.denormals import Denormals

        self._denormals = self._denormals or Denormals()
        return self._denormals


def _denormals_are_kept() -> bool:
    import torch

    return bool((torch.tensor([1e-310], dtype=torch.float64) * 0.5 > 0).all())
