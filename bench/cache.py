#!/usr/bin/env python3
"""Measure `weft cache` beside memcached: CPU per request, requests/s, latency, memory.

  sudo python3 bench/cache.py                     all tables of docs/performance.md, 8 minutes
  sudo python3 bench/cache.py rows --rows c64-d1,c64-d16 --restarts 3
  sudo python3 bench/cache.py latency             at 70 % of memcached's rate, open loop
  sudo python3 bench/cache.py memory              bytes per item and per idle connection
  sudo python3 bench/cache.py all --write docs/performance.md

A row is named cCONNECTIONS-dDEPTH, and may go on with -wPERCENT (sets), -vBYTES (length of values),
-gKEYS (keys in one get), -hot (one key takes a fifth). The generator is `weft load cache`, on the
other core. CPU and requests are read from the server itself while the load runs, so neither setting
up connections nor filling the cache counts. Needs root, two quiet cores, and memcached.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import meter
import place
import report
from report import Progress, cell, ratio_cell, table
from rows import rotated, spread

MARKERS = {"rows": "cache", "latency": "cache-latency", "memory": "cache-memory"}
PORT_FIRST = 3001
KEYS = 20_000
# A value of 100 KB twenty thousand times would not fit.
KEYS_OF_LONG_VALUES = 1000
LONG_BYTES = 10_000
IDLE_CONNECTIONS = 10_000
SERVER_CORE, GENERATOR_CORE = 0, 1
SETTLE_S = 0.4
DEFAULT_ROWS = (
    "c16-d1,c64-d1,c256-d1,c1024-d1,c15360-d1,c16-d16,c64-d16,c256-d16,c1024-d16,c15360-d16,"
    "c64-d1-w5,c64-d1-w10,c64-d1-w50,c64-d1-hot,c64-d1-v4096,c64-d1-v102400,c64-d1-g100"
)
# memcached's CPU per request by ours at depth 1; our requests/s by memcached's at depth 16.
GOALS = {
    "c16-d1": 1.4,
    "c64-d1": 1.35,
    "c256-d1": 1.35,
    "c1024-d1": 1.3,
    "c15360-d1": 1.4,
    "c16-d16": 8.0,
    "c64-d16": 7.0,
    "c256-d16": 7.0,
    "c1024-d16": 6.5,
    "c15360-d16": 6.0,
}


@dataclass(frozen=True)
class Row:
    """One kind of load."""

    name: str
    connections: int
    depth: int
    sets_percent: int = 3
    value_bytes: int = 200
    keys_per_get: int = 1
    is_hot: bool = False

    @classmethod
    def parse(cls, name: str) -> Row:
        grammar = r"c(\d+)-d(\d+)(?:-w(\d+))?(?:-v(\d+))?(?:-g(\d+))?(-hot)?"
        match = re.fullmatch(grammar, name)
        if match is None:
            raise place.Unfit(f"row {name!r}: want cCONNECTIONS-dDEPTH[-wSETS][-vBYTES][-gKEYS][-hot]")
        connections, depth, sets, value, keys, hot = match.groups()
        return cls(
            name,
            int(connections),
            int(depth),
            int(sets or 3),
            int(value or 200),
            int(keys or 1),
            bool(hot),
        )

    @property
    def keys(self) -> int:
        return KEYS_OF_LONG_VALUES if self.value_bytes >= LONG_BYTES else KEYS

    @property
    def title(self) -> str:
        """The row in words."""
        parts = [f"{self.connections:,} connections, depth {self.depth}"]
        if self.sets_percent != 3:
            parts.append(f"{self.sets_percent} % sets")
        if self.value_bytes != 200:
            parts.append(f"values of {self.value_bytes:,} B")
        if self.keys_per_get != 1:
            parts.append(f"{self.keys_per_get} keys in a get (per key)")
        if self.is_hot:
            parts.append("one key takes a fifth")
        return ", ".join(parts)

    def load_argv(self, weft: str, port: int, seconds: float) -> list[str]:
        """The generator's command."""
        argv = [weft, "load", "cache", f"127.0.0.1:{port}", "-q", "--color", "never"]
        argv += ["--connections", str(self.connections), "--depth", str(self.depth)]
        argv += ["--sets", str(self.sets_percent), "--value-size", str(self.value_bytes)]
        argv += ["--keys", str(self.keys), "--multi-get", str(self.keys_per_get)]
        argv += ["--popularity", "hot:0.2" if self.is_hot else "uniform"]
        return [*argv, "--duration", f"{int(seconds * 1000)}ms"]


