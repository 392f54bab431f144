"""A server as whoever asks it sees it: answers, limits, and how it stops."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overdrive.serve.protocol import LENGTH
from tests.conftest import Run
from tests.serve.folders import Server, exported, request, serving

for needed in ("uvicorn", "starlette", "prometheus_client"):
    pytest.importorskip(needed)

ROW = (1, 2, 3, 4)
WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(exported(tmp_path_factory.mktemp("served") / "folder"), "--largest", "0.01") as started:
        yield started


def test_it_answers_as_the_runner_does(server: Server) -> None:
    code, body = server.ask({**request(ROW, (0, 1, 0, 0)), "id": "seven"})
    told = json.loads(body)
    assert code == 200 and told["id"] == "seven" and told["outputs"][0]["shape"] == [2, 3]
    assert told["outputs"][0]["data"] == (np.float32([ROW, (0, 1, 0, 0)]) @ WEIGHTS).ravel().tolist()


def test_an_answer_to_a_request_without_a_name_has_none(server: Server) -> None:
    assert json.loads(server.ask({**request(ROW), "id": None})[1])["id"] == ""


def test_arrays_may_come_and_go_as_bytes(server: Server) -> None:
    rows = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    given = {"name": "x", "shape": [3, 4], "datatype": "FP32", "parameters": {"binary_data_size": rows.nbytes}}
    head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    code, body = server.ask(head + rows.tobytes(), {LENGTH: str(len(head))})
    assert code == 200
    found = np.frombuffer(body[-36:], np.float32).reshape(3, 3)
    assert np.array_equal(found, np.stack([row @ WEIGHTS for row in rows]))
    assert json.loads(body[:-36])["outputs"][0]["parameters"] == {"binary_data_size": 36}


WRONG: dict[str, tuple[Any, str]] = {
    "a shape": (request((1, 2, 3, 4), shape=[2, 2]), "x has the shape [2, 2]; [batch, 4] with"),
    "a datatype": (request(ROW, datatype="FP64"), "x is of type float64; float32 is wanted"),
    "an unknown datatype": (request(ROW, datatype="BYTES"), "x is of the datatype BYTES"),
    "a name": (request(ROW, name="y"), "the inputs are x; given are y"),
    "NaN": (request((1, 2, float("nan"), 4)), "x holds NaN or infinity"),
    "a number that is too large": (request((1, 2, 1e39, 4)), "x holds NaN or infinity"),
    "too few numbers": (request((1, 2, 3), shape=[1, 4]), "x has 3 numbers, and its shape [1, 4] takes 4"),
    "words": (request(("a", "b", "c", "d")), "its data are not"),
    "no JSON": (b"\x00\xff", "the body is no JSON"),
    "much depth": (b"[" * 5000, "the body is no JSON"),
    "no inputs": ({"input": 1}, "the body is no JSON with inputs"),
    "a name that is a list": (request(ROW, name=["x"]), "the body is no JSON with inputs"),
    "a size that is no whole number": (
        request(ROW, parameters={"binary_data_size": 16.0}),
        "x is to have 16 bytes, and has another number of them",
    ),
    "an unknown output": ({**request(ROW), "outputs": [{"name": "z"}]}, "there is no output z; there are output"),
    "a shape that no array has": (request(shape=[0, 10**24]), "x has no shape that is a list of sizes"),
    "a shape that is too large with none": (request(shape=[0, 2**62, 2**62]), "x has a shape that no array has"),
    "a shape of many sizes": (request(shape=[0] * 99), "x has no shape that is a list of sizes"),
    "a name that is half of a letter": (request(ROW, name="\ud800"), "the inputs are x; given are \\ud800"),
    "a name of much length": (request(ROW, name="y" * 5000), "the inputs are x; given are yyy"),
    "one input twice": ({"inputs": request(ROW)["inputs"] * 2}, "an input is given twice"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_answered_is_told_in_one_sentence(what: str, server: Server) -> None:
    body, told = WRONG[what]
    before = counted(server)
    code, answer = server.ask(body)
    assert counted(server) == before + 1
    assert code == 400 and told in json.loads(answer)["error"]
    assert server.ask(request(ROW))[0] == 200


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "x", "99"])
def test_a_length_that_the_body_has_not_is_told(length: str, server: Server) -> None:
    before = counted(server)
    code, answer = server.ask(request(ROW), {LENGTH: length})
    assert code == 400 and f"{LENGTH} is {length[:9]}" in json.loads(answer)["error"]
    assert counted(server) == before + 1


def counted(server: Server) -> float:
    """Requests that were answered with 400."""
    lines = server.get("/metrics")[1].decode().splitlines()
    return sum(float(each.split()[1]) for each in lines if each.startswith('overdrive_requests_total{code="400"}'))


def test_a_request_above_the_limit_is_refused_and_read_to_its_end(server: Server) -> None:
    code, answer = server.ask(b"0" * 15_000)
    assert code == 413 and "more than 10,485 bytes" in json.loads(answer)["error"]


def test_health_metadata_and_metrics(server: Server) -> None:
    assert [server.get(f"/v2/{each}")[0] for each in ("health/live", "health/ready", "models/Net/ready")] == [200] * 3
    assert server.get("/v2/models/Other")[0] == 404
    told = json.loads(server.get("/v2/models/Net")[1])
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    server.ask(request(ROW))
    metrics = server.get("/metrics")[1].decode()
    assert 'overdrive_requests_total{code="200"}' in metrics and "overdrive_waiting 0.0" in metrics


def test_a_model_that_fails_answers_with_the_reason_and_goes_on(server: Server) -> None:
    code, answer = server.ask(request((-1e6, 0, 0, 0)))
    assert code == 500 and "RuntimeError: no such place in the table" in json.loads(answer)["error"]
    assert server.ask(request(ROW))[0] == 200


def waits(server: Server, count: int) -> None:
    until = time.monotonic() + 30
    while f"overdrive_waiting {count}.0" not in server.get("/metrics")[1].decode():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_more_requests_than_may_wait_are_told_so(tmp_path: Path) -> None:
    with serving(exported(tmp_path / "folder", slow=1.0), "--waiting", "2") as server, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(server.ask, [request(ROW)] * 6))
        codes = sorted(code for code, _ in answers)
        assert codes in ([200] * 2 + [503] * 4, [200] * 3 + [503] * 3), "two wait, and one may be with the model"
        assert all("2 requests wait already" in json.loads(body)["error"] for code, body in answers if code == 503)


@pytest.mark.parametrize(
    ("slow", "grace", "codes", "told"),
    [
        (2.0, 30, [200] * 4, "all that was taken is answered"),
        (2.0, 0, [200, 503, 503, 503], "3 requests could not be answered in time"),
        (90.0, 0, [503] * 4, ""),  # longer than it waits for the model
    ],
)
def test_stopping_loses_no_answer(slow: float, grace: int, codes: list[int], told: str, tmp_path: Path) -> None:
    folder = exported(tmp_path / "folder", slow=slow)
    with serving(folder, "--grace", str(grace)) as server, ThreadPoolExecutor(8) as pool:
        taken = [pool.submit(server.ask, request(ROW))]
        until = time.monotonic() + 30
        while not (folder / "called").exists():  # three that wait before the model has its first are refused, too
            assert time.monotonic() < until
            time.sleep(0.02)
        taken += [pool.submit(server.ask, request(ROW)) for _ in range(3)]
        waits(server, 3)
        server.process.send_signal(signal.SIGTERM)
        assert sorted(each.result()[0] for each in taken) == codes
        if not told:
            return
        assert server.process.wait(30) == 0
        assert told in (server.process.stdout.read() if server.process.stdout else "")
        with pytest.raises(OSError):
            server.ask(request(ROW))


def test_a_server_that_is_killed_leaves_an_error_and_no_silence(tmp_path: Path) -> None:
    with serving(exported(tmp_path / "folder", slow=2.0)) as server, ThreadPoolExecutor(2) as pool:
        taken = [pool.submit(server.ask, request(ROW)) for _ in range(2)]
        waits(server, 1)
        server.process.kill()
        for each in taken:
            with pytest.raises(OSError):
                each.result()


def test_waiting_requests_are_answered_together(tmp_path: Path) -> None:
    with serving(exported(tmp_path / "folder", slow=0.5), "--batch", "8") as server, ThreadPoolExecutor(8) as pool:
        assert "answers to up to 8 inputs together do not depend on each other" in server.first
        taken = [pool.submit(server.ask, request((n, 0, 0, 0))) for n in range(6)]
        answers = [json.loads(each.result()[1])["outputs"][0]["data"] for each in taken]
        assert answers == [[0.0, float(n), 2.0 * n] for n in range(6)]
        assert 'overdrive_batch_rows_bucket{le="1.0"} 6.0' not in server.get("/metrics")[1].decode()


def test_measured_under_requests_that_arrive_by_themselves(tmp_path: Path, overdrive: Run) -> None:
    from tests.schemas import held

    folder = exported(tmp_path / "folder", slow=0.02)  # 50 requests a second, and 100 are sent
    done = overdrive("serve", str(folder), "--measure", "100", "--seconds", "4", "--json", "told.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    held("load", told)
    assert told["sent"] == told["answered"] + sum(told["others"].values()) > 300
    assert told["p50"]["estimate"] > 0.2, "a client that waits for each answer would have seen 0.02 s"


def test_a_line_that_cannot_be_served_is_one_sentence(tmp_path: Path, overdrive: Run) -> None:
    folder = exported(tmp_path / "folder")
    for words, told in (
        ((str(tmp_path),), "holds no export"),
        (("infer.py",), "overdrive export --to onnx infer.py"),
        ((str(folder), "--json", "a.json"), "--json is for --measure"),
        ((str(folder), "--measure", "10000", "--seconds", "600"), "lower RATE"),
        ((str(folder), "--measure", "0.5"), "raise RATE or --seconds"),
        ((str(folder), "--host", "no.such.name.invalid"), "Cannot listen at"),
    ):
        done = overdrive("serve", *words, cwd=tmp_path)
        assert done.returncode == 2 and told in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    (folder / "run.py").write_text("import a_library_that_is_not_there")
    done = overdrive("serve", str(folder), cwd=tmp_path)
    assert done.returncode == 2 and "a_library_that_is_not_there" in done.stderr
