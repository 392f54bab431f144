"""`overdrive serve`: an exported folder answers requests, or is measured under requests that arrive by themselves."""

from __future__ import annotations

import ipaddress
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import numpy as np

from overdrive.cli.json_output import console_beside, json_option, write_json
from overdrive.cli.line import fail
from overdrive.core.installing import pip_install_extra
from overdrive.core.json_data import to_json
from overdrive.core.units import several
from overdrive.serve.instances import load_instances, threads_of
from overdrive.serve.model import CannotServe, ServedModel, load

_NEEDS = ("uvicorn", "starlette", "prometheus_client")
_MOST_SENT = 1_000_000
_FEWEST_SENT = 10  # by RATE and seconds: of fewer it may be that none is drawn
_DIFFERENT = 16  # requests, which are sent in turn


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="The address that it listens at.")
@click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(0, 65535), metavar="N", help="0: any that is free."
)
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1, 1024), metavar="ROWS", help="Inputs of "
              "waiting requests that are answered together, where that changes no answer.")  # fmt: skip
@click.option("--linger", default=0.0, show_default=True, type=click.FloatRange(0, 1000), metavar="MS",
              help="Milliseconds that a request waits for others, at most.")  # fmt: skip
@click.option("--instances", default=1, show_default=True, type=click.IntRange(1, 256), metavar="N",
              help="Copies of the model that answer at the same time.")  # fmt: skip
@click.option("--threads", default=0, type=click.IntRange(0, 1024), metavar="N",
              help="Threads of each instance (default: its share of the cores).")  # fmt: skip
@click.option("--waiting", default=128, show_default=True, type=click.IntRange(1, 100_000), metavar="N",
              help="How many requests may wait; others get 503.")  # fmt: skip
@click.option("--largest", default=16.0, show_default=True, type=click.FloatRange(0.001, 1024), metavar="MIB",
              help="The largest size of a request; larger ones get 413.")  # fmt: skip
@click.option("--grace", default=30.0, show_default=True, type=click.FloatRange(0, 3600), metavar="S",
              help="Seconds to answer accepted requests after SIGTERM.")  # fmt: skip
@click.option("--answer-within", default=60.0, show_default=True, type=click.FloatRange(0.01, 86_400), metavar="S",
              help="Seconds for an answer; later, the request gets 504. While a call of the model takes longer, "
              "/v2/health/live says 503.")  # fmt: skip
@click.option("--not-finite", is_flag=True, help="Accept NaN and infinity, which otherwise get 400.")
@click.option("--measure", "rate", type=click.FloatRange(0.1, 10_000), metavar="RATE",
              help="Serve on a port of its own, send RATE made-up requests a second, report the latency, "
              "and end.")  # fmt: skip
