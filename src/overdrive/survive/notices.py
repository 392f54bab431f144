"""Notices of a cloud that this machine is about to be taken away: a process beside the run asks for them.

It sends SIGTERM to the run, which is answered as any other. A process of its own, and no thread: programs fork. It ends
with the run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from overdrive.machine.parent import end_with_parent

_EVERY = 5.0  # seconds: the shortest notice, of Google and Azure, is 30
_PATIENCE = 3.0  # seconds for an answer, of an address within the machine
_TOKEN = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}


@dataclass(frozen=True)
class Cloud:
    """Where one tells its notices, and which answer is one.

    Attributes:
        token: where a token is had that has to be told, and the header to tell it by; None where none is needed.
    """

    host: str
    path: str
    says_so: Callable[[str], bool]
    headers: Mapping[str, str] = field(default_factory=dict)
    token: tuple[str, str] | None = None


def _preempted(text: str) -> bool:
    return any(each.get("EventType") == "Preempt" for each in json.loads(text).get("Events", []))


# docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html: no such page until there is one.
# cloud.google.com/compute/docs/instances/spot; learn.microsoft.com/azure/virtual-machines/linux/scheduled-events.
CLOUDS = {
    "aws": Cloud(
        "http://169.254.169.254",
        "/latest/meta-data/spot/instance-action",
        lambda text: json.loads(text).get("action") in ("terminate", "stop", "hibernate"),
        token=("/latest/api/token", "X-aws-ec2-metadata-token"),
    ),
    "gcp": Cloud(
        "http://metadata.google.internal",
        "/computeMetadata/v1/instance/preempted",
        lambda text: text.strip() == "TRUE",
        {"Metadata-Flavor": "Google"},
    ),
    "azure": Cloud(
        "http://169.254.169.254",
        "/metadata/scheduledevents?api-version=2020-07-01",
        _preempted,
        {"Metadata": "true"},
    ),
}


def announced(cloud: Cloud, host: str = "") -> bool:
    """Whether the end of this machine is announced now. `host`: another one than the cloud's.

    Raises:
        OSError: nobody answers there.
    """
    host = host or cloud.host
    headers = dict(cloud.headers)
    if cloud.token is not None:
        path, name = cloud.token
        headers[name] = _answer(Request(host + path, headers=_TOKEN, method="PUT"))
    try:
        return cloud.says_so(_answer(Request(host + cloud.path, headers=headers)))
    except HTTPError as error:
        if error.code == 404:
            return False
        raise
    except ValueError:  # no JSON
        return False


def _answer(request: Request) -> str:
    opener = build_opener(ProxyHandler({}))  # it is within the machine
    with opener.open(request, timeout=_PATIENCE) as answer:
        return str(answer.read(1 << 16).decode(errors="replace"))


def listen(cloud: str) -> subprocess.Popen[bytes]:
    """Start the process that sends SIGTERM to this one."""
    command = [sys.executable, "-m", __name__, cloud, str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def main(cloud: str, process: int, host: str = "", every: float = _EVERY) -> int:
    """Until a notice comes, or the process is gone."""
    end_with_parent(signal.SIGTERM)
    told = False
    while os.getppid() == process:
        try:
            if announced(CLOUDS[cloud], host):
                os.kill(process, signal.SIGTERM)
                return 0
        except OSError as error:
            if not told:
                told = True
                print(f"overdrive: {cloud} tells no notices here yet ({error})", file=sys.stderr, flush=True)
        time.sleep(every)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
