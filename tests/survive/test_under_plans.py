"""Runs under the techniques of a plan that are killed: each ends as the one that was not, under the same plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overdrive.seams.hub import Seams
from overdrive.survive.fetched import FetchQuestions
from overdrive.survive.journal import Diverged, Journal
from overdrive.survive.under_plan import OtherPlan, UnderPlan
from overdrive.techniques.catalogue import catalogue
from tests.survive.killed import PICTURES, files_of, plan_of, survive

pytest.importorskip("torch")


def test_a_run_under_a_plan_goes_on_under_it(tmp_path: Path) -> None:
    """Samples that the first process fetched and the second has kept, layouts, 16 bits with a scale of its own; what
    two runs do not do alike is left out by name, and another plan is another run."""
    names = ("sample_cache", "prefetch", "channels_last", "autocast", "fused_optimizer", "fft_convolution")
    plan = ("--plan", str(plan_of(tmp_path, *names, autocast='dtype = "float16"')))
    overflows = {"OVERFLOWS": "1"}
    whole = survive(tmp_path, "whole", PICTURES, *plan, variables=overflows)
    assert whole.returncode == 0, whole.stderr
    assert f"plan.toml ({', '.join(names[:-1])})" in whole.stderr, whole.stderr
    assert whole.stderr.count("left out fft_convolution: which way is faster is timed anew") == 1
    first = survive(tmp_path, "killed", PICTURES, *plan, dies=17, variables=overflows)
    refused = survive(tmp_path, "killed", PICTURES, "--no-plan")
    assert refused.returncode == 2 and "plan" in refused.stderr and "--fresh" in refused.stderr
    second = survive(tmp_path, "killed", PICTURES, *plan, variables=overflows)
    assert second.returncode == 0 and "gone on after step" in second.stderr, second.stderr
    assert first.stdout + second.stdout == whole.stdout
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


def test_a_layout_that_the_model_cannot_have_is_no_reason_to_begin_from_the_start(tmp_path: Path) -> None:
    """A call that is made again without it is no error of the run's."""
    text = PICTURES.replace(".flatten(1)", ".view(x.size(0), -1)")
    plan = ("--plan", str(plan_of(tmp_path, "channels_last", "fast_max_pool")))
    whole = survive(tmp_path, "whole", text, *plan)
    assert "left out channels_last: the program calls .view()" in whole.stderr, whole.stderr
    assert "left out fast_max_pool" not in whole.stderr, whole.stderr
    first = survive(tmp_path, "killed", text, *plan, dies=17)
    second = survive(tmp_path, "killed", text, *plan)
    assert second.returncode == 0 and "gone on after step" in second.stderr, second.stderr
    assert first.stdout + second.stdout == whole.stdout
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


# What a technique needs to have something to do.
SETTINGS = {"activation_checkpointing": "budget = 0.25", "batch_size": "times = 2"}
DIES = {"batch_size": 8}  # at which step, of half as many
VARIABLES = {
    "fp32_from_fp64": {"DOUBLE": "1"},
    "loader_workers": {"WORKERS": "2"},
    "micro_batch": {"NO_NORM": "1"},
    "prefix_cache": {"AUGMENTS": "1"},
}
# Of another kind of program or machine; or beside another technique only, as in the test above.
ELSEWHERE = {"prefetch", "fast_decode"}
SURVIVING = [name for name, each in catalogue().items() if each.survives and name not in ELSEWHERE]


@pytest.mark.survive
@pytest.mark.parametrize(
    "name", [name for name, each in catalogue().items() if each.survives and name not in ELSEWHERE]
)
def test_each_technique_that_survives(name: str, tmp_path: Path) -> None:
    settings = {name: SETTINGS[name]} if name in SETTINGS else {}
    plan, variables = ("--plan", str(plan_of(tmp_path, name, **settings))), VARIABLES.get(name, {})
    whole = survive(tmp_path, "whole", PICTURES, *plan, variables=variables)
    if "left out affinity" in whole.stderr:
        pytest.skip("this machine has no cores to choose from")
    assert f"({name})" in whole.stderr, whole.stderr
    first = survive(tmp_path, "killed", PICTURES, *plan, dies=DIES.get(name, 17), variables=variables)
    second = survive(tmp_path, "killed", PICTURES, *plan, variables=variables)
    assert second.returncode == 0 and "gone on after step" in second.stderr, second.stderr
    assert first.stdout + second.stdout == whole.stdout
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


