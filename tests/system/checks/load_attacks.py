"""`weft load` against all kinds of faults: every run ends by its deadline, counts errors in the right class, and exits with the
matching status."""

import functools
import os
import pathlib
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import manners
from generator import Badly, finished, load, report_file, start_load
from lan import SERVER, Lan
from memcache import cache
from world import ALL, Failure, StillWaiting, check, expect, expect_equal, expect_in_time, free_port, limit_threads, wait_for

# Time beyond a run's duration and one time-out: start, output, a busy machine.
GRACE_S = 10
# More than a generator with a few connections needs; buffering an endless reply would exceed it.
MEMORY_MAX_KB = 200_000
# Number of concurrent generators; they wait most of the time.
AT_ONCE = 3


def try_all(cases):
    """Runs all cases, which are pairs of name and function, a few at a time, because they mostly wait. A failed case does not hide
    others."""

    def failure_of(name, run):
        try:
            run()
        except Failure as failure:
            return type(failure)(f"{name}: {failure}")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(filter(None, pool.map(failure_of, *zip(*cases))))
    said = "\n".join(map(str, found))
    expect_in_time(not found or not all(isinstance(failure, StillWaiting) for failure in found), said)
    expect(not found, said)


@check(limit_s=240)
def every_bad_manner_of_a_server_has_its_class(world):
    def run(manner, classes, words, io):
        with Badly(manner) as server:
            report = load(world, "http", server.url(), *words, "-c", 4, "-d", "600ms", "--timeout", "400ms", "--io", io, status=1,
                          seconds=1 + GRACE_S)
        has_its_class(report, classes)
        if words:
            known = report["replies"] + sum(report.errors.values())
            expect(known >= report["intended"], f"{known} of {report['intended']} requests are accounted for")

    try_all([(f"{manner.__name__}, {'open' if words else 'closed'} loop, {io}", functools.partial(run, manner, classes, words, io))
             for manner, classes in manners.HTTP.items() for words in (["--rate", 40], []) for io in ("uring", "epoll")])


def has_its_class(report, classes):
    # On a busy machine a part of the replies takes more than 400 ms.
    seen = set(report.errors)
    expect_in_time(seen & classes or seen != {"client_timeout"}, f"{report.errors}, not {classes}")
    expect(seen & classes and seen <= classes | {"client_timeout"}, f"{report.errors}, not {classes}")


@check(limit_s=240)
def every_bad_manner_of_a_cache_has_its_class(world):
    def run(manner, classes, words, more):
        with Badly(manner) as server:
            report = load(world, "cache", f"127.0.0.1:{server.port}", "--sets", 0, *words, *more, "-c", 4, "-d", "600ms", "--timeout",
                          "400ms", status=1, seconds=1 + GRACE_S)
        # A wrong value is detected before its reply is complete.
        has_its_class(report, classes)
        expect(report["verdict"]["row"] in ("no_replies", "wrong_replies"), f"{report['verdict']}")

    try_all([(f"{manner.__name__}, {'open' if words else 'closed'} loop, {more}", functools.partial(run, manner, classes, words, more))
             for manner, classes in manners.CACHE.items() for words in (["--rate", 40], [])
             for more in (["--io", "uring"], ["--io", "epoll", "--verify"], ["--multi-get", 3, "--verify"])])


@check(limit_s=60)
def the_answers_to_a_set_are_compared_too(world):
    for manner in (manners.always_the_same_key, manners.out_of_memory, manners.binary_protocol):
        with Badly(manner) as server:
            where = f"127.0.0.1:{server.port}"
            report = load(world, "cache", where, "--sets", 100, "-c", 2, "-d", "300ms", "--timeout", "300ms", status=1)
            report.expect_no_time_outs()
            expect(set(report.errors) <= {"bad_reply", "unexpected_status"} and report["replies"] == 0, f"{report.errors}")
            report = load(world, "cache", where, "--populate", "-c", 2, "-d", "300ms", status=1)
            expect("cannot store the keys before the run: the server answered '" in report.said, report.said)
            expect(all(character.isprintable() for character in report.said), f"{report.said!r}")


