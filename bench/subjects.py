"""The servers under measurement, each as well tuned as its manual allows, on one core."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import meter
import place

START_PATIENCE_S = 5.0

_ports = itertools.count(place.SERVER_PORT_FIRST)


@dataclass(frozen=True)
class Subject:
    """A server program and how to start it on a port over a folder."""

    name: str
    argv: Callable[[int, Path, Path], list[str]]
    version_argv: tuple[str, ...]
    greeting: bytes = b"HEAD / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

    def version(self) -> str:
        """The version the program reports of itself: digits and dots."""
        answer = subprocess.run(
            self.version_argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        found = re.search(r"\d+(\.\d+)+\S*", answer.stdout)
        return found.group(0) if found else "unknown"


def nginx(name: str, delivery: str) -> Subject:
    """nginx with one worker; `delivery` are the directives that say how a file travels."""

    def argv(port: int, site: Path, scratch: Path) -> list[str]:
        config = scratch / "nginx.conf"
        config.write_text(
            NGINX_CONF.format(port=port, site=site, scratch=scratch, delivery=delivery)
        )
        return ["nginx", "-c", str(config), "-p", str(scratch), "-e", "stderr"]

    return Subject(name, argv, ("nginx", "-v"))


NGINX_CONF = """\
daemon off;
user root;
pid {scratch}/nginx.pid;
error_log stderr warn;
worker_processes 1;
worker_rlimit_nofile 20000;
events {{
    use epoll;
    worker_connections 16384;
    multi_accept on;
}}
http {{
    access_log off;
    types {{ text/html html; }}
    client_body_temp_path {scratch}/body;
    proxy_temp_path {scratch}/proxy;
    fastcgi_temp_path {scratch}/fastcgi;
    uwsgi_temp_path {scratch}/uwsgi;
    scgi_temp_path {scratch}/scgi;
    open_file_cache max=8192 inactive=1h;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    {delivery}
    server {{
        listen 127.0.0.1:{port} backlog=16384;
        root {site};
    }}
}}
"""


def lighttpd_argv(port: int, site: Path, scratch: Path) -> list[str]:
    config = scratch / "lighttpd.conf"
    config.write_text(LIGHTTPD_CONF.format(port=port, site=site))
    return ["lighttpd", "-D", "-f", str(config)]


# 65,535 is the most that max-keep-alive-requests holds: one reconnection in 65,535 requests.
# lighttpd takes no more connections than half its descriptors.
LIGHTTPD_CONF = """\
server.bind = "127.0.0.1"
server.port = {port}
server.document-root = "{site}"
server.max-worker = 0
server.max-fds = 20000
server.max-connections = 10000
server.listen-backlog = 16384
server.max-keep-alive-requests = 65535
server.max-keep-alive-idle = 3600
server.event-handler = "linux-sysepoll"
mimetype.assign = ( ".html" => "text/html" )
"""

NGINX_SENDFILE = nginx("nginx sendfile", "sendfile on; tcp_nopush on;")
NGINX_COPY = nginx("nginx copy", "sendfile off;")
# Without tcp_nopush, which holds one 64 KiB reply in a thousand back for 40 ms (measured).
NGINX_PLAIN = nginx("nginx", "sendfile on;")
NGINX_THREADS = nginx("nginx threads", "sendfile on; aio threads;")
LIGHTTPD = Subject("lighttpd", lighttpd_argv, ("lighttpd", "-v"))


def weft(binary: str, extra: tuple[str, ...]) -> Subject:
    """`weft serve` with one processor; `extra` are further arguments."""

    def argv(port: int, site: Path, scratch: Path) -> list[str]:
        fixed = ["--listen", f"127.0.0.1:{port}", "--workers", "1", "--access-log", "off"]
        return [binary, "serve", str(site), *fixed, *extra]

    return Subject("weft", argv, (binary, "--version"))


class ServerFailed(Exception):
    """A server did not start, or ended while it was measured."""


@dataclass
class Server:
    """A running subject."""

    subject: Subject
    port: int
    process: subprocess.Popen[str]
    log: Path
    pids: list[int]

    def check_alive(self) -> None:
        """Its processes are still those that it had when it started."""
        now = meter.family(self.process.pid) if self.process.poll() is None else []
        if now != self.pids:
            raise ServerFailed(f"{self.subject.name}: processes {self.pids} became {now}")


@contextlib.contextmanager
def running(
    subject: Subject,
    site: Path,
    scratch: Path,
    core: int,
    group: place.MemoryGroup | None = None,
) -> Iterator[Server]:
    """Start a subject on a port never used before, wait until it answers, stop it in the end."""
    port = next(_ports)
    log = scratch / "server.log"
    process = place.launch(subject.argv(port, site, scratch), core, log, group)
    try:
        await_answer(subject, process, port, log)
        yield Server(subject, port, process, log, meter.family(process.pid))
    finally:
        place.stop(process)


def await_answer(subject: Subject, process: subprocess.Popen[str], port: int, log: Path) -> None:
    """Return as soon as anything is answered; fail with the server's own words.

    An answer, for a connection alone says little: nginx listens before it has a worker.
    """
    deadline = time.monotonic() + START_PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(subject.greeting)
                if connection.recv(1):
                    return
        time.sleep(0.01)
    raise ServerFailed(f"{subject.name} does not answer: {tail(log)}")


def tail(log: Path, lines: int = 5) -> str:
    """The last lines of a log, as one."""
    return " / ".join(log.read_text(errors="replace").splitlines()[-lines:]) or "(it said nothing)"
