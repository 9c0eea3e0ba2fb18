#!/usr/bin/env python3
"""Measure `weft load` itself: its CPU per request beside wrk's, its ceilings, its punctuality.

  sudo python3 bench/load.py                      all tables of docs/performance.md, 5 minutes
  sudo python3 bench/load.py http --rounds 3 --seconds 1      one of them, coarse
  sudo python3 bench/load.py all --json out.json --write docs/performance.md

  http    CPU per request on 0.4 KB beside wrk and bench/closed_loop.c, against weft serve
  cache   how many gets one core asks for and reads, against weft cache and memcached
  lag     how late requests leave in an open loop, against weft serve

The server has one core, the generator the other. Generators take turns at the same freshly started
server, and each round's ratio is of neighbours in time. A sample in which server and generator
waited for their cores for more than 8 % of the time is taken again. It needs root, two cores that
nothing else uses, and the Debian packages wrk, memcached and gcc. Exit codes: 0 measured, 1 some
sample was an error, 2 this machine or command line cannot do it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import meter
import place
import report
import subjects
from generator import build_closed_loop, reaped_cpu_ns
from report import cell, ratio_cell, table
from rows import rotated, spread
from sample import GENERATOR_READ_AT, Patience

SERVER_CORE, GENERATOR_CORE = 0, 1
BODY_BYTES = 400
KEYS = 20_000
MARKERS = {"http": "load", "cache": "load-cache", "lag": "load-lag"}
CPU_GOAL, CLOSE_GOAL = 0.65, 1.0  # ours by wrk's
GETS_GOALS = {1: 200_000, 16: 2_000_000}
LAG_P99_GOAL_US = 100


class SampleFailed(Exception):
    """A generator did not do its work; the text is what it said."""


@dataclass(frozen=True)
class Found:
    """What one run of a generator came to."""

    what: str
    requests: float
    cpu_us: float
    seconds: float
    run_delay_percent: float
    facts: dict
    faults: list[str] = field(default_factory=list)

    @property
    def cpu_us_per_request(self) -> float:
        return self.cpu_us / max(self.requests, 1)

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


Parse = Callable[[str, list[str]], tuple[float, float, dict]]


def of_wrk(out: str, argv: list[str]) -> tuple[float, float, dict]:
    """Requests and seconds."""
    found = re.search(r"(\d+) requests in ([\d.]+)s", out)
    # With a connection for every request wrk counts each close as a read error.
    if found is None or ("Socket errors" in out and "Connection: close" not in argv):
        raise SampleFailed(f"wrk said: {out}")
    return float(found.group(1)), float(found.group(2)), {}


def of_closed_loop(out: str, argv: list[str]) -> tuple[float, float, dict]:
    """The same."""
    facts = json.loads(out.removeprefix("JSON "))
    if any(count for name, count in facts.items() if "errors" in name or name == "timeouts"):
        raise SampleFailed(f"closed_loop said: {out}")
    return facts["requests"], facts["duration_us"] / 1e6, {}


def of_weft(out: str, argv: list[str]) -> tuple[float, float, dict]:
    """The same, and all that it says."""
    facts = json.loads(out)
    if facts["errors"]["total"]:
        raise SampleFailed(f"{' '.join(argv)}: {facts['errors']}")
    kept = {name: facts[name] for name in ("lag_us", "generator", "generator_verdict", "missed")}
    return facts["replies"], facts["elapsed_s"], kept


class Bench:
    """Takes samples and keeps them."""

    def __init__(self, options: argparse.Namespace, folder: Path, samples: int) -> None:
        self.options, self.folder = options, folder
        self.patience = Patience(samples)
        self.samples: list[Found] = []
        self.site = folder / "site"
        self.site.mkdir(exist_ok=True)
        (self.site / "400.html").write_bytes(b"x" * BODY_BYTES)

    def sample(self, what: str, argv: list[str], parse: Parse, server_pids: list[int]) -> Found:
        """Run a generator, again if others disturbed it."""
        print(what, file=sys.stderr)

        def once() -> Found:
            return self.once(what, argv, parse, server_pids)

        found = self.patience.quietest(once, lambda one: one.run_delay_percent)
        self.samples.append(found)
        return found

    def once(self, what: str, argv: list[str], parse: Parse, server_pids: list[int]) -> Found:
        log = self.folder / "generator.log"
        cpu_ns, began_ns = reaped_cpu_ns(), time.monotonic_ns()
        server_delay_ns = sum(map(meter.run_delay_ns, server_pids))
        process = place.launch(argv, GENERATOR_CORE, log)
        try:
            # The generator's own waiting vanishes with it.
            time.sleep(self.options.seconds * GENERATOR_READ_AT)
            delay_ns = sum(map(meter.run_delay_ns, [process.pid, *server_pids])) - server_delay_ns
            delay_percent = 100 * delay_ns / (time.monotonic_ns() - began_ns)
            out, _ = process.communicate(timeout=self.options.seconds + 30)
        except subprocess.TimeoutExpired:
            raise SampleFailed(f"{argv[0]} did not end") from None
        finally:
            place.stop(process)
        if process.returncode != 0:
            raise SampleFailed(f"{' '.join(argv)}: {subjects.tail(log)}")
        requests, seconds, facts = parse(out, argv)
        cpu_us = (reaped_cpu_ns() - cpu_ns) / 1000
        return Found(what, requests, cpu_us, seconds, delay_percent, facts)

    def weft(self, what: str, words: list[str], server_pids: list[int]) -> Found:
        argv = [self.options.weft, "load", *words, "-d", f"{self.options.seconds}s", "--json", "-"]
        return self.sample(what, argv, of_weft, server_pids)


def measure_http(bench: Bench) -> str:
    """wrk, weft load and closed_loop by turns against the same running weft serve."""
    closed_loop = str(build_closed_loop(bench.folder))
    seconds = bench.options.seconds
    lines = []
    for title, connections, close in [
        ("keep-alive, 64 connections", 64, False),
        ("keep-alive, 1,000 connections", 1000, False),
        ("a connection for every request, 64", 64, True),
    ]:
        names = ["wrk", "uring", "epoll", *([] if close else ["closed_loop"])]
        found: dict[str, list[Found]] = {name: [] for name in names}
        for round_ in range(bench.options.rounds):
            subject = subjects.weft(bench.options.weft, ())
            with subjects.running(subject, bench.site, bench.folder, SERVER_CORE) as server:
                url = f"http://127.0.0.1:{server.port}/400.html"
                for name in rotated(names, round_):
                    what = f"{title}, {name}, round {round_ + 1}"
                    if name == "wrk":
                        argv = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s"]
                        argv += ["-H", "Connection: close"] if close else []
                        one = bench.sample(what, [*argv, url], of_wrk, server.pids)
                    elif name == "closed_loop":
                        numbers = [str(server.port), str(connections), str(seconds)]
                        argv = [closed_loop, *numbers, "/400.html", "1"]
                        one = bench.sample(what, argv, of_closed_loop, server.pids)
                    else:
                        words = ["http", url, "-c", str(connections), "--io", name]
                        words += ["--close"] if close else []
                        one = bench.weft(what, words, server.pids)
                    found[name].append(one)
        lines.append(http_line(title, found, CLOSE_GOAL if close else CPU_GOAL))
    head = ["0.4 KB", "wrk, µs CPU/request", "weft load", "weft load --io epoll", "closed_loop"]
    head += ["weft ÷ wrk", "epoll ÷ wrk", "closed_loop ÷ wrk", "requests/s: weft ÷ wrk", "goal", "met"]
    return table(head, lines)


def http_line(title: str, found: dict[str, list[Found]], goal: float) -> list[str]:
    def cpu(name: str) -> list[float]:
        return [one.cpu_us_per_request for one in found.get(name, [])]

    def ratio(name: str) -> dict | None:
        return spread([ours / theirs for ours, theirs in zip(cpu(name), cpu("wrk"))])

    rate = spread([ours.rate / wrk.rate for ours, wrk in zip(found["uring"], found["wrk"])])
    is_met = statistics.median(a / b for a, b in zip(cpu("uring"), cpu("wrk"))) <= goal
    return [
        title,
        *(cell(spread(cpu(name))) for name in ("wrk", "uring", "epoll", "closed_loop")),
        *(ratio_cell(ratio(name)) for name in ("uring", "epoll", "closed_loop")),
        ratio_cell(rate),
        f"≤ {goal}",
        "yes" if is_met else "**no**",
    ]


def cache_subject(name: str, weft: str) -> subjects.Subject:
    """A cache with one thread, under memcached's flags."""
    program = [weft, "cache"] if name == "weft cache" else ["memcached", "-U", "0"]

    def argv(port: int, _site: Path, _scratch: Path) -> list[str]:
        where = ["-l", "127.0.0.1", "-p", str(port)]
        return [*program, *where, "-u", "root", "-t", "1", "-m", "256", "-c", "4096"]

    return subjects.Subject(name, argv, (program[0], "--version"), b"version\r\n")