@check(limit_s=150)
def over_a_netstack_bad_manners_have_the_same_classes(world):
    lan = Lan(world, "tap")
    netstack = "--network", "netstack", "--device", lan.device, "--address", "10.9.0.2/24"
    program = pathlib.Path(manners.__file__)
    for manner, classes in manners.HTTP.items():
        server = world.start(*lan.server, sys.executable, program, SERVER, manner.__name__)
        port = int(server.stdout.readline())
        report = load(world, "http", f"http://{SERVER}:{port}/", "--rate", 40, "-c", 4, "-d", "500ms", "--timeout", "400ms", *netstack,
                      wrap=lan.clients, status=1)
        server.kill()
        try:
            has_its_class(report, classes)
        except Failure as failure:
            raise type(failure)(f"{manner.__name__}: {failure}") from failure


@check(limit_s=60)
def what_comes_before_the_request_is_no_reply(world):
    for greet in (manners.greeting, manners.reply_before_the_request):
        for words in (["--rate", 40], []):
            with Badly(manners.silence, greet) as server:
                report = load(world, "http", server.url(), *words, "-c", 8, "-d", "600ms", "--timeout", "300ms", status=1)
            expect(report.errors.get("bad_reply", 0) + report.errors.get("client_timeout", 0) > 0, f"{greet.__name__}: {report.errors}")
            expect(report["verdict"]["row"] in ("no_replies", "wrong_replies", "failing"), f"{report['verdict']}")


@check(limit_s=60)
def a_server_that_reads_nothing_is_a_time_out(world):
    body = world.scratch / "body"
    body.write_bytes(b"x" * 20_000_000)
    for words in (["--rate", 10], []):
        for io in ("uring", "epoll"):
            with Badly(manners.silence, manners.deaf) as server:
                report = load(world, "http", server.url(), "-m", "POST", "--body-file", body, *words, "-c", 2, "-d", "600ms",
                              "--timeout", "400ms", "--io", io, status=1)
                expect_equal("errors", set(report.errors), {"client_timeout"})
    with Badly(manners.silence, manners.deaf) as server:
        report = load(world, "cache", f"127.0.0.1:{server.port}", "--populate", "--value-size", "50000000", "--timeout", "1s", status=1)
        expect("the server did not take a set within 1s" in report.said, report.said)


@check(limit_s=60)
def storing_the_keys_can_be_stopped(world):
    """Seen: Ctrl-C did not end --populate on a server that answered one byte per second."""
    def slowly(connection):
        for byte in b"STORED\r\n" * 1000:
            connection.sendall(bytes([byte]))
            time.sleep(1)

    for manner in (slowly, manners.silence):
        with Badly(manner) as server:
            process = start_load(world, "cache", f"127.0.0.1:{server.port}", "--populate", "-d", "1s", "--timeout", "40s")
            wait_for("it is connected", lambda: server.connections[1:])
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            # Well before the time-out of the run.
            process.communicate(timeout=10)
            expect_equal("exit status", process.returncode, 130)
    with Badly(manners.silence) as server:
        report = load(world, "cache", f"127.0.0.1:{server.port}", "--populate", "--timeout", "500ms", status=1)
        expect("the server did not answer a set within 500ms" in report.said, report.said)
    with Badly(manners.nothing_but_the_end) as server:
        report = load(world, "cache", f"127.0.0.1:{server.port}", "--populate", status=1)
        expect("cannot store the keys before the run" in report.said, report.said)


