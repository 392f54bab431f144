"""Plans go out as TOML and come back the same; whatever is wrong in one is named with its line."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from overdrive.core.atomic_file import write_atomically
from overdrive.core.contract import Contract
from overdrive.core.interval import Interval
from overdrive.core.plan import REMOVED, Plan, PlanError, PlannedTechnique, PlanRejected
from overdrive.core.plan.lines import line_of, line_of_repeated
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.technique import Knob


@dataclass(frozen=True)
class Known:
    contract: Contract = Contract.EXACT
    knobs: tuple[Knob, ...] = ()

    def contract_with(self, settings: object) -> Contract:
        return self.contract


CATALOGUE = {
    "cache_samples": Known(
        knobs=(
            Knob("max_bytes", 1000, "memory for it", low=1, high=10_000),
            Knob("where", "cpu", "device", choices=("cpu", "cuda")),
            Knob("pin", False, "page-lock it"),
            Knob("share", 0.5, "of the data", low=0.0, high=1.0),
        )
    ),
    "prefetch": Known(),
    "bf16_autocast": Known(Contract.STATISTICAL),
}

FULL = Plan(
    program="train.py",
    contract=Contract.STATISTICAL,
    techniques=(
        PlannedTechnique(
            "cache_samples",
            {"max_bytes": 5000, "where": "cuda", "pin": True, "share": 0.25},
            Contract.EXACT,
            "FASTER",
            Interval(1.21, 1.25, 1.3),
        ),
        PlannedTechnique("bf16_autocast", {}, Contract.STATISTICAL),
    ),
    verdict="FASTER",
    speedup=Interval(1.5, 1.7, 1.9),
    noise_floor=0.012,
    baseline={"samples_per_s": 1000.5, "seconds_per_step": 0.064},
    tuned={"samples_per_s": 1700.0, "seconds_per_step": 1e-07},
    rejected=(PlanRejected("prefetch", {}, "same"), PlanRejected("prefetch", {"depth": 4}, "slower: 0.8")),
    tuning_seconds=120.5,
    break_even_steps=4400,
    machine={"cpu": "An EPYC", "cores": 2, "gpus": [{"name": "H200", "memory_bytes": 1}], "none": {"a": []}},
    versions={"python": "3.11.2", "nvidia-nccl": "2.1", "dotted.name": "1"},
    created="2026-01-31",
)

HEAD = 'overdrive = 1\nprogram = "train.py"\n'


def fault(text: str) -> PlanError:
    with pytest.raises(PlanError) as caught:
        Plan.loads(text, CATALOGUE)
    assert "\n" not in str(caught.value)
    return caught.value


def test_what_is_not_in_the_plan_is_not_said_to_have_been_tried() -> None:
    untried = Plan("train.py", Contract.EXACT, (), rejected=(PlanRejected("prefetch", {}, "no time was left"),)).dumps()
    assert "[[rejected]]  # not used\n" in untried and "tried" not in untried


def test_a_plan_with_everything_comes_back_the_same() -> None:
    assert Plan.loads(FULL.dumps(), CATALOGUE) == FULL


def test_a_plan_without_techniques_or_evidence_comes_back_the_same() -> None:
    empty = Plan("train.py", Contract.EXACT, ())
    assert Plan.loads(empty.dumps(), CATALOGUE) == empty


def test_the_comments_tell_a_person_what_the_file_is_and_what_each_technique_keeps() -> None:
    text = FULL.dumps({"cache_samples": "Keeps the samples in memory.\nEvil = 1"})
    assert text.startswith("# Overdrive's plan for train.py")
    assert "overdrive run --plan" in text
    assert "may be edited" in text
    assert "# Keeps the samples in memory. Evil = 1\n# 1.25 times as fast by itself.\n" in text
    assert "# Contract: every bit stays the same." in text
    assert Plan.loads(text, CATALOGUE) == FULL


def test_a_plan_written_by_hand_needs_only_names() -> None:
    plan = Plan.loads(HEAD + '[[technique]]\nname = "cache_samples"\n', CATALOGUE)
    assert plan.techniques == (
        PlannedTechnique(
            "cache_samples",
            {"max_bytes": 1000, "where": "cpu", "pin": False, "share": 0.5},
            Contract.EXACT,
        ),
    )
    assert plan.contract is Contract.EXACT


def test_a_plan_without_a_contract_takes_the_loosest_that_its_techniques_need() -> None:
    plan = Plan.loads(HEAD + '[[technique]]\nname = "prefetch"\n[[technique]]\nname = "bf16_autocast"', CATALOGUE)
    assert plan.contract is Contract.STATISTICAL


def test_settings_may_be_a_table_of_their_own_and_a_whole_number_may_stand_for_a_float() -> None:
    text = HEAD + '[[technique]]\nname = "cache_samples"\n[technique.settings]\nshare = 1\n'
    share = Plan.loads(text, CATALOGUE).techniques[0].settings["share"]
    assert share == 1.0 and isinstance(share, float)


def test_techniques_may_be_parted_by_other_tables() -> None:
    text = HEAD + '[[technique]]\nname = "prefetch"\n[machine]\na = 1\n[[technique]]\nname = "cache_samples"\n'
    assert [each.name for each in Plan.loads(text, CATALOGUE).techniques] == ["prefetch", "cache_samples"]


@pytest.mark.parametrize(
    "text",
    ["\x1b[31mred\x1b]0;title\x07", "\x00\x7f\x9b31m", "\u202edaer", 'q"\\\n[[technique]]', "é😀\U000e0041"],
)
def test_control_characters_come_back_the_same_and_never_stand_raw_in_the_file(text: str) -> None:
    plan = replace(FULL, program=text, verdict=text, machine={text: text}, versions={text: text})
    plan = replace(plan, rejected=(PlanRejected("prefetch", {text: text}, text),))
    written = plan.dumps({"cache_samples": text})
    assert all(character.isprintable() or character == "\n" for character in written)
    assert Plan.loads(written, CATALOGUE) == plan


def test_half_a_surrogate_pair_is_replaced_since_no_file_can_hold_it() -> None:
    plan = replace(FULL, program="caf\udce9.py")
    assert Plan.loads(plan.dumps(), CATALOGUE).program == "caf?.py"


def test_an_unbounded_interval_and_an_unknown_noise_floor_can_be_written() -> None:
    plan = replace(FULL, speedup=Interval(0.0, 1.2, float("inf")), noise_floor=float("inf"))
    assert Plan.loads(plan.dumps(), CATALOGUE) == replace(plan, noise_floor=None)


def test_a_byte_order_mark_and_windows_line_ends_are_no_fault() -> None:
    assert Plan.loads("\ufeff" + FULL.dumps().replace("\n", "\r\n"), CATALOGUE) == FULL


def test_an_unknown_technique_is_named_with_its_line_and_the_closest_known() -> None:
    error = fault(HEAD + '\n[[technique]]\n# a comment\nname = "cach_sample"\n')
    assert str(error) == (
        "plan.toml line 6: there is no technique 'cach_sample' (closest: cache_samples): "
        "`overdrive techniques` lists them"
    )
    assert error.line == 6


FAULTS = [
    # what stands in the file, the line at fault, and words of the message
    ("", 1, "not a plan of Overdrive's"),
    ("program = 'x'\noverdrive = 2\n", 2, "has the format 2"),
    ("overdrive = true\n", 1, "whole number"),
    ("overdrive = 1\n", 1, "program is missing"),
    ("overdrive = 1\n# x\nprogram = 3\n", 3, "program must be a text, not 3"),
    ("overdrive = 1\nprogram = ' '\n", 2, "must not be empty"),
    (HEAD + "programm = 1\n", 3, "a plan has no 'programm' (closest: program)"),
    (HEAD + 'contract = "loose"\n', 3, "must be one of exact, rounding, statistical, open"),
    (HEAD + "technique = 1\n", 3, "[[technique]]"),
    (HEAD + "technique = [1, 2]\n", 3, "[[technique]]"),
    (HEAD + "[technique]\nname = 'prefetch'\n", 3, "[[technique]]"),
    (HEAD + "technique = [\n {name = 'prefetch'},\n {name = 'nope'},\n]\n", 5, "no technique 'nope'"),
    (HEAD + "[[technique]]\nname='prefetch'\n[[technique]]\nverdict='same'\n", 5, "name is missing here"),
    (HEAD + "[[technique]]\nname='prefetch'\n\n[[technique]]\nname='prefetch'\n", 7, "named twice"),
    (HEAD + "[[technique]]\nname='prefetch'\nsetting={}\n", 5, "a technique has no 'setting'"),
    (HEAD + "[[technique]]\nname='prefetch'\nsettings=3\n", 5, "settings must be a table"),
    (HEAD + "[[technique]]\nname='prefetch'\nsettings={depth=1}\n", 5, "prefetch has no 'depth'"),
    (
        HEAD + "[[technique]]\nname='bf16_autocast'\ncontract='exact'\n",
        5,
        "keeps statistical at best, not exact",
    ),
    (HEAD + "contract='exact'\n[[technique]]\nname='bf16_autocast'\n", 5, "keeps only statistical"),
    (HEAD + "[[technique]]\nname='prefetch'\nspeedup={low=1, estimate=1}\n", 5, "high is missing"),
    (HEAD + "[[technique]]\nname='prefetch'\nspeedup={low=2,estimate=1,high=3}\n", 5, "must rise from low"),
    (
        HEAD + "[[technique]]\nname='prefetch'\nspeedup={low=nan,estimate=1,high=3}\n",
        5,
        "low must be a number",
    ),
    (HEAD + "[evidence]\n\nnoise_floor = 'x'\n", 5, "noise_floor must be a number"),
    (HEAD + "[evidence]\nbreak_even_steps = 1.5\n", 4, "whole number"),
    (HEAD + "[evidence]\ncreated = 'yesterday'\n", 4, "must be a date"),
    (HEAD + "[evidence]\ncreated = [1]\n", 4, "must be a date"),
    (HEAD + "[evidence.baseline]\nspeed = 1\n", 4, "baseline has no 'speed'"),
    (HEAD + "evidence.tuned.samples_per_s = -1\n", 3, "number of 0 or more"),
    (HEAD + "[[rejected]]\nname='gone'\nwhy='x'\n", 5, "a rejected technique has no 'why'"),
    (HEAD + "[versions]\ntorch = 2\n", 4, "torch must be a text"),
    (HEAD + "machine = 1\n", 3, "machine must be a table"),
    (HEAD + "[machine]\na = 0x" + "f" * 5000 + "\n", 4, "more digits"),
    (HEAD + "a = \n", 3, "no valid TOML"),
    (HEAD + "a = 'open\n", 3, "no valid TOML"),
    (HEAD + "program = 'twice'\n", 3, "no valid TOML"),
    (HEAD + "[a]\n[b]\n[a]\n", 5, "no valid TOML"),
    (HEAD + "a = 1\n\na = [\n 1,\n 2]\n", 5, "no valid TOML"),
    (HEAD + "\na = [{y = 1, x = 1}, {x = 1, x = 2}]\n", 4, "no valid TOML"),
    (HEAD + "a = '\x1b[31m'\n", 3, "no valid TOML"),
]


@pytest.mark.parametrize(("text", "line", "words"), FAULTS, ids=[words for _, _, words in FAULTS])
@pytest.mark.fault(24)
def test_a_fault_is_one_sentence_with_the_right_line(text: str, line: int, words: str) -> None:
    error = fault(text)
    assert words in str(error)
    assert str(error).startswith(f"plan.toml line {line}: ")
    assert str(error).isprintable()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("max_bytes = 0", "cache_samples's max_bytes must be at least 1, not 0"),
        ("max_bytes = 1.5", "whole number"),
        ("max_bytes = true", "whole number"),
        ("where = 'moon'", "must be one of 'cpu', 'cuda'"),
        ("where = '\x1b'", "no valid TOML"),
        ('where = "\\u001b[31m"', "\\x1b"),
        ("pin = 1", "true or false"),
        ("share = 2", "at most 1"),
        ("share = nan", "finite"),
        ("share = [1]", "must be a text, a number, true or false"),
        ("share = 1979-05-27", "must be a text, a number, true or false"),
        ("shares = 1", "cache_samples has no 'shares' (closest: share"),
    ],
)
def test_a_bad_setting_is_named_with_its_line(setting: str, words: str) -> None:
    error = fault(f"{HEAD}[[technique]]\nname = 'cache_samples'\n[technique.settings]\n\n{setting}\n")
    assert words in str(error)
    assert error.line == 7
    assert str(error).isprintable()


def test_lines_are_counted_past_strings_that_look_like_tables() -> None:
    text = '''# [[technique]] in a comment
overdrive = 1
program = """
[[technique]]
name = "\\"""
"""""
[machine]  # [x]
"a.b" = '[[technique]]' # "
c = { d = [ "]", # ]
  1, { "e }" = \'\'\'
}\'\'\' } ], f = 1 }
[[technique]]
name = "prefetch"
  [technique.settings]
[[ "technique" ]]
'name' = "prefetch_"
'''
    assert fault(text).line == 16


LINES = [
    # a text, and the line of some of its keys
    (
        'a = 1\n[b]\n"c d".e = [\n 1,\n {f = 2}\n]\n[[g]]\n[[g]]\nh = 1\n[[g.i]]\nj = 1\n[b.k.l]\n',
        {
            ("a",): 1,
            ("b",): 2,
            ("b", "c d", "e"): 3,
            ("b", "c d", "e", 0): 4,
            ("b", "c d", "e", 1, "f"): 5,
            ("g",): 7,
            ("g", 0): 7,
            ("g", 1): 8,
            ("g", 1, "i", 0, "j"): 11,
            ("b", "k"): 12,
            ("g", 1, "missing"): 8,
            ("missing",): 1,
        },
    ),
    (  # dotted keys, values of several lines, comments within them
        'a.b = 1\n# x\na.c = true\nd = """\n[x]\ny=1\n"""\ne = [ # 1\n 1, # 2\n\n true,\n [2,\n 3]]\nf = 1\n',
        {
            ("a",): 1,
            ("a", "c"): 3,
            ("d",): 4,
            ("e",): 8,
            ("e", 0): 9,
            ("e", 1): 11,
            ("e", 2): 12,
            ("e", 2, 1): 13,
            ("f",): 14,
        },
    ),
    (  # tables named in passing, and parted by others
        "[a.b.c]\nx=1\n[q]\n[a]\ny=true\n[a.b]\nz=1\n[r]\n[a.d]\nw={u=true, v=[1,2]}\n",
        {("a",): 1, ("a", "b"): 1, ("a", "y"): 5, ("a", "b", "z"): 7, ("a", "d"): 9, ("a", "d", "w", "v", 1): 10},
    ),
    (  # an array of tables, parted by another table
        "[[t]]\nn=1\n\n[t.s]\nx=1\n[m]\nx=1\n[[t]]\nn=2\ns.x=3\n[[t.o]]\np=1\r\nq=2\n",
        {("t", 1): 8, ("m",): 6, ("m", "x"): 7, ("t", 1, "n"): 9, ("t", 1, "s", "x"): 10, ("t", 1, "o", 0, "q"): 13},
    ),
]


@pytest.mark.parametrize(("text", "lines"), LINES, ids=["all", "values", "tables", "arrays of tables"])
def test_every_key_and_table_has_its_line(text: str, lines: dict[tuple[str | int, ...], int]) -> None:
    assert {path: line_of(text, path) for path in lines} == lines


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb = 2\n", None),
        ("a = \n", None),
        ("[[t]]\nn=1\nn=2\n[[t]]\nn=3\n", 3),
        ("[t]\nx=1\n\nx=[\n2,\n3]\n[u]\nx=[\n1,\n2]\n", 4),
        ("[a]\nb=1\n[c]\n[a]\nd=1\n", 4),
        ("[a]\nb.c=1\n[a.b]\nd=2\n", 3),
        ("a = [\n1,\n2,\n3,\n4]\nb = 1\nb = 2\n", 7),
        ("a={x=1}\n\na.y=1\n", 3),
    ],
)
def test_what_is_given_again_has_its_line(text: str, line: int | None) -> None:
    assert line_of_repeated(text) == line


@pytest.mark.parametrize(
    "text",
    [
        "# " + "x" * 1_000_001,
        "#\n" * 10_001,
        HEAD + "a = " + "[" * 20_000 + "]" * 20_000,
        "#" + "é" * 500_000,
    ],
    ids=["bytes", "lines", "nesting", "bytes of letters"],
)
@pytest.mark.fault(24)
def test_what_is_too_much_for_a_plan_is_refused(text: str) -> None:
    assert str(fault(text)).startswith("plan.toml")


def test_a_huge_name_does_not_make_a_huge_message() -> None:
    assert len(str(fault(HEAD + "[[technique]]\nname = '" + "x" * 900_000 + "'\n"))) <= 1000


def test_a_plan_is_read_from_a_file_and_its_name_is_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "train.overdrive.toml"
    write_atomically(path, FULL.dumps())
    assert Plan.read(path, CATALOGUE) == FULL
    path.write_text(HEAD + "x = 1\n")
    with pytest.raises(PlanError, match=r"^train\.overdrive\.toml line 3: a plan has no 'x'"):
        Plan.read(path, CATALOGUE)


def test_a_file_that_cannot_be_read_is_a_fault_of_the_plan(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="there is no such plan"):
        Plan.read(tmp_path / "missing.toml", CATALOGUE)
    with pytest.raises(PlanError, match="cannot be read"):
        Plan.read(tmp_path, CATALOGUE)
    (tmp_path / "binary").write_bytes(b"a = 1\n\n\xff\xfe")
    with pytest.raises(PlanError, match=r"^binary line 3: .*UTF-8"):
        Plan.read(tmp_path / "binary", CATALOGUE)
    (tmp_path / "long").write_bytes("é".encode() * 600_000)
    with pytest.raises(PlanError, match="too long"):
        Plan.read(tmp_path / "long", CATALOGUE)


def test_a_file_is_replaced_whole_and_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "link.toml"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_atomically(link, "new\n")
    assert link.is_symlink() and real.read_text() == "new\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link.toml", "real.toml"]


def test_what_is_no_file_is_written_into_and_stays_what_it_is(tmp_path: Path) -> None:
    """As `/dev/null` is, which every program of the machine writes to."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    kept = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "text\n")
        assert stat.S_ISFIFO(pipe.stat().st_mode) and os.listdir(tmp_path) == ["pipe"]
        assert os.read(kept, 100) == b"text\n"
        write_atomically(Path(f"/dev/fd/{kept}"), "of a shell's >(...)\n")
        assert os.read(kept, 100) == b"of a shell's >(...)\n"
    finally:
        os.close(kept)


