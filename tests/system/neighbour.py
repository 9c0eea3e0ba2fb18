#!/usr/bin/env python3
"""A normal client during an attack: a request every 10 ms on a kept connection, and one on a new connection (with TLS every 100 ms).
Each time counts from when the request was due, so a server that stalls for a second delays a hundred requests. It is a process of its
own, so that the check's other work does not look like a stall of the server.

    tests/system/neighbour.py PORT http|https|http2|cache|forgetful

A `forgetful` cache may have lost its item. Prints `ready`, and after a line of input its results as JSON.
"""

import itertools
import json
import socket
import ssl
import sys
import threading
import time

import frames

# A TLS handshake takes as long as many requests.
PERIODS_S = {"kept": 0.01, "new": 0.01, "new https": 0.1}
# A later reply counts as lost.
PATIENCE_S = 30

BODY = b"small"
REQUESTS = {
    "http": (b"GET /small.txt HTTP/1.1\r\nHost: h\r\n\r\n", b"\r\n\r\n" + BODY),
    "cache": (b"get neighbour\r\n", b"END\r\n"),
}
REQUESTS |= {"https": REQUESTS["http"], "forgetful": REQUESTS["cache"]}
STARTS = {"http": (b"HTTP/1.1 200 OK\r\n",), "cache": (b"VALUE neighbour 0 5\r\nsmall\r\nEND\r\n",)}
STARTS |= {"https": STARTS["http"], "forgetful": (*STARTS["cache"], b"END\r\n")}


class Neighbour:
    def __init__(self, port, protocol):
        self.port, self.protocol = port, protocol
        self.is_over = threading.Event()
        self.waits = {"kept": [], "new": []}
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE
        self.wrong = []

    def connect(self):
        connection = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.protocol == "http2":
            connection.sendall(frames.PREFACE + frames.settings())
        if self.protocol != "https":
            return connection
        return self.context.wrap_socket(connection)

    def ask(self, connection, stream=1):
        if self.protocol == "http2":
            request, end = frames.get(stream) + frames.window(0, len(BODY)), frames.frame(frames.DATA, frames.END_STREAM, stream, BODY)
        else:
            request, end = REQUESTS[self.protocol]
        connection.sendall(request)
        reply = b""
        while not reply.endswith(end):
            piece = connection.recv(4096)
            if not piece:
                raise OSError(f"the connection ended after {reply!r}")
            reply += piece
        if self.protocol != "http2" and not reply.startswith(STARTS[self.protocol]):
            raise OSError(f"the reply is {reply!r}")

    def ask_new(self):
        with self.connect() as connection:
            self.ask(connection)

    def each_period(self, kind, ask):
        period_s = PERIODS_S.get(f"{kind} {self.protocol}", PERIODS_S[kind])
        due = time.monotonic()
        while not self.is_over.wait(max(0, due - time.monotonic())):
            try:
                ask()
            except OSError as error:
                self.wrong.append(f"{kind}: {error}")
                return
            self.waits[kind].append(time.monotonic() - due)
            due += period_s

    def run(self):
        kept = self.connect()
        if self.protocol in ("cache", "forgetful"):
            kept.sendall(b"set neighbour 0 0 5\r\nsmall\r\n")
            kept.recv(4096)
        streams = itertools.count(1, 2)
        tasks = {"kept": lambda: self.ask(kept, next(streams)), "new": self.ask_new}
        threads = [threading.Thread(target=self.each_period, args=task) for task in tasks.items()]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        sys.stdin.readline()
        self.is_over.set()
        for thread in threads:
            thread.join()
        found = {kind: summary(waits) for kind, waits in self.waits.items()}
        print(json.dumps({**found, "wrong": self.wrong}), flush=True)


def summary(waits):
    in_order = [round(wait * 1000, 1) for wait in sorted(waits)] or [0.0]
    return {"count": len(waits), "p50": in_order[len(in_order) // 2], "p99": in_order[len(in_order) * 99 // 100], "max": in_order[-1]}


if __name__ == "__main__":
    Neighbour(int(sys.argv[1]), sys.argv[2]).run()
