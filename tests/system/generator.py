"""What the checks of `weft load` stand on: the generator as a process, and servers that behave badly in one known way."""

import itertools
import json
import socket
import threading

from world import Failure, expect


class Report(dict):
    """What `weft load --json` says, and how the process ended."""

    def __init__(self, figures, status, said):
        super().__init__(figures)
        self.status, self.said = status, said

    @property
    def errors(self):
        return {name: count for name, count in self["errors"].items() if count and name != "total"}

    def p99_ms(self, which):
        return self["latency_us"][which]["p99"] / 1e3


def start_load(world, *words, wrap=(), **options):
    """`weft load WORDS`, running."""
    return world.start(*wrap, world.binary, "load", *words, **options)


def load(world, *words, status=0, seconds=30, wrap=(), **options):
    """Runs `weft load WORDS --json FILE` to its end within `seconds`, and returns what it says."""
    file = report_file(world)
    process = start_load(world, *words, "--json", file, wrap=wrap, **options)
    return finished(process, file, status, seconds)


REPORTS = itertools.count()


def report_file(world):
    """Where a report goes: no other, also of those that are made at the same time, goes there."""
    return world.scratch / f"load-{next(REPORTS)}.json"


def finished(process, file, status, seconds):
    try:
        _, err = process.communicate(timeout=seconds)
    except Exception as error:
        raise Failure(f"weft load has not ended after {seconds} s") from error
    said = err.decode(errors="replace").strip()
    expect(process.returncode == status, f"weft load ended with {process.returncode}, not {status}: {said}")
    expect("panicked" not in said, f"weft load panicked: {said}")
    figures = json.loads(file.read_text()) if file.exists() else {}
    return Report(figures, process.returncode, said)


class Badly:
    """A server on a thread per connection, whose `behave(connection)` is the whole of its manners; `greet` comes before it."""

    def __init__(self, behave, greet=None, host="127.0.0.1"):
        self.behave, self.greet = behave, greet
        self.listener = socket.create_server((host, 0), backlog=1024)
        self.port = self.listener.getsockname()[1]
        self.connections = []
        threading.Thread(target=self.accept, daemon=True).start()

    def url(self, path="/"):
        return f"http://127.0.0.1:{self.port}{path}"

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            if self.greet:
                self.greet(connection)
            while connection.recv(65536):
                if self.behave(connection) == "close":
                    break
        except OSError:
            pass
        finally:
            connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()
        for connection in self.connections:
            connection.close()
