"""The report page: honest words, inert strings, no script, readable without anything else."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import long_but
from tests.report.sample import HOSTILE, devices, hostile, page, proof, result

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_is_one_static_file_with_a_policy_that_allows_nothing() -> None:
    tags = Tags(page(result())).tags
    assert not {tag for tag, _ in tags} & {"script", "iframe", "object", "embed", "form", "base"}
    policies = [each["content"] for tag, each in tags if tag == "meta" and each.get("http-equiv")]
    assert policies and "default-src 'none'" in str(policies[0])
    for tag, attributes in tags:
        assert not any(name.startswith("on") for name in attributes)
        if tag == "link":
            assert str(attributes["href"]).startswith("data:")
        for name in ("href", "src"):
            assert not str(attributes.get(name) or "").startswith(("http", "//", "javascript"))


def test_opens_with_the_verdict_and_its_interval() -> None:
    text = page(result())
    assert re.search(r"Trains \d", text) and "95 % interval" in text and "proxy" in text


@pytest.mark.parametrize("verdict", ["SAME", "SLOWER", "INCONCLUSIVE"])
def test_claims_no_gain_that_was_not_established(verdict: str) -> None:
    assert "Trains 5" not in page(result(verdict=verdict, techniques=[], tuned=None))


@pytest.mark.parametrize("name", result())
def test_makes_sense_with_any_part_missing(name: str) -> None:
    for gone in (None, {}, [], "", 0):
        assert "<html" in page(result(**{name: gone}))
    without = result()
    del without[name]
    assert "<html" in page(without)


@pytest.mark.fault(25)
def test_hostile_names_are_inert() -> None:
    text = page(hostile())
    assert "<script" not in text and 'onerror="alert' not in text
    assert not set(text) & {"\x1b", "\x00", "\u2028", "\u202e"}
    assert "49" not in re.findall(r"\{\{.*?\}\}", text)


def test_plots_have_titles_and_tables_behind_them() -> None:
    text = page(result())
    assert text.count("<svg") and text.count("<svg") <= text.count("<title") - 1
    assert "<details" in text and "<table" in text


@pytest.mark.parametrize("level", ["exact", "rounding", "statistical"])
def test_a_proof_that_holds_is_said_in_the_first_sentence_and_shown(level: str) -> None:
    found = result(proof=proof(level))
    text = page(found)
    assert headline_of(text).startswith("Trains 5.2 times as fast")
    words = {"exact": "identical", "rounding": "errors are those of rounding", "statistical": "within a margin"}
    assert words[level] in headline_of(text)
    assert f"<b>{level}</b>\n" in text and "what this plan must keep" in text
    assert ("a proxy, not a proof" in headline_of(text)) is (level == "statistical")
    for item in found["proof"]["invariants"]:
        assert item["told"] in text
    assert text.count(": the same. ") == 8 and ": not the same. " not in text


def broken_proofs() -> dict[str, dict[str, Any]]:
    exact, rounding, statistical, batches = (
        proof(level) for level in ("exact", "rounding", "statistical", "statistical")
    )
    exact["exact"]["first_difference"] = "step 7, losses"
    rounding["rounding"]["outside"] = 2
    statistical["statistical"]["equivalent"] = False
    batches["invariants"][0]["same"] = False
    return {"exact": exact, "tensors": rounding, "statistical": statistical, "batches": batches}


@pytest.mark.parametrize("name", broken_proofs())
def test_a_plan_that_was_shown_to_differ_is_never_recommended(name: str) -> None:
    text = page(result(proof=broken_proofs()[name]))
    assert headline_of(text).startswith("Faster, but not the same")
    assert "overdrive run" not in text and "Run it as before" in text


@pytest.mark.parametrize("verdict", ["FASTER", "INCONCLUSIVE"])
def test_what_was_not_shown_is_not_claimed(verdict: str) -> None:
    """As a tune writes it where the budget ended before the proof, or the confirmation found something."""
    told = {"level": None, "sentence": "the budget allowed 7 of 10 seeds: not established", "proxy": True}
    text = page(result(proof=told, verdict=verdict))
    assert headline_of(text).startswith("Faster, but not shown to be the same: the budget allowed 7 of 10 seeds")
    assert "overdrive run" not in text and "Run it as before" in text


def test_the_reason_why_it_differs_is_in_the_first_sentence() -> None:
    found = proof()
    found["invariants"][2] = {"what": "batches", "told": "other batches in step 3", "same": False}
    text = page(result(proof={**found, "level": None}, verdict="INCONCLUSIVE"))
    assert headline_of(text).startswith("Faster, but not the same: other batches in step 3.")
    assert text.count(": not the same. ") == 1


def test_contributions_are_the_measured_shares_or_else_those_of_the_duels() -> None:
    with_shares, without = page(result()), page(result(attribution=None))
    assert "added last" in with_shares and "3.2× [3.0, 3.4]" in with_shares and "left over" in with_shares
    assert "they save the same time" in with_shares.replace("in part ", "")
    other_plan = page(result(techniques=result()["techniques"][:2]))  # one was taken out after the shares were measured
    assert "added last" not in other_plan and "save the same time" not in other_plan
    assert "added last" not in without and "3.4× [3.2, 3.6]" in without and "left over" in without


def test_what_to_do_next_stands_under_the_verdict() -> None:
    text = page(result(next_step="2 more could be tried in a longer tune."))
    assert text.index("</h1>") < text.index("2 more could be tried") < text.index("Samples per second")
    assert 'class="next"' not in page(result())


def test_what_was_dropped_for_want_of_effect_is_told() -> None:
    gone = result()["attribution"]["dropped"][0]
    assert "fused_optimizer" in page(result()) and "no measurable effect" in page(result())
    assert page(result(rejected=[gone])).count("no measurable effect") == 1  # told twice by a tune


def spoiled(value: Any, new: Any) -> Iterator[Any]:
    """The value with one part after another, however deep, replaced by something that does not belong there."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, part in items:
        copy = value.copy()
        copy[key] = new
        yield copy
        for inner in spoiled(part, new):
            copy = value.copy()
            copy[key] = inner
            yield copy


