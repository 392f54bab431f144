"""Optuna's part: which configuration next, which run to end early, and a journal from which a search goes on.

Several processes may be at one search: the journal is what they have in common.

Proposals by TPE (Bergstra et al., 2011; multivariate) or another one of `samplers`, early ends by successive halving
(Li et al., ASHA, 2018), by Hyperband where there is time for its brackets. Optuna is an extra: only the search's room
imports it.
"""

from __future__ import annotations

import json
import math
import os
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from overdrive.core.installing import pip_install_extra
from overdrive.core.json_data import from_json, to_json
from overdrive.core.search_result import Tried
from overdrive.core.settings import Value
from overdrive.search import samplers
from overdrive.search.domain import Domain
from overdrive.search.runs import UNITS
from overdrive.search.sharing import Sharing, Writing

_WARM_UP = UNITS // 9  # units before the first run is ended early: 11 % of the default's samples
_THIRDS = 3
_HYPERBAND_FROM = 60  # runs: below, each of its brackets would have too few to learn from
_RANDOM = (4, 10)  # first proposals that are drawn at random, at least and at most
_FEWEST_FOR_IMPORTANCE = 8
_PROCESS = "process"  # that is at a run


class NoOptuna(Exception):
    """It is not installed; the message is one sentence for people."""


class Damaged(Exception):
    """The journal is not what was written; the message is one sentence for people."""


