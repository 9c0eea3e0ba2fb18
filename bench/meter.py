"""What a sample costs: CPU time, waiting for a core, memory, and other people's noise."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

CPUCLOCK_SCHED = 2  # the scheduler's own nanoseconds, not 10 ms ticks


def process_cpu_ns(pid: int) -> int:
    """CPU time of a process: all its threads, io_uring workers and ended threads among them.

    The clock of clock_getcpuclockid(3). It equals the sum of the first fields of
    /proc/PID/task/*/schedstat as long as no thread has ended, and unlike that sum it loses
    nothing when one does.
    """
    return time.clock_gettime_ns(~pid << 3 | CPUCLOCK_SCHED)


def run_delay_ns(pid: int) -> int:
    """Time the threads of a process were ready but had no core: schedstat's second field."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended since the listing
    return total


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, from /proc/PID/smaps_rollup."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no Rss in smaps_rollup of process {pid}")


def storage_read_bytes(pid: int) -> int:
    """Bytes that a process made the disk read, page-cache hits not among them; proc(5)."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise ValueError(f"no read_bytes in io of process {pid}")


def parents() -> dict[int, int]:
    """Parent by process, for all processes."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # The name is in parentheses and may hold blanks: count from the last one.
        found[int(entry)] = int(stat[stat.rindex(")") + 1 :].split()[1])
    return found


def family(pid: int) -> list[int]:
    """A process and all its descendants, oldest first."""
    parent_of = parents()
    members = [pid]
    for member in members:
        members += [child for child, parent in parent_of.items() if parent == member]
    return members


def foreign_cpu_ns(own: set[int]) -> dict[int, int]:
    """CPU time by process of all that is neither ours nor the kernel's (children of kthreadd)."""
    kthreadd = 2
    clocks = {}
    for pid, parent in parents().items():
        if pid in own or kthreadd in (pid, parent):
            continue
        try:
            clocks[pid] = process_cpu_ns(pid)
        except OSError:
            continue
    return clocks


def steal_ticks() -> int:
    """Ticks that the hypervisor gave to others, all cores."""
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8])


def tcp_counters() -> dict[str, int]:
    """The Tcp line of /proc/net/snmp for this network namespace."""
    lines = [line for line in Path("/proc/net/snmp").read_text().splitlines() if "Tcp:" in line]
    names, values = (line.split()[1:] for line in lines[:2])
    return dict(zip(names, map(int, values)))


@dataclass(frozen=True)
class Reading:
    """All meters at one moment."""

    at_ns: int
    server_cpu_ns: int
    server_run_delay_ns: int
    foreign_ns: dict[int, int]
    steal_ticks: int
    tcp: dict[str, int]
    server_pids: tuple[int, ...]

    @classmethod
    def of(cls, server_pids: list[int]) -> Reading:
        return cls(
            foreign_ns=foreign_cpu_ns({*server_pids, os.getpid()}),
            steal_ticks=steal_ticks(),
            tcp=tcp_counters(),
            server_run_delay_ns=sum(map(run_delay_ns, server_pids)),
            server_pids=tuple(server_pids),
            server_cpu_ns=sum(map(process_cpu_ns, server_pids)),
            at_ns=time.monotonic_ns(),
        )

    def wall_ns(self, before: Reading) -> int:
        return self.at_ns - before.at_ns

    def foreign_percent(self, before: Reading, generators: set[int]) -> float:
        """Share of all cores that other processes used meanwhile."""
        used = sum(
            now - before.foreign_ns.get(pid, 0)
            for pid, now in self.foreign_ns.items()
            if pid not in generators
        )
        return 100 * used / (self.wall_ns(before) * (os.cpu_count() or 1))

    def steal_percent(self, before: Reading) -> float:
        """Share of all cores that the hypervisor gave to others meanwhile."""
        tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
        used = (self.steal_ticks - before.steal_ticks) * tick_ns
        return 100 * used / (self.wall_ns(before) * (os.cpu_count() or 1))
