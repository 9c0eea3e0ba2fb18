"""What the reader sees: progress while it runs, tables at the end, JSON with every raw sample."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import sys
import time
from pathlib import Path

from place import Unfit


class Progress:
    """One live line on a terminal; in a log, a line for every tenth of the way."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.live = sys.stderr.isatty()
        self.total = self.done = 0
        self.started_s = time.monotonic()

    def expect(self, steps: int) -> None:
        self.total += steps

    def step(self, what: str) -> None:
        """Say what starts now and when all will be over."""
        line = f"[{self.done + 1:>3}/{self.total}] {what} · {self.eta()}"
        tenth = self.done % max(self.total // 10, 1) == 0
        self.done += 1
        if self.quiet:
            return
        if self.live:
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        elif tenth:
            print(line, file=sys.stderr, flush=True)

    def eta(self) -> str:
        if self.done == 0:
            return "ETA unknown"
        left_s = (time.monotonic() - self.started_s) / self.done * (self.total - self.done)
        return f"ETA {left_s // 60:.0f} min {left_s % 60:02.0f} s"

    def end(self) -> None:
        if self.live and not self.quiet:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def machine() -> dict:
    """The facts of this machine that a number needs beside it."""
    return {
        "cpu": first_match("/proc/cpuinfo", r"^model name\s*:\s*(.+)$"),
        "cpu_model": first_match("/proc/cpuinfo", r"^model\s*:\s*(.+)$"),
        "cores": os.cpu_count(),
        "memory_kib": int(first_match("/proc/meminfo", r"^MemTotal:\s+(\d+)") or 0),
        "kernel": platform.release(),
        "hypervisor": " hypervisor" in Path("/proc/cpuinfo").read_text(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
    }


def first_match(path: str, pattern: str) -> str | None:
    found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    return found.group(1).strip() if found else None


def receipt(result: dict) -> str:
    """When, where, with what: the line above a table."""
    facts = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    guest = " (virtual)" if facts["hypervisor"] else ""
    return (
        f"Measured {result['date']} on {facts['cpu']} model {facts['cpu_model']}{guest}, "
        f"{facts['cores']} cores, Linux {facts['kernel']}; {versions}; {result['settings']}."
    )


def today() -> str:
    return datetime.date.today().isoformat()


def digits(value: float) -> str:
    """Three significant digits, thousands set apart."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def cell(spread: dict | None) -> str:
    """Median (least–greatest)."""
    if spread is None:
        return "–"
    return f"{digits(spread['median'])} ({digits(spread['min'])}–{digits(spread['max'])})"


def ratio_cell(spread: dict | None) -> str:
    """The same for a ratio, its median in bold."""
    if spread is None:
        return "–"
    return f"**{spread['median']:.2f}** ({spread['min']:.2f}–{spread['max']:.2f})"


def table(head: list[str], lines: list[list[str]]) -> str:
    """A Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def section(result: dict) -> str:
    """Receipt, table and errors of one result, as Markdown."""
    errors = [f"- **ERROR** {error}" for error in result["errors"]]
    cut = "**Interrupted**: what was found until then." if result["interrupted"] else ""
    parts = [receipt(result), cut, result["table"], "\n".join(errors)]
    return "\n\n".join(part for part in parts if part)


def write_json(path: Path, results: list[dict]) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n")


def write_between(document: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- begin: NAME -->` and `<!-- end: NAME -->`."""
    head, tail = split_at_markers(document.read_text(), name)
    document.write_text(f"{head}\n{text}\n{tail}")


def split_at_markers(text: str, name: str) -> tuple[str, str]:
    """A document up to its begin marker and from its end marker on, both included."""
    found = re.fullmatch(
        rf"(.*<!-- begin: {name} -->)\n.*(<!-- end: {name} -->.*)", text, re.DOTALL
    )
    if found is None:
        raise Unfit(f"the document wants <!-- begin: {name} --> and <!-- end: {name} -->")
    return found.group(1), found.group(2)
