"""The rows of the table: what is asked of every server, in which order, and what it must give."""

from __future__ import annotations

import random
import re
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import generator
import place
import subjects
from generator import Load
from place import Stand
from report import Progress, cell, ratio_cell, table
from sample import Patience, Sample, run_delay, syscalls_per_request, take
from subjects import Subject

DEFAULT_ROWS = "400-64,400-1000,4k-64,64k-64,1m-16,close-64,pipeline-64,epoll-400-64"
PIPELINE_DEPTH = 16
SIZE_UNITS = {"": 1, "k": 1024, "m": 1024 * 1024}
# Under strace a server answers about 3,000 requests a second, and setting up the connections counts
# too: longer where there are many.
STRACE_SECONDS_PER_CONNECTION = 1 / 400


@dataclass(frozen=True)
class Goal:
    """The least ratio of a peer's CPU per request to weft's."""

    sendfile: float
    better: float
    lighttpd: float | None = None


GOALS = {
    "400-64": Goal(2.2, 1.7),
    "400-1000": Goal(2.2, 1.7),
    "4k-64": Goal(2.0, 1.6),
    "64k-64": Goal(1.25, 1.25),
    "1m-16": Goal(1.0, 1.0, lighttpd=0.95),
    "close-64": Goal(1.3, 1.25),
    "pipeline-64": Goal(8.0, 8.0),
    "epoll-400-64": Goal(1.6, 1.25),
}


@dataclass(frozen=True)
class Row:
    """One line of the table, named `[epoll-][close-|pipeline-][SIZE-]CONNECTIONS`."""

    name: str
    size_bytes: int
    connections: int
    close: bool
    pipelined: bool
    epoll: bool

    @classmethod
    def parse(cls, name: str) -> Row:
        """The row that a name stands for; the size is 400 bytes where none is given."""
        grammar = r"(epoll-)?(close-|pipeline-)?(?:(\d+)([km]?)-)?(\d+)"
        match = re.fullmatch(grammar, name)
        if match is None:
            raise place.Unfit(f"row {name!r}: want [epoll-][close-|pipeline-][SIZE-]CONNECTIONS")
        epoll, way, digits, unit, connections = match.groups()
        size_bytes = int(digits) * SIZE_UNITS[unit] if digits else 400
        return cls(
            name=name,
            size_bytes=size_bytes,
            connections=int(connections),
            close=way == "close-",
            pipelined=way == "pipeline-",
            epoll=bool(epoll),
        )

    @property
    def goal(self) -> Goal | None:
        return GOALS.get(self.name)

    @property
    def load(self) -> Load:
        path = f"/{self.size_bytes}.html"
        depth = PIPELINE_DEPTH if self.pipelined else 1
        return Load(path, self.connections, self.size_bytes, depth, self.close)

    @property
    def title(self) -> str:
        """The row in words."""
        way = "keep-alive"
        if self.close:
            way = "a connection for every request"
        if self.pipelined:
            way = f"pipelined × {PIPELINE_DEPTH}"
        size = size_words(self.size_bytes)
        io = ", epoll" if self.epoll else ""
        return f"{size}, {way}, {self.connections} connections{io}"


