"""The load generators: start one, read what it saw, and check answers byte for byte.

`closed_loop` (io_uring, built from closed_loop.c) where it can: it leaves the server as the limit.
wrk for what only wrk can: a connection for every request, walks over many files, latencies.
"""

from __future__ import annotations

import json
import re
import resource
import socket
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import meter
import place
from place import Stand

SCRIPT = Path(__file__).with_name("wrk.lua")
SOURCE = Path(__file__).with_name("closed_loop.c")
TIMEOUT_S = 5
PATIENCE_S = 10  # on top of a run's own length


@dataclass(frozen=True)
class Load:
    """What to ask, over how many connections, and how."""

    path: str
    connections: int
    body_bytes: int
    depth: int = 1
    close: bool = False
    walk: tuple[str, int] | None = None  # a format with a number, and how many files there are
    latencies: bool = False

    def argv(self, port: int, seconds: int, stand: Stand) -> list[str]:
        """The command of the generator that suits this load."""
        if stand.closed_loop is None or self.close or self.walk or self.latencies:
            return self.wrk_argv(port, seconds)
        numbers = [str(port), str(self.connections), str(seconds)]
        return [str(stand.closed_loop), *numbers, self.path, str(self.depth)]

    def wrk_argv(self, port: int, seconds: int) -> list[str]:
        wrk = ["env", "WRK_HISTOGRAM=1", "wrk"] if self.latencies else ["wrk"]
        options = ["-t1", f"-c{self.connections}", f"-d{seconds}s", f"--timeout={TIMEOUT_S}s"]
        header = ["-H", "Connection: close"] if self.close else []
        url = f"http://127.0.0.1:{port}{self.path}"
        script = []
        if self.depth > 1:
            script = ["pipeline", str(self.depth)]
        if self.walk:
            script = ["walk", *map(str, self.walk)]
        return [*wrk, *options, *header, "-s", str(SCRIPT), url, *script]


@dataclass(frozen=True)
class Outcome:
    """What the generator reported."""

    requests: int
    bytes: int
    duration_us: int
    connect_errors: int
    read_errors: int
    write_errors: int
    status_errors: int
    timeouts: int
    latency_us: dict[str, int] | None = None

    @classmethod
    def parse(cls, line: str, load: Load) -> Outcome:
        """The JSON that wrk.lua or closed_loop printed."""
        fields = json.loads(line)
        histogram = fields.pop("histogram", None)
        outcome = cls(**fields)
        if histogram is None:
            return outcome
        seen = {int(us): count for us, count in histogram.items()}
        true = uncorrected(seen, outcome.expected_interval_us(load))
        if sum(true.values()) != outcome.requests - outcome.timeouts:
            raise GeneratorFailed(
                f"wrk: {sum(true.values())} latencies of {outcome.requests} requests"
            )
        return replace(outcome, latency_us=percentiles(true))

    def expected_interval_us(self, load: Load) -> int:
        """How often wrk thinks that a connection should have asked, rounded as it rounds."""
        return self.duration_us // max(self.requests // load.connections, 1)

    @property
    def requests_per_s(self) -> float:
        return self.requests * 1e6 / self.duration_us

    def faults(self, load: Load) -> list[str]:
        """Everything that makes this outcome worthless, in words; empty when it is sound."""
        kinds = ("connect_errors", "read_errors", "write_errors", "status_errors", "timeouts")
        found = [f"{getattr(self, kind)} {kind}" for kind in kinds if getattr(self, kind)]
        if self.requests == 0:
            return [*found, "no request was answered"]
        per_request = self.bytes / self.requests
        # Short error pages would look fast. The slack: wrk counts a body's bytes as they come,
        # a request when it ends, so replies under way at the end add up to one per connection.
        under_way = load.connections * (load.body_bytes + 1024) / self.requests
        if not load.body_bytes < per_request < load.body_bytes + 1024 + under_way:
            found.append(f"{per_request:.0f} bytes per reply for a body of {load.body_bytes}")
        return found


