"""The pages that are made from code: the catalogue, a page per technique, the commands, the schemas, the faults.

python docs/pages.py   writes docs/catalogue.md anew, after a technique came or went, and docs/faults.md, after a test
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from faults import faults_page

from overdrive.cli.group import COMMANDS, cli
from overdrive.core import json_forms
from overdrive.core.batch_curve import BatchCurve
from overdrive.core.json_schema import schema_of
from overdrive.core.plan.schema import plan_schema
from overdrive.core.proof_record import ProofRecord
from overdrive.core.requirements_result import Requirements
from overdrive.core.run_record import RunRecord
from overdrive.core.search_result import SearchResult
from overdrive.core.tune_result import TuneResult
from overdrive.insight.profile.record import Profile
from overdrive.machine.diagnosis import Diagnosis, PoolDiagnosis
from overdrive.serve.load import UnderLoad
from overdrive.targets.fpga.verdict import Designed
from overdrive.targets.result import Exported
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.technique import Technique

HERE = Path(__file__).parent

FAMILIES = {
    "data": "Keeping the processor fed",
    "host": "Threads, cores and pages",
    "memory": "Memory",
    "layout": "Layout and algorithms",
    "kernels": "Kernels of our own",
    "compile": "Compiling and launching",
    "precision": "Precision",
    "device": "Another device",
    "inference": "Programs that only call their model",
    "parallel": "Several processes",
}

CATALOGUE_HEAD = """# The catalogue

What `overdrive tune` may try. `overdrive techniques` lists the techniques, `overdrive techniques NAME` describes one:
what it does, when it helps, when it hurts, and the source. The contract is the level that the technique keeps on the
programs it suits (`open`: it changes the training itself, and nothing is proved); in brackets is the weaker level, if
any, to which some programs force it. The proof shows which level holds on yours. `tune` tries what your contract
allows. It tries techniques that only save memory if memory is the objective or the limit, and `open` ones if they are
named with `--techniques`. All are for PyTorch, except where Keras is named.
"""

SCHEMAS = {
    "plan": ("the plan, `NAME.overdrive.toml`, as data", lambda: plan_schema(catalogue())),
    "result": ("what `tune --json` and `report --json` write", lambda: schema_of(TuneResult, "Result of a tune")),
    "proof": ("what `verify --json` writes", lambda: schema_of(ProofRecord, "Proof of a plan")),
    "resume": ("what `verify --resume --json` writes", lambda: schema_of(json_forms.ResumeForm, "A resumed run")),
    "run": ("what `run --json` writes", lambda: schema_of(RunRecord, "Record of a run")),
    "search": ("what `search --json` writes", lambda: schema_of(SearchResult, "Result of a search")),
    "parameters": (
        "what `search --list --json` writes",
        lambda: schema_of(json_forms.ParametersForm, "Hyperparameters of a program"),
    ),
    "batch-curve": (
        "what `search --batch-curve --json` writes",
        lambda: schema_of(BatchCurve, "Batch sizes of a program"),
    ),
    "profile": ("what `profile --json` writes", lambda: schema_of(Profile, "Profile")),
    "doctor": ("what `doctor --json` writes", lambda: schema_of(Diagnosis, "A machine")),
    "pool": ("what `doctor --pool --json` writes", lambda: schema_of(PoolDiagnosis, "Collectives")),
    "requirements": (
        "what `doctor --for --json` writes",
        lambda: schema_of(Requirements, "What a program needs"),
    ),
    "side-by-side": (
        "what `report A B --json` writes",
        lambda: schema_of(json_forms.SideBySideForm, "Two results side by side"),
    ),
    "technique": ("what `techniques NAME --json` writes", lambda: schema_of(json_forms.CardForm, "A technique")),
    "export": ("what `export --json` writes", lambda: schema_of(Exported, "An export")),
    "design": ("what `export --to fpga --json` writes", lambda: schema_of(Designed, "A design for an FPGA")),
    "load": ("what `serve --measure --json` writes", lambda: schema_of(UnderLoad, "A server under load")),
    "pack": ("what `pack --json` writes", lambda: schema_of(json_forms.PackForm, "A pack")),
    "job": ("what `submit --json` writes", lambda: schema_of(json_forms.JobForm, "A batch job")),
}


def catalogue_page(link: str = "") -> str:
    """`link`: the folder of the techniques' pages, where there are some."""
    known = list(catalogue().values())
    families = [*FAMILIES, *sorted({each.family for each in known} - FAMILIES.keys())]
    by_family = {name: [each for each in known if each.family == name] for name in families}
    return CATALOGUE_HEAD + "".join(_family(name, techniques, link) for name, techniques in by_family.items())


