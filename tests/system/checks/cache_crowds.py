"""`weft cache` with many clients, dying clients, slow clients, and a full memory. Values carry their own checksum, so that a torn one
is detected anywhere; another client gets one small value all the time, and reports its waits."""

import hashlib
import os
import pathlib
import subprocess
import sys
import threading
import time

from checks.crowds import IDLE_KIB_MAX
from memcache import cache
from world import ALL, MANY, check, expect, expect_equal, expect_in_time, expect_no_failures, wait_for

# Longest wait of a client, in milliseconds, on a busy machine. The report has the actual wait.
WAIT_MS_MAX = 1000

PULSE = pathlib.Path(__file__).parent.parent / "pulse.py"


@check(*ALL)
def watchers_need_no_threads(world):
    """The maximum of watchers needs no threads, except with the thread engine; when half of them leave, their slots are free again."""
    with cache(world, "-t", 2) as server, server.client() as client:
        client.must_set(b"a", b"before")
        threads = int(server.status("Threads"))
        watchers = [server.client() for _ in range(20)]
        for watcher in watchers:
            expect_equal("the answer to watch", watcher.ask(b"watch mutations"), b"OK")
        # The job pool's threads come and go.
        if world.variant != "thread":
            wait_for("there are hardly more threads", lambda: int(server.status("Threads")) <= threads + 2)
        for round in range(50):
            client.must_set(b"key%d" % round, b"x")
        for watcher in watchers:
            keys = [watcher.file.readline().split(b"key=")[1].split(b" ")[0] for _ in range(50)]
            expect_equal("the keys that a watcher saw", keys, [b"key%d" % round for round in range(50)])
        for watcher in watchers[10:]:
            watcher.close()
        wait_for("half of them are gone", lambda: client.stats()["log_watchers"] == "10")
    for watcher in watchers[:10]:
        expect_equal("the end of a watch", watcher.file.read(), b"")


class Pulse:
    """The client that gets a small value."""

    def __init__(self, world, server):
        self.world = world
        self.process = world.start(sys.executable, PULSE, server.port, stdin=subprocess.PIPE)
        expect_equal("the pulse", self.process.stdout.readline(), b"ready\n")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            return
        out, err = self.process.communicate(b"end\n", timeout=30)
        expect_in_time(b"TimeoutError" not in err, "the client beside got no reply")
        expect(self.process.returncode == 0, f"the client beside ended with {err.decode()!r}")
        count, longest = out.split()
        self.world.note += f"{', ' if self.world.note else ''}longest wait of {count.decode()} is {longest.decode()} ms"
        expect_in_time(float(longest) < WAIT_MS_MAX, f"another client waited {longest.decode()} ms")


