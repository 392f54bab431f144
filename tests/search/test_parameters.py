"""Names of parameters, and the command line of a configuration."""

from __future__ import annotations

from argparse import ArgumentParser

import pytest

from overdrive.core.hyperparameters import CONSTANT, OPTIMIZER, OPTION, SCHEDULE, ValuePlace
from overdrive.core.program import Program
from overdrive.seams.arguments import _argparse_places
from overdrive.search.domain import domain_of
from overdrive.search.names import means, spelled
from overdrive.search.parameters import Parameter, UnknownParameter, command_of, find, parameters_of, set_in

LR = ValuePlace(OPTION, "--learning_rate", 0.01)
SEAM = ValuePlace(OPTIMIZER, "lr", 0.01, "train.py:9", "Adam")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("--lr", "lr"),
        ("learning_rate", "lr"),
        ("config.base_lr", "lr"),
        ("LEARNING_RATE", "lr"),
        ("min_lr", ""),
        ("--batchSize", "batch-size"),
        ("--train-batch-size", "batch-size"),
        ("test_batch_size", ""),
        ("bs", "batch-size"),
        ("wd", "weight-decay"),
        ("--drop_rate", ""),
        ("dropout", "dropout"),
        ("layers", "depth"),
        ("--hidden_size", "width"),
        ("hidden_act", ""),
    ],
)
def test_spellings_of_the_usual_ones(name: str, expected: str) -> None:
    assert means(name) == expected


def test_one_name_for_each_spelling() -> None:
    assert {spelled(each) for each in ("--batch_size", "batchSize", "Config.BATCH_SIZE")} == {"batch-size"}


def test_a_parameter_has_the_usual_name_and_is_found_by_its_own() -> None:
    (one,) = parameters_of([LR, SEAM], {LR.key: [SEAM]}, True)
    assert one.name == "lr" and one.moves == (SEAM,)
    assert find([one], "learning-rate") is one and find([one], "lr") is one


def test_two_of_one_meaning_have_names_of_their_own() -> None:
    other = ValuePlace(OPTIMIZER, "lr", 0.02, "train.py:20", "SGD")
    assert [each.name for each in parameters_of([SEAM, other], {}, True)] == ["lr", "lr-2"]


def test_an_unknown_name_is_answered_with_a_likely_one() -> None:
    known = parameters_of([LR, SEAM, ValuePlace(OPTION, "--gamma", 0.5)], {LR.key: [SEAM]}, True)
    with pytest.raises(UnknownParameter, match=r"did you mean gamma\?"):
        find(known, "gama")
    with pytest.raises(UnknownParameter, match="overdrive search --list"):
        find(known, "xyz")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ("--learning_rate=0.5",)),
        (("--learning_rate", "0.1", "data"), ("data", "--learning_rate=0.5")),
        (("--learning_rate=0.1",), ("--learning_rate=0.5",)),
        (("--seed", "1"), ("--seed", "1", "--learning_rate=0.5")),
    ],
)
def test_an_option_takes_the_place_of_the_users_own(words: tuple[str, ...], expected: tuple[str, ...]) -> None:
    program, keys = set_in(Program("train.py", words), [Parameter("lr", (LR,))], {"lr": 0.5})
    assert program.arguments == expected and not keys


def test_a_run_of_a_search_has_the_standard_input_of_its_program() -> None:
    program = Program("train.py", ("--lr", "1"), stdin="/tmp/answers")
    assert set_in(program, (), {})[0] == program


def test_an_option_of_a_parser_with_commands_stands_before_the_command() -> None:
    place = ValuePlace(OPTION, "--lr", 0.1, before="train")
    program, _ = set_in(Program("t.py", ("train", "--epochs", "3")), [Parameter("lr", (place,))], {"lr": 0.5})
    assert program.arguments == ("--lr=0.5", "train", "--epochs", "3")


def test_flags_are_turned_on_and_off() -> None:
    amp = Parameter("amp", (ValuePlace(OPTION, "--amp", False, on="--amp"),))
    assert set_in(Program("t.py"), [amp], {"amp": True})[0].arguments == ("--amp",)
    assert set_in(Program("t.py", ("--amp",)), [amp], {"amp": False})[0].arguments == ()