class Engine:
    """One search, in its journal.

    Attributes:
        sharing: with other processes that are at it.
    """

    def __init__(
        self, path: Path, domains: Mapping[str, Domain], seed: int, costs: bool = False, sampler: str = samplers.TPE
    ) -> None:
        """
        Args:
            costs: what a run costs counts beside its score, and no run is ended early.
            sampler: who proposes, one of `samplers.SAMPLERS`.

        Raises:
            NoOptuna, NoSampler, Damaged.
            OSError: the journal cannot be written; so do all methods that write.
        """
        samplers.check_suits(sampler, domains, costs)
        self._path, self._seed, self._costs, self._sampler = path, seed, costs, sampler
        self._optuna = optuna = import_optuna()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.sharing = Sharing(path)
        self._distributions = {name: _distribution(optuna, domain) for name, domain in domains.items()}
        self._asked: dict[int, Any] = {}
        self._study: Any = None
        try:
            with self._writing():
                self._study = _opened(optuna, path, self.sharing.writing, 1 + costs)
                self.seconds_remembered()  # all runs are read
                self._give_back_unfinished()
                self._salt = 0 if self.sharing.alone() else zlib.crc32(self.sharing.name.encode())
        except BaseException as error:
            self.close()
            if not isinstance(error, Exception) or isinstance(error, OSError):
                raise
            raise Damaged(f"The journal of this search is damaged: delete {path} to begin it anew.") from error
        try:
            self.expect(_HYPERBAND_FROM // 2)
        except BaseException:  # a fault of Optuna's or ours, for which nobody should delete a journal
            self.close()
            raise

    def expect(self, runs: int, first_look: int = 0) -> None:
        """Plan for so many runs of the search.

        Args:
            first_look: the unit before which none is ended early.
        """
        optuna = self._optuna
        self._warm_up = max(_WARM_UP, first_look)
        self._study.pruner = _pruner(optuna, runs, self._warm_up)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of parts that Optuna calls experimental
            # A search that goes on draws other numbers than it drew before, and other ones than another process.
            seed = (self._seed + self._salt + len(self._study.trials)) % 2**31
            startup = max(_RANDOM[0], min(_RANDOM[1], runs // 3))
            self._close_sampler()
            self._study.sampler = samplers.make(optuna, self._sampler, seed, startup, self._distributions)

    def close(self) -> None:
        self._close_sampler()
        self.sharing.close()

    def _close_sampler(self) -> None:
        if isinstance(sampler := getattr(self._study, "sampler", None), samplers.Closes):
            sampler.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """No other process writes meanwhile. Faults of the journal name it."""
        with warnings.catch_warnings(), self.sharing.writing:
            warnings.simplefilter("ignore")
            try:
                yield
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self._path)) from error

    # -- configurations -------------------------------------------------------------------------

    def ask(self, room: Callable[[int], bool] = lambda others: True) -> tuple[int, dict[str, Value]] | None:
        """A number and a configuration; None where there is no room for another run.

        Args:
            room: told how many runs other processes are at. No other one asks meanwhile.
        """
        with self._writing():
            self._give_back_unfinished()
            if not room(len(self.under_way())):
                return None
            trial = self._study.ask(self._distributions)
            trial.set_user_attr(_PROCESS, self.sharing.name)
        self._asked[trial.number] = trial
        return trial.number, self._values(trial)

    def under_way(self) -> dict[int, dict[str, Value]]:
        """What other processes are at, by number."""
        running = self._study.get_trials(deepcopy=False, states=(self._optuna.trial.TrialState.RUNNING,))
        return {
            each.number: self._values(each)
            for each in running
            if each.number not in self._asked and self.sharing.lives(each.user_attrs.get(_PROCESS, ""))
        }

    def _values(self, trial: Any) -> dict[str, Value]:
        return {name: _rounded(trial.params[name]) for name in self._distributions if name in trial.params}

    def ends_early(self, number: int, unit: int, score: float) -> bool:
        """Tell how far a run has come; whether it is to end here."""
        trial = self._asked[number]
        with self._writing():
            trial.report(score, unit)
        return unit >= self._warm_up and bool(trial.should_prune())

    def tell(self, run: Tried, score: float | None) -> None:
        """A run is over; `score` is None where it failed or was ended early."""
        trial = self._asked.pop(run.number)
        with self._writing():
            trial.set_user_attr("score", score)
            trial.set_user_attr("run", json.dumps(to_json(run)))
            self._finish(run, score)

    def enqueue(self, values: Mapping[str, Value]) -> None:
        """Have this configuration asked next."""
        with self._writing():
            self._study.enqueue_trial(dict(values), skip_if_exists=True)

    def runs(self) -> list[Tried]:
        """All that are over."""
        found = []
        for trial in self._study.get_trials(deepcopy=False):
            if text := trial.user_attrs.get("run"):
                found.append(from_json(Tried, json.loads(text)))
        return found

    def importances(self) -> dict[str, float]:
        """The share of each parameter in how much the runs' scores differ (PED-ANOVA); empty for few runs."""
        complete = {
            repr(self._values(trial)): trial.values[0]
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state.name == "COMPLETE" and math.isfinite(trial.values[0])
        }
        few = len(complete) < _FEWEST_FOR_IMPORTANCE or len(set(complete.values())) < 2
        if few or len(self._distributions) < 2:
            return {}
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                score = (lambda trial: trial.values[0]) if self._costs else None
                found = get_param_importances(self._study, evaluator=PedAnovaImportanceEvaluator(), target=score)
            except (ValueError, RuntimeError):  # every configuration alike, say
                return {}
        return {name: float(share) for name, share in found.items() if math.isfinite(share)}

    # -- other runs -----------------------------------------------------------------------------

    def recall(self, name: str) -> Tried | None:
        """A run outside of the search: of the defaults, of the comparison."""
        text = self._study.user_attrs.get(name)
        return from_json(Tried, json.loads(text)) if text else None

    def remember(self, name: str, run: Tried) -> None:
        with self._writing():
            self._study.set_user_attr(name, json.dumps(to_json(run)))

    def seconds_remembered(self) -> float:
        """Of all runs so far, the search's own included."""
        others = [from_json(Tried, json.loads(text)) for text in self._study.user_attrs.values()]
        return sum(run.seconds for run in (*others, *self.runs()))

    def _finish(self, run: Tried, score: float | None) -> None:
        states, number = self._optuna.trial.TrialState, run.number
        if self._costs:
            known = score is not None and math.isfinite(score) and run.cost is not None
            self._study.tell(number, [score, run.cost] if known else None, None if known else states.FAIL)
        elif run.state == "pruned":
            self._study.tell(number, state=states.PRUNED)
        elif score is None:
            self._study.tell(number, state=states.FAIL)
        else:
            self._study.tell(number, score)

    def _give_back_unfinished(self) -> None:
        """Runs that a killed process was at are asked again, but those that were just over."""
        states = self._optuna.trial.TrialState
        for trial in self._study.get_trials(states=(states.RUNNING,)):
            if trial.number in self._asked or self.sharing.lives(trial.user_attrs.get(_PROCESS, "")):
                continue
            if text := trial.user_attrs.get("run"):
                run = from_json(Tried, json.loads(text))
                self._finish(run, trial.user_attrs.get("score"))
                continue
            self._study.tell(trial.number, state=states.FAIL)
            if values := trial.params or trial.system_attrs.get("fixed_params"):
                self._study.enqueue_trial(values, skip_if_exists=False)


def _opened(optuna: Any, path: Path, lock: Writing, objectives: int) -> Any:
    """The study in this journal, whose last line may be half written: what Optuna adds would stand behind it."""
    from optuna.storages.journal import JournalFileBackend

    class Backend(JournalFileBackend):
        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            with lock:
                _end_with_a_whole_line(path)
                super().append_logs(logs)

    known = optuna.storages.JournalStorage(Backend(str(path), lock))  # type: ignore[arg-type]
    return optuna.create_study(
        storage=known, study_name="search", load_if_exists=True, directions=["minimize"] * objectives
    )


def _end_with_a_whole_line(path: Path) -> None:
    with open(path, "r+b") as file:
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            if file.read() != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)


def import_optuna() -> Any:
    """
    Raises:
        NoOptuna: it is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise NoOptuna(
            f"`overdrive search` needs Optuna, which is not installed: `{pip_install_extra('search')}` brings it."
        ) from None
    return optuna


def _pruner(optuna: Any, expected: int, first: int) -> Any:
    if first >= UNITS:
        return optuna.pruners.NopPruner()
    if expected >= _HYPERBAND_FROM:
        return optuna.pruners.HyperbandPruner(first, UNITS, _THIRDS)
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=_THIRDS)


def _distribution(optuna: Any, domain: Domain) -> Any:
    if domain.choices:
        return optuna.distributions.CategoricalDistribution(domain.choices)
    if domain.integer:
        return optuna.distributions.IntDistribution(int(domain.low), int(domain.high), log=domain.log)
    return optuna.distributions.FloatDistribution(domain.low, domain.high, log=domain.log)


def _rounded(value: Value) -> Value:
    """What is run is what is told: a rate of 0.01234567 is typed as 0.01235."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
