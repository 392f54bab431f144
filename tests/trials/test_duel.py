"""Duels: what is not worth measuring is not measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from overdrive.core.ledger import Ledger
from overdrive.core.program import Program
from overdrive.core.records import Block, TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.core.tune_result import MachineSummary
from overdrive.evidence.speed import Pair, Verdict
from overdrive.trials import checkpoint as checkpoint_module
from overdrive.trials import interleaved
from overdrive.trials.checkpoint import TuneCheckpoint, restore_duel, store_duel
from overdrive.trials.duel import Duel, Rules, Side, full_processes, of_full_processes
from overdrive.trials.pool import TrialPool
from overdrive.trials.process_pair import Pace, ProcessPair
from overdrive.trials.run_duel import judge, run_duel
from overdrive.tuner.duel_runner import CANDIDATE, CONTROL, confirmation
from overdrive.tuner.figures import figures
from overdrive.tuner.reasons import no_faster
from tests.simulated import Simulated
from tests.warm_trials import WarmPool

DRAWS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.randn(4)

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(50):
    for x in DataLoader(Noisy(), batch_size=8):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_a_technique_that_left_itself_out_is_not_measured(script: Callable[[str], Path]) -> None:
    program = Program(str(script(DRAWS)))
    with WarmPool() as pool:
        plain, cached = TrialSpec(program), TrialSpec(program, (("sample_cache", {}),))
        duel = run_duel(pool, plain, cached, CANDIDATE, time.monotonic() + 100)
    assert duel.pairs == [] and duel.exit_reason is None
    assert duel.new_trace is not None
    assert "draws random numbers" in duel.new_trace.left_out["sample_cache"]


def pairs_where(waited: list[float], gain: float = 1.5) -> list[Pair]:
    """B is so many times as fast, and waits for others so long in each block."""
    return [Pair(0, 10, gain + 0.01 * (i % 3), 1.0, True, (0.0, each), (1.0, 1.0)) for i, each in enumerate(waited)]


@pytest.mark.fault(21)
def test_what_a_neighbour_disturbed_does_not_count_and_beyond_most_all_count_for_large_gains_alone() -> None:
    spec = TrialSpec(Program("script.py"))
    for quiet, gain, expected in (
        (30, 1.5, "FASTER"),
        (11, 1.3, "FASTER"),
        (9, 1.3, "INCONCLUSIVE"),
        (9, 1.5, "FASTER"),
    ):
        duel = Duel(spec, spec, pairs_where([0.0] * quiet + [0.4] * (40 - quiet), gain))
        judge(duel, CANDIDATE)
        assert duel.verdict.value == expected and duel.interval is not None
        assert len(duel.kept()) == (quiet if quiet >= 10 else 40)


def pairs_of_18_seconds(monkeypatch: pytest.MonkeyPatch) -> tuple[TrialPool, TrialSpec]:
    """On a clock of its own, which stands at 100. The first is looked into for 30 s besides."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def pair(of: ProcessPair) -> Pace:
        now[0] += 8.0
        if of.number == 0:
            with of.duel.looking():
                now[0] += 30.0
        of.duel.pairs += [Pair(of.number, 3, 0.3, 0.2, True) for _ in range(20)]
        now[0] += 10.0
        return Pace(3, 0.06, 0.1)

    monkeypatch.setattr("overdrive.trials.interleaved.run_pair", pair)
    return cast(TrialPool, SimpleNamespace()), TrialSpec(Program("script.py"))


