#!/usr/bin/env python3
"""Compare two builds of weft by turns: did a change cost something?

  sudo python3 bench/builds.py OLD NEW                        every row of serve.py and cache.py
  sudo python3 bench/builds.py OLD NEW --rows 400-64,close-64 --cache-rows c64-d1

The medians of identical binaries differ by up to 16 % here, the least of nine short samples by
1.5 %: so each row gives the least CPU per request of each build, and their ratio. NEW drives the
cache's rows. Exit code 1 if a ratio is above --limit, 2 if this machine cannot do it.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import cache
import generator
import place
import report
import rows
import serve
from report import Progress
from subjects import Subject

CACHE_ROWS = "c64-d1,c1024-d1,c64-d16,c1024-d16,c64-d1-w50,c64-d1-v4096,c64-d1-g100"


class ServeBuilds(rows.Bench):
    """The rows of serve.py, with the two builds as the servers."""

    builds: dict[str, str]

    def subjects(self, row: rows.Row) -> list[Subject]:
        return [
            dataclasses.replace(rows.WeftCommand(binary).subject(row), name=name)
            for name, binary in self.builds.items()
        ]


class CacheBuilds(cache.Bench):
    """The rows of cache.py, likewise."""

    builds: dict[str, str]

    def argv(self, name: str, port: int, memory_mb: int) -> list[str]:
        _, *rest = super().argv("weft", port, memory_mb)
        return [self.builds[name], *rest]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    option = parser.add_argument
    option("old", type=Path)
    option("new", type=Path)
    option("--rows", default=rows.DEFAULT_ROWS, metavar="LIST", help="of serve.py; '' for none")
    option("--cache-rows", default=CACHE_ROWS, metavar="LIST", help="of cache.py; '' for none")
    option("--samples", type=int, default=9, help="of each build and row; default: %(default)s")
    option("--limit", type=float, default=1.02, help="the greatest ratio; default: %(default)s")
    return parser.parse_args()


def least_of_serve(options: argparse.Namespace, builds: dict[str, str], folder: Path) -> dict:
    """The least CPU per request, by row and build."""
    wanted = [rows.Row.parse(name) for name in options.rows.split(",") if name]
    if not wanted:
        return {}
    stand = place.Stand(0, 1, generator.build_closed_loop(folder))
    (folder / "serve").mkdir()
    bench = ServeBuilds(wanted, [], None, stand, folder / "serve", seconds=1)
    bench.builds = builds
    bench.run(options.samples, False, Progress())
    least: dict[tuple[str, str], float] = {}
    for sample in bench.samples:
        keep_least(least, (sample.row, sample.server), sample.cpu_us_per_request)
    return least


def least_of_cache(options: argparse.Namespace, builds: dict[str, str], folder: Path) -> dict:
    """The same for the cache."""
    wanted = [cache.Row.parse(name) for name in options.cache_rows.split(",") if name]
    bench = CacheBuilds(builds["new"], folder, seconds=0.8)
    bench.builds = builds
    progress = Progress()
    progress.expect(len(wanted) * len(builds) * options.samples)
    least: dict[tuple[str, str], float] = {}
    for round_ in range(options.samples):
        for row in wanted:
            for name in rows.rotated(list(builds), round_):
                progress.step(f"{row.name} · {name}")
                found = bench.attempt(row.name, lambda: bench.sample(name, row))
                if found:
                    keep_least(least, (f"cache {row.name}", name), found["cpu_us"])
    return least


def keep_least(least: dict, key: tuple[str, str], value: float) -> None:
    least[key] = min(value, least.get(key, value))


def main() -> int:
    options = arguments()
    builds = {name: str(getattr(options, name).resolve()) for name in ("old", "new")}
    try:
        with place.scratch("/var/tmp") as folder:
            place.enter_own_network()
            serve.answer_promptly()
            least = least_of_serve(options, builds, folder)
            least |= least_of_cache(options, builds, folder)
    except place.Unfit as error:
        print(f"bench/builds.py: {error}", file=sys.stderr)
        return 2
    lines, is_dearer = [], False
    for row in dict.fromkeys(row for row, _ in least):
        old, new = (least.get((row, name)) for name in builds)
        if old is None or new is None:
            lines.append([row, "–", "–", "**error**"])
            is_dearer = True
            continue
        ratio = new / old
        is_dearer |= ratio > options.limit
        mark = "**" if ratio > options.limit else ""
        lines.append([row, f"{old:.2f}", f"{new:.2f}", f"{mark}{ratio:.3f}{mark}"])
    print(report.table(["row", "old, least µs", "new, least µs", "new / old"], lines))
    return 1 if is_dearer else 0


if __name__ == "__main__":
    sys.exit(main())