@pytest.mark.parametrize("name", ["--full-batch", "--scale-lr", "--use_dropout"])
def test_a_flag_is_none_of_the_usual_numbers_whatever_its_name(name: str) -> None:
    (flag,) = parameters_of([ValuePlace(OPTION, name, False, on=name)], {}, False)
    assert flag.name == spelled(name) and flag.meaning == ""
    assert str(domain_of(flag)) == "off, on"


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("words", [(), ("--bn", "True"), ("--bn=True", "--lr", "-0.5")])
def test_an_option_whose_type_is_bool_is_turned_off_by_an_empty_word(words: tuple[str, ...], default: bool) -> None:
    parser = ArgumentParser()
    parser.add_argument("--bn", type=bool, default=default)
    parser.add_argument("--lr", type=float, default=0)
    places = _argparse_places(parser, parser.parse_args([]))
    assert [place.value for place in places] == [default, 0.0] and isinstance(places[1].value, float)
    for value in (False, True):
        program, _ = set_in(Program("t.py", words), [Parameter("bn", (places[0],))], {"bn": value})
        assert parser.parse_args(program.arguments).bn is value
        program, _ = set_in(program, [Parameter("lr", (places[1],))], {"lr": 0.25})
        assert parser.parse_args(program.arguments).lr == 0.25


def test_an_option_that_stands_without_a_word_takes_none_of_the_others_with_it() -> None:
    fp16 = Parameter("fp16", (ValuePlace(OPTION, "--fp16", True),))
    program = Program("t.py", ("--fp16", "--lr", "0.2"))
    assert set_in(program, [fp16], {"fp16": False})[0].arguments == ("--lr", "0.2", "--fp16=False")
    lr = Parameter("lr", (ValuePlace(OPTION, "--lr", 0.2),))
    assert set_in(Program("t.py", ("--lr", "-0.2")), [lr], {"lr": 1.0})[0].arguments == ("--lr=1",)


def test_what_is_no_option_is_for_the_trial_to_set() -> None:
    place = ValuePlace(CONSTANT, "lr", 0.01, "train.py:3")
    program, keys = set_in(Program("train.py"), [Parameter("lr", (place,))], {"lr": 0.5})
    assert program == Program("train.py") and keys == {place.key: 0.5}


def test_what_is_told_to_edit_of_an_optimizers_rate_names_the_factor_for_schedules() -> None:
    _, edits = command_of(Program("train.py"), [Parameter("lr", (SEAM,))], {"lr": 0.1})
    (edit,) = edits
    assert edit.startswith("learning rate of Adam (train.py:9): 0.1 instead of 0.01 (10 times;") and "schedule" in edit


def test_a_constant_that_was_seen_to_decide_nothing_has_no_usual_name() -> None:
    most = ValuePlace(CONSTANT, "MAX_BATCH_SIZE", 16, "train.py:3")
    assert [each.name for each in parameters_of([most], {}, True)] == ["batch-size"]
    assert [each.name for each in parameters_of([most], {}, True, {most.key})] == ["max-batch-size"]


def test_a_flag_that_was_given_by_its_short_name_is_turned_off() -> None:
    parser = ArgumentParser()
    parser.add_argument("-a", "--amp", action="store_true")
    parser.add_argument("-l", "--lr", type=float, default=0.1)
    places = _argparse_places(parser, parser.parse_args(["-a", "-l", "0.2"]))
    parameters = [Parameter(each.name, (each,)) for each in places]
    program = Program("train.py", ("-a", "-l", "0.2", "data"))
    assert set_in(program, parameters, {"--amp": False})[0].arguments == ("-l", "0.2", "data")
    assert set_in(program, parameters, {"--amp": True})[0].arguments == ("-l", "0.2", "data", "--amp")


def test_an_option_of_the_programs_keeps_its_name_beside_the_fall_of_the_rates() -> None:
    own, fall = ValuePlace(OPTION, "--anneal", 0.0), ValuePlace(SCHEDULE, "anneal", 0.0)
    found = parameters_of([SEAM, fall, own], {}, True)
    assert [(each.name, each.places[0]) for each in found[1:]] == [("anneal", own), ("anneal-2", fall)]


def test_a_rate_that_stays_is_told_where_another_value_may_move_it() -> None:
    batch = ValuePlace(OPTION, "--batch-size", 64)
    parameters = parameters_of([SEAM, batch], {}, True)  # lr = 0.01 * args.batch_size / 64, say
    _, edits = command_of(Program("train.py"), parameters, {"lr": 0.01, "batch-size": 128})
    assert edits == ("learning rate of Adam (train.py:9): 0.01 as before, whatever the other values make of it",)
    assert command_of(Program("train.py"), parameters, {"lr": 0.01, "batch-size": 64})[1] == ()