def sealed(seed, length):
    """A value with its checksum."""
    body = (b"%s " % seed * (length // (len(seed) + 1) + 1))[:length - 64]
    return hashlib.sha256(body).hexdigest().encode() + body


def is_whole(value):
    return hashlib.sha256(value[64:]).hexdigest().encode() == value[:64]


@check(*MANY, limit_s=120)
def fifteen_thousand_clients_are_served(world):
    count = 15_360
    with cache(world, "-c", count + 16, "-m", "256") as server:
        before, descriptors = int(server.status("VmRSS").split()[0]), server.fd_count()
        clients = [server.connect(60) for _ in range(count)]
        wait_for("all are in", lambda: server.metric("weft_connections_active") == count, 30)
        each = (int(server.status("VmRSS").split()[0]) - before) / count
        for rounds in range(2):
            for number, client in enumerate(clients):
                client.sendall(b"set key%d 0 0 8\r\n%08d\r\nget key%d\r\n" % (number, number, number))
            for number, client in enumerate(clients):
                expected = b"STORED\r\nVALUE key%d 0 8\r\n%08d\r\nEND\r\n" % (number, number)
                reply = b""
                while len(reply) < len(expected):
                    piece = client.recv(4096)
                    expect(piece, f"connection {number} ended")
                    reply += piece
                expect_equal(f"reply {number}", reply, expected)
        for client in clients:
            client.close()
        wait_for("all are gone", lambda: server.metric("weft_connections_active") == 0, 30)
        wait_for("their descriptors are closed", lambda: server.fd_count() <= descriptors + 4)
        world.note = f"{each:.2f} KiB for each that is idle"
        expect(each <= IDLE_KIB_MAX, f"an idle connection costs {each:.2f} KiB, more than {IDLE_KIB_MAX}")


KILLED = """
import socket, sys
held = []
for number in range(50):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    s.sendall(b"set shared%d 0 0 900000\\r\\n" % number + b"torn " * (number * 3000))
    held.append(s)
print("sent", flush=True)
sys.stdin.read()
"""


@check(*ALL, limit_s=60)
def clients_killed_in_the_middle_of_a_set_leave_nothing(world):
    # Enough memory for all unfinished sets, so that nothing is evicted.
    with cache(world, "-m", "512") as server, server.client() as client, Pulse(world, server):
        value = sealed(b"whole", 900_000)
        for number in range(50):
            client.must_set(b"shared%d" % number, value)
        before = client.stats()
        descriptors = server.fd_count()
        for _ in range(4):
            killed = [world.start(sys.executable, "-c", KILLED, str(server.port), stdin=subprocess.PIPE) for _ in range(3)]
            for process in killed:
                expect_equal("the client", process.stdout.readline(), b"sent\n")
            for process in killed:
                process.kill()
                process.wait()
            wait_for("they are gone", lambda: int(client.stats()["curr_connections"]) <= 2)
        wait_for("their descriptors are closed", lambda: server.fd_count() <= descriptors)
        for what in ("curr_items", "bytes"):
            wait_for(f"{what} is {before[what]} again", lambda: client.stats()[what] == before[what])
        for number in range(50):
            found = client.get(b"shared%d" % number)
            expect(found == value, f"shared{number} is {'gone' if found is None else 'torn'}")
        # Memory of the unfinished sets can be filled by others.
        for number in range(50):
            client.must_set(b"more%d" % number, value)
        expect_equal("evictions", client.stats()["evictions"], "0")


@check(*ALL, limit_s=60)
def slow_readers_of_large_replies_hold_up_nobody(world):
    with cache(world, "-m", "256") as server, server.client() as writer:
        keys = [b"large%d" % number for number in range(100)]
        for key in keys:
            writer.must_set(key, sealed(key, 100_000))
        before = int(server.status("VmRSS").split()[0])
        with Pulse(world, server):
            readers = [server.client(60) for _ in range(40)]
            for reader in readers:
                reader.send(b"get " + b" ".join(keys) + b"\r\n")
            # Meanwhile all requested items are replaced and flushed.
            for generation in range(5):
                for key in keys:
                    writer.must_set(key, sealed(b"%s of %d" % (key, generation), 100_000))
            grown = (int(server.status("VmRSS").split()[0]) - before) / 1024
            expect_equal("flush_all", writer.ask(b"flush_all"), b"OK")
            for reader in readers:
                for key, value in reader.read_values().items():
                    expect(len(value) == 100_000 and is_whole(value), f"{key} is torn")
                reader.close()
        expect(grown < 200, f"the server grew by {grown:.0f} MiB, for 400 MB of replies that are not read")
        world.note += f", {grown:.0f} MiB more"


@check(*ALL, limit_s=60)
def a_memory_full_of_large_items_goes_on(world):
    with cache(world, "-m", "64") as server, server.client() as client, Pulse(world, server):
        for number in range(400):
            key = b"item%d" % number
            client.must_set(key, sealed(key, 1_000_000 if number % 2 else 700_000))
            client.must_set(b"small%d" % number, b"s" * 50)
        found = {key: value for number in range(400) if (value := client.get(key := b"item%d" % number))}
        expect(all(is_whole(value) for value in found.values()), "a value is torn")
        stats = client.stats()
        expect(len(found) >= 40 and int(stats["evictions"]) > 0, f"{len(found)} items, {stats['evictions']} evictions")
        expect(int(stats["bytes"]) <= 64 << 20, f"{stats['bytes']} bytes of items within 64 MiB")
        expect(b"item399" in found, "the last one is not there")
        resident = int(server.status("VmRSS").split()[0]) / 1024
        expect(resident < 160, f"{resident:.0f} MiB resident with -m 64")
        world.note = f"{len(found)} items, {resident:.0f} MiB resident"
    with cache(world, "-m", "64", "-M") as server, server.client() as client:
        answers = {client.set(b"item%d" % number, b"x" * 1_000_000) for number in range(100)}
        expect_equal("with -M", answers, {b"STORED", b"SERVER_ERROR out of memory storing object"})


@check(*ALL, limit_s=60)
def flush_all_under_load_shows_nothing_older(world):
    seconds, failures, over = 3, [], threading.Event()
    with cache(world, "-m", "128") as server, Pulse(world, server):
        def load(which):
            try:
                with server.client() as client:
                    number = 0
                    while not over.is_set():
                        number += 1
                        key = b"key%d-%d" % (which, number % 500)
                        client.must_set(key, sealed(b"%d" % number, 2000))
                        value = client.get(b"key%d-%d" % (which, number * 7 % 500))
                        expect(value is None or is_whole(value), "a value is torn")
            except Exception as error:
                failures.append(error)

        loads = [threading.Thread(target=load, args=(which,)) for which in range(3)]
        for thread in loads:
            thread.start()
        flushes, end = 0, time.monotonic() + seconds
        with server.client() as client:
            while time.monotonic() < end and not failures:
                client.must_set(b"mine", b"before")
                expect_equal("flush_all", client.ask(b"flush_all"), b"OK")
                expect_equal("after a flush", client.get(b"mine"), None)
                client.must_set(b"mine", b"after")
                expect_equal("stored after a flush", client.get(b"mine"), b"after")
                flushes += 1
        over.set()
        for thread in loads:
            thread.join()
        expect_no_failures(failures, "under load")
        world.note = f"{flushes} flushes"


@check(*ALL, limit_s=60)
def a_value_is_never_torn_however_it_is_changed(world):
    """Writers replace, append to and delete the large values that readers read."""
    failures, over, reads = [], threading.Event(), [0]
    keys = [b"hot%d" % number for number in range(4)]

    def guarded(work):
        def run():
            try:
                with server.client() as client:
                    while not over.is_set():
                        work(client)
            except Exception as error:
                failures.append(error)
        return threading.Thread(target=run)

    def write(client):
        for key in keys:
            client.must_set(key, sealed(os.urandom(8).hex().encode(), 60_000 + os.urandom(1)[0] * 500))
        client.ask(b"delete " + keys[0])

    def read(client):
        for value in client.get_many(*keys).values():
            expect(is_whole(value), "a value is torn")
            reads[0] += 1

    with cache(world, "-m", "64") as server, Pulse(world, server):
        threads = [guarded(write), guarded(write), guarded(read), guarded(read)]
        for thread in threads:
            thread.start()
        # Not a wait for an event: a longer time tries more.
        time.sleep(2)
        wait_for("some values were read", lambda: reads[0] > 100 or failures)
        over.set()
        for thread in threads:
            thread.join()
        expect_no_failures(failures, "of those who read and write")
        world.note = f"{reads[0]:,} values"


