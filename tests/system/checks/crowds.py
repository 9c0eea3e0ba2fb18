"""Very many connections, slow ones, dead ones, and exhausted descriptors."""

import os
import resource
import selectors
import signal
import socket
import ssl
import threading
import time

from memcache import certificate
from world import ALL, DISPATCHERS, EVENT_DISPATCHERS, MANY, check, expect, expect_equal, expect_in_time, read_reply, request, wait_for

CROWD = 10_000
# On a busy machine a crowd connects slowly; its clients must not be closed as silent.
PATIENT = ("--head-timeout", "10m", "--idle-timeout", "10m")
# The figure of docs/engines.md for fibers, and space for an allocator that grows in steps.
IDLE_KIB_MAX = 1.25


class Crowd:
    """Connections of which half dribble a request head byte by byte, and the others idle between two requests."""

    def __init__(self, server, count, dribbling):
        needed = count + 200
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        expect(soft >= needed, f"this process may open {soft} files and needs {needed}: raise the hard limit (ulimit -Hn)")
        self.sockets = [server.connect(timeout=20) for _ in range(count)]
        self.dribblers, idlers = self.sockets[:dribbling], self.sockets[dribbling:]
        self.head = request("/style.css", X_Slow="x" * 200)
        for at in range(0, len(idlers), 500):
            self.ask_once(idlers[at:at + 500])
        self.at, self.stopping = 0, threading.Event()
        self.thread = threading.Thread(target=self.dribble, daemon=True)
        if dribbling:
            self.thread.start()

    def ask_once(self, idlers):
        for idler in idlers:
            idler.sendall(request("/favicon.svg"))
        for idler in idlers:
            with idler.makefile("rb") as file:
                expect_equal("an idler's first reply", read_reply(file).status, 200)

    def dribble(self):
        """Sends one byte on each connection within three seconds, repeatedly."""
        while not self.stopping.is_set():
            for part in range(30):
                for slow in self.dribblers[part::30]:
                    try:
                        slow.send(self.head[self.at:self.at + 1], socket.MSG_NOSIGNAL)
                    except OSError:
                        pass  # the server may have closed it
                if self.stopping.wait(0.1):
                    return
            self.at += 1

    def closed_by_server(self):
        """Number of connections that the server has ended."""
        with selectors.DefaultSelector() as selector:
            for connection in self.sockets:
                selector.register(connection, selectors.EVENT_READ)
            return len(selector.select(0))

    def leave(self):
        self.stopping.set()
        if self.thread.is_alive():
            self.thread.join(10)
        for connection in self.sockets:
            connection.close()