@pytest.mark.parametrize(("deadline", "pairs"), [(184.0, 3), (203.0, 3), (204.0, 4), (225.0, 5), (1000.0, 8)])
def test_a_confirmation_goes_on_while_the_clock_has_time_for_another_pair(
    deadline: float, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `make demo` three pairs told [1.01, 4.2], and 18 s were left over."""
    pool, spec = pairs_of_18_seconds(monkeypatch)
    assert full_processes(run_duel(pool, spec, spec, confirmation(3, 8), deadline).pairs) == pairs


def test_what_a_first_pair_is_looked_into_is_not_what_another_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of public graph attention a confirmation was reckoned to take 115 s by its control, and took 60."""
    pool, spec = pairs_of_18_seconds(monkeypatch)
    duel = run_duel(pool, spec, spec, confirmation(3), deadline=1000.0)
    assert duel.looked == 30.0 and duel.beside == pytest.approx([8.0, 8.0, 8.0])


def test_what_lost_before_is_confirmed_only_where_chance_is_smaller_still() -> None:
    """Of 100 simulated tunes of nothing that helps, 3 adopted something by another attempt at it."""
    spec = TrialSpec(Program("script.py"))
    rules = replace(confirmation(4), selects=True)
    lucky, clear = (1.13, 1.07, 1.05, 1.09), (1.2, 1.21, 1.2, 1.19)
    for gains, once, again in ((lucky, "FASTER", "INCONCLUSIVE"), (clear, "FASTER", "FASTER")):
        pairs = [Pair(at, 10, each + 0.001 * (i % 3), 1.0, True) for at, each in enumerate(gains) for i in range(12)]
        for alpha, expected in ((0.05, once), (0.01, again)):
            duel = Duel(spec, spec, list(pairs), published=True)
            judge(duel, replace(rules, alpha=alpha))
            assert duel.verdict.value == expected
            assert (no_faster(duel) or "").startswith("not clear enough for") is (expected == "INCONCLUSIVE")


def test_the_start_of_a_side_is_that_of_a_usual_process_and_no_first_filling_of_a_cache() -> None:
    assert Side().setup_seconds == 0.0
    assert Side(setups=(40.0, 5.0)).setup_seconds == 5.0
    assert Side(setups=(40.0, 5.0, 7.0)).setup_seconds == 7.0
    assert Side(setups=(2.0, 4.0, 5.0)).setup_seconds == 2.0  # it started alone, the others two at a time
    assert Side(setups=(40.0, 5.0)).add(Block(2, 1, 1.0, 4.0, 100)).setup_seconds == 5.0


def test_the_way_to_the_first_step_is_told_from_the_beginning_of_the_programs_code() -> None:
    assert Side().first_step_seconds == 0.0
    assert Side(setups=(2.0, 4.0, 5.0), launches=(0.5, 3.0, 3.75)).first_step_seconds == 1.25
    assert Side(setups=(2.0, 4.0)).first_step_seconds == 2.0  # a checkpoint of before this was noted ...
    assert Side(setups=(2.0, 4.0), launches=(0.5,)).first_step_seconds == 2.0  # ... that was gone on with


def test_of_a_program_by_itself_it_is_told_without_what_puts_us_in_place() -> None:
    side = Side(setups=(2.0, 4.0, 5.0), launches=(0.5, 3.0, 3.75), installs=(0.25, 0.25, 0.5))
    assert side.first_step_seconds == 1.25 and side.own_first_step_seconds == 0.75
    assert Side(setups=(2.0, 4.0), launches=(0.5, 1.0)).own_first_step_seconds == 1.5  # a checkpoint of before


def test_a_duel_of_before_neighbours_were_noticed_is_still_read() -> None:
    spec = TrialSpec(Program("script.py"))
    data = store_duel(Duel(spec, spec, pairs_where([0.0] * 12)))
    for pair in data["pairs"]:
        del pair["waited"], pair["others"]
    old = restore_duel(data, spec, spec)
    assert len(old.kept()) == 12 and old.pairs[0].waited is None
    new = restore_duel(store_duel(Duel(spec, spec, pairs_where([0.0] * 12))), spec, spec)
    assert new.pairs[0].waited == (0.0, 0.0)


def test_the_duels_of_the_last_tune_tell_how_much_processes_differ(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    ledger, program = Ledger.open(tmp_path / "ledger"), Program(str(tmp_path / "script.py"))
    checkpoint = TuneCheckpoint(ledger, program, "rounding")
    assert checkpoint.earlier_duels() == []
    pair = {"process": 1, "steps": 10, "seconds_a": 2.0, "seconds_b": 1.0, "a_first": True}
    checkpoint.finished("2026-11-24", {"verdict": "FASTER", "duels": [{"name": "one", "pairs": [pair]}, {}]})
    assert TuneCheckpoint(ledger, program, "rounding").earlier_duels() == [[Pair(1, 10, 2.0, 1.0, True)], []]
    assert not TuneCheckpoint(ledger, program, "rounding").resumes


def test_the_seconds_of_a_tune_that_was_broken_off_are_known_to_who_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    (tmp_path / "script.py").write_text("")
    ledger, program = Ledger.open(tmp_path / "ledger"), Program(str(tmp_path / "script.py"))
    spec = TrialSpec(program)
    for spent in (0.0, 30.0, 60.0):
        checkpoint = TuneCheckpoint(ledger, program, "rounding")
        assert checkpoint.spent_before == spent
        now[0] += 30.0
        checkpoint.remember_duel("one", Duel(spec, spec))
        now[0] += 5.0  # of what was not kept
    checkpoint.finished("2026-11-30", {})
    assert TuneCheckpoint(ledger, program, "rounding").spent_before == 0.0


def test_what_a_screening_found_is_there_for_other_scripts_of_this_kind_of_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    for script in (one, other):
        script.write_text("pass")
    TuneCheckpoint(ledger, Program(str(one)), "exact").remember_gains({"allocator": (0.5, 0.1)})
    TuneCheckpoint(ledger, Program(str(one), ("--epochs", "3")), "exact").remember_gains({"allocator": (0.2, 0.01)})
    assert TuneCheckpoint(ledger, Program(str(other)), "rounding").gains() == {"allocator": [(0.2, 0.01)]}
    assert TuneCheckpoint(ledger, Program(str(one)), "rounding").gains() == {}
    monkeypatch.setattr(checkpoint_module, "summary", lambda: MachineSummary(cpu="another"))
    assert TuneCheckpoint(ledger, Program(str(other)), "rounding").gains() == {}


@pytest.mark.parametrize(("seconds", "looks"), [(0.2, (10, 20, 40)), (1.5, (8,)), (6.0, (6,))])
def test_pairs_that_take_long_are_fewer_and_make_a_process(seconds: float, looks: tuple[int, ...]) -> None:
    rules = Rules(looks=(10, 20, 40, 80))
    assert rules.looks_at(seconds) == looks
    pairs = [Pair(0, 1, seconds / 2, seconds / 2, True)] * looks[0]
    assert full_processes(pairs) == 1 and full_processes(pairs[: looks[0] // 2]) == 0
    faster = [Pair(0, 1, seconds / 2, seconds / 3, True)] * looks[0]  # than warming up had shown
    assert full_processes(faster) == 1


def test_of_several_processes_those_that_were_cut_short_do_not_count() -> None:
    pairs = [Pair(process, 1, 0.1, 0.1, True) for process, count in ((0, 10), (1, 9), (2, 12)) for _ in range(count)]
    assert full_processes(pairs) == 2 and {pair.process for pair in of_full_processes(pairs)} == {0, 2}


class Growing:
    """A trial whose steps take twice as long after each forty: episodes, of somebody who learns to stay."""

    call_steps = 1

    def __init__(self) -> None:
        self.steps, self.seconds, self.sizes = 0, 0.0, []

    def run(self, size: int, lead: int = 0) -> Block:
        self.sizes.append(size)
        seconds = 0.0
        for _ in range(size):
            self.steps += 1
            seconds += 0.008 * min(60.0, 2.0 ** (self.steps / 40))
        self.seconds += seconds
        return Block(self.steps, size, seconds, samples=0.0)


def test_a_program_whose_steps_become_longer_is_measured_in_shorter_blocks_and_soon_enough() -> None:
    """The control of a public actor-critic took 4 min 39 s of a tune's five."""
    spec, old, new = TrialSpec(Program("script.py")), Growing(), Growing()
    duel = Duel(spec, spec)
    pair = ProcessPair(None, duel, 0, CONTROL, math.inf, None, lambda duel: None)
    interleaved._measure(pair, old, new, Pace(10, 0.008, 0.008))
    assert 10 <= len(duel.pairs) < 40 and old.seconds + new.seconds < 30.0
    assert old.sizes[0] == 12 and old.sizes[-1] < 4 and old.sizes == new.sizes


class Settling(Growing):
    """Its engine is there after so many calls; those before take thrice as long."""

    def __init__(self, settled: float) -> None:
        super().__init__()
        self.settled, self.calls = settled, 0

    def run(self, size: int, lead: int = 0, profile: bool = False) -> Block:
        before = self.calls + lead
        self.calls += lead + size
        settling = int(max(0.0, min(self.calls, self.settled) - before))
        return Block(self.calls, size, 0.9 * settling + 0.3 * (size - settling), float(size), settling=settling)


def test_blocks_in_which_an_engine_is_not_there_yet_do_not_count() -> None:
    """A ResNet-50 was called by what fits its last layer before it was called for answers: 2.6x [0.9, 7.7] was told of
    an engine that was five times as fast."""
    spec, old, new = TrialSpec(Program("script.py")), Settling(0), Settling(13)
    duel = Duel(spec, spec)
    pair = ProcessPair(None, duel, 0, CONTROL, math.inf, None, lambda duel: None)  # type: ignore[arg-type]
    interleaved._measure(pair, old, new, Pace(1, 0.3, 0.3))  # type: ignore[arg-type]
    assert len(duel.pairs) >= 10
    assert {each.seconds_b / each.steps for each in duel.pairs} == {each.seconds_a / each.steps for each in duel.pairs}


def test_an_engine_that_is_never_there_is_measured_as_it_is() -> None:
    spec, old, new = TrialSpec(Program("script.py")), Settling(0), Settling(math.inf)
    duel = Duel(spec, spec)
    pair = ProcessPair(None, duel, 0, CONTROL, math.inf, None, lambda duel: None)  # type: ignore[arg-type]
    interleaved._measure(pair, old, new, Pace(1, 0.3, 0.9))  # type: ignore[arg-type]
    assert len(duel.pairs) >= 10 and 8 <= new.calls < 60


def test_one_long_block_changes_none_of_those_to_come() -> None:
    pairs = [Pair(0, 12, 0.1, 0.1, True)] * 4
    assert interleaved._resized(12, [*pairs, Pair(0, 12, 1.0, 0.9, True)], 1) == 12
    assert interleaved._resized(12, [Pair(0, 12, 1.0, 0.9, True)] * 3, 1) < 3
    assert interleaved._resized(32, [Pair(0, 32, 10.0, 9.0, True)] * 3, 8) == 8  # it stands still after eight steps


def test_a_pair_of_processes_that_the_deadline_cut_short_is_none_of_what_is_published() -> None:
    """Its two blocks counted as much as a whole one: at 3.0x beside three of 1.5x, 1.80x [1.01, 3.10] was told."""
    spec = TrialSpec(Program("script.py"))
    whole = [Pair(at, 10, 1.5 + 0.01 * (i % 3) + 0.01 * at, 1.0, True) for at in range(3) for i in range(12)]
    cut = [Pair(3, 10, 3.0, 1.0, True)] * 2
    duels = [Duel(spec, spec, pairs, published=True) for pairs in (whole, [*whole, *cut])]
    for duel in duels:
        judge(duel, confirmation(4))
    assert duels[0].interval == duels[1].interval and duels[1].verdict is Verdict.FASTER
    assert figures(duels[0], new=True) == figures(duels[1], new=True)  # they are of the same blocks
    few = Duel(spec, spec, [*whole[:24], *cut], published=True)
    assert few.kept() == whole[:24]
    alone = Duel(spec, spec, [*whole[:12], *cut], published=True)
    assert alone.kept() == alone.pairs  # one whole one says nothing of others
    assert Duel(spec, spec, [*whole, *cut]).kept() == [*whole, *cut]  # a selection takes all that it has


class Slow:
    """A trial whose steps take this long of a clock that they alone move."""

    call_steps, left_out, step = 1, {}, 0

    def __init__(self, now: list[float], seconds: float) -> None:
        self.now, self.seconds, self.made = now, seconds, 0

    def run(self, size: int, lead: int = 0, profile: bool = False) -> Block:
        self.made += lead + size
        self.now[0] += (lead + size) * self.seconds
        return Block(self.made, size, size * self.seconds, samples=0.0)

    def facts(self, costs: bool = False) -> None: ...


@pytest.mark.parametrize(("left", "made"), [(0.0, 0), (100.0, 2), (150.0, 3), (200.0, 4), (250.0, 5)])
def test_nothing_is_begun_after_the_deadline_before_the_first_pair_of_blocks(
    left: float, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look into it, what follows that, and a pair: of steps of a minute each it took minutes beyond the budget."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    spec, old, new = TrialSpec(Program("script.py")), Slow(now, 60.0), Slow(now, 60.0)
    duel, until = Duel(spec, spec), now[0] + left
    pair = ProcessPair(None, duel, 0, CONTROL, math.inf, None, lambda duel: None)  # type: ignore[arg-type]
    now[0] += 0.1
    with pytest.raises(TrialOver, match="late"):
        interleaved._look_into(duel, old, new, 60.0, True, until)  # type: ignore[arg-type]
        interleaved._measure(pair, old, new, Pace(1, 60.0, 60.0), until)  # type: ignore[arg-type]
    assert old.made + new.made == made and not duel.pairs
    assert (duel.exit_reason or duel.old_exit_reason) is not None


@pytest.mark.parametrize(("left", "pairs"), [(176.0, 10), (130.0, 2), (60.0, 1)])
def test_of_two_that_run_in_turn_none_goes_on_after_the_deadline(
    left: float, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten blocks of either side were made whatever the time: 87 s of each, of a step of 5 s."""
    program = Simulated(lambda names: 5.0, jitter=0.0, spread=0.0, takes_time=True).enter(monkeypatch)
    spec, pool = TrialSpec(Program("script.py")), cast(TrialPool, SimpleNamespace())
    duel = run_duel(pool, spec, spec, CONTROL, time.monotonic() + left, sequential=True)
    assert len(duel.pairs) == pairs and not program.alive
    assert program.spent < left + 50.0  # a second side that was begun has its 20 s, and makes what it had begun
    assert (duel.new_trace is not None) is (pairs == 10)  # of as many steps as the other's, or of none