DROPS = """
import os, signal
import torch
nn, F = torch.nn, torch.nn.functional
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(30, 600), nn.Dropout(0.3), nn.ReLU(), nn.Linear(600, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 25):
    x, y = torch.randn(32, 30), torch.randint(4, (32,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y) + 0.01 * F.dropout(model[0].weight, 0.5).square().sum()
    loss.backward(); optimizer.step()
    print(step, f"{loss.item():.9f}")
    if step == int(os.environ.get("DIES", 0)) and not os.path.exists(os.environ.get("DIED", "")):
        os.kill(os.getpid(), signal.SIGKILL)
print(*(f"{p.double().sum().item():.17g}" for p in model.parameters()), torch.rand(2).tolist())
"""


@pytest.mark.survive
def test_draws_that_a_kernel_makes_go_on_where_they_were(tmp_path: Path) -> None:
    """Within a model's call, which is left out when the run is made again, and beside it."""
    plan = ("--plan", str(plan_of(tmp_path, "fast_dropout")))
    plain = survive(tmp_path, "plain", DROPS, "--no-plan")
    first = survive(tmp_path, "killed", DROPS, *plan, dies=17)
    second = survive(tmp_path, "killed", DROPS, *plan)
    assert second.returncode == 0 and "gone on after step" in second.stderr, second.stderr
    assert "left out" not in first.stderr + second.stderr
    assert first.stdout + second.stdout == plain.stdout


def test_every_technique_that_is_left_out_says_why() -> None:
    """In words of its own, where it is for one process on a CPU, on which it could be tried."""
    for name in ("compile", "fft_convolution", "library_autotune"):
        assert not catalogue()[name].survives
        assert "snapshot" not in catalogue()[name].lost_when_killed


class Fetches:
    """Fetches, one after another, as `seams.torch.fetches` tells of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, journal: Journal) -> None:
        from overdrive.survive import fetched

        self.questions, self._number, self._now = FetchQuestions(journal), 0, None
        monkeypatch.setattr(fetched, "_current", lambda: self._now)

    def begin(self, indices: list[int]) -> FetchQuestions:
        self._number += 1
        self._now: Any = (self._number, indices)
        return self.questions

    def end(self) -> FetchQuestions:
        self._now = None
        return self.questions


def test_a_fetch_that_is_not_made_again_is_passed_over_and_a_new_one_asks_its_own_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal")
    first = Fetches(monkeypatch, journal)
    for indices in ([0, 1], [2, 3], [4, 5]):
        for index in indices:
            assert (
                first.begin(indices).note("value", index)
                if index == indices[0]
                else first.questions.note("value", index)
            )
    assert not first.end().note("value", "of the program")
    journal.add("value", "of the program")
    assert first.begin([6, 7]).note("value", 6)
    kept = journal.flush()

    again = Journal(tmp_path / "journal")
    again.read(*kept)
    second = Fetches(monkeypatch, again)
    assert second.begin([7, 8]).answer("value") == (True, None)  # was kept the first time
    assert second.begin([2, 3]).answer("value") == (True, ["value", 2])  # the one before is kept now
    assert second.questions.answer("value") == (True, ["value", 3])
    assert second.questions.answer("value") == (True, None)
    assert second.end().answer("value") == (False, None)
    assert not again.is_over and again.next("value", "")[1] == "of the program"
    assert again.is_over  # what is left was asked in a fetch that is not made again
    with pytest.raises(Diverged):
        again.next("value", "one more")


def test_a_plan_of_which_other_techniques_are_in_force_is_another_one() -> None:
    def under(left_out: str = "", scale: float = 1.0) -> tuple[UnderPlan, list[Any]]:
        seams, plan, taken = Seams(), UnderPlan(), []
        with seams.owned_by("autocast"):
            seams.carry(lambda: [scale], taken.append)
        if left_out:
            seams.leave_out(left_out, "a reason")
        plan.follow(seams)
        return plan, taken

    then = under(scale=8.0)[0].told()
    now, taken = under()
    now.take_back(then)
    assert taken == [[8.0]]
    with pytest.raises(OtherPlan, match=r"autocast was in force then, and is left out now \(a reason\)"):
        under("autocast")[0].take_back(then)
    with pytest.raises(OtherPlan, match="autocast was left out then"):
        under()[0].take_back(under("autocast")[0].told())