@pytest.mark.parametrize(
    "new",
    long_but([None, [], math.nan, "x"], [None, {}, [], "", -1, 1e400, math.nan, 10**400, "x", [[]]]),
    ids=repr,
)
@pytest.mark.parametrize("name", ["attribution", "proof"])
def test_makes_sense_with_any_detail_missing_or_absurd(name: str, new: Any) -> None:
    for part in spoiled(result()[name], new):
        assert "<html" in page(result(**{name: part}, duels=[], losses={}))


@pytest.mark.fault(25)
def test_hostile_names_are_inert_where_the_proof_is_shown() -> None:
    text = page(hostile())
    for harmless in ("the batches of 412 steps, by checksum", "features.0.weight", "training loss", "full factorial"):
        assert harmless + "&lt;/script&gt;" in text, harmless


def test_every_drawing_says_in_words_what_it_shows() -> None:
    for tag, attributes in Tags(page(result())).tags:
        if tag == "svg":
            assert attributes["role"] == "img" and len(attributes["aria-label"] or "") > 60
    assert page(result()).count("<details>") == 7  # contributions, step, item, rounding, seeds, loss, duels


def test_a_loaders_item_is_shown_part_by_part_and_what_is_not_known_has_its_reason() -> None:
    text = page(result())
    assert "Where an item’s time goes" in text and "decode 0.21 ms" in text and "Loader 1, batches of 64" in text
    assert "Loader 2 is not taken apart: its data set is a stream." in text
    assert 'var(--collate)">collate' in text and 'var(--copy)">copy' not in text  # the key names what is drawn
    for absurd in ({"decode": -1}, {"decode": math.nan, "wait": "x"}, {"decode": 1e300}, [], None):
        odd = page(result(loaders=[{"seconds_per_item": absurd}, 7], tuned_loaders="none"))
        assert "Where an item’s time goes" not in odd


def headline_of(text: str) -> str:
    """The words of the first heading."""
    found = re.search(r"<h1>(.*?)</h1>", text, re.DOTALL)
    assert found
    return re.sub(r"<[^>]+>", "", found.group(1)).strip()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize("make", [result, hostile], ids=["ordinary", "hostile"])
@pytest.mark.fault(25)
def test_a_browser_shows_it_without_an_error(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(make()), encoding="utf-8")
    done = subprocess.run(
        [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--enable-logging=stderr", "--v=0", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "</html>" in done.stdout
    assert "CONSOLE" not in done.stderr and "reached" not in done.stderr


def test_cpu_against_gpu_where_both_were_measured() -> None:
    assert "CPU against GPU" not in page(result())
    text = page(result(devices=devices()))
    assert "CPU against GPU" in text and "61,500" in text
    assert "<script" not in page(result(devices=[{**row, "device": HOSTILE} for row in devices()]))


def test_the_two_devices_come_from_the_duel_of_their_technique() -> None:
    from overdrive.core.contract import Contract
    from overdrive.core.facts import Facts
    from overdrive.core.program import Program
    from overdrive.core.trial_spec import TrialSpec
    from overdrive.evidence.speed import Pair
    from overdrive.trials.duel import Duel, Side
    from overdrive.tuner.devices import devices_of
    from overdrive.tuner.findings import Findings
    from overdrive.tuner.outcomes import Rejected

    program = Program("train.py", (), False)
    found = Findings(program, Contract.ROUNDING)
    assert devices_of(found) == ()
    duel = Duel(TrialSpec(program), TrialSpec(program, (("device", {}),)))
    found.rejected.append(Rejected("device", {}, "slower", duel))
    assert devices_of(found) == ()  # its trial ended before a block was measured
    duel.pairs = [Pair(0, 10, 2.0, 1.0, True)]
    duel.old_side, duel.new_side = Side(2.0, 10, 640, (1.0,)), Side(1.0, 10, 0, (3.0,))
    duel.old_facts = Facts(samples_per_step=64)
    rows = devices_of(found)
    assert [row.device for row in rows] == ["CPU", "GPU"]
    assert [row.samples_per_s for row in rows] == pytest.approx([320.0, 640.0])
    assert [row.seconds_per_step for row in rows] == pytest.approx([0.2, 0.1])


def test_what_stands_in_backquotes_is_code_and_stays_inert() -> None:
    text = page(result(notes=["`autocast` would <b>do</b>: `--contract <script>`."]))
    assert "<li><code>autocast</code> would &lt;b&gt;do&lt;/b&gt;: <code>--contract &lt;script&gt;</code>.</li>" in text