def measure_cache(bench: Bench) -> str:
    """CPU is the generator's own count: it leaves out filling the cache."""
    works = [
        (server, depth, io)
        for depth in GETS_GOALS
        for server, io in [("weft cache", "uring"), ("weft cache", "epoll"), ("memcached", "uring")]
    ]
    found: dict[tuple, list[Found]] = {work: [] for work in works}
    for round_ in range(bench.options.rounds):
        for work in rotated(works, round_):
            name, depth, io = work
            subject = cache_subject(name, bench.options.weft)
            with subjects.running(subject, bench.site, bench.folder, SERVER_CORE) as server:
                words = ["cache", f"127.0.0.1:{server.port}", "--populate", "--keys", str(KEYS)]
                words += ["--sets", "0", "-c", "64", "--depth", str(depth), "--io", io]
                what = f"{name}, depth {depth}, {io}, round {round_ + 1}"
                found[work].append(bench.weft(what, words, server.pids))
    return table(
        ["gets, 64 connections", "gets/s", "µs CPU/get", "gets per second of CPU", "goal", "met"],
        [cache_line(*work, samples) for work, samples in found.items()],
    )


def cache_line(name: str, depth: int, io: str, samples: list[Found]) -> list[str]:
    cpu = [one.facts["generator"]["cpu_us_per_reply"] for one in samples]
    per_core = spread([1e6 / us for us in cpu])
    goal = GETS_GOALS[depth]
    return [
        f"{name}, depth {depth}, {io}",
        cell(spread([one.rate for one in samples])),
        cell(spread(cpu)),
        cell(per_core),
        f"≥ {goal:,}",
        "yes" if per_core["median"] >= goal else "**no**",
    ]


