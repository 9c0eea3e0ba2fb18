#!/usr/bin/env python3
"""A client that asks for one small value again and again. At each line of its input it prints how many times since the last one, and the
longest wait in milliseconds, and ends unless the line is `lap`. A process of its own: what else a check does must not look like a stall of
the server.

    tests/system/pulse.py PORT
"""

import select
import socket
import sys
import time


def main():
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ask(connection, b"set pulse 0 0 4\r\nbeat\r\n")
    print("ready", flush=True)
    while lap(connection) == "lap":
        pass


def lap(connection):
    """Asks until a line comes, and returns it."""
    count, longest = 0, 0.0
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        began = time.perf_counter()
        ask(connection, b"get pulse\r\n")
        longest = max(longest, time.perf_counter() - began)
        count += 1
    print(count, round(longest * 1000, 1), flush=True)
    return sys.stdin.readline().strip()


def ask(connection, request):
    connection.sendall(request)
    # A value, or its absence after a flush: both end with a line.
    reply = b""
    while not reply.endswith((b"STORED\r\n", b"END\r\n")):
        piece = connection.recv(4096)
        if not piece:
            sys.exit("the connection ended")
        reply += piece


if __name__ == "__main__":
    main()
