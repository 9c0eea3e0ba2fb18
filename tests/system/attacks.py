"""What hostile clients do, a function each: it is shown a server and an `Attackers`, and attacks until that is over. The servers have
`small.txt`, 64 MiB in `big.bin`, 200 KB in `medium.bin`, a wide folder `/wide/`, and a file that grows, `growing.log`."""

import os
import random
import socket
import ssl
import struct
import threading

GET = b"GET %s HTTP/1.1\r\nHost: h\r\n\r\n"
RESET = struct.pack("ii", 1, 0)


class Attackers:
    """Threads and connections of one attack."""

    def __init__(self, server):
        self.server, self.is_over = server, threading.Event()
        self.threads, self.sockets = [], []

    def connect(self, receive_buffer=None):
        """A connection that stays open until the attack is over."""
        connection = socket.socket()
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(5)
        connection.connect((self.server.host, self.server.port))
        self.sockets.append(connection)
        return connection

    def crowd(self, count, request, receive_buffer=None):
        """So many connections that send this, and read nothing."""
        def arrive():
            for _ in range(count // 4):
                if self.is_over.is_set():
                    return
                self.send(self.connect(receive_buffer), request)

        self.each(4, arrive)

    def each(self, count, attack):
        """So many threads that do this once."""
        for _ in range(count):
            thread = threading.Thread(target=survived, args=(attack,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def repeat(self, count, attack):
        """So many threads that do this again and again. A server may end their connections: that is its right."""
        def again():
            while not self.is_over.is_set():
                survived(attack)

        self.each(count, again)

    def send(self, connection, request):
        """As much as the server takes before it keeps the client waiting."""
        connection.setblocking(False)
        try:
            while request:
                request = request[connection.send(request):]
        except BlockingIOError:
            pass

    def exchange(self, request, read_max=1 << 30):
        """Sends this on a connection of its own, and reads what comes until the server ends it, or is silent."""
        with socket.create_connection((self.server.host, self.server.port), 5) as connection:
            sender = threading.Thread(target=survived, args=(lambda: connection.sendall(request),), daemon=True)
            sender.start()
            connection.settimeout(1)
            read = 0
            while read < read_max and not self.is_over.is_set() and (piece := connection.recv(1 << 20)):
                read += len(piece)

    def leave(self):
        self.is_over.set()
        self.reset_all()
        for thread in self.threads:
            thread.join(20)
        # Those that were made meanwhile.
        self.reset_all()

    def reset_all(self):
        for connection in self.sockets:
            survived(lambda: connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET))
            connection.close()


def survived(attack):
    try:
        attack()
    except OSError:
        pass


def with_reset(attackers, request):
    with socket.create_connection((attackers.server.host, attackers.server.port), 5) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.sendall(request)


# ---- a web server

def half_heads(attackers):
    attackers.crowd(2000, b"GET / HTTP/1.1\r\nHost: h\r\nX-Slow: ")


def connections_reset(attackers):
    attackers.repeat(4, lambda: with_reset(attackers, b""))


def half_heads_reset(attackers):
    attackers.repeat(4, lambda: with_reset(attackers, b"GET / HTTP/1.1\r\nHost:"))


def big_file_unread(attackers):
    attackers.crowd(1000, GET % b"/big.bin", receive_buffer=2048)


def medium_file_unread(attackers):
    attackers.crowd(1000, GET % b"/medium.bin", receive_buffer=2048)


def pipelines_unread(attackers):
    attackers.crowd(200, (GET % b"/medium.bin") * 100)


def pipelines_read(attackers):
    attackers.repeat(4, lambda: attackers.exchange((GET % b"/small.txt") * 2000, read_max=200_000))


def missing_names(attackers):
    def ask():
        names = [b"/%016x" % random.getrandbits(64) for _ in range(200)]
        attackers.exchange(b"".join(GET % name for name in names), read_max=20_000)

    attackers.repeat(4, ask)


def many_ranges(attackers):
    ranges = b",".join(b"%d-%d" % (at * 4000, at * 4000 + 1000) for at in range(16))
    request = b"GET /big.bin HTTP/1.1\r\nHost: h\r\nRange: bytes=" + ranges + b"\r\n\r\n"
    attackers.repeat(4, lambda: attackers.exchange(request * 100, read_max=1_600_000))


def chunks_of_a_byte(attackers):
    request = b"POST /small.txt HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100_000
    attackers.repeat(4, lambda: attackers.exchange(request))


def listings(attackers):
    def change(at=[0]):
        at[0] += 1
        path = os.path.join(attackers.server.site, "wide", f"new{at[0] % 5}")
        open(path, "w").close()
        os.unlink(path)
        attackers.is_over.wait(0.02)

    attackers.repeat(1, change)
    attackers.repeat(10, lambda: attackers.exchange(GET % b"/wide/", read_max=100_000))


def growing_file(attackers):
    def grow():
        with open(os.path.join(attackers.server.site, "growing.log"), "a") as log:
            log.write("another line\n")
        attackers.is_over.wait(0.005)

    attackers.repeat(1, grow)
    attackers.repeat(40, lambda: attackers.exchange(GET % b"/growing.log", read_max=100))


WEB = [half_heads, connections_reset, half_heads_reset, big_file_unread, medium_file_unread, pipelines_unread, pipelines_read, missing_names,
       many_ranges, chunks_of_a_byte, listings, growing_file]


# ---- a web server with TLS

def context():
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


def hello():
    """The first bytes of a client."""
    out = ssl.MemoryBIO()
    try:
        context().wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


def tls_connection(attackers):
    plain = attackers.connect(receive_buffer=4096)
    secure = context().wrap_socket(plain)
    # The descriptor is its own from now on.
    attackers.sockets[attackers.sockets.index(plain)] = secure
    return secure


def handshakes_half_open(attackers):
    attackers.crowd(400, hello())


def hellos_reset(attackers):
    first = hello()

    def shake():
        with_reset(attackers, first)
        # Fewer than a processor can answer.
        attackers.is_over.wait(0.005)

    attackers.repeat(1, shake)


def handshakes(attackers):
    def shake():
        with socket.create_connection((attackers.server.host, attackers.server.port), 5) as connection:
            with context().wrap_socket(connection):
                pass

    attackers.repeat(8, shake)


def garbage_of_tls(attackers):
    attackers.repeat(4, lambda: attackers.exchange(b"\x16\x03\x01\x40\x00" + os.urandom(20_000)))


def records_of_a_byte(attackers):
    def dribble():
        connection = tls_connection(attackers)
        for byte in (GET % b"/small.txt") * 20:
            connection.sendall(bytes([byte]))

    attackers.repeat(4, dribble)


def tls_file_unread(attackers):
    def ask():
        for _ in range(25):
            if attackers.is_over.is_set():
                return
            tls_connection(attackers).sendall(GET % b"/big.bin")

    attackers.each(4, ask)


TLS = [handshakes_half_open, hellos_reset, handshakes, garbage_of_tls, records_of_a_byte, tls_file_unread]


# ---- a cache

def values_unread(attackers):
    attackers.exchange(b"set big 0 0 1000000\r\n" + b"x" * 1_000_000 + b"\r\nquit\r\n")
    attackers.crowd(300, b"get big\r\n", receive_buffer=2048)


def gets_unread(attackers):
    attackers.exchange(b"set big 0 0 1000000\r\n" + b"x" * 1_000_000 + b"\r\nquit\r\n")
    attackers.crowd(100, b"get big\r\n" * 1000)


def many_keys(attackers):
    keys = b"".join(b" k%d" % at for at in range(50_000))
    attackers.repeat(3, lambda: attackers.exchange(b"get" + keys + b"\r\nquit\r\n"))


def many_keys_found(attackers):
    attackers.exchange(b"".join(b"set k%d 0 0 1 noreply\r\nx\r\n" % at for at in range(10_000)) + b"quit\r\n")
    many_keys(attackers)


def huge_and_tiny(attackers):
    def store():
        sizes = [random.choice((1, 100, 900_000)) for _ in range(50)]
        lines = (b"set s%d 0 0 %d\r\n" % (random.getrandbits(12), size) + b"y" * size + b"\r\n" for size in sizes)
        attackers.exchange(b"".join(lines) + b"quit\r\n")

    attackers.repeat(3, store)


def half_a_store(attackers):
    attackers.crowd(200, b"set half 0 0 1000000\r\n" + b"x" * 100_000)


def too_large(attackers):
    attackers.repeat(4, lambda: attackers.exchange(b"set large 0 0 2000000\r\n" + b"x" * 2_000_000 + b"\r\nquit\r\n"))


def lines_without_end(attackers):
    attackers.repeat(4, lambda: attackers.exchange(b"get " + b"x" * 5_000_000))


def watchers(attackers):
    attackers.crowd(40, b"watch fetchers mutations evictions\r\n")
    attackers.repeat(2, lambda: attackers.exchange(b"get k1 k2 k3\r\n" * 2000 + b"quit\r\n"))


def dumps(attackers):
    attackers.exchange(b"".join(b"set k%d 0 0 1 noreply\r\nx\r\n" % at for at in range(10_000)) + b"quit\r\n")
    attackers.repeat(3, lambda: attackers.exchange(b"lru_crawler metadump all\r\nlru_crawler crawl all\r\nquit\r\n"))


def flushes(attackers):
    attackers.repeat(3, lambda: attackers.exchange(b"set a 0 0 1\r\nx\r\nflush_all\r\ncache_memlimit 64\r\n" * 500 + b"quit\r\n"))


def binary_nonsense(attackers):
    attackers.repeat(4, lambda: attackers.exchange(b"\x80" + os.urandom(5000)))


def byte_by_byte(attackers):
    def dribble():
        connection = attackers.connect()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"get neighbour\r\n" * 30:
            connection.sendall(bytes([byte]))

    attackers.repeat(8, dribble)


CACHE = [values_unread, gets_unread, many_keys, many_keys_found, huge_and_tiny, half_a_store, too_large, lines_without_end, watchers, dumps,
         flushes, binary_nonsense, byte_by_byte]
# After these a key may be gone: by order, or evicted in favour of others.
TAKES_KEYS = {flushes, huge_and_tiny, half_a_store}
