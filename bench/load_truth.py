#!/usr/bin/env python3
"""Compare what `weft load` reports with what wrk and httperf report of the same server.

  sudo python3 bench/load_truth.py                the tables of docs/performance.md, 4 minutes
  sudo python3 bench/load_truth.py --rounds 1 --seconds 1     the same, coarse
  sudo python3 bench/load_truth.py --write docs/performance.md

Two generators only agree where the server is the limit, so the closed loop asks nginx for 16 KB that
it compresses for every request. The open loop asks at rates that leave all of them time. The tools take
turns against the same running server, which has one core; the generators have the other. It needs root,
two cores that nothing else uses, and the Debian packages nginx-light, wrk and httperf. Exit codes: 0
measured, 1 some sample was an error, 2 this machine or command line cannot do it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import place
import report
import subjects
from load import GENERATOR_CORE, SERVER_CORE, SampleFailed

NGINX_GZIP = subjects.nginx("nginx gzip", "gzip on; gzip_comp_level 1; gzip_types text/html;")
PAGE = "page.html"
GZIP = "Accept-Encoding: gzip"


def closed(options: argparse.Namespace, site: Path, scratch: Path) -> list[list[str]]:
    """wrk and weft by turns as fast as they go."""
    lines = []
    log = scratch / "generator.log"
    for connections in (1, 64, 1000):
        theirs, ours = [], []
        with subjects.running(NGINX_GZIP, site, scratch, SERVER_CORE) as server:
            url = f"http://127.0.0.1:{server.port}/{PAGE}"
            for round_ in range(options.rounds):
                print(f"closed loop, {connections}: round {round_ + 1}", file=sys.stderr)
                argv = ["wrk", "-t1", f"-c{connections}", f"-d{options.seconds}s", "--timeout", "10s"]
                out = generate([*argv, "--latency", "-H", GZIP, url], options.seconds, log)
                theirs.append(wrk_figures(out))
                argv = [options.weft, "load", "http", url, "-c", str(connections), "-H", GZIP]
                ours.append(weft_figures(weft_facts(argv, options.seconds, log)))
        cells = [f"{connections:,} connection{'s' if connections > 1 else ''}"]
        for key, unit in (("rate", "/s"), ("mean_ms", " ms"), ("p50_ms", " ms"), ("p99_ms", " ms")):
            mine = statistics.median(one[key] for one in ours)
            others = statistics.median(one[key] for one in theirs)
            # Neighbours in time: a drift of the machine falls on both.
            ratios = [one[key] / other[key] for one, other in zip(ours, theirs, strict=True)]
            ratio = f"**{statistics.median(ratios):.3f}** ({min(ratios):.2f}–{max(ratios):.2f})"
            cells.append(f"{mine:,.4g}{unit} / {others:,.4g}{unit}: {ratio}")
        lines.append(cells)
    return lines


def generate(argv: list[str], seconds: int, log: Path) -> str:
    """What a generator says at its end."""
    process = place.launch(argv, GENERATOR_CORE, log)
    try:
        out, _ = process.communicate(timeout=seconds + 30)
    except subprocess.TimeoutExpired:
        raise SampleFailed(f"{argv[0]} did not end") from None
    finally:
        place.stop(process)
    if process.returncode != 0:
        raise SampleFailed(f"{' '.join(argv)}: {subjects.tail(log)}")
    return out


def weft_facts(argv: list[str], seconds: int, log: Path) -> dict:
    """What `weft load` says in JSON."""
    facts = json.loads(generate([*argv, "-d", f"{seconds}s", "--json", "-"], seconds, log))
    if facts["errors"]["total"]:
        raise SampleFailed(f"{' '.join(argv)}: {facts['errors']}")
    return facts


def wrk_figures(out: str) -> dict:
    rate = re.search(r"Requests/sec:\s+([\d.]+)", out)
    mean = re.search(r"Latency\s+([\d.]+)(us|ms|s)", out)
    p50, p99 = (re.search(rf"{percent}%\s+([\d.]+)(us|ms|s)", out) for percent in (50, 99))
    if not (rate and mean and p50 and p99) or "Socket errors" in out:
        raise SampleFailed(f"wrk said: {out}")
    return {"rate": float(rate[1]), "mean_ms": in_ms(mean), "p50_ms": in_ms(p50), "p99_ms": in_ms(p99)}


def in_ms(found: re.Match) -> float:
    return float(found[1]) * {"us": 1e-3, "ms": 1, "s": 1e3}[found[2]]


def weft_figures(facts: dict) -> dict:
    raw = facts["latency_us"]["raw"]
    return {
        "rate": facts["achieved_rate_per_s"],
        "mean_ms": raw["mean"] / 1e3,
        "p50_ms": raw["p50"] / 1e3,
        "p99_ms": raw["p99"] / 1e3,
    }


def opened(options: argparse.Namespace, site: Path, scratch: Path) -> list[list[str]]:
    """httperf and weft by turns at a low rate, a connection for every request."""
    lines = []
    log = scratch / "generator.log"
    servers = [
        ("nginx, compressing", NGINX_GZIP, []),
        ("weft serve", subjects.weft(options.weft, ()), []),
    ]
    for name, subject, _ in servers:
        for rate in (100, 1000):
            theirs, ours = [], []
            with subjects.running(subject, site, scratch, SERVER_CORE) as server:
                for round_ in range(options.rounds):
                    print(f"open loop, {name}, {rate}/s: round {round_ + 1}", file=sys.stderr)
                    argv = ["httperf", "--server", "127.0.0.1", "--port", str(server.port)]
                    argv += ["--uri", f"/{PAGE}", "--rate", str(rate), "--timeout", "10"]
                    argv += ["--num-conns", str(rate * options.seconds), "--num-calls", "1"]
                    argv += ["--add-header", GZIP + "\\n"]
                    out = generate(argv, options.seconds, log)
                    theirs.append(httperf_figures(out))
                    url = f"http://127.0.0.1:{server.port}/{PAGE}"
                    argv = [options.weft, "load", "http", url, "--rate", str(rate), "--close", "-H", GZIP]
                    facts = weft_facts(argv, options.seconds, log)
                    ours.append(
                        {
                            "rate": facts["achieved_rate_per_s"],
                            "reply_ms": facts["latency_us"]["raw"]["mean"] / 1e3,
                            "connection_ms": facts["latency_us"]["intended"]["mean"] / 1e3,
                        }
                    )
            cells = [f"{name}, {rate:,}/s"]
            for key, unit in (("rate", "/s"), ("reply_ms", " ms"), ("connection_ms", " ms")):
                mine = statistics.median(one[key] for one in ours)
                others = statistics.median(one[key] for one in theirs)
                cells.append(f"{mine:,.4g}{unit} / {others:,.4g}{unit}")
            lines.append(cells)
    return lines


def httperf_figures(out: str) -> dict:
    rate = re.search(r"^Request rate: ([\d.]+) req/s", out, re.M)
    reply = re.search(r"^Reply time \[ms\]: response ([\d.]+) transfer ([\d.]+)", out, re.M)
    whole = re.search(r"^Connection time \[ms\]: min [\d.]+ avg ([\d.]+)", out, re.M)
    if not (rate and reply and whole) or not re.search(r"^Errors: total 0 ", out, re.M):
        raise SampleFailed(f"httperf said: {out}")
    return {
        "rate": float(rate[1]),
        "reply_ms": float(reply[1]) + float(reply[2]),
        "connection_ms": float(whole[1]),
    }


def measure(options: argparse.Namespace) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        site, scratch = Path(folder) / "site", Path(folder) / "scratch"
        site.mkdir()
        scratch.mkdir()
        chance = random.Random(16)
        words = [chance.choice("warp weft loom reed heddle shuttle selvedge".split()) for _ in range(3000)]
        (site / PAGE).write_text(" ".join(words)[: 16 * 1024])
        parts = []
        if "closed" in options.parts:
            heads = ["closed loop: weft load / wrk", "rate", "mean", "p50", "p99"]
            parts.append(report.table(heads, closed(options, site, scratch)))
        if "open" in options.parts:
            heads = [
                "open loop: weft load / httperf",
                "replies",
                "raw mean / reply time",
                "intended mean / connection time",
            ]
            parts.append(report.table(heads, opened(options, site, scratch)))
        return parts


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench/load_truth.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--weft", default="target/release/weft", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--parts", default="closed,open", help="closed, open, or both with a comma")
    parser.add_argument("--write", type=Path, metavar="FILE", help="between the markers `load-truth`")
    options = parser.parse_args()
    options.weft = os.path.abspath(options.weft)
    try:
        place.require(["nginx", "wrk"])
        place.require_cores(SERVER_CORE, GENERATOR_CORE)
        place.enter_own_network()
        tables = measure(options)
    except place.Unfit as error:
        print(f"bench/load_truth.py: {error}", file=sys.stderr)
        return 2
    except (SampleFailed, subjects.ServerFailed) as error:
        print(f"bench/load_truth.py: {error}", file=sys.stderr)
        return 1
    text = "\n\n".join(tables)
    print(text)
    if options.write:
        report.write_between(options.write, "load-truth", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
