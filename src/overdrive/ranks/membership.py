"""Which rank of how many this process is, from the environment of whoever started it: us, torchrun, Slurm or mpirun."""

from __future__ import annotations

import os
import re
import secrets
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from overdrive.core.ranks_here import RANKS_HERE, ranks_here
from overdrive.core.variables import set_variables
from overdrive.machine.numa import allowed_cores, beside, nodes
from overdrive.ranks.asking import asked_by_program
from overdrive.seams.arrival import Arrival

SEED = "OVERDRIVE_RANKS_SEED"  # of all hidden entropy, where `overdrive run --ranks` started the ranks
LOGS = "OVERDRIVE_RANKS_LOGS"  # the folder for what ranks above 0 print, likewise
IMAGINED = "OVERDRIVE_RANKS_IMAGINED"  # the folder for notes of a rank whose others are not there

# What libraries and scripts take for a sign that they are one of many.
_NAMES = frozenset(
    (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
        *("ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_LOCALID"),
        *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NODEID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE"),
    )
)
_BEGINNINGS = ("TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_RANK", "PMI_SIZE", "MPI_LOCAL")
_ENVIRON = ("os.py", "_collections_abc.py")  # through which the environment is read
_OF_AGENT = "LOCAL_WORLD_SIZE"  # whose ranks on a host all see the same GPUs
_GPUS = "CUDA_VISIBLE_DEVICES"
_FIRST_PORT, _PORTS = 20_000, 20_000  # of a Slurm step, or of mpirun, whose ranks have no port told
_PARTS_OF_JOB = "SLURM_HET_SIZE"  # of a job for unlike machines: each has a number of its own
# How mpirun names a rank, all, the rank among those of its host, and these: Open MPI's, and that of MPICH and Intel.
_MPI = (
    tuple(f"OMPI_COMM_WORLD_{each}" for each in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_MPI_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri", "PMI_JOBID")  # of one start


def launched_by(rank: int, size: int, local_rank: int, address: str, port: int) -> dict[str, str]:
    """The variables of a process that is a rank, without an agent of torchrun's: rank 0 keeps the store there."""
    told = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local_rank, "MASTER_ADDR": address, "MASTER_PORT": port}
    return {name: str(value) for name, value in told.items()}


def environment_of(ranks: int, rank: int, port: int, seed: str) -> dict[str, str]:
    """The same for a rank of this machine."""
    return {**launched_by(rank, ranks, rank, "127.0.0.1", port), SEED: seed, RANKS_HERE: str(ranks)}


def variables_of_ranks(threads: int, seed: str = "") -> dict[str, str]:
    """What all ranks have that are started together: so many threads each, unless the user has said; hashes that are
    the same; and the seed of all hidden entropy, which is drawn here where there is none."""
    alike = {SEED: seed or secrets.token_hex(16), "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)), **alike}


def threads_of(ranks: int) -> int:
    """Of each rank of this machine: its share of the cores."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)


class NotARank(Exception):
    """The environment speaks of ranks, and cannot be understood; the message is one sentence for people."""


@dataclass
class Membership:
    """
    Attributes:
        agents_store: whether the launcher's agent keeps the store at that address; else rank 0 does.
        attempt: how often that agent has started all ranks again; of several, each knows of some of these times.
        may_restart: whether all ranks may be started again, by an agent that keeps the store.
        run: what the launcher calls this start of all ranks; empty where it has no name for it.
        one_host: all ranks are on one, as the launcher says.
        own: why the program is left to its own parallelism; empty where it is not.
        without_gpu: what to tell where this rank uses a GPU all the same; empty where there is one for it, or none.
    """

    rank: int
    size: int
    local_rank: int
    address: str
    port: int
    agents_store: bool
    attempt: int = 0
    may_restart: bool = False
    run: str = ""
    one_host: bool = False
    own: str = ""
    without_gpu: str = ""
    on_own: list[Callable[[str], None]] = field(default_factory=list)
    _hidden: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Membership | None:
        """None for a process that is alone.

        Raises:
            NotARank: variables contradict each other, are no numbers, or do not say where rank 0 is.
        """
        try:
            if "RANK" in environment and "WORLD_SIZE" in environment:
                found = _of_torchrun(environment)
            elif (names := _names_of_mpi(environment)) is not None:
                found = _of_mpirun(environment, *names)
            elif int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
                found = _of_slurm(environment)
            else:
                return None
        except (ValueError, KeyError) as error:
            raise NotARank(f"The variables of the launcher cannot be understood: {error}.") from None
        if not 0 <= found.rank < found.size:
            raise NotARank(f"The launcher says that this is rank {found.rank} of {found.size}.")
        return found if found.size > 1 else None

    def hide(self) -> None:
        """From here on the program does not see that it is one of many; but where its own code asks, it is told."""
        names = [each for each in os.environ if each in _NAMES or each.startswith(_BEGINNINGS)]
        self._hidden = {name: os.environ.pop(name) for name in names}
        for name in (_OF_AGENT, *(names[3] for names in _MPI)):
            if name in self._hidden:
                os.environ[RANKS_HERE] = self._hidden[name]
        if any(names[0] in self._hidden for names in _MPI):
            Arrival("mpi4py", lambda: self.reveal("it uses mpi4py")).watch()
        kind: Any = type(os.environ)
        plain = kind.__getitem__

        def __getitem__(environment: Any, key: str) -> str:
            if key in self._hidden and asked_by_program(sys._getframe(1), _ENVIRON):
                self.reveal(f"it reads {key} itself")
            return plain(environment, key)  # type: ignore[no-any-return]

        kind.__getitem__ = __getitem__

    def take_cores(self) -> None:
        """Where this host has several memory nodes, those of one or some: what a rank has in its memory lies beside the
        cores that compute with it. Called before anything starts a thread, and before `hide`.

        Nothing is done where nodes would have more threads than cores; Slurm and mpirun bind ranks themselves.
        """
        here, before, all_nodes = ranks_here(), allowed_cores(), nodes()
        if here < 2 or len(all_nodes) < 2 or self.local_rank >= here:
            return
        cores, shared_by = beside(self.local_rank, here, all_nodes)
        if shared_by * threads_of(here) <= len(cores):
            os.sched_setaffinity(0, cores)
            self.on_own.append(lambda _: os.sched_setaffinity(0, before))

    def take_gpu(self, gpus: int) -> None:
        """One for each rank of this host, before CUDA looks: to the program, which says "cuda", it is the only one.

        Where a launcher has given each rank GPUs of its own (Ray, `--gpus-per-task`), all of them stay. A program of
        its own parallelism, which chooses among them by its rank's number, sees all again: none has been used yet.

        Args:
            gpus: how many this host shows.
        """
        before = os.environ.get(_GPUS)
        names = [str(each) for each in range(gpus)] if before is None else [each.strip() for each in before.split(",")]
        if len(names) > 1 and self.local_rank < len(names):
            put_back = set_variables({_GPUS: names[self.local_rank]})
            self.on_own.append(lambda _: put_back())
        # Else the launcher may have given each rank another one.
        elif before != "" and 0 < len(names) <= self.local_rank and (before is None or _OF_AGENT in self._hidden):
            shown = f"{len(names)} GPU" + "s" * (len(names) > 1)
            self.without_gpu = (
                f"rank {self.rank} has no GPU: this host shows {shown}, and each rank needs one; start no more ranks "
                f"here than that, or have all run on CPUs ({_GPUS}= )"
            )

    def reveal(self, reason: str) -> None:
        """The program brings its own parallelism: all is as if we were not there."""
        os.environ.update(self._hidden)
        self._hidden = {}
        self.leave(reason)

    def leave(self, reason: str) -> None:
        """The program is left to its own parallelism, which asks us who it is: the environment stays hidden."""
        if not self.own:
            self.own = reason
            for act in self.on_own:
                act(reason)


def _of_torchrun(environment: Mapping[str, str]) -> Membership:
    rank = int(environment["RANK"])
    agents_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Membership(
        rank,
        int(environment["WORLD_SIZE"]),
        int(environment.get("LOCAL_RANK", rank)),
        environment.get("MASTER_ADDR", "127.0.0.1"),
        int(environment.get("MASTER_PORT", "29500")),
        agents_store,
        int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
        agents_store and SEED not in environment,  # ours starts them once
        f"run {run}" if (run := environment.get("TORCHELASTIC_RUN_ID")) else "",
        environment.get(_OF_AGENT) == environment["WORLD_SIZE"],
    )


def _of_slurm(environment: Mapping[str, str]) -> Membership:
    job, number = (int(environment.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    nodes = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST", "127.0.0.1"))
    return Membership(
        int(environment["SLURM_PROCID"]),
        int(environment["SLURM_STEP_NUM_TASKS"]),
        int(environment.get("SLURM_LOCALID", "0")),
        environment.get("MASTER_ADDR") or first_node(nodes),
        int(environment.get("MASTER_PORT") or _FIRST_PORT + (job * 31 + number) % _PORTS),
        agents_store=False,
        run="" if _PARTS_OF_JOB in environment else f"step {job}.{number} of Slurm",
        one_host=_PARTS_OF_JOB not in environment and environment.get("SLURM_STEP_NUM_NODES") == "1",
    )


def _names_of_mpi(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Those of the mpirun that started this process. In a step of Slurm's as many of PMI's are Slurm's own."""
    for names in _MPI:
        size = environment.get(names[1], "1")
        if names[0] in environment and int(size) > 1:
            return None if names is _MPI[1] and environment.get("SLURM_STEP_NUM_TASKS") == size else names
    return None


def _of_mpirun(environment: Mapping[str, str], rank: str, size: str, local_rank: str, local_size: str) -> Membership:
    ranks = int(environment[size])
    address = environment.get("MASTER_ADDR")
    one_host = int(environment.get(local_size, "0")) == ranks
    if not address and not one_host:
        raise NotARank(
            "mpirun does not say which host has rank 0: name it in MASTER_ADDR, for all ranks "
            "(mpirun -x MASTER_ADDR=HOST)."
        )
    job = next((environment[each] for each in _MPI_JOBS if environment.get(each)), "")
    port = environment.get("MASTER_PORT") or _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS
    number = int(environment[rank])
    own = int(environment.get(local_rank, number))
    run = f"job {job} of mpirun" if job else ""
    return Membership(number, ranks, own, address or "127.0.0.1", int(port), False, run=run, one_host=one_host)


def first_node(nodes: str) -> str:
    """Of Slurm's list: "gpu[03-05,9],cpu1" is gpu03."""
    found = re.match(r"([^,\[]+)(?:\[([^,\-\]]+)[^\]]*\]([^,]*))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes
