"""`overdrive doctor`: what it prints, for people and as JSON, and its exit code."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from overdrive.cli import doctor as doctor_command
from overdrive.cli.group import cli
from overdrive.core.json_data import from_json, to_json
from overdrive.core.units import rate
from overdrive.machine.diagnosis import Diagnosis
from overdrive.machine.limits import Limits, LimitsUnavailable, Measure
from overdrive.machine.rules.finding import Basis, Finding, Severity, Sure
from overdrive.report.doctor import diagnosis, summary
from tests.machine.recorded import MACHINES, look
from tests.machine.recorded_nvml import package
from tests.schemas import held

LIMITS = Limits(
    measures={
        "cpu.matmul.fp32": Measure(1.5e11, "FLOP/s", "square matrices"),
        "cpu.1.matmul.fp32": Measure(0.75e11, "FLOP/s", "one thread"),
        "cpu.operation": Measure(4.5e-6, "s", "an addition"),
        "storage.read": Measure(9.2e8, "B/s", "64 MiB"),
    },
    missing={"cuda": "PyTorch sees no GPU here"},
    fingerprint="f" * 64,
    threads=2,
    gpu="",
    seconds=1.0,
    when=0.0,
    busy_share=0.5,
    quick=True,
)


def shown(result: Diagnosis, width: int = 100, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    diagnosis(result, Console(file=file, width=width, highlight=False))
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_is_shown_within_a_hundred_columns(name: str, tmp_path: Path) -> None:
    result = doctor_command.examine(look(name, tmp_path), LIMITS)
    assert from_json(Diagnosis, json.loads(json.dumps(to_json(result)))).findings == result.findings
    text = shown(result)
    commands = {each.command for each in result.findings}
    assert all(len(line) <= 100 for line in text.splitlines() if line.strip() not in commands)
    assert all(each.what[:40] in text for each in result.findings)
    assert all(f"\n        {command}\n" in text for command in _to_copy(result))
    assert "?" not in shown(result, encoding="ascii").replace("?, ", "")  # all that is said has a plain form


def _to_copy(result: Diagnosis) -> list[str]:
    return [each.command for each in result.findings if each.severity is not Severity.NOTE and each.command]


def test_what_is_said_of_a_sound_machine(tmp_path: Path) -> None:
    text = shown(doctor_command.examine(look("h100x8", tmp_path), LIMITS))
    assert "2 × Intel(R) Xeon(R) Platinum 8480C, 112 cores (224 threads), 2 memory nodes" in text
    assert "8 × NVIDIA H100 80GB HBM3, 80 GiB, 700 W, up to 1980 MHz, PCIe 5 x16, ECC" in text
    assert "joined by 18 NVLinks, 478.1 GB/s each way" in text
    assert "8 × InfiniBand 400 Gb/s" in text
    assert "fp32 150 GFLOP/s, operation 4.5 µs" in text
    assert "read 920 MB/s" in text and "75 GFLOP/s" not in text
    assert "Others used 50% of the cores" in text
    assert "Nothing is wrong, 1 note." in text


def test_nothing_found_is_taken_for_markup(tmp_path: Path) -> None:
    found = look("workstation_x4", tmp_path, change=lambda told: told["device"].update(nvmlDeviceGetName="[bold]X[/]"))
    assert "[bold]X[/]" in shown(doctor_command.examine(found))


def test_the_summary() -> None:
    def said(*severities: str) -> str:
        return summary([Finding("", Severity(each), "", "", Basis.CITED, "", Sure.CERTAIN) for each in severities])

    assert said() == "Nothing is wrong."
    assert said("wrong", "advice", "note", "note") == "1 thing is wrong, 1 could be better, 2 notes."
    assert said("wrong", "wrong", "advice", "advice") == "2 things are wrong, 2 could be better."


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (1.2345e12, "FLOP/s", "1.23 TFLOP/s"),
        (2.4e10, "B/s", "24 GB/s"),
        (5.3e-6, "s", "5.3 µs"),
        (0.004, "s", "4 ms"),
        (2e-9, "s", "2 ns"),
        (36294.2, "files/s", "36,294 files/s"),
    ],
)
def test_rates(value: float, unit: str, said: str) -> None:
    assert rate(value, unit) == said


def test_the_command_on_a_machine_with_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This very machine, with the NVML of another: the whole way, but for measuring."""
    monkeypatch.setenv("PYTHONPATH", package(tmp_path, "pass", "workstation_x4"))
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setattr(doctor_command, "measured_limits", lambda **_: LIMITS)
    answer = CliRunner().invoke(cli, ["doctor", "--json", "-", "--quick"])
    assert answer.exit_code == 1, answer.output
    result = json.loads(answer.stdout)
    held("doctor", result)
    assert {"pcie_lanes", "environment_cuda_launch_blocking"} <= {each["rule"] for each in result["findings"]}
    assert result["machine"]["nvidia"]["gpus"][0]["compute_capability"] == "8.9"
    assert result["software"]["driver"] == "570.133.07" and result["software"]["loaded"]["torch"]
    assert result["environment"]["CUDA_LAUNCH_BLOCKING"] == "1"
    assert result["limits"]["measures"]["storage.read"]["unit"] == "B/s"
    assert set(result) == {
        *("overdrive", "date", "machine", "software", "environment", "limits", "findings", "left_out"),
    }


def test_limits_that_cannot_be_measured_are_left_out_by_name(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def fails(**_: bool) -> Limits:
        raise LimitsUnavailable("No PyTorch is installed here.")

    monkeypatch.setattr(doctor_command, "survey", lambda: look_at_nothing())
    monkeypatch.setattr(doctor_command, "measured_limits", fails)
    assert doctor_command.doctor(json_path=Path("-")) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"what": "limits", "why": "No PyTorch is installed here"} in result["left_out"]


def look_at_nothing() -> dict[str, Any]:
    from overdrive.machine.survey import survey

    return survey(Path("/nowhere"), {}, load=False)


def test_exit_code_and_text_where_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_command, "survey", look_at_nothing)
    monkeypatch.setattr(doctor_command, "measured_limits", lambda **_: LIMITS)
    answer = CliRunner().invoke(cli, ["doctor"])
    assert answer.exit_code == 0, answer.output
    assert "Nothing is wrong." in answer.output
    assert "Not looked at: NVIDIA GPUs (NVML was not asked)" in answer.output


def test_the_parent_loads_no_framework() -> None:
    code = (
        "import sys; from overdrive.cli import doctor; from overdrive.machine.survey import survey;"
        "doctor.examine(survey(load=False));"
        "print([name for name in ('torch', 'tensorflow', 'sklearn', 'numpy') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_limits_are_measured_again_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(doctor_command, "survey", look_at_nothing)
    monkeypatch.setattr(doctor_command, "measured_limits", lambda **how: asked.append(how) or LIMITS)
    assert CliRunner().invoke(cli, ["doctor", "--quick"]).exit_code == 0
    assert CliRunner().invoke(cli, ["doctor", "--quick", "--fresh"]).exit_code == 0
    assert asked == [{"quick": True, "fresh": False}, {"quick": True, "fresh": True}]
    answer = CliRunner().invoke(cli, ["doctor", "--fresh", "--for", "train.py"])
    assert answer.exit_code == 2 and "without --for" in answer.output
