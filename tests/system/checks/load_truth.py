"""`weft load` against servers whose state is known independently: its report must match theirs."""

import contextlib
import json
import os
import random
import re
import resource
import signal
import statistics
import threading
import time

from generator import load
from memcache import cache
from peers import memcached, nginx
from world import ALL, StillWaiting, check, expect, expect_equal, expect_in_time, free_port, wait_for

PAUSE_S = 0.2
# Server and generator run before all other processes, so that the pause is measured and not other load. chrt(1)
FIRST = ("chrt", "--rr", "1")


class Pauses:
    """Stops a process for 200 ms in every second, and records the actual length of each pause."""

    def __init__(self, pid):
        self.pid, self.lasted_s, self.over = pid, [], threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.over.wait(1 - PAUSE_S):
            began = time.monotonic()
            os.kill(self.pid, signal.SIGSTOP)
            try:
                self.over.wait(PAUSE_S)
            finally:
                os.kill(self.pid, signal.SIGCONT)
            self.lasted_s.append(time.monotonic() - began)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


@check("uring", "thread", limit_s=60)
def a_stopped_server_shows_in_the_intended_p99_and_not_in_the_raw_one(world):
    # Of 400 requests in a second a fifth fall into the pause: the slowest hundredth of all waits for 0.95 of it. With two
    # connections, two of the 400 were in flight when it began: less than a hundredth, so the raw p99 does not show it.
    for io in ("uring", "epoll"):
        with world.server(wrap=FIRST) as server:
            with Pauses(server.pid) as pauses:
                report = load(world, "http", server.url("/style.css"), "--rate", 400, "-c", 2, "-d", "6s", "--io", io, wrap=FIRST)
        pause_ms = sorted(pauses.lasted_s)[len(pauses.lasted_s) // 2] * 1e3
        intended, raw = report.p99_ms("intended"), report.p99_ms("raw")
        world.note += f"{'; ' if world.note else ''}{io}: pause {pause_ms:.0f} ms, intended p99 {intended:.0f}, raw {raw:.1f}"
        report.expect_no_errors()
        expect_equal("replies", report["replies"], 2400)
        expect_in_time(intended > 0.75 * pause_ms, f"a pause of {pause_ms:.0f} ms shows as an intended p99 of {intended:.1f} ms")
        expect_in_time(intended < 2 * max(pauses.lasted_s) * 1e3, f"the intended p99 is {intended:.1f} ms")
        expect_in_time(raw < pause_ms / 4, f"the raw p99 is {raw:.1f} ms, so the pause was not only in the other")


@check(limit_s=60)
def a_pausing_server_looks_well_to_a_closed_loop(world):
    """The documentation's statement on the two latencies: a closed loop of two hardly notices the same pauses."""
    with world.server(wrap=FIRST) as server:
        with Pauses(server.pid):
            report = load(world, "http", server.url("/style.css"), "-c", 2, "-d", "4s", wrap=FIRST)
    expect_in_time(report.p99_ms("raw") < 50, f"p99 {report.p99_ms('raw')} ms")
    expect_in_time(report["latency_us"]["raw"]["max"] > 100e3, "one request per connection and pause is slow")


# ---- the server's statistics

@check(*ALL, limit_s=60)
def the_report_is_what_weft_serve_counted(world):
    with world.server() as server:
        before = server.metrics()
        report = load(world, "http", server.url("/style.css"), "--rate", 2000, "-c", 64, "-d", "3s", "--idle", 500,
                      "--verify")
        report.expect_no_errors()
        server.has_counted("weft_http_replies_total", before.get("weft_http_replies_total", 0) + 6000)
        after = server.metrics()
        expect_equal("intended", report["intended"], 6000)
        replies = after["weft_http_replies_total"] - before.get("weft_http_replies_total", 0)
        expect_equal("replies by the report", report["replies"], 6000)
        expect_equal("replies by the server", replies, 6000)
        # One connection is the probe's.
        opened = after["weft_connections_accepted_total"] - before.get("weft_connections_accepted_total", 0)
        expect_equal("connections by the server", opened, report["opened"] + 1)
        expect_equal("idle connections", report["idle_open"], 500)


@check(limit_s=90)
def the_report_is_what_nginx_logged(world):
    with nginx(world) as (url, log):
        report = load(world, "http", f"{url}/a.txt", f"{url}/none", "--rate", 1000, "--arrivals", "poisson", "--close",
                      "-c", 200, "-d", "3s", "-H", "User-Agent: measured", "--expect", "200,404")
        report.expect_no_errors()
        lines = wait_for("nginx logs all", lambda: logged(log, report["replies"]))
        by_status = {status: sum(line.endswith(f" {status}") for line in lines) for status in ("200", "404")}
        expect_equal("replies by status", report["replies_by_status"], {
            "1xx": 0, "2xx": by_status["200"], "3xx": 0, "4xx": by_status["404"], "5xx": 0})
        expect_equal("requests by path", {line.split()[0] for line in lines}, {"/a.txt", "/none"})


def logged(log, count):
    lines = [line for line in log.read_text().splitlines() if "measured" in line] if log.exists() else []
    expect(len(lines) <= count, f"nginx logged {len(lines)} requests, and the report has {count}")
    return lines if len(lines) == count else None


CACHE_LOADS = {
    "etc": ["--key-size", "etc-key", "--value-size", "etc-value", "--popularity", "zipf:0.99", "--arrivals", "poisson"],
    "hot key": ["--popularity", "hot:0.2", "--sets", 10],
    "multi-get": ["--multi-get", 16, "--depth", 4],
    "meta": ["--protocol", "meta", "--sets", 50],
    "misses": ["--keys", "20k", "--key-prefix", "none-", "--sets", 0],
}


@check(limit_s=120)
def the_report_is_what_memcached_counted(world):
    with memcached(world) as server:
        for name, words in CACHE_LOADS.items():
            compare(world, server, name, words)


@check(*ALL, limit_s=120)
def the_report_is_what_weft_cache_counted(world):
    with cache(world, "-c", 4096, "-m", 512) as server:
        for name, words in CACHE_LOADS.items():
            compare(world, server, name, words)


def compare(world, server, name, words):
    populate = [] if name == "misses" else ["--populate"]
    # A run without hits has nothing to compare, and fails with --verify.
    verify = [] if name == "misses" else ["--verify"]
    common = ["--keys", "5k", "--rate", "4k", "-c", 100, "-d", "1s", *verify]
    if "--keys" in words:
        common = common[2:]
    before = server.stats()
    report = load(world, "cache", f"127.0.0.1:{server.port}", *common, *words, *populate)
    report.expect_no_errors(f"{name}: errors")
    classes = {kind: figures["replies"] for kind, figures in report["classes"].items()}
    keys = 16 if name == "multi-get" else 1
    stored = 5000 if populate else 0

    def counted_since():
        after = server.stats()
        return {key: int(after[key]) - int(before[key]) for key in ("cmd_get", "cmd_set", "get_hits", "get_misses", "total_connections")}

    # Counts of closed connections are added once the server notices the close.
    wanted = (classes["get"] * keys, classes["set"] + stored)
    with contextlib.suppress(StillWaiting):
        wait_for("all are counted", lambda: (count := counted_since()) and (count["cmd_get"], count["cmd_set"]) == wanted)
    counted = counted_since()
    expect_equal(f"{name}: commands by the report", sum(classes.values()), report["intended"])
    expect_equal(f"{name}: keys asked for", counted["cmd_get"], classes["get"] * keys)
    expect_equal(f"{name}: sets", counted["cmd_set"], classes["set"] + stored)
    expect_equal(f"{name}: hits", counted["get_hits"], report["hits"])
    expect_equal(f"{name}: misses", counted["get_misses"], report["misses"])


# ---- other generators

GZIP = "gzip on; gzip_comp_level 6; gzip_types text/plain;"
PAIRS_MIN, PAIRS_MAX, APART_MAX = 3, 9, 0.05
# Tolerance on a busy machine.
APART_BUSY_MAX = 0.25


@check(limit_s=120)
def a_closed_loop_finds_the_rate_that_wrk_finds(world):
    """Compared where the server is the bottleneck: nginx compresses 16 KB per reply, which takes longer than either generator needs."""
    folder = world.folder("text", a__txt=random.Random(1).randbytes(8192).hex().encode())
    with nginx(world, folder, GZIP) as (url, _):
        ratios, reports = [], []
        while len(ratios) < PAIRS_MAX:
            # wrk and weft alternate, so that a drift of the machine affects both.
            out = world.output_of("wrk", "-t1", "-c64", "-d2s", "-H", "Accept-Encoding: gzip", f"{url}/a.txt", seconds=20).decode()
            report = load(world, "http", f"{url}/a.txt", "-c", 64, "-d", "2s", "-H", "Accept-Encoding: gzip")
            report.expect_no_errors()
            ratios.append(report["achieved_rate_per_s"] / float(re.search(r"Requests/sec:\s+([\d.]+)", out)[1]))
            reports.append(report)
            apart = abs(statistics.median(ratios) - 1)
            if len(ratios) >= PAIRS_MIN and apart <= APART_MAX:
                break
        world.note = f"weft load / wrk: {statistics.median(ratios):.3f} of {len(ratios)} pairs"
        disturbed = [report for report in reports if report["verdict"]["row"] != "server_limited" or report["verdict"]["warnings"]]
        # If the machine is busy, the reports say so.
        if disturbed:
            world.note += f", {len(disturbed)} reports say that they were disturbed"
        expect(apart <= APART_BUSY_MAX or disturbed, f"{ratios}, and no report says that it was disturbed")


# ---- many connections

@check("uring", "epoll", limit_s=120)
def six_thousand_idle_connections_beside_sixty_four(world):
    with world.server("--max-connections", 8000) as server:
        process_report = []

        def measure():
            process_report.append(load(world, "http", server.url("/style.css"), "--idle", 6000, "--idle-byte-every", "20s",
                                       "-c", 64, "--rate", "2k", "-d", "4s", "--connect-rate", "6k", seconds=60))

        thread = threading.Thread(target=measure)
        thread.start()
        wait_for("all are in", lambda: server.metric("weft_connections_active") == 6064, 30)
        thread.join(60)
        expect(process_report, "weft load failed")
        report = process_report[0]
        report.expect_no_errors()
        expect_equal("idle", (report["idle_open"], report["idle_closed"]), (6000, 0))
        expect_equal("replies", report["replies"], 8000)
        # Some connections wrote a byte, at most one each in this time.
        expect(0 < report["sent_bytes"] % 8000 < 6000, f"{report['sent_bytes']} bytes sent")


AGENTS, CONNECTIONS, DESCRIPTORS = 4, 15_360, 20_000


@check("uring", "epoll", limit_s=150)
def four_agents_hold_fifteen_thousand_connections(world):
    """The thesis's cache load from one machine: each process has 20,000 descriptors."""
    limit = (DESCRIPTORS, DESCRIPTORS)
    with cache(world, "-c", CONNECTIONS + 64, "-m", 256, nofile=DESCRIPTORS) as server:
        before = server.stats()
        rendezvous, file = f"127.0.0.1:{free_port()}", world.scratch / "merged.json"
        words = ["load", "cache", f"127.0.0.1:{server.port}", "-c", CONNECTIONS, "--rate", "8k", "-d", "4s", "--sets", 3,
                 "--connect-rate", "5k", "--agents", AGENTS, "--rendezvous", rendezvous]
        agents = [world.start(world.binary, *words, "--rank", rank, "--json", file if not rank else world.scratch / f"{rank}.json",
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit)) for rank in range(AGENTS)]
        most = 0
        while any(agent.poll() is None for agent in agents):
            most = max(most, int(server.stats()["curr_connections"]))
            time.sleep(0.1)
        for rank, agent in enumerate(agents):
            _, err = agent.communicate(timeout=60)
            expect_equal(f"agent {rank}'s exit status", (agent.returncode, err.decode()), (0, ""))
        after = server.stats()
        report = json.loads(file.read_text())
        expect_equal("errors", report["errors"]["total"], 0)
        expect_equal("connections", report["opened"], CONNECTIONS)
        expect_in_time(most >= CONNECTIONS, f"the server had at most {most} of them at a time")
        expect_equal("generator threads", report["generator"]["threads"], AGENTS)
        counted = {key: int(after[key]) - int(before[key]) for key in ("cmd_get", "cmd_set")}
        expect_equal("replies", report["replies"], 32_000)
        expect_equal("gets of all agents", report["classes"]["get"]["replies"], counted["cmd_get"])
        expect_equal("sets of all agents", report["classes"]["set"]["replies"], counted["cmd_set"])
        others = [path for rank in range(1, AGENTS) if (path := world.scratch / f"{rank}.json").exists()]
        expect_equal("files of agents that do not lead", others, [])
        world.note = f"p99 {report['latency_us']['intended']['p99'] / 1e3:.1f} ms"


@check(limit_s=60)
def mpirun_starts_agents_that_are_one(world):
    with world.server() as server:
        file = world.scratch / "merged.json"
        world.output_of("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", 3, world.binary, "load", "http",
                        server.url("/style.css"), "-c", 30, "--rate", 600, "-d", "2s", "--json", file, seconds=40)
        report = json.loads(file.read_text())
        expect_equal("replies", report["replies"], 1200)
        expect_equal("replies by the server", server.has_counted("weft_http_replies_total", 1200), 1200)
        expect_equal("generator threads", report["generator"]["threads"], 3)
