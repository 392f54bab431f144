"""Findings about processors: what is granted, clocks, memory nodes, and who else computes."""

from __future__ import annotations

from collections.abc import Iterator

from overdrive.core.units import several
from overdrive.machine.reading import numbers_in
from overdrive.machine.rules.finding import Basis, Finding, Severity, Sure, Survey, finding


def granted_less(survey: Survey) -> Iterator[Finding]:
    cpu = survey["cpu"]
    granted, logical = cpu.get("granted_cores"), cpu.get("logical_cores")
    if granted and logical and granted < logical:
        quota = cpu.get("quota_cores")
        by, unseen = "the cores that it may run on", "count with os.sched_getaffinity"
        if quota and quota < cpu["allowed_cores"]:
            by = f"a quota of {quota:g} cores"
            unseen = f"write {granted} where the program counts cores, since nothing in Python tells of a quota"
        yield finding(
            "granted_less",
            (Severity.NOTE, Basis.UNKNOWN, Sure.CERTAIN),
            f"This process may use {granted} of the machine's {several(logical, 'logical core')}, by {by}.",
            "Programs that count the machine's cores start too many threads and data workers.",
            f"Ask the scheduler for more, or {unseen}; {granted} is what Overdrive uses.",
        )


def slurm_cores(survey: Survey) -> Iterator[Finding]:
    job, allowed = survey["scheduler"], survey["cpu"].get("allowed_cores")
    asked = job.get("cores")
    if job.get("name") == "Slurm" and asked and allowed and allowed < asked:
        yield finding(
            "slurm_cores",
            (Severity.WRONG, Basis.COMPUTED, Sure.CERTAIN),
            f"Slurm granted {asked} cores a task, but this process is bound to {allowed}.",
            f"{asked - allowed} of {asked} cores stay idle.",
            "srun no longer takes the number of cores from sbatch (since Slurm 22.05): give it to srun as well.",
            f"srun --cpus-per-task={asked} ...",
            "https://slurm.schedmd.com/sbatch.html#OPT_cpus-per-task",
        )


def governor(survey: Survey) -> Iterator[Finding]:
    cpu = survey["cpu"]
    chosen, driver = cpu.get("governor"), cpu.get("clock_driver", "")
    # With intel_pstate and amd-pstate-epp "powersave" still follows the load; elsewhere it is the lowest clock.
    if chosen == "powersave" and driver not in ("intel_pstate", "amd-pstate-epp"):
        yield finding(
            "governor",
            (Severity.WRONG, Basis.UNKNOWN, Sure.CERTAIN),
            "The processors are held at their lowest clock (governor powersave).",
            "All that runs on the CPU, launching GPU kernels included, slows with the clock.",
            "Let the clock follow the load.",
            "sudo cpupower frequency-set -g performance",
            "https://docs.kernel.org/admin-guide/pm/cpufreq.html",
        )
    most, allowed = cpu.get("most_mhz"), cpu.get("most_mhz_allowed")
    if most and allowed and allowed < 0.95 * most:
        yield finding(
            "clock_capped",
            (Severity.ADVICE, Basis.COMPUTED, Sure.CERTAIN),
            f"The processors may clock to {allowed} MHz, but could to {most} MHz.",
            f"Up to {1 - allowed / most:.0%} of the CPU's speed where one thread is the bottleneck.",
            "Lift the cap, unless it is there for heat or noise.",
            f"sudo cpupower frequency-set -u {most}MHz",
        )


def memory_nodes(survey: Survey) -> Iterator[Finding]:
    cpu = survey["cpu"]
    allowed = numbers_in(cpu.get("allowed_list", ""))
    with_cores = [node for node in cpu.get("memory_nodes", []) if node.get("cores")]
    nodes = [node for node in with_cores if not allowed or numbers_in(node["cores"]) & allowed]
    if len(nodes) > 1:
        first = nodes[0]["node"]
        yield finding(
            "memory_nodes",
            (Severity.NOTE, Basis.UNKNOWN, Sure.POSSIBLE),
            f"This process may use {len(nodes)} memory nodes: a thread reads the memory of another node more slowly.",
            "Depends on the program.",
            "`overdrive tune` tries technique affinity; by hand, bind a process to the node of its GPU or data.",
            f"numactl --cpunodebind={first} --membind={first} python ...",
            "https://docs.kernel.org/admin-guide/mm/numaperf.html",
        )
        if cpu.get("numa_balancing"):
            yield finding(
                "numa_balancing",
                (Severity.NOTE, Basis.CITED, Sure.POSSIBLE),
                "The kernel moves memory between nodes by itself (numa_balancing is on).",
                "It interrupts threads to see which memory they use; for bound processes that is for nothing.",
                "Switch it off where all jobs are bound.",
                "sudo sysctl kernel.numa_balancing=0",
                "https://docs.kernel.org/admin-guide/sysctl/kernel.html#numa-balancing",
            )


def others(survey: Survey) -> Iterator[Finding]:
    cpu = survey["cpu"]
    load, cores = cpu.get("load"), cpu.get("logical_cores")
    if load and cores and load > 0.75 * cores:
        yield finding(
            "busy",
            (Severity.ADVICE, Basis.UNKNOWN, Sure.LIKELY),
            f"Other work was running: over the last minute {load:g} threads wanted {several(cores, 'core')}.",
            "Training shares the cores with it, and what is measured meanwhile is too slow and noisy.",
            "See who it is, and measure again when it is quiet.",
            "top -o %CPU",
        )
    steal = cpu.get("steal")
    if steal and steal > 0.05:
        yield finding(
            "steal",
            (Severity.ADVICE, Basis.MEASURED, Sure.CERTAIN),
            "The host of this virtual machine gives its cores to others.",
            f"{steal:.0%} of all CPU time since the start.",
            "Use an instance with cores of its own.",
        )


def no_vectors(survey: Survey) -> Iterator[Finding]:
    cpu = survey["cpu"]
    if cpu.get("architecture") in ("x86_64", "AMD64") and cpu.get("features") and cpu.get("vector") is None:
        yield finding(
            "no_avx2",
            (Severity.ADVICE, Basis.UNKNOWN, Sure.CERTAIN),
            "The processor, or the virtual machine, offers no AVX2.",
            "PyTorch falls back to narrow vectors on the CPU.",
            "In a virtual machine, pass the host's processor through (CPU type `host`).",
        )


RULES = (slurm_cores, governor, others, no_vectors, granted_less, memory_nodes)