def size_words(size_bytes: int) -> str:
    """A size as people say it."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    return f"{size_bytes // 1024} KiB" if size_bytes < 2**20 else f"{size_bytes // 2**20} MiB"


def make_site(folder: Path, sizes_bytes: set[int]) -> dict[int, bytes]:
    """One file of every size; random bytes, so that a shifted or mixed body is noticed."""
    bodies = {size: random.Random(size).randbytes(size) for size in sizes_bytes}
    for size, body in bodies.items():
        (folder / f"{size}.html").write_bytes(body)
    # The ETag of a file that changed in the last two seconds is longer than it is later, and the
    # generator takes a reply of another length for one that has not ended.
    time.sleep(2.5)
    return bodies


class Bench:
    """Rounds over rows over servers: A B C D, then B C D A, a fresh start for every sample."""

    def __init__(
        self,
        rows: list[Row],
        peers: list[Subject],
        weft: WeftCommand | None,
        stand: Stand,
        folder: Path,
        seconds: int,
    ) -> None:
        self.rows, self.peers, self.weft = rows, peers, weft
        self.stand, self.folder, self.seconds = stand, folder, seconds
        self.site = folder / "site"
        self.site.mkdir()
        self.bodies = make_site(self.site, {row.size_bytes for row in rows})
        self.patience = Patience(0)
        self.samples: list[Sample] = []
        self.errors: list[str] = []
        self.failed_rows: set[str] = set()
        self.syscalls: list[dict] = []

    def subjects(self, row: Row) -> list[Subject]:
        return [*([self.weft.subject(row)] if self.weft else []), *self.peers]

    def run(self, restarts: int, strace: bool, progress: Progress) -> None:
        """Take all samples; what was found so far stays in `self` when it is interrupted."""
        per_round = sum(len(self.subjects(row)) for row in self.rows)
        self.patience = Patience(per_round * restarts)
        progress.expect(per_round * (restarts + strace))
        for round_ in range(restarts):
            for row in self.rows:
                for subject in rotated(self.subjects(row), round_):
                    progress.step(f"round {round_ + 1}/{restarts} · {row.name} · {subject.name}")
                    self.measure(subject, row, round_)
        for row in self.rows if strace else []:
            for subject in self.subjects(row):
                progress.step(f"system calls · {row.name} · {subject.name}")
                self.count_syscalls(subject, row)

    def measure(self, subject: Subject, row: Row, round_: int) -> None:
        """One sample, repeated while it is noisy; an error is kept, shown, and not repeated."""

        def once() -> Sample:
            with subjects.running(
                subject, self.site, self.folder, self.stand.server_core
            ) as server:
                verify(server.port, row, self.bodies[row.size_bytes])
                found = take(server, row.name, round_, [row.load], self.seconds, self.stand)
                verify(server.port, row, self.bodies[row.size_bytes])
                return found

        place_in_run = f"{row.name}, {subject.name}, round {round_ + 1}"
        try:
            sample = self.patience.quietest(once, run_delay)
        except SAMPLE_ERRORS as error:
            self.fail(row, f"{place_in_run}: {error}")
            return
        self.samples.append(sample)
        if sample.faults:
            self.fail(row, f"{place_in_run}: {'; '.join(sample.faults)}")

    def count_syscalls(self, subject: Subject, row: Row) -> None:
        seconds = 1 + int(row.connections * STRACE_SECONDS_PER_CONNECTION)
        try:
            with subjects.running(
                subject, self.site, self.folder, self.stand.server_core
            ) as server:
                calls = syscalls_per_request(server, row.load, seconds, self.stand)
        except SAMPLE_ERRORS as error:
            self.fail(row, f"system calls of {row.name}, {subject.name}: {error}")
            return
        self.syscalls.append({"row": row.name, "server": subject.name, "calls": calls})

    def fail(self, row: Row, message: str) -> None:
        self.failed_rows.add(row.name)
        self.errors.append(message)
        print(f"\nERROR {message}", file=sys.stderr)


SAMPLE_ERRORS = (subjects.ServerFailed, generator.GeneratorFailed, generator.WrongAnswer, OSError)


@dataclass(frozen=True)
class WeftCommand:
    """How weft is started; a row may add arguments."""

    binary: str
    extra: tuple[str, ...] = ()

    def subject(self, row: Row | None = None) -> Subject:
        io = ("--io", "epoll") if row and row.epoll else ()
        return subjects.weft(self.binary, (*io, *self.extra))


def verify(port: int, row: Row, body: bytes) -> None:
    """The server answers this row's request with the file's bytes."""
    generator.verify(port, row.load.path, body, row.load.depth, row.close)


def rotated(items: list, by: int) -> list:
    """Every round starts with another server, so that none always follows the same one."""
    at = by % len(items)
    return items[at:] + items[:at]


def spread(values: list[float]) -> dict[str, float] | None:
    """Median, least and greatest; nothing of nothing."""
    if not values:
        return None
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summarise(rows: list[Row], samples: list[Sample], failed_rows: set[str]) -> list[dict]:
    """One entry per row: spread per server, and per peer the ratio to weft, round by round."""
    return [
        summarise_row(row, [s for s in samples if s.row == row.name])
        | {"failed": row.name in failed_rows}
        for row in rows
    ]


def summarise_row(row: Row, samples: list[Sample]) -> dict:
    sound = [sample for sample in samples if not sample.faults]
    cpu: dict[str, dict[int, float]] = {}
    for sample in sound:
        cpu.setdefault(sample.server, {})[sample.round] = sample.cpu_us_per_request
    servers = {
        name: {
            "cpu_us": spread(list(by_round.values())),
            "requests_per_s": spread([s.requests_per_s for s in sound if s.server == name]),
            "busy_percent": spread([s.server_busy_percent for s in sound if s.server == name]),
            "samples": len(by_round),
        }
        for name, by_round in cpu.items()
    }
    ours = cpu.get("weft", {})
    ratios = {
        name: spread([theirs[r] / ours[r] for r in sorted(theirs.keys() & ours.keys())])
        for name, theirs in cpu.items()
        if name != "weft"
    }
    forms = [name for name in servers if name.startswith("nginx")]
    better = min(forms, key=lambda name: servers[name]["cpu_us"]["median"], default=None)
    return {"row": row.name, "servers": servers, "ratios": ratios, "better_nginx": better}


def verdict(row: Row, summary: dict) -> bool | None:
    """Whether the row meets its goal; None where there is no goal or nothing to compare."""
    goal, ratios = row.goal, summary["ratios"]
    if goal is None:
        return None
    wanted = [
        (ratios.get("nginx sendfile"), goal.sendfile),
        (ratios.get(summary["better_nginx"]), goal.better),
    ]
    if goal.lighttpd is not None:
        wanted.append((ratios.get("lighttpd"), goal.lighttpd))
    if any(ratio is None for ratio, _ in wanted):
        return None
    return all(ratio["median"] >= least for ratio, least in wanted)


def rows_table(rows: list[Row], summaries: list[dict], syscalls: list[dict]) -> str:
    """The Markdown table of the issue: one line per row."""
    head = [
        "work",
        "weft µs/request",
        "nginx sendfile",
        "nginx copy",
        "lighttpd",
        "× sendfile",
        "× better nginx",
        "× lighttpd",
        "weft requests/s (core busy)",
        "system calls per request",
        "goal",
        "met",
    ]
    return table(head, [row_line(row, found, syscalls) for row, found in zip(rows, summaries)])


def row_line(row: Row, summary: dict, syscalls: list[dict]) -> list[str]:
    servers, ratios = summary["servers"], summary["ratios"]
    names = ["weft", "nginx sendfile", "nginx copy", "lighttpd"]
    met = {True: "yes", False: "**no**", None: "–"}[verdict(row, summary)]
    if summary["failed"]:
        met = "**error**"
    return [
        row.title,
        *(cell(servers[name]["cpu_us"]) if name in servers else "–" for name in names),
        ratio_cell(ratios.get("nginx sendfile")),
        ratio_cell(ratios.get(summary["better_nginx"])),
        ratio_cell(ratios.get("lighttpd")),
        rate_cell(servers.get("weft")),
        syscalls_cell(row, names, syscalls),
        goal_cell(row.goal),
        met,
    ]


def rate_cell(server: dict | None) -> str:
    if server is None:
        return "–"
    return f"{server['requests_per_s']['median']:,.0f} ({server['busy_percent']['median']:.0f} %)"


def syscalls_cell(row: Row, names: list[str], syscalls: list[dict]) -> str:
    """Totals in the order of the columns, `weft / sendfile / copy / lighttpd`."""
    totals = {
        found["server"]: sum(found["calls"].values())
        for found in syscalls
        if found["row"] == row.name
    }
    return " / ".join(f"{totals[name]:.2f}" if name in totals else "–" for name in names)


def goal_cell(goal: Goal | None) -> str:
    if goal is None:
        return "–"
    lighttpd = f", lighttpd ≥ {goal.lighttpd:g}" if goal.lighttpd is not None else ""
    return f"≥ {goal.sendfile:g} / ≥ {goal.better:g}{lighttpd}"