@check(limit_s=60)
def no_reply_is_long_enough_to_fill_the_memory(world):
    for words, manner in (
            (["http"], manners.head_without_end), (["http"], manners.chunk_extension_without_end),
            (["http", "--verify"], manners.body_without_end),
            (["cache", "--verify"], manners.value_of_a_gigabyte), (["cache"], manners.values_without_end),
            (["cache", "--multi-get", 10, "--verify"], manners.value_of_a_gigabyte)):
        with Badly(manner) as server:
            where = server.url() if words[0] == "http" else f"127.0.0.1:{server.port}"
            process = start_load(world, words[0], where, *words[1:], "-c", 8, "-d", "2s", "--timeout", "1s")
            peak_kb = 0
            while process.poll() is None:
                peak_kb = max(peak_kb, resident_kb(process.pid))
                time.sleep(0.02)
            process.communicate()
            expect_equal(f"{manner.__name__}: exit status", process.returncode, 1)
            expect(0 < peak_kb < MEMORY_MAX_KB, f"{manner.__name__}: {peak_kb} KB")


def resident_kb(pid):
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


@check(limit_s=60)
def a_server_that_is_killed_in_the_middle(world):
    for io in ("uring", "epoll"):
        for words in (["--rate", 500], []):
            server = world.server()
            process, file = running(world, "http", server.url("/style.css"), *words, "-c", 8, "-d", "3s",
                                    "--timeout", "1s", "--io", io)
            wait_for("it is under load", lambda: server.metric("weft_http_replies_total") > 50)
            kill_under_load(server, process)
            # Its replies were right; more than one request in a hundred had none.
            report = finished(process, file, 1, 3 + 1 + GRACE_S)
            expect(report["replies"] > 0, "replies from before are kept")
            expect(report.errors.get("refused", 0) > 0, f"{io} {words}: {report.errors}")
            # In an open loop, requests without a connection give up after their time-out.
            expect(set(report.errors) <= {"refused", "reset", "short_reply", "client_timeout"}, f"{report.errors}")


def kill_under_load(server, load):
    """Kills the server during a run of a few seconds. A machine that stands still may be too late for that."""
    server.process.kill()
    server.process.wait()
    time.sleep(0.2)
    expect_in_time(load.poll() is None, "the run ended before the server was killed")


def running(world, *words, **options):
    file = report_file(world)
    return start_load(world, *words, "--json", file, **options), file


@check(limit_s=30)
def a_cache_that_is_killed_in_the_middle(world):
    server = cache(world)
    process, file = running(world, "cache", f"127.0.0.1:{server.port}", "--populate", "--keys", "1k", "--rate", "1k",
                            "-d", "2s", "--timeout", "1s", "-c", 8)
    wait_for("it is under load", lambda: int(server.stats()["cmd_get"]) > 100)
    kill_under_load(server, process)
    report = finished(process, file, 1, 20)
    expect(report["replies"] > 0 and report.errors.get("refused", 0) > 0, f"{report.errors}")


@check(limit_s=60)
def nobody_there_and_nobody_who_answers(world):
    port = free_port()
    report = load(world, "http", f"http://[::1]:{port}/", "-d", "1s", status=1)
    expect("cannot connect to [::1]" in report.said, report.said)
    report = load(world, "http", "http://no-such-host.invalid/", "-d", "1s", status=2, seconds=40)
    expect("no-such-host.invalid" in report.said, report.said)
    # A listener with a full queue drops SYNs: only the time-out ends the run.
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        load(world, "http", f"http://127.0.0.1:{full.getsockname()[1]}/", "-d", "1s", "--connect-timeout", "500ms", status=1,
             seconds=1 + GRACE_S)
        for filler in fillers:
            filler.close()


@check(*ALL, limit_s=30)
def ipv6_is_spoken(world):
    with world.server(host="::1") as server:
        report = load(world, "http", server.url("/style.css"), "--rate", 200, "-d", "1s")
        report.expect_no_errors()
        expect_equal("replies", report["replies"], 200)


