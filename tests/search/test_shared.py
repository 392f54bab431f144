"""Several processes at one search: they share its runs, repeat none, and come to one end."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from overdrive.core.json_data import to_json
from overdrive.core.search_result import Tried
from overdrive.core.settings import Value
from overdrive.search import search as module
from overdrive.search.engine import Engine
from overdrive.search.runs import OnProgress
from overdrive.search.sharing import Sharing

pytest.importorskip("optuna")

from tests.search.simulated import PARAMETERS, Simulated, searched

FORK = multiprocessing.get_context("fork")


def one_of_them(folder: Path, number: int, killed_at: int) -> None:
    module._LOOK_AGAIN = 0.02
    program = Simulated(lambda values, chance: 90 + float(values["lr"]) + chance.gauss(0, 0.001), 0)
    inner, made = program.run, 0

    def run(values: Mapping[str, Value], seed: int, seconds: float, watch: OnProgress | None) -> Tried:
        nonlocal made
        made += 1
        if made == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)  # for others to be at theirs
        result = inner(values, seed, seconds, watch)
        with (folder / "made").open("a") as file:
            file.write(json.dumps([number, sorted(values.items()), seed]) + "\n")
        return result

    program.run = run  # type: ignore[method-assign]
    result = searched(program, folder / "journal", budget=60.0)
    (folder / f"result-{number}").write_text(json.dumps(to_json(result)))


def all_of_them(folder: Path, killed_at: Mapping[int, int], count: int = 3) -> tuple[list[Any], list[Any]]:
    """The runs that were made, and what each process that was not killed came to."""
    processes = [FORK.Process(target=one_of_them, args=(folder, n, killed_at.get(n, 0))) for n in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [-9 if n in killed_at else 0 for n in range(count)]
    made = [json.loads(line) for line in (folder / "made").read_text().splitlines()]
    return made, [json.loads((folder / f"result-{n}").read_text()) for n in range(count) if n not in killed_at]


def test_processes_share_a_search_repeat_no_run_and_come_to_one_end(tmp_path: Path) -> None:
    made, results = all_of_them(tmp_path, {})
    runs = Counter(repr(each[1:]) for each in made)
    assert max(runs.values()) == 1  # neither of the search nor of the comparison
    assert len({number for number, *_ in made}) == 3
    assert len({number for number, _, seed in made if seed}) > 1  # pairs of the comparison, too
    for name in ("trials", "chosen", "comparison", "verdict", "spent"):
        assert results[0][name] == results[1][name] == results[2][name], name
    assert results[0]["spent"] <= 60.0 and len(results[0]["comparison"]["seeds"]) == 10
    alone = searched(
        Simulated(lambda values, chance: 90 + float(values["lr"]), 0), tmp_path / "alone" / "journal", budget=60.0
    )
    assert len(results[0]["trials"]) >= len(alone.trials) - 2


@pytest.mark.fault(9)
def test_what_a_killed_process_was_at_another_one_takes_over(tmp_path: Path) -> None:
    made, results = all_of_them(tmp_path, {0: 3, 2: 4})
    assert max(Counter(repr(each[1:]) for each in made).values()) == 1
    trials = results[0]["trials"]
    assert len(trials) >= 30 and all(run["state"] == "complete" for run in trials)
    assert len(results[0]["comparison"]["seeds"]) == 10


def test_a_run_of_a_process_that_lives_is_not_given_to_another(tmp_path: Path) -> None:
    from overdrive.search.domain import domain_of

    domains = {each.name: domain_of(each) for each in PARAMETERS}
    first, second = Engine(tmp_path / "journal", domains, 1), Engine(tmp_path / "journal", domains, 1)
    asked = [engine.ask() for engine in (first, second)]
    assert asked[0] and asked[1] and asked[0][1] != asked[1][1]  # other proposals, too
    assert list(second.under_way()) == [asked[0][0]]
    first.close()
    again = second.ask(lambda others: others == 0)
    assert again and again[1] == asked[0][1]
    second.close()


def test_who_lives_is_known_by_a_lock_that_goes_with_the_process(tmp_path: Path) -> None:
    mine, other = Sharing(tmp_path / "journal"), Sharing(tmp_path / "journal")
    assert mine.lives(other.name) and mine.lives(mine.name) and not mine.alone()
    with other.turn("beginning"), mine.claim("beginning") as claimed:
        assert not claimed
    with mine.claim("beginning") as claimed:
        assert claimed
    os.close(other._life)  # as it dies
    other.writing.close()
    assert not mine.lives(other.name) and mine.alone()
    mine.close()


def test_proposals_of_one_process_alone_do_not_depend_on_its_name(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        program = Simulated(lambda values, chance: 90 + random.Random(str(values)).random(), 0)
        found.append(searched(program, tmp_path / name / "journal", budget=25.0).trials)
    assert [run.values for run in found[0]] == [run.values for run in found[1]]
