#!/usr/bin/env python3
"""A client that gets one small value again and again. After each line of input it prints the number of gets since the last line and the
longest wait in milliseconds; it ends unless the line is `lap`. It is a process of its own, so that the check's other work does not look
like a stall of the server.

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
    """Sends gets until a line of input arrives, and returns it."""
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
    # A value, or a miss after a flush: both end with a line.
    reply = b""
    while not reply.endswith((b"STORED\r\n", b"END\r\n")):
        piece = connection.recv(4096)
        if not piece:
            sys.exit("the connection ended")
        reply += piece


if __name__ == "__main__":
    main()