@check()
def too_few_threads_end_the_run_at_once(world):
    """Seen: with a limit on threads below --threads the run never ended, not even by SIGTERM. Cause: started threads waited for those that
    could not start. Cure: they learn that these will not come."""
    binary = os.open(world.binary, os.O_RDONLY)
    world.at_end(lambda: os.close(binary))
    with world.server() as server:
        for threads in (1, 2, 4):
            command = [f"/proc/self/fd/{binary}", "load", "http", server.url("/style.css"), "-d", "1s", "-t", 4]
            process = world.start(*command, pass_fds=[binary], preexec_fn=limit_threads(threads))
            _, said = process.communicate(timeout=10)
            expect(process.returncode == 1 and b"ulimit -u" in said, f"with {threads} threads: {process.returncode}, {said!r}")


@check(limit_s=60)
def ports_that_run_out_are_counted(world):
    # A network of its own with twenty ports: a port is in TIME_WAIT once its client has closed first, which it does after the
    # second request. With --close the server would close first, with its reply.
    script = world.scratch / "few-ports"
    script.write_text(f"""#!/bin/sh
ip link set lo up
echo '40000 40019' > /proc/sys/net/ipv4/ip_local_port_range
echo 0 > /proc/sys/net/ipv4/tcp_tw_reuse
"{world.binary}" serve "{world.site}" --listen 127.0.0.1:8080 --color never & server=$!
for attempt in $(seq 400); do
    curl -s -o /dev/null http://127.0.0.1:8080/ && break
    sleep 0.05
done
"$@"; status=$?
kill $server; wait $server
exit $status
""")
    script.chmod(0o755)
    for io in ("uring", "epoll"):
        file = world.scratch / f"ports-{io}.json"
        process = world.start("unshare", "--net", script, world.binary, "load", "http", "http://127.0.0.1:8080/style.css",
                              "--rate", 1000, "--requests-per-connection", 2, "-c", 16, "-d", "1s", "--connect-timeout", "2s", "--io", io,
                              "--json", file)
        report = finished(process, file, 1, 20)
        expect(report.errors.get("address_unavailable", 0) > 0, f"{report.errors}")
        expect("ports ran out" in report["generator_verdict"], report["generator_verdict"])
        expect_equal("accounted for", report["replies"] + sum(report.errors.values()), 1000)


@check(limit_s=60)
def what_cannot_be_written_is_said(world):
    with world.server() as server:
        common = ["load", "http", server.url("/style.css"), "-c", 2, "-d", "300ms"]
        # A full disk is tested in disks.py.
        for flag in ("--json", "--csv", "--hgrm", "--interval-log"):
            process = world.start(world.binary, *common, flag, world.scratch)
            _, err = process.communicate(timeout=20)
            expect_equal(f"{flag} to a folder", process.returncode, 2)
        with open("/dev/full", "wb") as full:
            process = world.start(world.binary, *common, stdout=full)
            _, err = process.communicate(timeout=20)
            expect_equal("a full disk as standard output", (process.returncode, b"No space" in err), (1, True))


@check(limit_s=60)
def signals_end_a_run_with_what_was_seen(world):
    with world.server() as server:
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            for words in (["--rate", 100], [], ["--warm-up", "50s"], ["--idle", 50]):
                process, file = running(world, "http", server.url("/style.css"), *words, "-d", "50s", "-c", 4)
                asked = server.metric("weft_http_replies_total")
                wait_for("it runs", lambda: server.metric("weft_http_replies_total") > asked + 10)
                process.send_signal(number)
                report = finished(process, file, status, 5)
                expect_equal("stopped early", report["stopped_early"], True)
                if "--warm-up" not in words:
                    expect(report["replies"] > 0, f"{words}: no reply is in the report")
        # The same while connections do not open.
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(1)
            process = start_load(world, "idle", f"127.0.0.1:{full.getsockname()[1]}", "-c", 50, "-d", "50s",
                                 "--connect-timeout", "50s")
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=5)
            expect_equal("exit status", process.returncode, 130)