@check(*MANY, *EVENT_DISPATCHERS, limit_s=120)
def ten_thousand_slow_connections_stop_nobody(world):
    with world.server(*PATIENT) as server:
        crowd = Crowd(server, CROWD, dribbling=CROWD // 2)
        try:
            wait_for("all that were made are open", lambda: server.metric("weft_connections_active") >= CROWD)
            worst_s = slowest_of(server, 300)
            others = world.output_of("ab", "-q", "-k", "-n", 5000, "-c", 50, server.url("/style.css"), seconds=30).decode()
            expect("Failed requests:        0" in others and "Non-2xx" not in others, f"ab beside the crowd: {others}")
            # A SYN that the machine drops delays its client by a second.
            expect_in_time(worst_s < 1.0, f"the slowest of 300 others was served after {worst_s:.2f} s")
            expect_equal("connections that the server ended meanwhile", crowd.closed_by_server(), 0)
            world.note = f"slowest other {worst_s * 1000:.0f} ms"
        finally:
            crowd.leave()
        wait_for("the crowd is forgotten", lambda: server.metric("weft_connections_active") == 0, 20)


def slowest_of(server, count):
    worst_s = 0
    for _ in range(count):
        began = time.monotonic()
        expect_equal("status beside the crowd", server.get("/style.css").status, 200)
        worst_s = max(worst_s, time.monotonic() - began)
    return worst_s


@check(*(f"{engine}-{name}" for engine in ("event", "distributed", "pipeline") for name in DISPATCHERS if name.startswith("rtsig")))
def an_overflow_of_signals_loses_no_request(world):
    """500 clients send at once, and the kernel queues 64 signals: it drops the others and reports that with one SIGIO."""
    queued_max = 64

    def few_signals():
        resource.setrlimit(resource.RLIMIT_SIGPENDING, (queued_max, queued_max))

    with world.server(before_exec=few_signals) as server:
        clients = [server.connect() for _ in range(500)]
        files = [client.makefile("rb") for client in clients]
        for turn in range(4):
            if turn > 0:
                # A stopped server takes no signals. In the first turn its connections are not watched yet.
                server.signal(signal.SIGSTOP)
                wait_for("it is stopped", server.is_stopped)
            for client in clients:
                client.sendall(request("/style.css"))
            if turn > 0:
                # On a busy machine requests arrive a little later.
                wait_for("the queue of signals is full", lambda: int(server.status("SigQ").split("/")[0]) >= queued_max)
                server.signal(signal.SIGCONT)
            expect_equal(f"the statuses of turn {turn}", {read_reply(file).status for file in files}, {200})
        for client, file in zip(clients, files):
            file.close()
            client.close()


@check("thread", limit_s=120)
def two_thousand_slow_connections_stop_nobody(world):
    with world.server(*PATIENT) as server:
        crowd = Crowd(server, 2000, dribbling=1000)
        try:
            worst_s = slowest_of(server, 100)
            expect_in_time(worst_s < 2.0, f"the slowest of 100 others was served after {worst_s:.2f} s")
            world.note = f"slowest other {worst_s * 1000:.0f} ms"
        finally:
            crowd.leave()
        wait_for("the crowd is forgotten", lambda: server.metric("weft_connections_active") == 0, 20)


@check(*ALL, limit_s=60)
def a_dribbled_head_times_out(world):
    with world.server("--head-timeout", "1s") as server, server.connect() as slow:
        began = time.monotonic()
        slow.sendall(b"GET / HT")
        with slow.makefile("rb") as file:
            expect_equal("the status for a head that never ends", read_reply(file).status, 408)
            expect_equal("what comes after it", file.read(1), b"")
        took_s = time.monotonic() - began
        expect(took_s > 0.9, f"the time-out of one second came after {took_s:.2f} s")
        expect_in_time(took_s < 10, f"the time-out of one second came after {took_s:.1f} s")


@check(*ALL, limit_s=60)
def a_silent_connection_is_closed_without_a_word(world):
    with world.server("--idle-timeout", "1s") as server, server.connect() as idle:
        idle.sendall(request("/favicon.svg"))
        with idle.makefile("rb") as file:
            expect_equal("the first reply", read_reply(file).status, 200)
            expect_equal("what comes before the end", file.read(1), b"")


@check(*ALL, limit_s=60)
def a_client_that_takes_nothing_is_let_go(world):
    with world.server("--send-timeout", "1s", site=world.big_site()) as server, server.connect() as stuck:
        stuck.sendall(request("/big.bin"))
        # The connection may be closed again before the metric is read.
        wait_for("the download is open", lambda: server.metric("weft_connections_accepted_total") >= 1)
        wait_for("the server gives up on it", lambda: server.metric("weft_connections_active") == 0, 15)
        expect_equal("another client's status", server.get("/small.txt").status, 200)


@check(*ALL, limit_s=60)
def few_fibers_serve_many_clients_in_turn(world):
    """The thesis's model: a fixed number of fibers (or threads), each of which accepts and then serves. Event loops have no such number, only
    the limit on connections."""
    fixed = {"uring": "fiber:io=uring,fibers=8", "epoll": "fiber:io=epoll,fibers=8", "thread": "thread:threads=8"}
    limits = [("--max-connections", 8)]
    if world.variant in fixed:
        limits.append(("--engine", fixed[world.variant]))
    for flags in limits:
        with world.server(*flags) as server:
            clients = [server.connect() for _ in range(100)]
            for client in clients:
                client.sendall(request("/style.css", close=True))
            statuses = [status_or_none(client) for client in clients]
            expect_equal(f"the statuses with {flags}", set(statuses), {200})


@check(*MANY, limit_s=120)
def an_idle_connection_costs_little(world):
    """10,000 kept-alive connections after their first request, by resident memory."""
    # The first connections are silent until the last one has had its request.
    with world.server("--workers", 1, *PATIENT) as server:
        server.get("/favicon.svg")
        before_kib = int(server.status("VmRSS").split()[0])
        crowd = Crowd(server, CROWD, dribbling=0)
        try:
            per_connection = (int(server.status("VmRSS").split()[0]) - before_kib) / CROWD
            world.note = f"{per_connection:.2f} KiB each"
            expect(per_connection <= IDLE_KIB_MAX, f"an idle connection costs {per_connection:.2f} KiB, more than {IDLE_KIB_MAX}")
        finally:
            crowd.leave()


@check("uring", "event", limit_s=300)
def an_idle_tls_connection_costs_at_most_8_kib(world):
    """600 kept-alive connections, after their handshake and after their first request, by resident memory."""
    count = 600
    _, chain, key = certificate(world.scratch)
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    with world.server("--workers", 1, "--idle-timeout", "10m", "--head-timeout", "10m", "--tls-cert", chain, "--tls-key", key) as server:
        def join():
            return tls.wrap_socket(server.connect(timeout=20), server_hostname="localhost")

        def ask(client):
            client.sendall(request("/favicon.svg"))
            with client.makefile("rb") as file:
                expect_equal("a status", read_reply(file).status, 200)

        clients = [join() for _ in range(100)]
        for client in clients:
            ask(client)
        before_kib, new = int(server.status("VmRSS").split()[0]), []
        for moment, act in (("handshake", lambda: new.extend(join() for _ in range(count))), ("request", lambda: [*map(ask, new)])):
            act()
            each = (int(server.status("VmRSS").split()[0]) - before_kib) / count
            world.note += f"{each:.2f} KiB after the {moment} "
            expect(each <= 8, f"an idle connection costs {each:.2f} KiB after its {moment}")


@check(*ALL, limit_s=60)
def killed_clients_leave_nothing_behind(world):
    with world.server(site=world.big_site()) as server:
        server.get("/small.txt")
        fds = server.fd_count()
        for turn in range(3):
            curls = [world.start("curl", "-s", "--limit-rate", "100K", "-o", "/dev/null", server.url("/big.bin")) for _ in range(50)]
            wait_for("50 downloads are under way", lambda: server.metric("weft_connections_active") >= 50)
            for curl in curls:
                os.kill(curl.pid, signal.SIGKILL)
            wait_for("no connection is left", lambda: server.metric("weft_connections_active") == 0)
            wait_for(f"turn {turn}: no descriptor is left ({fds} before, {server.fd_count()} now)",
                     lambda: server.fd_count() <= fds + 2)
        live = [name for name, value in server.metrics().items() if name.endswith("_in_flight") and value > 0]
        expect_equal("what is still in flight", [name for name in live if "admin" not in name], [])
        expect_equal("the next download", server.get("/small.txt").status, 200)


@check(*ALL, limit_s=60)
def clients_take_no_descriptors_from_files(world):
    """Three times as many clients as descriptors allow, cold and warm: all are served, one after another."""
    site = world.scratch / "pages"
    site.mkdir()
    for number in range(100):
        (site / f"{number}.txt").write_text(f"page {number}\n")
    with world.server(site=site, nofile=256) as server:
        for temperature in ("cold", "warm"):
            clients = [server.connect(timeout=30) for _ in range(3 * 192)]
            for number, client in enumerate(clients):
                client.sendall(request(f"/{number % 100}.txt", close=True))
            # Each client holds its connection until its reply; the next ones wait in the listen queue.
            statuses = [status_or_none(client) for client in clients]
            counts = {status: statuses.count(status) for status in set(statuses)}
            expect_equal(f"what the clients of a {temperature} server got", counts, {200: len(clients)})
        expect(server.fd_count() <= 256, "descriptors within their limit")


@check(*ALL, limit_s=60)
def no_descriptors_left_is_survived(world):
    """Few descriptors and 150 clients: excess ones wait or get a 503; none is reset, and no processor spins."""
    # One connection needs 69 descriptors, those for files included, and 10 need 78; with fewer the server does not start.
    for flags, nofile in (((), 72), (("--max-connections", 10), 80)):
        # PATIENT, because a client of a test that stands still for the head time-out would be closed without a reply.
        with world.server(*PATIENT, *flags, nofile=nofile) as server:
            clients = [server.connect() for _ in range(150)]
            for client in clients:
                client.sendall(request("/style.css", close=True))
            statuses = [status_or_none(client) for client in clients]
            expect(set(statuses) <= {200, 503}, f"the 150 clients got {dict((s, statuses.count(s)) for s in set(statuses))}")
            expect(statuses.count(200) >= 20, f"only {statuses.count(200)} of 150 were served")
            world.note = f"{statuses.count(200)} served, {statuses.count(503)} told 503"
            # No CPU time while the queue is full: hold connections open and measure.
            held = [server.connect() for _ in range(100)]
            cpu_s = server.cpu_s()
            time.sleep(1)  # length of the measurement
            spent = server.cpu_s() - cpu_s
            expect(spent < 0.5, f"{spent:.2f} s of CPU in one second while nothing happened")
            for client in held:
                client.close()
            wait_for("it serves again", lambda: server.get("/style.css").status == 200)


def status_or_none(client):
    try:
        with client, client.makefile("rb") as file:
            return read_reply(file).status
    except TimeoutError:
        raise
    except OSError as error:
        return type(error).__name__
    except Exception as error:
        return str(error)


@check()
def a_hundred_thousand_files_cost_next_to_nothing(world):
    """Files that were never requested cost nothing; 200 bytes each are allowed for the allocator."""
    count = 100_000
    few, many = world.folder("few", page__html=b"x"), world.folder("many", page__html=b"x")
    for nth in range(count // 1000):
        folder = many / f"{nth:03}"
        folder.mkdir()
        (folder / "000.html").write_text("x")
        for name in range(1, 1000):
            os.link(folder / "000.html", folder / f"{name:03}.html")
    kib = []
    for site in (few, many):
        with world.server(site=site) as server:
            expect_equal("status", server.get("/page.html").status, 200)
            kib.append(int(server.status("VmRSS").split()[0]))
            if site == many:
                expect_equal("status of the last file", server.get("/099/999.html").status, 200)
    expect(kib[1] - kib[0] <= count * 200 / 1024, f"{kib[1] - kib[0]} KiB more for {count} files")
    world.note = f"{kib[1] - kib[0]} KiB"