class Server:
    """A running cache."""

    def __init__(self, name: str, process: subprocess.Popen[str], port: int) -> None:
        self.name, self.process, self.port = name, process, port

    def stats(self) -> dict[str, str]:
        """What `stats` says."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(b"stats\r\n")
            text = b""
            while not text.endswith(b"END\r\n"):
                piece = connection.recv(65536)
                if not piece:
                    raise Failed(f"{self.name} hung up on `stats`")
                text += piece
        lines = (line.split(" ", 2) for line in text.decode().splitlines() if line != "END")
        return {line[1]: line[2] for line in lines}

    def requests(self) -> int:
        found = self.stats()
        return int(found["cmd_get"]) + int(found["cmd_set"])

    def reading(self) -> tuple[int, int, int]:
        """CPU time, requests and the time, read together."""
        requests = self.requests()
        return meter.process_cpu_ns(self.process.pid), requests, time.monotonic_ns()


class Failed(Exception):
    """A sample that gave nothing."""


@contextlib.contextmanager
def running(name: str, argv: list[str], port: int, folder: Path) -> Iterator[Server]:
    """Starts a cache on its core, fresh, and stops it."""
    process = place.launch(argv, SERVER_CORE, folder / f"{name.replace(' ', '-')}.log")
    try:
        await_port(process, port)
        yield Server(name, process, port)
    finally:
        place.stop(process)


def await_port(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise Failed(f"no server listens at port {port}")
        time.sleep(0.02)


class Bench:
    """Takes samples; each has a fresh server at a fresh port."""

    def __init__(self, weft: str, folder: Path, seconds: float) -> None:
        self.weft, self.folder, self.seconds = weft, folder, seconds
        self.ports = iter(range(PORT_FIRST, 10_000))
        self.errors: list[str] = []

    def argv(self, name: str, port: int, memory_mb: int) -> list[str]:
        flags = ["-p", str(port), "-l", "127.0.0.1", "-m", str(memory_mb)]
        flags += ["-c", "17000", "-t", "1", "-u", "root"]
        return [*([self.weft, "cache"] if name == "weft" else ["memcached"]), *flags]

    def server(self, name: str, memory_mb: int = 2048) -> contextlib.AbstractContextManager[Server]:
        port = next(self.ports)
        return running(name, self.argv(name, port, memory_mb), port, self.folder)

    def fill(self, server: Server, row: Row) -> None:
        """Puts every key there, by a load that ends at once."""
        few = Row("fill", 16, 16, row.sets_percent, row.value_bytes)
        argv = [*few.load_argv(self.weft, server.port, 0.05), "--populate"]
        argv[argv.index("--keys") + 1] = str(row.keys)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise Failed(f"filling: {done.stderr.strip()}")

    def sample(self, name: str, row: Row) -> dict:
        """CPU per request and requests/s of one server under one load."""
        with self.server(name) as server:
            self.fill(server, row)
            # Time to settle, the measured time, and some to spare.
            duration_s = self.seconds + 3 * SETTLE_S
            log = self.folder / "load.log"
            argv = row.load_argv(self.weft, server.port, duration_s)
            before = server.requests()
            load = place.launch([*argv, "--json", str(self.folder / "load.json")], GENERATOR_CORE, log)
            try:
                self.await_requests(server, load, before + max(1000, row.connections))
                time.sleep(SETTLE_S)
                first = server.reading()
                time.sleep(self.seconds)
                last = server.reading()
                if load.poll() is not None:
                    raise Failed("the load ended before the last reading")
                load.wait(timeout=60)
            finally:
                place.stop(load)
            outcome = json.loads((self.folder / "load.json").read_text())
            if outcome["errors"]["total"]:
                raise Failed(f"{outcome['errors']}")
            requests = last[1] - first[1]
            if requests <= 0:
                raise Failed("no request while it was measured")
            return {
                "row": row.name,
                "server": name,
                "cpu_us": (last[0] - first[0]) / 1000 / requests,
                "requests_per_s": requests * 1e9 / (last[2] - first[2]),
                "busy_percent": 100 * (last[0] - first[0]) / (last[2] - first[2]),
                "generator_limited": outcome["generator_limited"],
            }

    def await_requests(self, server: Server, load: subprocess.Popen[str], wanted: int) -> None:
        deadline = time.monotonic() + 30
        while server.requests() < wanted:
            if load.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"the load did not begin: {(self.folder / 'load.log').read_text()}")
            time.sleep(0.02)

    def attempt(self, what: str, take):
        """One sample; an error is kept and shown."""
        try:
            return take()
        except (Failed, OSError, KeyError, ValueError, subprocess.SubprocessError) as error:
            self.errors.append(f"{what}: {error}")
            print(f"\nERROR {what}: {error}", file=sys.stderr)
            return None


def measure_rows(bench: Bench, options: argparse.Namespace, progress: Progress) -> str:
    rows = [Row.parse(name) for name in options.rows.split(",")]
    names = ["weft", "memcached"]
    progress.expect(len(rows) * len(names) * options.restarts)
    samples: dict[tuple[str, str], dict[int, dict]] = {}
    for round_ in range(options.restarts):
        for row in rows:
            for name in rotated(names, round_):
                what = f"round {round_ + 1}/{options.restarts} · {row.name} · {name}"
                progress.step(what)
                found = bench.attempt(what, lambda: bench.sample(name, row))
                if found is not None:
                    samples.setdefault((row.name, name), {})[round_] = found
    options.samples += [s for by_round in samples.values() for s in by_round.values()]
    head = ["work", "weft µs/request", "memcached", "CPU ratio", "weft requests/s", "memcached requests/s"]
    head += ["rate ratio", "goal", "met"]
    return table(head, [row_line(row, samples) for row in rows])


def row_line(row: Row, samples: dict) -> list[str]:
    ours, theirs = (samples.get((row.name, name), {}) for name in ("weft", "memcached"))
    both = sorted(ours.keys() & theirs.keys())
    cpu = spread([theirs[r]["cpu_us"] / ours[r]["cpu_us"] for r in both])
    rate = spread([ours[r]["requests_per_s"] / theirs[r]["requests_per_s"] for r in both])

    def figures(found: dict, key: str) -> str:
        return cell(spread([sample[key] for sample in found.values()]))

    goal, ratio = GOALS.get(row.name), cpu if row.depth == 1 else rate
    met = "–" if goal is None or ratio is None else "yes" if ratio["median"] >= goal else "**no**"
    which = "CPU" if row.depth == 1 else "rate"
    return [
        row.title,
        figures(ours, "cpu_us"),
        figures(theirs, "cpu_us"),
        ratio_cell(cpu),
        figures(ours, "requests_per_s"),
        figures(theirs, "requests_per_s"),
        ratio_cell(rate),
        f"{which} ≥ {goal}" if goal else "–",
        met,
    ]


def measure_latency(bench: Bench, options: argparse.Namespace, progress: Progress) -> str:
    """Both at the same offered rate: 70 % of what memcached reaches in a closed loop."""
    row = Row.parse("c64-d1")
    progress.expect(1 + 2 * options.restarts)
    progress.step("memcached's rate")
    peak = bench.attempt("memcached's rate", lambda: bench.sample("memcached", row))
    rate = int(0.7 * peak["requests_per_s"]) if peak else 80_000
    found: dict[str, list[dict]] = {"weft": [], "memcached": []}

    def take(name: str) -> dict:
        with bench.server(name) as server:
            bench.fill(server, row)
            argv = row.load_argv(bench.weft, server.port, bench.seconds + 1)
            argv += ["--rate", str(rate), "--arrivals", "poisson", "--json", "-"]
            load = place.launch(argv, GENERATOR_CORE, bench.folder / "load.log")
            text, _ = load.communicate(timeout=60)
            outcome = json.loads(text)
            latency = outcome["classes"]["get"]["latency_us"]["intended"]
            return {"achieved": outcome["achieved_rate_per_s"], **latency}

    for round_ in range(options.restarts):
        for name in rotated(["weft", "memcached"], round_):
            progress.step(f"latency · {name}")
            sample = bench.attempt(f"latency, {name}", lambda: take(name))
            if sample is not None:
                found[name].append(sample)
    head = ["server", "offered/s", "achieved/s", "p50 µs", "p99 µs", "p99.9 µs"]
    columns = ["achieved", "p50", "p99", "p99.9"]
    lines = [
        [name, f"{rate:,}", *(cell(spread([s[column] for s in samples])) for column in columns)]
        for name, samples in found.items()
    ]
    medians = [statistics.median(s["p99"] for s in found[name]) for name in found if found[name]]
    if len(medians) == 2:
        met = "met" if medians[0] <= medians[1] else "**not met**"
        lines.append(["weft ÷ memcached", "–", "–", "–", f"**{medians[0] / medians[1]:.2f}** (goal ≤ 1: {met})", "–"])
    return table(head, lines)


def measure_memory(bench: Bench, options: argparse.Namespace, progress: Progress) -> str:
    progress.expect(4)
    lines = []
    for name in ["weft", "memcached"]:
        progress.step(f"items · {name}")
        items = bench.attempt(f"items, {name}", lambda: items_in_64_mib(bench, name))
        progress.step(f"idle connections · {name}")
        idle = bench.attempt(f"idle connections, {name}", lambda: idle_bytes(bench, name))
        lines.append(
            [
                name,
                f"{items:,}" if items else "–",
                f"{64 * 2**20 / items:.0f}" if items else "–",
                f"{idle:,.0f}" if idle else "–",
            ]
        )
    head = ["server", "items of 30 + 200 B in -m 64", "bytes of the limit per item"]
    head += [f"resident bytes per idle connection, at {IDLE_CONNECTIONS:,}"]
    return table(head, lines)


def items_in_64_mib(bench: Bench, name: str) -> int:
    """How many items are there when the memory is full."""
    with bench.server(name, memory_mb=64) as server:
        row = Row("full", 16, 16, 100, 200)
        argv = row.load_argv(bench.weft, server.port, 0.05)
        argv[argv.index("--keys") + 1] = "500000"
        subprocess.run([*argv, "--populate"], capture_output=True, timeout=120, check=True)
        return int(server.stats()["curr_items"])


def idle_bytes(bench: Bench, name: str) -> float:
    """Growth of resident memory for each connection that has asked once and waits."""
    with bench.server(name) as server, contextlib.ExitStack() as held:
        ask(server, held)
        before = meter.resident_bytes(server.process.pid)
        for _ in range(IDLE_CONNECTIONS):
            ask(server, held)
        after = meter.resident_bytes(server.process.pid)
        return (after - before) / IDLE_CONNECTIONS


def ask(server: Server, held: contextlib.ExitStack) -> None:
    connection = held.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
    connection.sendall(b"get nothing\r\n")
    if connection.recv(100) != b"END\r\n":
        raise Failed("an idle connection got no answer")


MEASURES = {"rows": measure_rows, "latency": measure_latency, "memory": measure_memory}


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/cache.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    option = parser.add_argument
    option("kind", nargs="?", default="all", choices=[*MARKERS, "all"])
    option("--weft", default="target/release/weft", metavar="FILE", help="default: %(default)s")
    option("--rows", default=DEFAULT_ROWS, metavar="LIST")
    option("--restarts", type=int, default=5, help="of every server; default: %(default)s")
    option("--seconds", type=float, default=1.0, help="of every sample; default: %(default)s")
    option("--quick", action="store_true", help="2 restarts")
    option("--json", type=Path, metavar="FILE", help="write all raw samples and machine facts")
    option("--write", type=Path, metavar="FILE", help="fill the tables of this document")
    options = parser.parse_args(argv)
    options.samples = []
    if options.quick:
        options.restarts = 2
    return options


def run(options: argparse.Namespace) -> int:
    kinds = list(MARKERS) if options.kind == "all" else [options.kind]
    place.PACKAGES["memcached"] = "memcached"
    place.require(["memcached"])
    place.require_cores(SERVER_CORE, GENERATOR_CORE)
    place.raise_file_limit()
    if options.write:
        for kind in kinds:
            report.split_at_markers(options.write.read_text(), MARKERS[kind])
    weft = str(Path(options.weft).resolve())
    with place.scratch("/var/tmp") as folder:
        place.enter_own_network()
        bench, progress = Bench(weft, folder, options.seconds), Progress()
        failed = False
        for kind in kinds:
            text = MEASURES[kind](bench, options, progress)
            progress.end()
            result = {
                "date": report.today(),
                "machine": report.machine(),
                "versions": {"weft": version(weft), "memcached": version("memcached")},
                "settings": f"{options.restarts} restarts of each in turn, {options.seconds} s each, one "
                "processor, key 30 B, value 200 B, 3 % sets unless the row says otherwise",
                "interrupted": False,
                "errors": list(bench.errors),
                "table": text,
                "samples": options.samples,
            }
            failed = failed or bool(bench.errors)
            bench.errors.clear()
            print(f"{report.section(result)}\n", flush=True)
            if options.json:
                report.write_json(options.json.with_stem(f"{options.json.stem}-{kind}"), [result])
            if options.write:
                report.write_between(options.write, MARKERS[kind], report.section(result))
    return 1 if failed else 0


def version(program: str) -> str:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+(\.\d+)?", said.stdout)
    return found.group(0) if found else "unknown"


def main() -> int:
    try:
        return run(arguments(sys.argv[1:]))
    except place.Unfit as error:
        print(f"bench/cache.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
