#!/usr/bin/env python3
"""Measure `weft serve` beside nginx and lighttpd: CPU per request, idle memory, cold files.

  sudo python3 bench/serve.py                     the table of docs/performance.md, 10 minutes
  sudo python3 bench/serve.py rows --quick        the same, coarse, in 2 minutes
  sudo python3 bench/serve.py rows --rows 400-64,1m-16 --restarts 3
  sudo python3 bench/serve.py idle                memory per idle connection, at 10,000
  sudo python3 bench/serve.py cold                a file set three times the memory
  sudo python3 bench/serve.py all --json out.json --write docs/performance.md

It needs root, two cores that nothing else uses, a C compiler, and the Debian packages nginx-light,
lighttpd, wrk and strace. Tables go to stdout, progress to stderr. Exit codes: 0 measured, 1 some
sample was an error, 2 this machine or command line cannot do it, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import cold
import generator
import idle
import place
import report
import rows
import subjects
from report import Progress

PEERS = {
    "nginx-sendfile": subjects.NGINX_SENDFILE,
    "nginx-copy": subjects.NGINX_COPY,
    "lighttpd": subjects.LIGHTTPD,
}
# What can be measured, and the markers around its table in a document.
MARKERS = {"rows": "serve", "idle": "serve-idle", "cold": "serve-cold"}


def arguments(argv: list[str]) -> argparse.Namespace:
    """The command line; without a subcommand it is `rows`."""
    parser = argparse.ArgumentParser(
        prog="bench/serve.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="kind", required=True)
    for kind in (*MARKERS, "all"):
        add_options(commands.add_parser(kind), kind)
    if not argv or (argv[0].startswith("-") and argv[0] not in ("-h", "--help")):
        argv = ["rows", *argv]
    return parser.parse_args(argv)


def add_options(command: argparse.ArgumentParser, kind: str) -> None:
    option = command.add_argument
    names = ",".join(["weft", *PEERS])
    option("--weft", default="target/release/weft", metavar="FILE", help="default: %(default)s")
    option(
        "--weft-args",
        default="",
        metavar="ARGS",
        help="more for `weft serve`: --weft-args='--fibers 4096'",
    )
    option("--servers", default=names, metavar="LIST", help="rows: default %(default)s")
    option("--json", type=Path, metavar="FILE", help="write all raw samples and machine facts")
    option("--write", type=Path, metavar="FILE", help="fill the tables of this document")
    option("--markdown", action="store_true", help="only tables: no progress")
    option("--quick", action="store_true", help="coarse figures: 2 restarts of 1 s, no strace")
    option("--restarts", type=count, help="of every server; rows: 7, cold: 5")
    option("--seconds", type=count, help="of every sample; rows: 2, cold: 3")
    option("--server-core", type=int, default=0)
    option("--generator-core", type=int, default=1)
    option("--generator", choices=["closed-loop", "wrk"], default="closed-loop", help="of the rows")
    option("--scratch", default="/var/tmp", metavar="DIR", help="on a disk; default: %(default)s")
    if kind in ("rows", "all"):
        option("--rows", default=rows.DEFAULT_ROWS, metavar="LIST", help="default: %(default)s")
        option("--no-strace", action="store_true", help="leave out system calls per request")
    if kind in ("idle", "all"):
        option("--connections", type=count, default=10_000, help="idle: default %(default)s")


def count(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


class Command:
    """One run of the command: what was asked for, and where it happens."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        closed_loop = (
            generator.build_closed_loop(folder) if options.generator == "closed-loop" else None
        )
        self.stand = place.Stand(options.server_core, options.generator_core, closed_loop)
        self.progress = Progress(quiet=options.markdown)
        self.peers, self.weft = chosen_servers(options)

    def folder_for(self, kind: str) -> Path:
        folder = self.folder / kind
        folder.mkdir()
        return folder

    def restarts(self, full: int) -> int:
        return self.options.restarts or (2 if self.options.quick else full)

    def seconds(self, full: int) -> int:
        return self.options.seconds or (1 if self.options.quick else full)

    def result(self, kind: str, servers: list[subjects.Subject], settings: str, **found) -> dict:
        """The record of one kind, for JSON and for the reader."""
        versions = {subject.version_argv[0]: subject.version() for subject in servers}
        return {
            "kind": kind,
            "date": report.today(),
            "machine": report.machine(),
            "versions": {Path(name).name: version for name, version in versions.items()},
            "settings": settings,
            "interrupted": False,
            **found,
        }


def chosen_servers(
    options: argparse.Namespace,
) -> tuple[list[subjects.Subject], rows.WeftCommand | None]:
    """The peers named by --servers, and weft if it is among them and built."""
    names = options.servers.split(",")
    unknown = set(names) - {"weft", *PEERS}
    if unknown:
        raise place.Unfit(
            f"unknown servers {', '.join(sorted(unknown))}: there are weft, {', '.join(PEERS)}"
        )
    weft = None
    if "weft" in names:
        binary = Path(options.weft).resolve()
        if not os.access(binary, os.X_OK):
            raise place.Unfit(
                f"{options.weft} is not there: cargo build --release, or name peers "
                "only with --servers"
            )
        weft = rows.WeftCommand(str(binary), tuple(shlex.split(options.weft_args)))
    return [PEERS[name] for name in names if name != "weft"], weft