def measure_lag(bench: Bench) -> str:
    """How late requests leave, by the generator's own record, on a core that no other program used.

    Other programs get a slice of up to 4 ms now and then, at any priority, and 1 % of waiting for one
    is the whole p99. So more samples are taken than are kept: those kept are the ones in which the
    generator's thread waited least for its core. The table says how long that was.
    """
    works = [(rate, io) for rate in (1_000, 50_000) for io in ("uring", "epoll")]
    found: dict[tuple, list[Found]] = {work: [] for work in works}
    for round_ in range(bench.options.attempts * bench.options.rounds):
        for rate, io in rotated(works, round_):
            subject = subjects.weft(bench.options.weft, ())
            with subjects.running(subject, bench.site, bench.folder, SERVER_CORE) as server:
                url = f"http://127.0.0.1:{server.port}/400.html"
                words = ["http", url, "-c", "64", "--rate", str(rate), "--io", io]
                what = f"{rate} per second, {io}, round {round_ + 1}"
                found[rate, io].append(bench.weft(what, words, server.pids))
    lines = []
    for (rate, io), taken in found.items():
        samples = sorted(taken, key=waited_percent)[: bench.options.rounds]
        lags = [one.facts["lag_us"] for one in samples]
        p99 = statistics.median(lag["p99"] for lag in lags)
        shares = [cell(spread([lag[key] for lag in lags])) for key in ("p50", "p99", "p99.9", "max")]
        spun = spread([100 * one.facts["generator"]["spun_s"] / one.seconds for one in samples])
        waited = spread([waited_percent(one) for one in samples])
        verdict = "yes" if p99 <= LAG_P99_GOAL_US else "**no**"
        row = [f"{rate:,}/s, {io}", *shares, cell(spun), cell(waited)]
        lines.append([*row, f"p99 ≤ {LAG_P99_GOAL_US}", verdict])
    head = ["lag of sends, µs", "p50", "p99", "p99.9", "max", "core spun, %"]
    return table([*head, "waited for its core, %", "goal", "met"], lines)


def waited_percent(one: Found) -> float:
    """How long the generator's thread was ready and had no core."""
    return 100 * one.facts["generator"]["run_delay_s"] / one.seconds


MEASURES = {"http": measure_http, "cache": measure_cache, "lag": measure_lag}
# Samples per round: how often noise may be met with another attempt follows from it.
SAMPLES = {"http": 11, "cache": 6, "lag": 0}


def measure(kind: str, options: argparse.Namespace, folder: Path) -> dict:
    bench = Bench(options, folder, SAMPLES[kind] * options.rounds)
    lines = MEASURES[kind](bench)
    versions = {"weft": subjects.weft(options.weft, ()).version()}
    if kind == "cache":
        versions["memcached"] = cache_subject("memcached", options.weft).version()
    settings = f"{options.rounds} rounds, {options.seconds} s each, {bench.patience.words()}"
    if kind == "lag":
        taken = options.rounds * options.attempts
        settings = f"{options.seconds} s each, the {options.rounds} quietest of {taken} samples of each"
    result = {"machine": report.machine(), "date": report.today(), "versions": versions}
    result |= {"settings": settings, "errors": [], "interrupted": False, "table": lines}
    return result | {"samples": [asdict(one) for one in bench.samples]}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench/load.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kind", nargs="?", default="all", choices=[*MEASURES, "all"])
    parser.add_argument("--weft", default="target/release/weft", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument(
        "--attempts", type=int, default=4, metavar="N", help="lag: samples taken for one that is kept"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--write", type=Path, metavar="FILE", help="between its markers")
    options = parser.parse_args()
    options.weft = os.path.abspath(options.weft)
    kinds = list(MEASURES) if options.kind == "all" else [options.kind]
    results = {}
    try:
        place.require(["wrk", "memcached", "cc"])
        place.require_cores(SERVER_CORE, GENERATOR_CORE)
        place.enter_own_network()
        with place.scratch("/var/tmp") as folder:
            for kind in kinds:
                results[kind] = measure(kind, options, folder)
                print(report.section(results[kind]), end="\n\n", flush=True)
                if options.write:
                    report.write_between(options.write, MARKERS[kind], report.section(results[kind]))
    except place.Unfit as error:
        print(f"bench/load.py: {error}", file=sys.stderr)
        return 2
    except (SampleFailed, subjects.ServerFailed) as error:
        print(f"bench/load.py: {error}", file=sys.stderr)
        return 1
    finally:
        if options.json:
            report.write_json(options.json, [results])
    return 0


if __name__ == "__main__":
    sys.exit(main())