HTTP = ["http", "http://127.0.0.1:9/"]
CACHE = ["cache", "127.0.0.1:9"]
WRONG = [
    [*HTTP, "--rate", "0"], [*HTTP, "--rate", "-5"], [*HTTP, "--rate", "1e999"], [*HTTP, "--rate", "nan"], [*HTTP, "--rate", "inf"],
    [*HTTP, "--rate", ""], [*HTTP, "--duration", "0"], [*HTTP, "--duration", "0s"], [*HTTP, "--duration", "-1s"],
    [*HTTP, "--duration", "5"], [*HTTP, "--duration", "99999999999999999999s"], [*HTTP, "--warm-up", "x"],
    [*HTTP, "--interval", "0"], [*HTTP, "--timeout", "0"], [*HTTP, "--connect-timeout", "0s"], [*HTTP, "-c", "0"],
    [*HTTP, "-c", "1.5"], [*HTTP, "-c", "5000000000"], [*HTTP, "-c", "-1"], [*HTTP, "-t", "0"], [*HTTP, "-t", "2", "-c", "1"],
    [*HTTP, "-t", "100k", "-c", "100k"], [*HTTP, "--depth", "0"], [*HTTP, "--idle", "many"], [*HTTP, "--idle-byte-every", "0s"],
    [*HTTP, "--connect-rate", "0"], [*HTTP, "--backlog", "x"], [*HTTP, "--io", "dpdk"], [*HTTP, "--seed", "-1"],
    [*HTTP, "--source", "here"], [*HTTP, "--source", "::1"], [*HTTP, "--connect-to", "127.0.0.1:0"], [*HTTP, "--arrivals", "pareto"], [*HTTP, "--course", "10k"],
    [*HTTP, "--course", "10k:0s"], [*HTTP, "--course", ""], [*HTTP, "--course", "5..:1s"], [*HTTP, "--course", "1:1s", "--rate", "5"],
    [*HTTP, "--sweep", "1k..2k"], [*HTTP, "--sweep", "2k..1k:1"], [*HTTP, "--sweep", "1..1M:1"], [*HTTP, "--sweep", "0"],
    [*HTTP, "--sweep", "1k", "--rate", "1k"], [*HTTP, "--sweep", "1k", "--knee"], [*HTTP, "--overload"],
    [*HTTP, "--knee", "--knee-p99", "fast"], [*HTTP, "--sweep", "1k", "--repeat", "x"], [*HTTP, "--sweep", "1k", "--pause", "-1s"],
    [*HTTP, "--method", "GET /"], [*HTTP, "--method", ""], [*HTTP, "--header", "none"], [*HTTP, "--header", "a: b\r\nc: d"],
    [*HTTP, "--header", "a b: c"], [*HTTP, "--body-file", "/nowhere"], [*HTTP, "--body", "a", "--body-file", "b"],
    [*HTTP, "--requests-per-connection", "0"], [*HTTP, "--requests-per-connection", "1", "--close"],
    [*HTTP, "--paths", "/nowhere"], [*HTTP, "--paths", "/dev/null"], [*HTTP, "--fileset", "/nowhere"],
    [*HTTP, "--sessions", "/nowhere", "--rate", "1"], [*HTTP, "--sessions", "/dev/null", "--rate", "1"],
    [*HTTP, "--expect", ""], [*HTTP, "--expect", "2000"], [*HTTP, "--rate", "30M"], [*HTTP, "--depth", "3M"],
    [*HTTP, "--interval", "1ms", "-d", "3h"], [*HTTP, "--timeout", "3000d"], [*HTTP, "--sweep", "1k", "--repeat", "30k"],
    ["http", "http://127.0.0.1:9/a.txt", "--paths", "/dev/stdin"], [*CACHE, "--multi-get", "30k"],
    [*HTTP, "--think", "long"], [*HTTP, "--popularity", "zipf:x"], [*HTTP, "--popularity", "hot:2"],
    [*HTTP, "--fail-if", "p99"], [*HTTP, "--fail-if", "p101>1ms"], [*HTTP, "--fail-if", "errors.none>1"],
    [*HTTP, "--fail-if", "p99>5%"], [*HTTP, "--color", "red"], [*HTTP, "--json", "-", "--csv", "-"],
    [*HTTP, "--agents", "2"], [*HTTP, "--agents", "2", "--rank", "2", "--rendezvous", "h:1"],
    [*HTTP, "--agents", "0", "--rank", "0", "--rendezvous", "h:1"], [*HTTP, "--agents", "2", "--rank", "0", "--rendezvous", "here"],
    ["http", "ftp://127.0.0.1/"], ["http", "http:///"], ["http", "http://127.0.0.1:99999/"],
    ["http", "http://127.0.0.1:9/", "http://127.0.0.1:10/"], ["http", "http://127.0.0.1:9/a b"], ["http"],
    [*CACHE, "--sets", "101"], [*CACHE, "--sets", "-1"], [*CACHE, "--keys", "0"], [*CACHE, "--key-size", "0"],
    [*CACHE, "--key-size", "300"], [*CACHE, "--key-size", "uniform:9-1"], [*CACHE, "--value-size", "-1"],
    [*CACHE, "--value-size", "2000000000000"], [*CACHE, "--key-prefix", "a b"], [*CACHE, "--multi-get", "0"],
    [*CACHE, "--exptime", "soon"], [*CACHE, "--protocol", "binary"], ["cache", "127.0.0.1:x"], ["idle", "127.0.0.1:9", "-c", "0"],
    ["idle"], ["idle", "127.0.0.1:9", "--rate", "5"],
    ["fileset"], ["fileset", "/dev/null/x"], ["fileset", "d", "--scale", "0"], ["fileset", "d", "--scale", "nan"],
    ["fileset", "d", "--scale", "1e9"], ["fileset", "d", "--model", "x"], ["traces", "/nowhere", "/nowhere"],
    ["traces", "d", "l", "--logs", "0"], ["merge"], ["merge", "/nowhere"], ["merge", "/dev/null"], ["stress"], [],
]


