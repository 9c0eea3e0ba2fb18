"""Servers with one known fault each, for `weft load`: as threads of a check (`Badly`), or as a process elsewhere:

    manners.py HOST NAME          prints its port, and serves until it is ended

A function is called with the connection after each piece of a request, and may return "close". Those in `greet` act before any request.
"""

import socket
import sys
import time

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GOOD = HEAD + b"Content-Length: 5\r\n\r\nhello"
ENDLESS = 1 << 40


# ---- HTTP

def half_a_body(connection):
    connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n" + b"x" * 500)
    return "close"


def half_a_body_and_silence(connection):
    connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n" + b"x" * 500)


def more_than_announced(connection):
    connection.sendall(HEAD + b"Content-Length: 5\r\n\r\n" + b"hello, and more")


def two_lengths(connection):
    connection.sendall(HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello")


def chunks_without_end(connection):
    connection.sendall(CHUNKED)
    repeat(connection, b"5\r\nhello\r\n" * 100)


def head_without_end(connection):
    connection.sendall(HEAD)
    repeat(connection, b"X-Filler: " + b"x" * 1000 + b"\r\n")


def drip(connection):
    for byte in HEAD + b"Content-Length: 5\r\n\r\nhello":
        connection.sendall(bytes([byte]))
        time.sleep(0.2)


def silence(connection):
    pass


def nothing_but_the_end(connection):
    return "close"


def reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    return "close"


def another_protocol(connection):
    connection.sendall(b"-ERR unknown command\r\n\r\n")


def length_of_an_exabyte(connection):
    connection.sendall(HEAD + b"Content-Length: 1152921504606846976\r\n\r\n" + b"x" * 100_000)


def chunk_whose_rest_is_a_size(connection):
    connection.sendall(CHUNKED + b"1\r\nabc5\r\nhello\r\n0\r\n\r\n")


def chunk_extension_without_end(connection):
    connection.sendall(CHUNKED + b"5")
    repeat(connection, b";name=value" * 1000)


def line_without_end(connection):
    connection.sendall(HEAD + b"X-Filler: ")
    repeat(connection, b"x" * 10_000)


def reset_in_the_middle(connection):
    connection.sendall(HEAD + b"Content-Length: 100000\r\n\r\n" + b"x" * 50_000)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    return "close"


def half_close_in_the_middle(connection):
    connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n" + b"x" * 500)
    connection.shutdown(socket.SHUT_WR)


def another_protocol_follows(connection):
    connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n\x81\x05hello")


def alert_of_tls(connection):
    connection.sendall(b"\x15\x03\x01\x00\x02\x02\x16")
    return "close"


def http_2(connection):
    connection.sendall(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\0" * 18)


def zeros(connection):
    connection.sendall(b"\0" * 100_000)


def body_without_end(connection):
    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
    repeat(connection, b"x" * 100_000)


def head_of_line_feeds(connection):
    connection.sendall(b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello")


# Behaviour, and the error classes that may count it. Further malformed replies are in the tests of
# crates/load/src/protocol/http.rs: `nonsense_is_broken`, `what_never_comes_to_an_end_is_broken`.
HTTP = {
    half_a_body: {"short_reply"},
    half_a_body_and_silence: {"client_timeout"},
    more_than_announced: {"bad_reply"},
    two_lengths: {"bad_reply"},
    chunks_without_end: {"client_timeout"},
    head_without_end: {"bad_reply", "client_timeout"},
    drip: {"client_timeout"},
    silence: {"client_timeout"},
    nothing_but_the_end: {"short_reply"},
    reset: {"reset"},
    another_protocol: {"bad_reply"},
    length_of_an_exabyte: {"client_timeout"},
    chunk_whose_rest_is_a_size: {"bad_reply"},
    chunk_extension_without_end: {"bad_reply"},
    line_without_end: {"bad_reply"},
    reset_in_the_middle: {"reset"},
    half_close_in_the_middle: {"short_reply"},
    another_protocol_follows: {"unexpected_status"},
    alert_of_tls: {"bad_reply"},
    http_2: {"client_timeout", "bad_reply"},
    zeros: {"client_timeout", "bad_reply"},
    body_without_end: {"client_timeout"},
    head_of_line_feeds: {"client_timeout", "bad_reply"},
}


# ---- memcached

def value(key, content, length=None):
    length = len(content) if length is None else length
    return b"VALUE %b 0 %d\r\n%b\r\n" % (key, length, content)


# The plan's first key, whatever key is requested.
FIRST_KEY = b"weft-0000000000" + b"x" * 15


def always_the_same_key(connection):
    connection.sendall(value(FIRST_KEY, b"x" * 100) + b"END\r\n")


def a_key_of_somebody_else(connection):
    connection.sendall(value(b"session:7", b"x" * 100) + b"END\r\n")


def out_of_memory(connection):
    connection.sendall(b"SERVER_ERROR out of memory storing object\r\n")


def values_without_end(connection):
    repeat(connection, value(FIRST_KEY, b"x") * 100)


def value_of_a_gigabyte(connection):
    connection.sendall(b"VALUE %b 0 1073741824\r\n" % FIRST_KEY)
    repeat(connection, b"x" * 1_000_000)


def value_longer_than_said(connection):
    connection.sendall(value(FIRST_KEY, b"hello, and more", length=5) + b"END\r\n")


def value_shorter_than_said(connection):
    connection.sendall(value(FIRST_KEY, b"hello", length=8) + b"END\r\n")


def cache_line_without_end(connection):
    repeat(connection, b"VALUE " * 1000)


def binary_protocol(connection):
    connection.sendall(b"\x81\x00\x00\x00\x00\x00\x00\x81" + b"\0" * 16 + b"Unknown command\n")


def no_end(connection):
    connection.sendall(value(FIRST_KEY, b"x" * 100))


# `STORED` in reply to a get, and a length of letters, are in crates/load/tests/cache.rs and crates/load/src/protocol/memcached.rs.
CACHE = {
    always_the_same_key: {"wrong_bytes"},
    a_key_of_somebody_else: {"wrong_bytes"},
    out_of_memory: {"unexpected_status"},
    values_without_end: {"bad_reply"},
    # A fast machine receives all of it within the time-out, but then no end of line.
    value_of_a_gigabyte: {"bad_reply", "client_timeout", "wrong_bytes"},
    value_longer_than_said: {"bad_reply"},
    value_shorter_than_said: {"bad_reply"},
    cache_line_without_end: {"bad_reply"},
    binary_protocol: {"bad_reply"},
    no_end: {"client_timeout"},
}


# ---- servers that act before any request

def repeat(connection, piece):
    for _ in range(ENDLESS // len(piece)):
        connection.sendall(piece)


def greeting(connection):
    connection.sendall(b"220 mail.example.org ESMTP\r\n")


def reply_before_the_request(connection):
    connection.sendall(GOOD)


def deaf(connection):
    """Reads nothing for longer than any run."""
    time.sleep(60)


def main(host, name):
    from generator import Badly
    manner = next(manner for manner in [*HTTP, *CACHE] if manner.__name__ == name)
    print(Badly(manner, host=host).port, flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
