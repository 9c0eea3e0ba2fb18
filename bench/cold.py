"""Cold files: a file set three times the memory, and a few hot files that must not suffer."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import generator
import place
import subjects
from generator import Load
from place import Stand
from report import Progress, cell, table
from rows import SAMPLE_ERRORS, WeftCommand, rotated, spread
from sample import Patience, Sample, foreign_cpu, take
from subjects import Server, Subject

COLD_FILES, COLD_BYTES, COLD_CONNECTIONS = 4000, 64 * 1024, 16
HOT_FILES, HOT_BYTES, HOT_CONNECTIONS = 16, 4 * 1024, 4
# A third of the file set, for the server and the page cache that it fills.
MEMORY_LIMIT_BYTES = 80 * 1000 * 1000
# In memory, or layered over something else: no disk to wait for.
NOT_A_DISK = {"tmpfs", "ramfs", "overlay", "unknown"}

HOT_RATE_GOAL, HOT_P99_GOAL, COLD_RATE_GOAL = 4.0, 0.4, 1.1
REFERENCE = "nginx threads"

COLD_LOAD = Load(
    "/cold/0000.html",
    COLD_CONNECTIONS,
    COLD_BYTES,
    walk=("/cold/%04d.html", COLD_FILES),
    latencies=True,
)
HOT_LOAD = Load(
    "/hot/0000.html",
    HOT_CONNECTIONS,
    HOT_BYTES,
    walk=("/hot/%04d.html", HOT_FILES),
    latencies=True,
)


def check_disk(folder: Path) -> None:
    """Files in memory are never cold."""
    kind = place.filesystem_of(folder.resolve())
    if kind in NOT_A_DISK:
        raise place.Unfit(f"{folder} lies on {kind}: name a folder on a disk with --scratch")


class FileSet:
    """The cold and the hot files, on a real disk."""

    def __init__(self, site: Path) -> None:
        self.site = site
        self.paths = [
            *write_files(site / "cold", COLD_FILES, COLD_BYTES),
            *write_files(site / "hot", HOT_FILES, HOT_BYTES),
        ]

    def evict(self) -> None:
        """Take every file out of the page cache; only clean pages go, they were synced."""
        for path in self.paths:
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def verify(self, server: Server) -> None:
        """One cold file and all hot ones, byte for byte; this also warms the hot ones."""
        for path in (self.paths[COLD_FILES // 2], *self.paths[COLD_FILES:]):
            body = path.read_bytes()
            generator.verify(server.port, f"/{path.relative_to(self.site)}", body)


def write_files(folder: Path, count: int, size_bytes: int) -> list[Path]:
    """Files of random bytes, each synced to the disk."""
    folder.mkdir(parents=True)
    paths = [folder / f"{number:04}.html" for number in range(count)]
    for number, path in enumerate(paths):
        with path.open("wb") as file:
            file.write(random.Random(number).randbytes(size_bytes))
    os.sync()
    return paths


@contextlib.contextmanager
def memory_group(name: str) -> Iterator[place.MemoryGroup]:
    group = place.MemoryGroup(name, MEMORY_LIMIT_BYTES)
    try:
        yield group
    finally:
        group.close()


class ColdBench:
    """Rounds over servers; before every sample an empty page cache and a new memory group."""

    def __init__(self, servers: list[Subject], stand: Stand, folder: Path, seconds: int) -> None:
        self.servers, self.stand, self.folder, self.seconds = servers, stand, folder, seconds
        self.files = FileSet(folder / "site")
        self.groups = 0
        self.patience = Patience(0)
        self.samples: list[Sample] = []
        self.errors: list[str] = []

    def run(self, restarts: int, progress: Progress) -> None:
        progress.expect(len(self.servers) * restarts)
        self.patience = Patience(len(self.servers) * restarts)
        for round_ in range(restarts):
            for subject in rotated(self.servers, round_):
                progress.step(f"cold files · round {round_ + 1}/{restarts} · {subject.name}")
                self.measure(subject, round_)

    def measure(self, subject: Subject, round_: int) -> None:
        place_in_run = f"cold, {subject.name}, round {round_ + 1}"
        try:
            sample = self.patience.quietest(lambda: self.once(subject, round_), foreign_cpu)
        except SAMPLE_ERRORS as error:
            self.fail(f"{place_in_run}: {error}")
            return
        self.samples.append(sample)
        if sample.faults:
            self.fail(f"{place_in_run}: {'; '.join(sample.faults)}")

    def once(self, subject: Subject, round_: int) -> Sample:
        self.groups += 1
        self.files.evict()
        with (
            memory_group(f"weft-bench-{os.getpid()}-{self.groups}") as group,
            subjects.running(
                subject, self.files.site, self.folder, self.stand.server_core, group
            ) as server,
        ):
            self.files.verify(server)
            loads = [COLD_LOAD, HOT_LOAD]
            return take(server, "cold", round_, loads, self.seconds, self.stand)

    def fail(self, message: str) -> None:
        self.errors.append(message)
        print(f"\nERROR {message}", file=sys.stderr)


def subjects_for(weft: WeftCommand | None) -> list[Subject]:
    ours = [weft.subject()] if weft else []
    return [*ours, subjects.NGINX_PLAIN, subjects.NGINX_THREADS]


def summarise(samples: list[Sample]) -> list[dict]:
    """Per server the spreads, and the ratios of its figures to nginx with threads, per round."""
    by_server: dict[str, dict[int, dict[str, float]]] = {}
    for sample in samples:
        if not sample.faults:
            by_server.setdefault(sample.server, {})[sample.round] = figures(sample)
    reference = by_server.get(REFERENCE, {})
    return [
        {
            "server": server,
            "spreads": {
                name: spread([found[name] for found in rounds.values()]) for name in FIGURES
            },
            "ratios": {name: median_ratio(rounds, reference, name) for name in FIGURES},
        }
        for server, rounds in by_server.items()
    ]


FIGURES = (
    "cold_per_s",
    "hot_per_s",
    "hot_p50_us",
    "hot_p99_us",
    "hot_p999_us",
    "busy_percent",
    "from_disk_percent",
)


def figures(sample: Sample) -> dict[str, float]:
    cold, hot = sample.outcomes
    return {
        "cold_per_s": cold.requests_per_s,
        "hot_per_s": hot.requests_per_s,
        "hot_p50_us": hot.latency_us["p50"],
        "hot_p99_us": hot.latency_us["p99"],
        "hot_p999_us": hot.latency_us["p999"],
        "busy_percent": sample.server_busy_percent,
        "from_disk_percent": 100 * sample.storage_read_bytes / (cold.requests * COLD_BYTES),
    }


def median_ratio(rounds: dict, reference: dict, name: str) -> float | None:
    """The median over rounds of this server's figure ÷ the reference's."""
    common = rounds.keys() & reference.keys()
    ratios = [rounds[r][name] / reference[r][name] for r in common if reference[r][name]]
    return statistics.median(ratios) if ratios else None


def cold_table(summaries: list[dict]) -> str:
    """Markdown: one line per server, one of goals."""
    head = [
        "server",
        "cold requests/s",
        "hot requests/s",
        "hot p50 µs",
        "hot p99 µs",
        "hot p999 µs",
        "core busy %",
        "read from disk, % of cold bytes",
    ]
    lines = [
        [entry["server"], *(cell(entry["spreads"][name]) for name in FIGURES)]
        for entry in summaries
    ]
    ours = next((entry for entry in summaries if entry["server"] == "weft"), None)
    return table(head, [*lines, *([verdict_line(ours["ratios"])] if ours else [])])


def verdict_line(ratios: dict) -> list[str]:
    """weft ÷ nginx with threads, the goals, and whether they are met."""
    return [
        f"weft ÷ {REFERENCE}",
        against(ratios["cold_per_s"], COLD_RATE_GOAL, at_least=True),
        against(ratios["hot_per_s"], HOT_RATE_GOAL, at_least=True),
        "–",
        against(ratios["hot_p99_us"], HOT_P99_GOAL, at_least=False),
        *["–"] * 3,
    ]


def against(ratio: float | None, goal: float, at_least: bool) -> str:
    if ratio is None:
        return "–"
    met = ratio >= goal if at_least else ratio <= goal
    sign = "≥" if at_least else "≤"
    return f"**{ratio:.2f}** (goal {sign} {goal:g}: {'met' if met else '**not met**'})"
