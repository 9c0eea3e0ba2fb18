"""`weft load` over Unix sockets and UDP; bodies, keys, live metrics, and faults reported of other generators."""

import http.client
import http.server
import json
import re
import signal
import socket
import subprocess
import threading

from generator import Badly, finished, load, report_file, start_load
from memcache import cache
from peers import memcached, nginx
from world import ALL, check, expect, expect_equal, expect_in_time, free_port, wait_for


@check(*ALL, limit_s=60)
def load_over_a_unix_socket(world):
    path = world.scratch / "weft.sock"
    with world.server(listen=[f"unix:{path}"]) as server:
        for io in ("uring", "epoll"):
            for page, count in (("/style.css", 500), ("/data/loom.wav", 20)):
                report = load(world, "http", f"http://weft{page}", "--unix-socket", path, "-n", count, "-c", 10, "--io", io, "--verify")
                report.expect_no_errors(f"errors of {page} by {io}")
                expect_equal("replies", report["replies"], count)
        server.has_counted("weft_http_replies_total", 1040)


@check(limit_s=60)
def load_over_the_socket_of_nginx(world):
    path = world.scratch / "nginx.sock"
    folder = world.folder("unix", a__txt=b"text\n" * 50)
    with nginx(world, more=f"server {{ listen unix:{path} backlog=4; root {folder}; }}") as (_, log):
        for io in ("uring", "epoll"):
            # More connections than slots in the listen queue.
            report = load(world, "http", "http://host/a.txt", "--unix-socket", path, "-n", 1000, "-c", 200, "--io", io, "--close")
            report.expect_no_errors()
            expect_equal("replies", report["replies"], 1000)
        # The connections of probes sent no request.
        wait_for("nginx has logged all", lambda: log.read_text().count(" 200\n") == 2000)


@check(limit_s=30)
def a_socket_that_is_not_there_is_told(world):
    report = load(world, "http", "http://host/", "--unix-socket", world.scratch / "none", status=1)
    expect("No such file" in report.said and "is the server running?" in report.said, report.said)
    report = load(world, "http", "http://host/", "--unix-socket", "/x" * 80, status=2)
    expect("too long" in report.said, report.said)
    report = load(world, "cache", status=2)
    expect("--unix-socket" in report.said or "HOST:PORT" in report.said, report.said)


CACHE_LOAD = ("--populate", "--verify", "--keys", "1k", "--value-size", "uniform:0-20000", "--sets", 10, "-n", 2000, "-c", 8)


@check(*ALL, limit_s=60)
def cache_load_over_udp(world):
    udp = free_port()
    with cache(world, "-U", udp, port=udp):
        asked_over_udp(world, udp)


@check(limit_s=60)
def memcached_load_over_udp_and_unix(world):
    path, server = world.scratch / "memcached.sock", memcached(world)
    server.flags = ("-U", server.port)
    with server:
        asked_over_udp(world, server.port)
    world.start("memcached", "-u", "root", "-s", path)
    wait_for("memcached listens", lambda: is_open(path))
    for io in ("uring", "epoll"):
        report = load(world, "cache", "--unix-socket", path, *CACHE_LOAD, "--io", io)
        report.expect_no_errors()
        expect_equal("replies and misses", (report["replies"], report["misses"]), (2000, 0))


def is_open(path):
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def asked_over_udp(world, port):
    """Stores keys over TCP at the same port; replies are up to fifteen datagrams. The server's socket buffers the sets of eight."""
    wait_for("it answers", lambda: socket.create_connection(("127.0.0.1", port), 1).close() is None)
    for io in ("uring", "epoll"):
        for more in ((), ("--protocol", "meta"), ("--rate", "2k")):
            report = load(world, "cache", f"127.0.0.1:{port}", "--udp", *CACHE_LOAD, "--io", io, *more)
            # A busy machine may drop a few of ten thousand datagrams: the buffers are shared.
            lost = report.errors.get("client_timeout", 0)
            expect_in_time(lost <= 5, f"errors of {more}: {report.errors}")
            expect(set(report.errors) <= {"client_timeout"}, f"errors of {more}: {report.errors}")
            expect_equal("replies and misses", (report["replies"] + lost, report["misses"]), (2000, 0))


