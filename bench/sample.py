"""One sample: a freshly started server, one or more generators, all meters before and after."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import generator
import meter
import place
from generator import Load, Outcome
from place import Stand
from subjects import Server, ServerFailed

# A sample above this is repeated: something else ran on the two cores.
NOISE_PERCENT_MAX = 8.0
ATTEMPTS_MAX = 3
# Of all samples of a run, so that a busy machine cannot make it endless.
REPEATS_SHARE_MAX = 0.25
# When the generator's own waiting is read: it must still run.
GENERATOR_READ_AT = 0.9


@dataclass(frozen=True)
class Sample:
    """What one sample found. Percentages are shares of one core, except foreign and steal."""

    row: str
    server: str
    round: int
    cpu_us_per_request: float
    requests_per_s: float
    server_busy_percent: float
    generator_busy_percent: float
    run_delay_percent: float
    foreign_percent: float
    steal_percent: float
    connections_opened: int
    segments_retransmitted: int
    storage_read_bytes: int
    outcomes: list[Outcome]
    faults: list[str]

    def as_json(self) -> dict:
        return asdict(self)


def take(
    server: Server, row: str, round_: int, loads: list[Load], seconds: int, stand: Stand
) -> Sample:
    """Drive all loads at once at a server and read the meters around them."""
    runs: list[generator.Run] = []
    server.check_alive()
    read_before = sum(map(meter.storage_read_bytes, server.pids))
    generator_cpu_ns = generator.reaped_cpu_ns()
    before = meter.Reading.of(server.pids)
    try:
        for index, load in enumerate(loads):
            log = server.log.with_name(f"generator-{index}.log")
            runs.append(generator.start(load, server.port, seconds, stand, log))
        delay_percent = generator_delay_percent(runs, seconds)
        outcomes = [run.outcome() for run in runs]
    finally:
        for run in runs:
            place.stop(run.process)
    server.check_alive()
    after = meter.Reading.of(server.pids)
    generator_cpu_ns = generator.reaped_cpu_ns() - generator_cpu_ns

    wall_ns = after.wall_ns(before)
    server_ns = after.server_cpu_ns - before.server_cpu_ns
    server_delay_ns = after.server_run_delay_ns - before.server_run_delay_ns
    opened = after.tcp["ActiveOpens"] - before.tcp["ActiveOpens"]
    requests = sum(outcome.requests for outcome in outcomes)
    return Sample(
        row=row,
        server=server.subject.name,
        round=round_,
        cpu_us_per_request=server_ns / 1e3 / max(requests, 1),
        requests_per_s=sum(outcome.requests_per_s for outcome in outcomes),
        server_busy_percent=100 * server_ns / wall_ns,
        generator_busy_percent=100 * generator_cpu_ns / wall_ns,
        run_delay_percent=delay_percent + 100 * server_delay_ns / wall_ns,
        foreign_percent=after.foreign_percent(before, {run.process.pid for run in runs}),
        steal_percent=after.steal_percent(before),
        connections_opened=opened,
        segments_retransmitted=after.tcp["RetransSegs"] - before.tcp["RetransSegs"],
        storage_read_bytes=sum(map(meter.storage_read_bytes, server.pids)) - read_before,
        outcomes=outcomes,
        faults=all_faults(loads, outcomes, opened),
    )


def generator_delay_percent(runs: list[generator.Run], seconds: int) -> float:
    """The generators' waiting for their core, read shortly before they end and vanish."""
    time.sleep(seconds * GENERATOR_READ_AT)
    percent = 0.0
    for run in runs:
        percent += 100 * run.run_delay_ns() / (time.monotonic_ns() - run.started_ns)
        run.check_running()
    return percent


def all_faults(loads: list[Load], outcomes: list[Outcome], opened: int) -> list[str]:
    """The generators' faults, and connections that were lost: wrk reconnects without a word."""
    faults = [fault for load, seen in zip(loads, outcomes) for fault in seen.faults(load)]
    if not any(load.close for load in loads):
        # One more per generator, which tries the address first. 1 %: limits on requests per
        # connection that are part of a server's set-up (lighttpd).
        expected = sum(load.connections + 1 for load in loads)
        if opened > expected * 1.01 + 1:
            faults.append(f"{opened} connections were opened where {expected} suffice")
    return faults


class Patience:
    """Repeats noisy samples, within limits: per sample and for the whole run."""

    def __init__(self, samples: int) -> None:
        self.repeats_left = int(samples * REPEATS_SHARE_MAX)
        self.discarded: list[Sample] = []
        self.noisy_kept = 0

    def quietest(self, take_once: Callable[[], Sample], noise: Callable[[Sample], float]) -> Sample:
        """The first sample below the noise limit, else the quietest of those taken."""
        best = take_once()
        for _ in range(ATTEMPTS_MAX - 1):
            if best.faults or noise(best) <= NOISE_PERCENT_MAX or self.repeats_left == 0:
                break
            self.repeats_left -= 1
            again = take_once()
            best, worse = sorted((best, again), key=noise)
            self.discarded.append(worse)
        self.noisy_kept += noise(best) > NOISE_PERCENT_MAX
        return best

    def words(self) -> str:
        """How noisy the run was."""
        kept = f", **{self.noisy_kept} noisy samples kept**" if self.noisy_kept else ""
        return f"{len(self.discarded)} noisy samples repeated{kept}"


def run_delay(sample: Sample) -> float:
    """Noise for servers with one busy thread: time spent ready but without a core."""
    return sample.run_delay_percent


def foreign_cpu(sample: Sample) -> float:
    """Noise for servers whose own threads queue for the core: what other processes used."""
    return sample.foreign_percent


def syscalls_per_request(
    server: Server, load: Load, seconds: int, stand: Stand
) -> dict[str, float]:
    """System calls per request by name, from `strace -c -f` over a run of its own."""
    counts = server.log.with_name("strace.txt")
    argv = ["strace", "-c", "-f", "-q", "-o", str(counts)]
    argv += [argument for pid in server.pids for argument in ("-p", str(pid))]
    tracer = place.launch(argv, stand.generator_core, server.log.with_name("strace.log"))
    try:
        await_traced(server.pids, tracer)
        log = server.log.with_name("generator.log")
        run = generator.start(load, server.port, seconds, stand, log)
        try:
            outcome = run.outcome()
        finally:
            place.stop(run.process)
        tracer.send_signal(signal.SIGINT)
        tracer.wait(generator.PATIENCE_S)
    finally:
        place.stop(tracer)
    calls = strace_counts(counts.read_text())
    return {name: count / max(outcome.requests, 1) for name, count in calls.items()}


def await_traced(pids: list[int], tracer: subprocess.Popen[str], patience_s: float = 3.0) -> None:
    """Return when strace holds every process of the server."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and tracer.poll() is None:
        status = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
        if all(re.search(r"^TracerPid:\s+[1-9]", text, re.MULTILINE) for text in status):
            return
        time.sleep(0.02)
    raise ServerFailed("strace could not attach to the server")


def strace_counts(summary: str) -> dict[str, int]:
    """Calls by name from the table of `strace -c`."""
    row = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", re.MULTILINE)
    found = {name: int(count) for count, name in row.findall(summary)}
    found.pop("total", None)
    return found
