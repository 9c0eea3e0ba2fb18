#!/usr/bin/env python3
"""Measure `weft load` itself: its CPU per request beside wrk's, its ceilings, its punctuality.

  sudo python3 bench/load.py                      the table of docs/performance.md, 3 minutes
  sudo python3 bench/load.py --rounds 1 --seconds 1     the same, coarse
  sudo python3 bench/load.py --json out.json --write docs/performance.md

The server is nginx (for the cache: memcached) on one core, the generator has the other; both
generators take turns, and each round's ratio is of two neighbours in time. It needs root, two cores
that nothing else uses, and the Debian packages nginx-light, wrk and memcached. Exit codes: 0
measured, 1 some sample was an error, 2 this machine or command line cannot do it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import place
import report
import subjects
from generator import reaped_cpu_ns

SERVER_CORE, GENERATOR_CORE = 0, 1
BODY_BYTES = 400


class SampleFailed(Exception):
    """A generator did not do its work; the text is what it said."""


@dataclass(frozen=True)
class Found:
    """What one run of a generator came to."""

    requests: int
    cpu_us: float
    seconds: float
    facts: dict

    def cpu_per_request_us(self) -> float:
        return self.cpu_us / max(self.requests, 1)

    def rate(self) -> float:
        return self.requests / self.seconds


def generate(argv: list[str], seconds: int, log: Path) -> tuple[str, float]:
    """Run a generator on its core to its end; its standard output and its CPU time."""
    before_ns = reaped_cpu_ns()
    process = place.launch(argv, GENERATOR_CORE, log)
    try:
        out, _ = process.communicate(timeout=seconds + 30)
    except subprocess.TimeoutExpired:
        raise SampleFailed(f"{argv[0]} did not end") from None
    finally:
        place.stop(process)
    if process.returncode != 0:
        raise SampleFailed(f"{' '.join(argv)}: {subjects.tail(log)}")
    return out, (reaped_cpu_ns() - before_ns) / 1000


def wrk(url: str, connections: int, seconds: int, close: bool, log: Path) -> Found:
    argv = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s"]
    argv += ["-H", "Connection: close"] if close else []
    out, cpu_us = generate([*argv, url], seconds, log)
    found = re.search(r"(\d+) requests in ([\d.]+)s", out)
    if found is None:
        raise SampleFailed(f"wrk said: {out}")
    # With a connection for every request wrk counts each close as a read error.
    if "Socket errors" in out and not close:
        raise SampleFailed(f"wrk said: {out}")
    return Found(int(found.group(1)), cpu_us, float(found.group(2)), {})


def weft(argv: list[str], seconds: int, log: Path) -> Found:
    out, cpu_us = generate([*argv, "-d", f"{seconds}s", "--json", "-"], seconds, log)
    facts = json.loads(out)
    errors = {name: count for name, count in facts["errors"].items() if count}
    if errors:
        raise SampleFailed(f"{' '.join(argv)}: {errors}")
    requests = round(facts["achieved_rate_per_s"] * seconds)
    return Found(requests, cpu_us, seconds, facts)


def compared(options: argparse.Namespace, site: Path, scratch: Path) -> list[list[str]]:
    """wrk and weft by turns against the same running nginx."""
    lines = []
    for name, connections, close in [
        ("keep-alive, 64 connections", 64, False),
        ("keep-alive, 1,000 connections", 1000, False),
        ("a connection for every request, 64", 64, True),
    ]:
        pairs = []
        for round_ in range(options.rounds):
            print(f"{name}: round {round_ + 1}", file=sys.stderr)
            with subjects.running(subjects.NGINX_COPY, site, scratch, SERVER_CORE) as server:
                url = f"http://127.0.0.1:{server.port}/400.html"
                log = scratch / "generator.log"
                argv = [options.weft, "load", "http", url, "--connections", str(connections)]
                argv += ["--close"] if close else []
                theirs = wrk(url, connections, options.seconds, close, log)
                pairs.append((weft(argv, options.seconds, log), theirs))
        cpu = [ours.cpu_per_request_us() / theirs.cpu_per_request_us() for ours, theirs in pairs]
        rate = [ours.rate() / theirs.rate() for ours, theirs in pairs]
        lines.append(
            [
                name,
                report.cell(spread([ours.cpu_per_request_us() for ours, _ in pairs])),
                report.cell(spread([theirs.cpu_per_request_us() for _, theirs in pairs])),
                report.ratio_cell(spread(cpu)),
                report.ratio_cell(spread(rate)),
            ]
        )
    return lines


def ceilings(options: argparse.Namespace, scratch: Path) -> list[list[str]]:
    """How many gets one core of the generator asks for and reads."""
    lines = []
    for name, words in [
        ("memcached, get, depth 1", ["--depth", "1"]),
        ("memcached, get, depth 16", ["--depth", "16"]),
    ]:
        found = []
        for _ in range(options.rounds):
            port = next(subjects._ports)
            argv = ["memcached", "-u", "root", "-l", "127.0.0.1", "-p", str(port), "-t", "1"]
            server = place.launch([*argv, "-c", "4096", "-U", "0"], SERVER_CORE, scratch / "m.log")
            try:
                await_port(port)
                load = [options.weft, "load", "cache", f"127.0.0.1:{port}", "--populate"]
                load += ["--sets", "0", "--connections", "64", *words]
                found.append(weft(load, options.seconds, scratch / "generator.log"))
            finally:
                place.stop(server)
        lines.append(
            [
                name,
                report.cell(spread([one.rate() for one in found])),
                report.cell(spread([one.cpu_per_request_us() for one in found])),
                report.cell(spread([1e6 / one.cpu_per_request_us() for one in found])),
            ]
        )
    return lines


def await_port(port: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.01)
    raise SampleFailed("memcached does not answer")


def punctuality(options: argparse.Namespace, site: Path, scratch: Path) -> list[list[str]]:
    """How late requests leave at 50,000 per second."""
    lines = []
    for io in ("uring", "epoll"):
        lags = []
        for _ in range(options.rounds):
            with subjects.running(subjects.NGINX_COPY, site, scratch, SERVER_CORE) as server:
                url = f"http://127.0.0.1:{server.port}/400.html"
                argv = [options.weft, "load", "http", url, "--rate", "50k", "--io", io]
                lags.append(weft(argv, options.seconds, scratch / "generator.log").facts["lag_us"])
        keys = ("p50", "p99", "max")
        cells = [report.cell(spread([lag[key] for lag in lags])) for key in keys]
        lines.append([f"50,000/s, {io}", *cells])
    return lines


def spread(values: list[float]) -> dict:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def measure(options: argparse.Namespace) -> list[str]:
    parts: list[Callable[[Path, Path], str]] = [
        lambda site, scratch: report.table(
            ["HTTP, 0.4 KB", "weft load, µs CPU/request", "wrk", "CPU ÷ wrk's", "rate ÷ wrk's"],
            compared(options, site, scratch),
        ),
        lambda _, scratch: report.table(
            ["cache", "gets/s (server may be the limit)", "µs CPU/get", "gets per core second"],
            ceilings(options, scratch),
        ),
        lambda site, scratch: report.table(
            ["lag of sends, µs", "p50", "p99", "max"], punctuality(options, site, scratch)
        ),
    ]
    with tempfile.TemporaryDirectory() as folder:
        site, scratch = Path(folder) / "site", Path(folder) / "scratch"
        site.mkdir()
        scratch.mkdir()
        (site / "400.html").write_bytes(b"x" * BODY_BYTES)
        return [part(site, scratch) for part in parts]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench/load.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--weft", default="target/release/weft", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--write", type=Path, metavar="FILE", help="between the markers `load`")
    options = parser.parse_args()
    options.weft = os.path.abspath(options.weft)
    try:
        place.require(["nginx", "wrk"])
        place.require_cores(SERVER_CORE, GENERATOR_CORE)
        place.enter_own_network()
        tables = measure(options)
    except place.Unfit as error:
        print(f"bench/load.py: {error}", file=sys.stderr)
        return 2
    except (SampleFailed, subjects.ServerFailed) as error:
        print(f"bench/load.py: {error}", file=sys.stderr)
        return 1
    text = "\n\n".join(tables)
    print(text)
    if options.json:
        options.json.write_text(json.dumps({"machine": report.machine(), "tables": tables}) + "\n")
    if options.write:
        report.write_between(options.write, "load", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
