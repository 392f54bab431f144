"""The report page: honest words, inert strings, no script, readable without anything else."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from overdrive.report.html import page
from tests.report.sample import hostile, result

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


def test_hostile_names_are_inert() -> None:
    text = page(hostile())
    assert "<script" not in text and 'onerror="alert' not in text
    assert not set(text) & {"\x1b", "\x00", "\u2028", "\u202e"}
    assert "49" not in re.findall(r"\{\{.*?\}\}", text)


def test_plots_have_titles_and_tables_behind_them() -> None:
    text = page(result())
    assert text.count("<svg") and text.count("<svg") <= text.count("<title") - 1
    assert "<details" in text and "<table" in text


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize("make", [result, hostile], ids=["ordinary", "hostile"])
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
