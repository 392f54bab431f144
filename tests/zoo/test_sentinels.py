"""What the zoo's defects do to a step is seen by sentinels too, where it is done to a step and not to its data."""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from overdrive.core.contract import Contract
from overdrive.seams.hub import Handle, Seams
from overdrive.techniques.catalogue import also_in, catalogue
from overdrive.worker.recording import Recorder
from overdrive.worker.sentinels.sentinels import Sentinels
from overdrive.worker.session import Session
from tests.zoo import program
from tests.zoo.harness import MODULES
from tests.zoo.table import DEFECTS, HARMLESS

_SENTINELS = 10  # that a program is run for
# Of each place where a step can go wrong one: the model, its gradients, a setting, the state of the optimizer.
FEW = ("bias_dropped", "gradient_noise", "rate_off_in_secret", "momentum_less")


class _Enough(BaseException):
    pass


class _Eager(Sentinels):
    """Every step, waiting for what is told; ends the program after some."""

    def _is_paid(self) -> bool:
        return True

    def _look_on(self) -> None:
        super()._look_on()
        limit = time.monotonic() + 60
        while self._replay is not None and self._replay.mine is not None and time.monotonic() < limit:
            self._look()
            time.sleep(0.001)
        if self.different or self.same >= _SENTINELS or self.off:
            raise _Enough


def looked_at(name: str, level: Contract) -> _Eager:
    """The zoo's program under this specimen, which is switched off in copies."""
    also_in(MODULES)
    technique = catalogue()[name]
    plain = type(technique).install

    def install(self: Any, seams: Seams, settings: Any) -> Handle:
        plain(self, seams, settings)
        return seams.handle(off=lambda: seams.remove(name))  # for good: a copy is not to have it on again

    recorder = Recorder()
    sentinels = _Eager(lambda: recorder.clock.steps, {name: level})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(technique), "install", install)
        patch.setattr(type(technique), "switchable", True)
        session = sentinels.session = Session([(name, {})], [recorder, sentinels])
        try:
            with session, contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(_Enough):
                program.main(type(technique).program)  # type: ignore[attr-defined]
        finally:
            if sentinels.in_copy:
                os._exit(9)
    return sentinels


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", [each.name for each in DEFECTS if each.name in FEW])
@pytest.mark.fault(19)
def test_a_defect_of_a_step_is_seen(name: str) -> None:
    assert looked_at(name, Contract.EXACT).different == 1


@pytest.mark.parametrize("name", [each.name for each in HARMLESS if each.contract is Contract.EXACT][:2])
def test_a_harmless_one_is_the_same(name: str) -> None:
    sentinels = looked_at(name, Contract.EXACT)
    assert sentinels.different == 0 and sentinels.same
