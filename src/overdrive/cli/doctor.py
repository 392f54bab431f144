"""The command line of `overdrive doctor`."""

from __future__ import annotations

import sys

import click

from overdrive.cli.line import fail, faults_as_sentences, parse_program, program_command


@program_command
@click.option("--quick", is_flag=True, help="Measure more coarsely, in some 15 seconds.")
@click.option("--fresh", is_flag=True, help="Measure again, whatever was measured here before.")
@click.option("--json", "as_json", is_flag=True, help="Print all that was found as one JSON object.")
@click.option("--for", "wanted", is_flag=True, help="What hardware SCRIPT would like: memory by part, steps on GPUs.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT [ARGS]...]")
def doctor(quick: bool, fresh: bool, as_json: bool, wanted: bool, words: tuple[str, ...]) -> None:
    """What this machine is and can do, measured, and what is set up wrong on it.

    Nothing is changed: each finding says what it costs and which command fixes it. The exit code is 1 where
    something is wrong, and 0 where nothing is, whatever could be better.

    With --for, it runs the first steps of SCRIPT in trials instead, and says what memory they need by part, and
    how long a step would take on GPUs that are not here.
    """
    if wanted and fresh:
        fail("--fresh measures the machine's limits again: run it without --for first.")
    if wanted:
        program = parse_program(words)
        from overdrive.commands import requirements
        from overdrive.insight.requirements.counting import CannotCount

        with faults_as_sentences():
            try:
                code = requirements.wanted(program, quick, as_json)
            except CannotCount as error:
                fail(str(error), 1)
        sys.exit(code)
    if words:
        fail(f"doctor looks at the machine, not at {words[0]}: put --for before it to ask what it would like.")
    from overdrive.commands import doctor as work

    with faults_as_sentences():
        code = work.doctor(quick, as_json, fresh)
    sys.exit(code)