def test_a_new_file_has_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "new.toml", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.toml").stat().st_mode) == 0o640


@pytest.mark.fault(13)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("old")

    def no_space(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match=r"No space left.*plan\.toml"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.toml"]


def test_writing_into_a_missing_folder_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"plan\.toml"):
        write_atomically(tmp_path / "no" / "plan.toml", "x")


def test_a_technique_that_was_let_go_of_is_left_out_by_name() -> None:
    gone = '[[technique]]\nname = "{}"\nsettings = {{ memory_share = 0.5, more = "x" }}\ncontract = "exact"\n'
    text = HEAD + gone.format("batch_fetch") + '[[technique]]\nname = "prefetch"\n' + gone.format("packed_files")
    plan = Plan.loads(text, CATALOGUE)
    assert [each.name for each in plan.techniques] == ["prefetch"]
    assert plan.removed == ("batch_fetch", "packed_files")
    assert "batch_fetch" not in plan.dumps()
    with pytest.raises(PlanError, match=r"line 8: there is no technique 'nope'"):
        Plan.loads(HEAD + gone.format("batch_fetch") + "[[technique]]\nname = 'nope'\n", CATALOGUE)


def test_nothing_that_was_let_go_of_is_in_the_catalogue() -> None:
    assert REMOVED and not REMOVED.keys() & catalogue().keys()
