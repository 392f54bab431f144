"""Starts the ranks of a program on this machine, with torch.distributed's elastic agent, and waits for their end."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overdrive.core import scratch
from overdrive.ranks.input import handed_on
from overdrive.ranks.membership import LOGS, threads_of, variables_of_ranks
from overdrive.ranks.signals import heard, stopped_together
from overdrive.ranks.writes import LONGEST

_GRACE = int(LONGEST) + 2  # seconds between the signal that ends a rank and SIGKILL
_LOOKS_EVERY = 0.1  # seconds


@dataclass(frozen=True)
class GroupEnd:
    """How the ranks of a run came to their end.

    Attributes:
        code: of rank 0; of the first that failed, where rank 0 was ended for it.
        lost: the rank that a signal ended; None where there is none.
        signal: that ended it.
        stopped_by: the signal that this process was told to end by; 0 where there was none.
    """

    code: int
    lost: int | None = None
    signal: int = 0
    stopped_by: int = 0


def start_ranks(
    ranks: int, words: Sequence[str], flags: Sequence[str] = (), seed: str = "", grace: int = _GRACE
) -> GroupEnd:
    """Run `python FLAGS -m WORDS` as so many ranks, and wait for their end.

    Args:
        seed: of their hidden chance; "" draws one.
        grace: seconds between the signal that ends a rank and SIGKILL.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, launch_agent

    from overdrive.seams.torch.elastic import leaders_end_first

    for name in [each for each in logging.root.manager.loggerDict if each.startswith("torch.distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the agent tells of each failure in forty lines
    scratch.sweep()
    logs = scratch.made("overdrive-ranks-")
    os.environ.update({LOGS: str(logs), **variables_of_ranks(threads_of(ranks), seed)})
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=secrets.token_hex(8),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=_LOOKS_EVERY,
        shutdown_timeout=grace,
        signals_to_handle=heard(),
        logs_specs=DefaultLogsSpecs(log_dir=f"{logs}/agent"),
    )
    try:
        with handed_on(logs, ranks), leaders_end_first(), stopped_together():
            launch_agent(config, sys.executable, [*flags, "-m", *words])
    except ChildFailedError as error:
        _discard_scratch(logs)
        return _failed(error.failures, logs)
    except SignalException as error:
        _discard_scratch(logs)
        _discard_logs(logs)
        return GroupEnd(128 + error.sigval, stopped_by=error.sigval)
    except BaseException:  # the ranks cannot even meet, say
        scratch.discard(logs)
        raise
    _discard_scratch(logs)
    _discard_logs(logs)
    return GroupEnd(0)


def _discard_logs(logs: Path) -> None:
    """But for the stacks of a rank that stood for a while: their place was told."""
    if any(each.stat().st_size for each in logs.glob("*.stacks.log")):
        scratch.keep(logs)
    else:
        scratch.discard(logs)


def _discard_scratch(logs: Path) -> None:
    for each in [*logs.glob("scratch*"), logs / "agent"]:
        if each.exists():
            scratch.discard(each)


def _failed(failures: Any, logs: Path) -> GroupEnd:
    """The end where some rank failed; those that the agent ended for it are not asked."""
    causes = {rank: each for rank, each in failures.items() if each.exitcode != -signal.SIGTERM} or failures
    rank = 0 if 0 in causes else min(causes, key=lambda each: causes[each].timestamp)
    code = int(causes[rank].exitcode)
    lost = min((each for each in causes if causes[each].exitcode < 0), default=None)
    if rank and any(each.stat().st_size for each in logs.glob("rank*.log")):
        scratch.keep(logs)
        print(f"overdrive: what ranks above 0 printed is in {logs}", file=sys.stderr)
    else:
        _discard_logs(logs)
    if code < 0:
        print(f"overdrive: rank {rank} was ended by {signal.Signals(-code).name}", file=sys.stderr)
        code = 128 - code
    return GroupEnd(code, lost, 0 if lost is None else -causes[lost].exitcode)