def measure_rows(command: Command) -> dict:
    """CPU per request: the main table."""
    wanted = [rows.Row.parse(name) for name in command.options.rows.split(",")]
    restarts, seconds = command.restarts(7), command.seconds(2)
    strace = not (command.options.no_strace or command.options.quick)
    bench = rows.Bench(
        wanted, command.peers, command.weft, command.stand, command.folder_for("rows"), seconds
    )
    interrupted = unless_interrupted(lambda: bench.run(restarts, strace, command.progress))
    summaries = rows.summarise(wanted, bench.samples, bench.failed_rows)
    result = command.result(
        "rows",
        bench.subjects(wanted[0]),
        f"{restarts} restarts of every server in turn, {seconds} s each, generator "
        f"{command.options.generator}, {bench.patience.words()}",
        summaries=summaries,
        samples=[sample.as_json() for sample in bench.samples],
        discarded=[sample.as_json() for sample in bench.patience.discarded],
        syscalls=bench.syscalls,
        errors=bench.errors,
        table=rows.rows_table(wanted, summaries, bench.syscalls),
    )
    return result | {"interrupted": interrupted}


def measure_idle(command: Command) -> dict:
    """Memory per idle connection."""
    peers = [peer for peer in command.peers if peer is not subjects.NGINX_COPY]
    connections = command.options.connections
    found, errors = idle.run(
        peers,
        command.weft,
        command.stand,
        command.folder_for("idle"),
        connections,
        command.progress,
    )
    servers = [*([command.weft.subject()] if command.weft else []), *peers]
    settings = f"{connections:,} connections, one request each, then held open"
    return command.result(
        "idle", servers, settings, found=found, errors=errors, table=idle.idle_table(found)
    )


def measure_cold(command: Command) -> dict:
    """A file set three times the memory."""
    servers = cold.subjects_for(command.weft)
    restarts, seconds = command.restarts(5), command.seconds(3)
    bench = cold.ColdBench(servers, command.stand, command.folder_for("cold"), seconds)
    interrupted = unless_interrupted(lambda: bench.run(restarts, command.progress))
    summaries = cold.summarise(bench.samples)
    result = command.result(
        "cold",
        servers,
        f"{restarts} restarts of every server in turn, {seconds} s each, "
        f"{bench.patience.words()}, "
        f"{cold.MEMORY_LIMIT_BYTES // 10**6} MB memory limit",
        summaries=summaries,
        samples=[sample.as_json() for sample in bench.samples],
        discarded=[sample.as_json() for sample in bench.patience.discarded],
        errors=bench.errors,
        table=cold.cold_table(summaries),
    )
    return result | {"interrupted": interrupted}


MEASURES: dict[str, Callable[[Command], dict]] = {
    "rows": measure_rows,
    "idle": measure_idle,
    "cold": measure_cold,
}


def unless_interrupted(work: Callable[[], None]) -> bool:
    """Run it; true when Ctrl-C ended it, so that what was found is still reported."""
    try:
        work()
    except KeyboardInterrupt:
        return True
    return False


def answer_promptly() -> None:
    """Run the harness ahead of what it measures, or its readings come late on busy cores.

    It sleeps nearly all the time; children do not inherit this.
    """
    policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    try:
        os.sched_setscheduler(0, policy, os.sched_param(1))
    except PermissionError:
        raise place.Unfit("no real-time priority here: run it outside a container") from None
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def run(options: argparse.Namespace) -> int:
    """Measure, print, write; the exit code."""
    kinds = tuple(MARKERS) if options.kind == "all" else (options.kind,)
    refuse_early(options, kinds)
    results: list[dict] = []
    with place.scratch(options.scratch) as folder:
        command = Command(options, folder)
        place.enter_own_network()
        answer_promptly()
        for kind in kinds:
            result = MEASURES[kind](command)
            command.progress.end()
            results.append(result)
            publish(options, results)
            if result["interrupted"]:
                return 130
    return 1 if any(result["errors"] for result in results) else 0


def refuse_early(options: argparse.Namespace, kinds: tuple[str, ...]) -> None:
    """Whatever would fail in the end fails now, before ten minutes of measuring."""
    compiler = ["cc"] if options.generator == "closed-loop" else []
    place.require(["nginx", "lighttpd", "wrk", "strace", *compiler])
    place.require_cores(options.server_core, options.generator_core)
    if "idle" in kinds:
        idle.check_file_limit(options.connections)
    if "cold" in kinds:
        place.memory_hierarchy()
        cold.check_disk(Path(options.scratch))
    if options.json and not options.json.resolve().parent.is_dir():
        raise place.Unfit(f"{options.json}: its folder is not there")
    if options.write:
        for kind in kinds:
            report.split_at_markers(options.write.read_text(), MARKERS[kind])


def publish(options: argparse.Namespace, results: list[dict]) -> None:
    """The newest table to stdout and into the document, all results so far to the JSON."""
    newest = results[-1]
    text = report.section(newest)
    print(f"{text}\n", flush=True)
    if options.json:
        report.write_json(options.json, results)
    if options.write and not newest["interrupted"]:
        report.write_between(options.write, MARKERS[newest["kind"]], text)


def main() -> int:
    try:
        return run(arguments(sys.argv[1:]))
    except place.Unfit as error:
        print(f"bench/serve.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