@check(limit_s=60)
def lost_datagrams_are_time_outs(world):
    """A peer that never answers two of a socket's requests: they time out, and the socket stays in use."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    world.at_end(server.close)

    def answer():
        while True:
            try:
                datagram, peer = server.recvfrom(2000)
            except OSError:
                return
            if datagram[1] not in (3, 7):  # The identifiers of a socket's requests count from 1.
                server.sendto(datagram[:8] + b"END\r\n", peer)

    threading.Thread(target=answer, daemon=True).start()
    port = server.getsockname()[1]
    report = load(world, "cache", f"127.0.0.1:{port}", "--udp", "--sets", 0, "-n", 40, "-c", 1, "--timeout", "3s", status=1)
    expect_in_time(report.errors.get("client_timeout", 0) <= 2, f"more than two were lost: {report.errors}")
    expect_equal("errors", report.errors, {"client_timeout": 2})
    expect_equal("replies", report["replies"], 38)
    gone = load(world, "cache", f"127.0.0.1:{free_port()}", "--udp", status=1)
    expect("UDP (-U)" in gone.said and "refused" in gone.said, gone.said)


@check(limit_s=60)
def named_keys_are_stored_under_their_names(world):
    with memcached(world) as server:
        at = f"127.0.0.1:{server.port}"
        for protocol in ("text", "meta"):
            report = load(world, "cache", at, "--populate", "--verify", "--keys", "user:{8..107}:x", "--sets", 10, "-n", 1000,
                          "--protocol", protocol, "--multi-get", 3)
            report.expect_no_errors()
            expect_equal("misses", report["misses"], 0)
        expect_equal("items", server.stats()["curr_items"], "100")
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"".join(b"mg user:%d:x s\r\n" % number for number in (7, 8, 107, 108)))
            lines = connection.makefile()
            expect_equal("items by their names", [lines.readline() for _ in range(4)], ["EN\n", "HD s100\n", "HD s100\n", "EN\n"])
    report = load(world, "cache", at, "--keys", "a{1..2}", "--key-prefix", "b", status=2)
    expect("remove --key-prefix" in report.said, report.said)


class Bodies(http.server.BaseHTTPRequestHandler):
    """Records the requests."""

    protocol_version = "HTTP/1.1"
    seen = []

    def do_POST(self):
        self.seen.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@check(limit_s=60)
def each_line_is_a_body(world):
    lines = world.scratch / "bodies"
    lines.write_bytes(b'{"a": 1}\r\n\n{"b": "\xc3\xbc"}\n{"c": 3}')
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bodies)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    world.at_end(server.shutdown)
    url = f"http://127.0.0.1:{server.server_port}"
    report = load(world, "http", f"{url}/x", f"{url}/y", "-m", "POST", "-Z", lines, "-n", 6, "-c", 1)
    report.expect_no_errors()
    bodies = [b'{"a": 1}', '{"b": "ü"}'.encode(), b'{"c": 3}']
    expect_equal("requests", Bodies.seen, [(f"/{path}", body) for path, body in zip("xyxxyx", bodies * 2)])
    lines.write_bytes(b"\n\n")
    report = load(world, "http", url, "-m", "POST", "--body-lines", lines, status=2)
    expect("lines" in report.said, report.said)


@check(limit_s=60)
def metrics_are_live(world):
    port, file = free_port(), report_file(world)
    with world.server() as server:
        process = start_load(world, "http", server.url("/style.css"), "--rate", 200, "-d", "30s", "--interval", "200ms",
                             "--metrics", f"127.0.0.1:{port}", "--json", file)

        def sample():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()

        def counted():
            try:
                found = re.search(r'replies_total\{status="2xx"\} (\d+)', sample())
            except (OSError, http.client.HTTPException):
                return None
            return found and int(found[1])

        first = wait_for("replies are counted", counted)
        wait_for("more are counted", lambda: (counted() or 0) > first)
        text = sample()
        checked = world.start("promtool", "check", "metrics", stdin=-1)
        said, _ = checked.communicate(text.encode(), timeout=20)
        expect_equal("promtool", (checked.returncode, said), (0, b""))
        process.send_signal(signal.SIGINT)
        report = finished(process, file, 130, 30)
        expect(report["replies"] > first, "there were more replies")
    taken = load(world, "http", server.url("/"), "--metrics", f"127.0.0.1:{port}", "-d", "100ms", status=1)
    expect("is the server running?" in taken.said, taken.said)
    with socket.create_server(("127.0.0.1", port)):
        taken = load(world, "http", server.url("/"), "--metrics", f"127.0.0.1:{port}", status=1)
    expect(f"{port}" in taken.said and "use" in taken.said, taken.said)


# ---- public bug reports of other generators, tried on this one

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
# Report, the server's reply, whether it closes, and the expected error, if any.
REPORTS = [
    ("nginx #1241: several early hints in a row", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 3 + HEAD, False, None),
    ("xrootd #1120: 100 without a phrase, with a length", b"HTTP/1.1 100\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n" + HEAD, False, None),
    ("goreplay #396, vlang #26999: 204 with a length", b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", False, None),
    ("the same: 304 with a length", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", False, None),
    ("no length, ended by the close", b"HTTP/1.1 200 OK\r\n\r\nuntil the end", True, None),
    ("wrk #6623 of the-benchmarker: no space after the colon", b"HTTP/1.1 200 OK\r\ncontent-length:2\r\nconnection:keep-alive\r\n\r\nok", False, None),
    ("k6 #2399: redirects are replies, not followed", b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", False, None),
    ("wrk #282: lines that end with LF alone", b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", False, "bad_reply"),
    ("d-inference #915: a body cut short", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", True, "short_reply"),
    ("wrk #112: closed in place of a reply", b"", True, "short_reply"),
]


@check(limit_s=90)
def replies_of_public_reports(world):
    for report, reply, closes, error in REPORTS:
        def behave(connection, reply=reply, closes=closes):
            connection.sendall(reply)
            return "close" if closes else None

        with Badly(behave) as server:
            status = 1 if error else 0
            found = load(world, "http", server.url(), "-n", 20, "-c", 2, "--timeout", "2s", status=status)
            expect_in_time("client_timeout" not in found.errors, f"{report}: {found.errors}")
            expect_equal(f"{report}: errors", set(found.errors), {error} if error else set())
            expect_equal(f"{report}: replies", found["replies"], 0 if error else 20)
    # bombardier #56: an unannounced close in place of the next reply is an error, unless none is expected (--close).
    # The server ends its side and reads on: a close would reset connections whose request is under way.
    with Badly(lambda connection: connection.sendall(HEAD) or connection.shutdown(socket.SHUT_WR)) as server:
        found = load(world, "http", server.url(), "-n", 20, "-c", 2, status=1)
        expect_equal("errors", set(found.errors), {"short_reply"})
        expect("use --close" in found.said, found.said)
        load(world, "http", server.url(), "-n", 20, "-c", 2, "--close").expect_no_errors("errors with --close")


@check(limit_s=60)
def addresses_of_public_reports(world):
    """wrk #53: Host with its port; hey #50: a custom Host; oha #166, #181: IPv6 literals, also with a zone."""
    seen = []

    class Hosts(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            seen.append(self.headers["host"])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6

    link = "weftzone"
    world.at_end(lambda: subprocess.run(["ip", "link", "delete", link], check=False))
    world.output_of("ip", "link", "delete", link, status=(0, 1))  # Left by a killed run.
    world.output_of("ip", "link", "add", link, "type", "veth", "peer", "name", f"{link}2")
    world.output_of("ip", "link", "set", f"{link}2", "up")
    world.output_of("ip", "address", "add", "fe80::77/64", "dev", link, "nodad")
    world.output_of("ip", "link", "set", link, "up")
    server = Server(("::", 0), Hosts)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    world.at_end(server.shutdown)
    port = server.server_port
    for words, host in [
        ((f"http://127.0.0.1:{port}/",), f"127.0.0.1:{port}"),
        ((f"http://127.0.0.1:{port}/", "-H", "Host: hello"), "hello"),
        ((f"http://[::1]:{port}/",), f"[::1]:{port}"),
        ((f"http://[fe80::77%{link}]:{port}/",), f"[fe80::77]:{port}"),
        ((f"http://[fe80::77%25{link}]:{port}/",), f"[fe80::77]:{port}"),
        (("http://example.org/", "--connect-to", f"[::1]:{port}"), "example.org"),
        (("http://example.org/", "--connect-to", f"[fe80::77%{link}]:{port}"), "example.org"),
    ]:
        seen.clear()
        report = load(world, "http", *words, "-n", 3, "-c", 1)
        report.expect_no_errors(f"errors of {words}")
        expect_equal(f"hosts of {words}", seen, [host] * 3)


@check(limit_s=60)
def ends_of_public_reports(world):
    """vegeta #244: no run exceeds its duration and one time-out; h2load #1523: every request that began is reported."""
    slow = threading.Event()
    world.at_end(slow.set)
    with Badly(lambda connection: slow.wait(20) and None) as server:
        report = load(world, "http", server.url(), "--rate", 100, "-d", "1s", "--timeout", "1s", "-c", 10, status=1, seconds=10)
        expect_equal("requests", report["replies"] + sum(report.errors.values()) + report["missed"], 100)
    with world.server() as server:
        for words in (("--http2", "--streams", 10), ("--depth", 10)):
            report = load(world, "http", server.url("/style.css"), *words, "-c", 4, "-d", "1s")
            report.expect_no_errors()
            expect_equal("replies to what was sent", report["replies"], report["sent"])


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;note=1\r\ntext\r\n0\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n"


@check(limit_s=90)
def counts_of_public_reports(world):
    """loadtest #21, #152: fewer requests than connections, or no multiple of them; wrk #119: the server counts the same number;
    k6 #3052, oha #577: a rate yields the same number of requests in each run; h2load #1168: with HTTP/2, too."""
    with world.server() as server:
        seen = 0
        for count, connections, words in ((1, 200, ()), (401, 400, ()), (10, 5, ("-t", 2)), (7, 3, ("--http2", "--streams", 4))):
            report = load(world, "http", server.url("/style.css"), "-n", count, "-c", connections, *words)
            report.expect_no_time_outs()
            expect_equal(f"{count} over {connections}", (report.errors, report["replies"], report["sent"]), ({}, count, count))
            seen += count
            expect_equal("requests that the server saw", server.has_counted("weft_http_replies_total", seen), seen)
        for words in ((), ("--close",), ("--http2", "--streams", 2), ("-t", 2)):
            for _ in range(2):
                report = load(world, "http", server.url("/style.css"), "--rate", 30, "-d", "1s", "-c", 10, *words)
                report.expect_no_time_outs()
                expect_equal(f"requests of {words}", (report.errors, report["replies"]), ({}, 30))


@check(limit_s=90)
def pieces_of_public_reports(world):
    """cpp-httplib #1486, httrack #855: trailers; beast #430: chunks in small pieces; wrk #118: no length, and a requested close."""
    def slowly(connection):
        for at in range(len(CHUNKED)):
            connection.sendall(CHUNKED[at:at + 1])

    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nServer: Jetty(7.6.13)\r\n\r\n" + b"x" * 70_000
    for behave, words in ((slowly, ()), (lambda connection: connection.sendall(closing) or "close", ("-H", "Connection: Close"))):
        with Badly(behave) as server:
            for io in ("uring", "epoll"):
                report = load(world, "http", server.url(), "-n", 10, "-c", 2, "--verify", "--io", io, *words)
                report.expect_no_time_outs()
                expect_equal("errors and replies", (report.errors, report["replies"]), ({}, 10))


@check(limit_s=60)
def figures_of_public_reports(world):
    """vegeta #210: reports of two runs at 100 requests a second do not merge to a rate of 9; wrk #114: connections = rate × latency."""
    with world.server() as server:
        files = [report_file(world) for _ in range(2)]
        for file in files:
            finished(start_load(world, "http", server.url("/style.css"), "--rate", 100, "-d", "1s", "--json", file), file, 0, 20)
        law = load(world, "http", server.url("/style.css"), "-c", 4, "-d", "1s")
    merged = json.loads(world.output_of(world.binary, "load", "merge", *files, "--json", "-"))
    expect_equal("replies", merged["replies"], 200)
    expect_in_time(merged["achieved_rate_per_s"] > 99, f"two reports together: {merged['achieved_rate_per_s']} replies a second")
    in_flight = law["achieved_rate_per_s"] * law["latency_us"]["raw"]["mean"] / 1e6
    expect_in_time(3 < in_flight < 4.1, f"{in_flight} requests were in flight on 4 connections")


@check(limit_s=60)
def closes_of_public_reports(world):
    """bombardier #82, h2load #981: neither a graceful GOAWAY nor the end of a keep-alive connection loses a request."""
    more = "server { listen 127.0.0.1:%d http2; listen 127.0.0.1:%d; root %s; keepalive_requests 7; }"
    h2, h1 = free_port(), free_port()
    with nginx(world, more=more % (h2, h1, world.folder("closes", a__txt=b"text"))) as (_, log):
        for port, words in ((h2, ("--http2", "--streams", 3)), (h1, ()), (h1, ("--io", "epoll"))):
            report = load(world, "http", f"http://127.0.0.1:{port}/a.txt", "-n", 500, "-c", 4, *words)
            report.expect_no_time_outs()
            expect_equal(f"errors and replies of {words}", (report.errors, report["replies"]), ({}, 500))
        wait_for("nginx has logged all", lambda: log.read_text().count(" 200\n") == 1500)


@check(limit_s=60)
def keys_of_public_reports(world):
    """memtier #46, #71: keys set in sequence are found in sequence; memtier #132: a run with long values ends."""
    with memcached(world) as server:
        at = f"127.0.0.1:{server.port}"
        for sets, hits in ((100, 0), (0, 1000)):
            report = load(world, "cache", at, "--popularity", "sequential", "--sets", sets, "--keys", "1k", "-n", 1000, "--value-size", 4000)
            report.expect_no_time_outs()
            expect_equal("errors, hits and misses", (report.errors, report["hits"], report["misses"]), ({}, hits, 0))
