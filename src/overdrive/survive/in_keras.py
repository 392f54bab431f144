"""Programs that train in Keras: on TensorFlow they go on in the middle, on others they begin from their start."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from overdrive.core.rng import States
from overdrive.survive.facts import facts
from overdrive.survive.program_walk import difference
from overdrive.survive.refusals import CannotTake, OtherState

if TYPE_CHECKING:
    from pathlib import Path

    from overdrive.seams.hub import Seams
    from overdrive.survive.executions import Executions
    from overdrive.survive.journaled_run import JournaledRun
    from overdrive.survive.snapshot import Snapshot
    from overdrive.survive.variables import Variables

_CALLBACK = "keras.callbacks.BackupAndRestore in the program goes on from the end of an epoch"
_ALONE = "{}, whose steps cannot be skipped (" + _CALLBACK + ")"
_OWN_LOOP = "it applies an optimizer in a loop of its own"
_PAST = "TensorFlow itself writes its checkpoints, which are not seen"


class InKeras:
    """
    Attributes:
        trains: Keras has made a step on TensorFlow.
    """

    def __init__(self, run: JournaledRun, stepped: Callable[[Any], None], alone: bool) -> None:
        """
        Args:
            alone: it runs under no plan, and on no ranks.
        """
        self._run, self._stepped, self._alone = run, stepped, alone
        self._executions: Executions | None = None
        self._variables: Variables | None = None
        self._seams: Seams
        self.trains = False

    def follow(self, seams: Seams) -> None:
        """Keras, or TensorFlow, has just been imported."""
        self._seams = seams
        guarded = self._run.guarded
        seams.fit_called.subscribe(self._fits)
        seams.step_ends.subscribe(self._step_ends)
        if not self._alone:
            return
        seams.execution_called.subscribe(guarded(self._called))
        seams.numbers_read.subscribe(guarded(self._read))
        seams.variable_made.subscribe(lambda variable: self._on_tensorflow()[1].made(variable))
        seams.weights_kept.subscribe(lambda callback: self._on_tensorflow()[1].keeps(callback))
        seams.dataset_opened.subscribe(lambda data_set: self._on_tensorflow()[1].opened(data_set))
        seams.optimizer_applied.subscribe(lambda optimizer: self._refuse(_OWN_LOOP))
        seams.written_past.subscribe(lambda: self._refuse(_PAST))

    def take(self) -> _Taken:
        """
        Raises:
            CannotTake: see there.
        """
        from overdrive.survive import executions

        made, variables = self._on_tensorflow()
        try:
            made.settle()
        except Exception as error:
            raise CannotTake(executions.told_of(error)) from None
        blocks: list[Any] = []
        told = {**variables.take(blocks), "facts": facts(sys._getframe()), "random": _random_now()}
        return _Taken({"keras": told}, blocks)

    def way_back(self, target: Snapshot) -> _Back:
        return _Back(self._on_tensorflow()[1], target)

    # -- inside ---------------------------------------------------------------------------------

    def _on_tensorflow(self) -> tuple[Executions, Variables]:
        """Made as the first is asked for: TensorFlow is there by then."""
        if self._executions is None or self._variables is None:
            from overdrive.survive.executions import Executions
            from overdrive.survive.variables import Variables

            self._variables = Variables()
            self._executions = Executions(self._run, self._step_made, self._variables.of_data)
        return self._executions, self._variables

    def _fits(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._check()
        return call(*args, **kwargs)

    def _check(self) -> None:
        if not self._run.beside() and (reason := self._why_not()):
            self._run.cannot_skip(_ALONE.format(reason))

    def _why_not(self) -> str:
        from overdrive.seams.keras.control import backend

        if backend() != "tensorflow":
            return f"it trains in Keras on {backend()}" if backend() else "it trains in Keras"
        if not self._alone:
            return "it trains in Keras under a plan or on ranks"
        return "it trains in Keras beside PyTorch" if "torch" in self._seams.frameworks else ""

    def _step_ends(self, optimizer: Any) -> None:
        """As other backends tell of it."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(optimizer, torch.optim.Optimizer):
            self._check()

    def _called(self, execution: Any, call: Callable[..., Any], data: Any) -> Any:
        if execution.kind == "train":
            self._check()
        executions, _ = self._on_tensorflow()
        if self._run.replaying:
            self._seams.at_work.publish()
        return executions.called(execution, call, data)

    def _read(self, subject: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._on_tensorflow()[0].read(subject, call, *args, **kwargs)

    def _step_made(self, model: Any) -> None:
        self.trains = True
        self._stepped(model)

    def _refuse(self, reason: str) -> None:
        if not self._run.beside() and not self._run.replaying:
            self._run.cannot_skip(reason)


class _Taken:
    def __init__(self, header: dict[str, Any], blocks: list[Any]) -> None:
        self.graphs = SimpleNamespace(tensors=())
        self.numbers = SimpleNamespace(header=header, blocks=blocks)

    def keeps_draws(self) -> bool:
        return False


class _Back:
    def __init__(self, variables: Variables, target: Snapshot) -> None:
        self._variables, self._target = variables, target

    def compare(self, folder: Path, follows: bool) -> None:
        told = self._target.header["keras"]
        if told["random"] != _random_now():
            raise OtherState("the random numbers of Python, NumPy or TensorFlow are others than at the snapshot")
        if found := difference(told["facts"], facts(sys._getframe())):
            raise OtherState(found)

    def put_back(self) -> None:
        self._variables.put_back(self._target.header["keras"], self._target.block)

    def go_on(self) -> None: ...


def _random_now() -> str:
    """Of the global generators: they came here by themselves, and are compared."""
    from overdrive.seams.keras.internals import seeds_of_operators

    host = States.now(with_cuda=False)
    states = States(host.python, host.numpy, None, []).digest(), repr(seeds_of_operators())
    return hashlib.sha256(repr(states).encode()).hexdigest()
