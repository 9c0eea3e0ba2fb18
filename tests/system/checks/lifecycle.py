"""Signals, reloads, rotated logs, changing files: the life of a server under load."""

import http.client
import os
import re
import signal
import socket
import threading
import time

from world import ALL, COMBINATIONS, Incomplete, check, expect, expect_equal, expect_in_time, read_reply, request, wait_for

from .load import expect_no_error


class Clients:
    """Closed-loop clients in threads, which record the result of every request."""

    def __init__(self, server, count, path="/style.css", close=False):
        self.server, self.path, self.close = server, path, close
        self.whole = (server.site / path[1:]).read_bytes()
        self.complete, self.lost, self.late, self.refused = 0, [], [], 0
        self.lock, self.stopping, self.connecting = threading.Lock(), threading.Event(), set()
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self):
        this = threading.current_thread()
        while not self.stopping.is_set():
            self.connecting.add(this)
            try:
                connection = self.server.connect()
            except OSError:
                with self.lock:
                    self.refused += 1
                return
            self.connecting.discard(this)
            with connection:
                self.converse(connection)

    def converse(self, connection):
        with connection.makefile("rb") as file:
            served = 0
            while not self.stopping.is_set():
                try:
                    connection.sendall(request(self.path, close=self.close))
                    reply = read_reply(file)
                except TimeoutError as error:
                    return self.record(self.late, served, error)
                except (OSError, Incomplete) as error:
                    return self.record(self.lost, served, error)
                served += 1
                if reply.status != 200 or reply.body != self.whole:
                    return self.record(self.lost, served, f"status {reply.status}, {len(reply.body)} bytes")
                with self.lock:
                    self.complete += 1
                if reply.header("connection", "").lower() == "close":
                    return None
        return None

    def record(self, where, served, why):
        with self.lock:
            where.append(f"request {served + 1} of its connection: {why}")

    def expect_none_lost(self, kind):
        expect(not self.lost, f"{len(self.lost)} of {self.complete} lost ({kind}), such as {self.lost[:1]}")
        expect_in_time(not self.late, f"{len(self.late)} of {self.complete} without a reply so far ({kind}), such as {self.late[:1]}")

    def stop(self, but_connecting=False):
        """Waits until all threads have ended. After a dropped SYN a client may be refused a second late, by an ending server: RFC 6298."""
        self.stopping.set()
        wait_for("the clients have ended",
                 lambda: not any(thread.is_alive() and not (but_connecting and thread in self.connecting) for thread in self.threads))


@check(*COMBINATIONS)
def sigterm_loses_no_request(world):
    """Every request on an accepted connection gets a whole reply; later connections are refused."""
    for close in (False, True):
        server = world.server()
        clients = Clients(server, 16, close=close)
        wait_for("the clients are at work", lambda: clients.complete > 500)
        server.signal(signal.SIGTERM)
        status = server.wait_end(15)
        clients.stop(but_connecting=True)
        kind = "a connection each" if close else "keep-alive"
        expect_equal(f"exit status ({kind})", status, 0)
        clients.expect_none_lost(kind)


@check(*ALL)
def sigterm_lets_downloads_and_heads_finish(world):
    server = world.server(site=world.big_site())
    whole = (server.site / "big.bin").read_bytes()
    download = begun_download(server)
    half = server.connect()
    half.sendall(request("/small.txt")[:-9])
    wait_for("both are accepted", lambda: server.metric("weft_connections_active") >= 2)
    server.signal(signal.SIGTERM)
    wait_for("new connections are refused", lambda: is_refused(server))
    half.sendall(request("/small.txt")[-9:])
    with half, half.makefile("rb") as file:
        expect_equal("the half-sent request", read_reply(file).status, 200)
    with download, download.makefile("rb") as file:
        expect_equal("the download", read_reply(file).body, whole)
    expect_equal("exit status", server.wait_end(15), 0)


def begun_download(server):
    """A client that requests 64 MiB and blocks the reply by not reading."""
    client = server.connect()
    client.sendall(request("/big.bin"))
    wait_for("the reply has begun", lambda: client.recv(1, socket.MSG_PEEK))
    return client


def is_refused(server):
    try:
        server.connect().close()
    except ConnectionRefusedError:
        return True
    return False


@check(*ALL)
def a_start_right_after_kill_9_finds_its_port(world):
    """With io_uring the kernel frees the listener of a dead process late: 8 of 8 starts found the port in use."""
    server = world.server()
    for _ in range(4):
        server.get("/style.css")
        server.process.kill()
        server.process.wait()
        server.start()
    server.signal(signal.SIGTERM)
    expect_equal("exit status", server.wait_end(15), 0)


@check(*ALL)
def the_drain_has_a_deadline(world):
    server = world.server("--drain-timeout", "1s", site=world.big_site())
    with begun_download(server):
        server.signal(signal.SIGTERM)
        server.wait_end(10)


