"""wrk as the load generator: start it, read what it saw, and check answers byte for byte."""

from __future__ import annotations

import json
import re
import resource
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import meter
import place

SCRIPT = Path(__file__).with_name("wrk.lua")
TIMEOUT_S = 5
PATIENCE_S = 10  # on top of a run's own length


@dataclass(frozen=True)
class Load:
    """What to ask, over how many connections, and how."""

    path: str
    connections: int
    body_bytes: int
    script_args: tuple[str, ...] = ()
    close: bool = False

    def argv(self, port: int, seconds: int) -> list[str]:
        options = ["-t1", f"-c{self.connections}", f"-d{seconds}s", f"--timeout={TIMEOUT_S}s"]
        header = ["-H", "Connection: close"] if self.close else []
        url = f"http://127.0.0.1:{port}{self.path}"
        return ["wrk", *options, *header, "-s", str(SCRIPT), url, *self.script_args]


@dataclass(frozen=True)
class Outcome:
    """What wrk reported."""

    requests: int
    bytes: int
    duration_us: int
    p50_us: int
    p99_us: int
    p999_us: int
    connect_errors: int
    read_errors: int
    write_errors: int
    status_errors: int
    timeouts: int

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


@dataclass
class Run:
    """A wrk that is running."""

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
            raise GeneratorFailed(f"wrk ended before its time: {self.log.read_text().strip()}")

    def outcome(self) -> Outcome:
        """Wait for the end and read the report."""
        try:
            report, _ = self.process.communicate(timeout=self.seconds + PATIENCE_S)
        except subprocess.TimeoutExpired:
            place.stop(self.process)
            raise GeneratorFailed(f"wrk did not end {PATIENCE_S} s after its time") from None
        line = re.search(r"^JSON (.*)$", report, re.MULTILINE)
        if line is None:
            raise GeneratorFailed(f"wrk: {report} {self.log.read_text()}")
        return Outcome(**json.loads(line.group(1)))


class GeneratorFailed(Exception):
    """wrk gave no report."""


def start(load: Load, port: int, seconds: int, core: int, log: Path) -> Run:
    """Start wrk on its core."""
    return Run(load, place.launch(load.argv(port, seconds), core, log), log, seconds)


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