@check(limit_s=120)
def every_wrong_argument_is_one_sentence(world):
    found = []
    for words in WRONG:
        process = world.start(world.binary, "load", *words, cwd=world.scratch)
        out, err = process.communicate(timeout=20)
        text = err.decode().strip()
        # Hints follow clap's own sentences; ours are one line.
        sentence = text.split("\n\n")[0]
        runs = words and words[0] in ("fileset", "traces") and process.returncode == 1
        if process.returncode != 2 and not runs:
            found.append(f"{words} ended with {process.returncode}: {text[:200]}")
        elif words and (not sentence.startswith("error: ") or "panicked" in text or len(sentence) > 500):
            found.append(f"{words} says {text[:300]!r}")
    expect(not found, f"{len(found)} of {len(WRONG)}:\n" + "\n".join(found))


# ---- a real terminal

@check(limit_s=90)
def the_progress_line_in_a_real_terminal(world):
    socket_path = world.scratch / "tmux"

    def tmux(*words):
        return world.output_of("tmux", "-S", socket_path, *words).decode()

    with world.server() as server:
        common = f"{world.binary} load http {server.url('/style.css')} --rate 500 -d 60s --interval 200ms"
        tmux("-f", "/dev/null", "new-session", "-d", "-x", 100, "-y", 30, "sh")
        world.at_end(lambda: tmux("kill-server"))

        def shot():
            return tmux("capture-pane", "-p")

        def typed(text, *keys):
            tmux("send-keys", text, *keys)

        typed(f"{common}; echo status $?", "Enter")
        wait_for("the line of progress", lambda: "s left" in shot(), 10)
        typed("C-c")
        wait_for("Ctrl-C ends it", lambda: "status 130" in shot() and "verdict" in shot(), 10)