def _family(name: str, techniques: list[Technique], link: str) -> str:
    if not techniques:
        return ""
    lines = ["", f"## {FAMILIES.get(name, name)}", "", "| technique | contract | what it does |", "|---|---|---|"]
    for each in sorted(techniques, key=lambda technique: technique.name):
        shown = f"[`{each.name}`]({link}/{each.name}.md)" if link else f"`{each.name}`"
        fallback = f" ({each.fallback_contract})" if each.fallback_contract else ""
        framework = {("keras",): "Keras: ", ("torch", "keras"): "PyTorch and Keras: "}.get(tuple(each.frameworks), "")
        told = framework + _lowered(each.summary()) if framework else each.summary()
        lines.append(f"| {shown} | {each.contract}{fallback} | {told} |")
    return "\n".join(lines) + "\n"


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def technique_page(name: str) -> str:
    technique = catalogue()[name]
    title, _, rest = technique.card().partition("\n\n")
    lines = [f"# {name}", "", f"**{title}**", ""]
    lines += [f"Family *{technique.family}*, contract *{technique.contract}*.", ""]
    for paragraph in rest.split("\n\n"):
        head, colon, text = paragraph.partition(":")
        lines += [f"## {head}" if colon else "", "", (text if colon else paragraph).strip(), ""]
    if technique.knobs:
        lines += ["## Knobs", "", "| knob | default | meaning |", "|---|---|---|"]
        lines += [f"| `{knob.name}` | `{knob.default}` | {knob.meaning} |" for knob in technique.knobs]
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    lines = [
        "# Commands",
        "",
        "Generated from the code. Options stand before the script; what follows is passed to the script.",
        "",
        "`--json FILE` is the same in every command: it writes the result as JSON to FILE; with `-` to standard",
        "output, which then holds nothing else. Only `run` takes no `-`: its standard output is the program's.",
        "",
    ]
    context = click.Context(cli, info_name="overdrive")
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        lines += [f"## {name}", "", f"```\n{_usage(name, command, context)}\n```", ""]
        lines += [paragraph.replace("\n", " ").strip() + "\n" for paragraph in (command.help or "").split("\n\n")]
        lines += ["| option | | default |", "|---|---|---|", *_options(command), ""]
    return "\n".join(lines)


def _usage(name: str, command: click.Command, context: click.Context) -> str:
    return command.get_usage(click.Context(command, info_name=name, parent=context)).removeprefix("Usage: ")


def _options(command: click.Command) -> Iterator[str]:
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            kind = {"n": "N", "float": "X"}.get(option.type.name, option.type.name.upper())
            value = "" if option.is_flag else f" {option.metavar or kind}"
            if isinstance(option.type, click.Choice):
                value = f" {{{','.join(map(str, option.type.choices))}}}"
            default = option.default if isinstance(option.default, (str, int, float)) and not option.is_flag else ""
            told = (option.help or "").replace("|", "\\|")
            yield f"| `{', '.join(option.opts)}{value}` | {told} | {default} |"


def schemas_page() -> str:
    lines = [
        "# JSON schemas",
        "",
        "Schemas of the files that Overdrive writes, generated from the code and checked by tests.",
        "",
        "| schema | of |",
        "|---|---|",
    ]
    lines += [f"| [{name}.schema.json](schemas/{name}.schema.json) | {told} |" for name, (told, _) in SCHEMAS.items()]
    lines += [
        "",
        "An editor can check a plan by its schema: with Taplo or *Even Better TOML*, put this first in the file:",
        "",
        "```toml",
        "#:schema https://YOUR-SITE/schemas/plan.schema.json",
        "```",
    ]
    return "\n".join(lines) + "\n"


def schemas() -> dict[str, Any]:
    return {name: made() for name, (_, made) in SCHEMAS.items()}


def write_all(pages: Path) -> None:
    """All of them, into the folder of a site's pages."""
    (pages / "techniques").mkdir()
    (pages / "schemas").mkdir()
    for name in catalogue():
        (pages / "techniques" / f"{name}.md").write_text(technique_page(name), encoding="utf-8")
    for name, schema in schemas().items():
        (pages / "schemas" / f"{name}.schema.json").write_text(json.dumps(schema, indent=1) + "\n", encoding="utf-8")
    (pages / "catalogue.md").write_text(catalogue_page("techniques"), encoding="utf-8")
    (pages / "commands.md").write_text(commands_page(), encoding="utf-8")
    (pages / "schemas.md").write_text(schemas_page(), encoding="utf-8")


if __name__ == "__main__":
    (HERE / "catalogue.md").write_text(catalogue_page(), encoding="utf-8")
    (HERE / "faults.md").write_text(faults_page(), encoding="utf-8")
