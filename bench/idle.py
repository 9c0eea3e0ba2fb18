"""Resident memory of a server per idle keep-alive connection."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import time
from pathlib import Path

import generator
import meter
import place
import subjects
from place import Stand
from report import Progress, digits, table
from rows import SAMPLE_ERRORS, WeftCommand
from subjects import Server, ServerFailed, Subject

GOAL_BYTES = 5 * 1024
BODY_BYTES = 400
# Asked at once: pools grow to what a busy server needs, not to what one caller needs.
WAVE = 100
SETTLE_S = 1.0
# Descriptors of the harness itself.
SPARE_FILES = 64


def run(
    peers: list[Subject],
    weft: WeftCommand | None,
    stand: Stand,
    folder: Path,
    connections: int,
    progress: Progress,
) -> tuple[list[dict], list[str]]:
    """One measurement per server, and the errors."""
    check_file_limit(connections)
    body = random.Random(BODY_BYTES).randbytes(BODY_BYTES)
    site = folder / "site"
    site.mkdir()
    (site / "idle.html").write_bytes(body)
    servers = [*([weft.subject()] if weft else []), *peers]
    progress.expect(len(servers))
    found, errors = [], []
    for subject in servers:
        progress.step(f"{connections:,} idle connections · {subject.name}")
        try:
            with subjects.running(subject, site, folder, stand.server_core) as server:
                found.append(measure(server, connections, body))
        except SAMPLE_ERRORS as error:
            errors.append(f"idle, {subject.name}: {error}")
    return found, errors


def check_file_limit(connections: int) -> None:
    """Both ends need a descriptor for every connection."""
    place.raise_file_limit()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if connections + SPARE_FILES > hard:
        raise place.Unfit(f"{connections} connections need ulimit -n {connections + SPARE_FILES}")


def measure(server: Server, connections: int, body: bytes) -> dict:
    """Resident memory with one connection and with all, each idle after its first request."""
    with contextlib.ExitStack() as held:
        herd = [open_connection(server, held)]
        ask_all(herd, body)
        before = sum(map(meter.resident_bytes, server.pids))
        while len(herd) < connections:
            wave = min(WAVE, connections - len(herd))
            try:
                fresh = [open_connection(server, held) for _ in range(wave)]
                ask_all(fresh, body)
            except TimeoutError:
                raise ServerFailed(f"stops answering at {len(herd):,} connections") from None
            herd += fresh
        time.sleep(SETTLE_S)
        after = sum(map(meter.resident_bytes, server.pids))
        # All still answer: memory of connections that the server gave up would be no memory.
        for at in range(0, connections, WAVE):
            ask_all(herd[at : at + WAVE], body)
        server.check_alive()
    return {
        "server": server.subject.name,
        "connections": connections,
        "resident_before_bytes": before,
        "resident_after_bytes": after,
        "bytes_per_connection": (after - before) / max(connections - 1, 1),
    }


def open_connection(server: Server, held: contextlib.ExitStack) -> socket.socket:
    address = ("127.0.0.1", server.port)
    return held.enter_context(socket.create_connection(address, timeout=generator.TIMEOUT_S))


def ask_all(wave: list[socket.socket], body: bytes) -> None:
    """A request on every connection, then all the replies."""
    for connection in wave:
        connection.sendall(b"GET /idle.html HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    for connection in wave:
        with connection.makefile("rb") as stream:
            generator.read_reply(stream, "/idle.html", body)


def idle_table(found: list[dict]) -> str:
    """Markdown: one line per server."""
    head = [
        "server",
        "idle connections",
        "resident before",
        "resident with them",
        "bytes per connection",
        "goal",
        "met",
    ]
    return table(head, [idle_line(entry) for entry in found])


def idle_line(entry: dict) -> list[str]:
    per_connection = entry["bytes_per_connection"]
    ours = entry["server"] == "weft"
    return [
        entry["server"],
        f"{entry['connections']:,}",
        f"{entry['resident_before_bytes'] / 2**20:.1f} MiB",
        f"{entry['resident_after_bytes'] / 2**20:.1f} MiB",
        digits(per_connection),
        f"≤ {GOAL_BYTES:,}" if ours else "–",
        ("yes" if per_connection <= GOAL_BYTES else "**no**") if ours else "–",
    ]