@click.option(
    "--seconds",
    default=10.0,
    show_default=True,
    type=click.FloatRange(1, 600),
    metavar="S",
    help="With --measure: for how long.",
)
@json_option
def command(
    folder: Path,
    host: str,
    port: int,
    batch: int,
    linger: float,
    instances: int,
    threads: int,
    waiting: int,
    largest: float,
    grace: float,
    answer_within: float,
    not_finite: bool,
    rate: float | None,
    seconds: float,
    json_path: Path | None,
) -> None:
    """Answer requests with an exported FOLDER, over HTTP, in the Open Inference Protocol.

    It listens on this machine only, unless --host names another address, and has no authentication.
    """
    if lacking := [name for name in _NEEDS if not find_spec(name)]:
        fail(f"{lacking[0]} is not installed: `{pip_install_extra('serve')}` brings it.", 1)
    if folder.suffix == ".py":
        fail(f"{folder} is a script: `overdrive export --to onnx {folder}` makes a folder of it, which is served.")
    if rate is None and json_path is not None:
        fail("--json is for --measure: what it came to.")
    try:
        model = load(folder) if rate is not None else load_instances(folder, instances, threads_of(instances, threads))
    except CannotServe as error:
        fail(f"{error}.")
    if rate is not None:
        if rate * seconds > _MOST_SENT:
            fail(f"--measure sends up to {_MOST_SENT:,} requests: lower RATE or --seconds.")
        if rate * seconds < _FEWEST_SENT:
            fail(f"--measure takes {_FEWEST_SENT} requests and more to tell anything: raise RATE or --seconds.")
        told = {"batch": batch, "linger": linger, "waiting": waiting, "largest": largest}
        told |= {"instances": instances, "threads": threads}
        _measure(model, folder, [f"--{name}={value}" for name, value in told.items()], rate, seconds, json_path)
        return
    from overdrive.serve.app import Limits, serve

    try:
        listener = _listener(host, port)
    except OSError as error:
        fail(f"Cannot listen at {host}, port {port} ({error.strerror or error}): --port chooses another one.")
    rows, together = (1, "") if batch == 1 else _together(model, batch)
    limits = Limits(int(largest * 2**20), waiting, rows, linger / 1e3, grace, answer_within, not_finite)
    many = f", {instances} instances" if instances > 1 else ""
    what = f"up to {limits.request:,} bytes a request, {waiting} waiting{many}{together}"
    _say(model, host, listener, what)
    refused = serve(model, listener, limits)
    click.echo(
        f"overdrive: {several(refused, 'request')} could not be answered in time."
        if refused
        else "overdrive: all that was taken is answered."
    )


def _say(model: ServedModel, host: str, listener: socket.socket, told: str) -> None:
    """Where it answers, in the first line."""
    address, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host  # as a URL has an address of IPv6
    click.echo(f"overdrive: {model.name} answers at http://{host}:{port}/v2/models/{model.name}/infer: {told}.")
    if not ipaddress.ip_address(address).is_loopback:
        click.echo("overdrive: whoever reaches that address may ask: put what knows its users before it.", err=True)


def _listener(host: str, port: int) -> socket.socket:
    """Of TCP by name: asyncio switches off the delay of small packets only where it reads so, and 40 ms it was."""
    (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
    )
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def _together(model: ServedModel, batch: int) -> tuple[int, str]:
    """How many rows may be answered together, and what is told of it."""
    from overdrive.serve.independent import found_together

    batch = min(batch, model.signature["dimensions"].get(model.together, {}).get("max", batch))  # the most it takes
    holds, why = found_together(model, batch)
    return (batch, f"; {why}") if holds else (1, f"; each by itself, since {why}")


def _measure(
    model: ServedModel, folder: Path, options: list[str], rate: float, seconds: float, json_path: Path | None
) -> None:
    from overdrive.serve import load as requests
    from overdrive.serve.protocol import made_body
    from overdrive.targets.pages import milliseconds

    chance = np.random.default_rng(0)
    inputs = [model.made_up(1, chance) for _ in range(_DIFFERENT)]
    shapes = ", ".join(f"{name} {'×'.join(map(str, each.shape))}" for name, each in inputs[0].items())
    command = [sys.executable, "-m", "overdrive", "serve", str(folder), "--port=0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            first = server.stdout.readline() if server.stdout else ""
            found = re.search(r":(\d+)/v2", first)
            if not found:
                fail("The server did not start.", 1)
            result = requests.measure(
                int(found.group(1)), f"/v2/models/{model.name}/infer", list(map(made_body, inputs)), rate, seconds
            )
        finally:
            server.terminate()
    say = console_beside(json_path, soft_wrap=True).print
    say(first.partition("overdrive: ")[2].strip(), markup=False)
    lost = "".join(f", {count:,} got {code}" for code, count in result.others.items())
    say(
        f"{result.sent:,} requests in {seconds:g} s ({shapes}, made up): {result.answered:,} answered{lost}",
        markup=False,
    )
    p50, p99 = (milliseconds(each) + " ms" * (each is not None) for each in (result.p50, result.p99))
    say(f"p50 {p50}, p99 {p99}", markup=False)
    say(f"counted from when each was to be sent; the sender was {result.late * 1e3:.1f} ms late at most", markup=False)
    write_json(json_path, to_json(result))