def uncorrected(histogram: dict[int, int], interval_us: int) -> dict[int, int]:
    """The latencies that wrk saw, without those that it made up.

    wrk "corrects for coordinated omission": to each latency L it adds L - i, L - 2i, … down to i,
    where i is the mean time between a connection's requests. In a closed loop those requests were
    never due, and one stall of 40 ms becomes a hundred. From the greatest latency down nothing
    has been added yet, so what each one added can be taken away exactly. (wrk 4.1, stats_correct)
    """
    counts = dict(histogram)
    for us in sorted(histogram, reverse=True):
        if us < 2 * interval_us:
            break
        for made_up_us in range(us - interval_us, interval_us, -interval_us):
            if counts[us]:
                counts[made_up_us] -= counts[us]
    return {us: count for us, count in counts.items() if count}


def percentiles(histogram: dict[int, int]) -> dict[str, int]:
    """p50, p99 and p999 of latencies with their counts."""
    total = sum(histogram.values())
    found, below = {}, 0
    wanted = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    for us in sorted(histogram):
        below += histogram[us]
        for name, share in wanted.items():
            if below >= share * total:
                found.setdefault(name, us)
    return found


@dataclass
class Run:
    """A generator that is running."""

    load: Load
    process: subprocess.Popen[str]
    log: Path
    seconds: int
    started_ns: int = field(default_factory=time.monotonic_ns)

    def run_delay_ns(self) -> int:
        return meter.run_delay_ns(self.process.pid)

    def check_running(self) -> None:
        """It has not ended: then what was read of its threads just now is whole."""
        if self.process.poll() is not None:
            raise GeneratorFailed(
                f"the generator ended before its time: {self.log.read_text().strip()}"
            )

    def outcome(self) -> Outcome:
        """Wait for the end and read the report."""
        try:
            report, _ = self.process.communicate(timeout=self.seconds + PATIENCE_S)
        except subprocess.TimeoutExpired:
            place.stop(self.process)
            raise GeneratorFailed(
                f"the generator did not end {PATIENCE_S} s after its time"
            ) from None
        line = re.search(r"^JSON (.*)$", report, re.MULTILINE)
        if line is None:
            raise GeneratorFailed(f"no report: {report} {self.log.read_text()}")
        return Outcome.parse(line.group(1), self.load)


class GeneratorFailed(Exception):
    """A generator gave no report."""


def start(load: Load, port: int, seconds: int, stand: Stand, log: Path) -> Run:
    """Start a generator on its core."""
    argv = load.argv(port, seconds, stand)
    return Run(load, place.launch(argv, stand.generator_core, log), log, seconds)


def build_closed_loop(folder: Path) -> Path:
    """Compile closed_loop.c."""
    program = folder / "closed_loop"
    argv = ["cc", "-O2", "-D_GNU_SOURCE", "-o", str(program), str(SOURCE)]
    built = subprocess.run(argv, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        raise place.Unfit(f"closed_loop.c does not compile (or: --generator wrk): {built.stderr}")
    return program


def reaped_cpu_ns() -> int:
    """CPU time of the children that have ended and been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((used.ru_utime + used.ru_stime) * 1e9)


def verify(port: int, path: str, body: bytes, depth: int = 1, close: bool = False) -> None:
    """Ask for `path`, `depth` times in one write, and compare every byte of every body.

    With `close` the server must end the connection after its reply.
    """
    header = "Connection: close\r\n" if close else ""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(request * depth)
        stream = connection.makefile("rb")
        for _ in range(depth):
            read_reply(stream, path, body)
        if close and stream.read(1):
            raise WrongAnswer(f"{path}: bytes after the reply that should have been the last")


def read_reply(stream, path: str, body: bytes) -> None:
    """Read one reply and insist on 200 and the file's bytes."""
    status = stream.readline().decode("latin-1").strip()
    length = None
    while line := stream.readline().strip():
        name, _, value = line.decode("latin-1").partition(":")
        if name.lower() == "content-length":
            length = int(value)
    if not status.startswith("HTTP/1.1 200 "):
        raise WrongAnswer(f"{path}: {status!r}")
    if length != len(body) or stream.read(length) != body:
        raise WrongAnswer(f"{path}: the body is not the file's {len(body)} bytes (length {length})")


class WrongAnswer(Exception):
    """A server answered with the wrong bytes."""