@check(*ALL)
def a_second_signal_ends_at_once(world):
    server = world.server("--drain-timeout", "10m", site=world.big_site())
    with begun_download(server):
        server.signal(signal.SIGINT)
        wait_for("it says that it stops", lambda: "stopping" in server.output())
        time.sleep(0.3)  # within 200 ms a second signal is taken as an echo of the first
        server.signal(signal.SIGINT)
        expect_equal("exit status (128 + SIGINT)", server.wait_end(10), 130)


@check(*ALL, limit_s=60)
def sighup_under_load_drops_no_connection(world):
    config = world.scratch / "weft.toml"
    config.write_text('[headers]\n"X-Turn" = "0"\n')
    with world.server("--config", config) as server:
        # By default wrk counts replies after 2 s as errors.
        wrk = world.start("wrk", "-t1", "-c64", "-d300s", "--timeout", "60s", server.url("/style.css"))
        for turn in range(1, 11):
            config.write_text(f'[headers]\n"X-Turn" = "{turn}"\n')
            server.signal(signal.SIGHUP)
            wait_for(f"reload {turn} is seen", lambda: server.get("/style.css").header("X-Turn") == str(turn))
        expect(wrk.poll() is None, "wrk ended before the last reload")
        # wrk ends at once, and prints its results.
        wrk.send_signal(signal.SIGINT)
        expect_no_error(wrk.communicate(timeout=20)[0].decode())


@check(*ALL, limit_s=60)
def rotated_logs_lose_no_line(world):
    log = world.scratch / "access.log"
    with world.server("--access-log", log) as server:
        clients = Clients(server, 4, path="/favicon.svg")
        for turn in range(3):
            before = clients.complete
            wait_for("the clients are at work", lambda: clients.complete > before + 200)
            os.rename(log, world.scratch / f"access.log.{turn}")
            server.signal(signal.SIGHUP)
            wait_for("the log is opened anew", log.exists)
        clients.stop()
        clients.expect_none_lost("kept")
    logs = [log, *(world.scratch / f"access.log.{turn}" for turn in range(3))]
    lines = [line for file in logs for line in file.read_text().splitlines()]
    whole = [line for line in lines if re.fullmatch(r'\S+ - - \[[^]]+\] "GET /favicon.svg HTTP/1.1" 200 \d+ "[^"]*" "[^"]*" \d+\.\d{6}', line)]
    expect_equal("torn or strange lines", [line for line in lines if line not in set(whole)][:3], [])
    # A stopped client may not read the last reply of its connection, which is logged all the same.
    expect(0 <= len(whole) - clients.complete <= 4, f"{len(whole)} lines for {clients.complete} requests")


@check(*ALL, limit_s=60)
def a_changing_file_is_never_mixed(world):
    """Two contents, swapped by rename under load: each reply is one of them, with the matching length and tag."""
    contents = [b"a" * 70_001, b"b" * 300_007]
    site = world.folder(file__txt=contents[0])
    with world.server("--recheck", "10ms", site=site) as server:
        seen, stop, wrong, late = {}, threading.Event(), [], []

        def read():
            while not stop.is_set():
                try:
                    reply = server.get("/file.txt")
                except TimeoutError as error:
                    late.append(str(error))
                    continue
                except (OSError, http.client.HTTPException) as error:
                    wrong.append(f"cut off: {error}")
                    continue
                if reply.status != 200 or reply.body not in contents:
                    wrong.append(f"status {reply.status}, {len(reply.body)} bytes, starts with {reply.body[:1]}")
                # Each swap may bring a new tag, but no tag may have two contents.
                if seen.setdefault(reply.header("ETag"), reply.body) != reply.body:
                    wrong.append(f"one tag for two contents: {reply.header('ETag')}")

        readers = [threading.Thread(target=read, daemon=True) for _ in range(4)]
        for reader in readers:
            reader.start()
        # At least 60 swaps; on a machine that stands still, until some were seen.
        for turn in range(600):
            if turn >= 60 and len(seen) > 20:
                break
            fresh = world.scratch / "fresh"
            fresh.write_bytes(contents[turn % 2])
            os.rename(fresh, site / "file.txt")
            time.sleep(0.03)  # length of the experiment
        stop.set()
        for reader in readers:
            reader.join(10)
        expect(not wrong, f"{len(wrong)} wrong, such as: {wrong[:1]}")
        expect_in_time(not late, f"{len(late)} without a reply so far, such as: {late[:1]}")
        expect_in_time(len(seen) > 20, f"only {len(seen)} versions of the file were seen in {turn} swaps")


@check(*ALL)
def a_changed_file_is_seen_within_the_bound(world):
    site = world.folder(file__txt=b"old")
    with world.server(site=site) as server:
        expect_equal("before", server.get("/file.txt").body, b"old")
        (site / "file.txt").write_bytes(b"newer")
        wait_for("the new content is served (--recheck is 1 s)", lambda: server.get("/file.txt").body == b"newer", 3)
        (site / "file.txt").unlink()
        wait_for("the file is gone", lambda: server.get("/file.txt").status == 404, 3)
        (site / "late.txt").write_bytes(b"late")
        wait_for("a file that came later is served", lambda: server.get("/late.txt").body == b"late", 3)
