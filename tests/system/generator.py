"""Helpers for the checks of `weft load`: the generator as a process, and servers with a known fault."""

import itertools
import json
import socket
import subprocess
import threading

from world import StillWaiting, expect, expect_equal, expect_in_time

# Error classes that a machine causes which stands still or drops packets: replies later than the default time-out of 10 s.
TIME_OUTS = {"client_timeout", "socket_timeout", "window_timeout"}


class Report(dict):
    """Report of `weft load --json`, and the end of the process."""

    def __init__(self, figures, status, said):
        super().__init__(figures)
        self.status, self.said = status, said

    @property
    def errors(self):
        """Errors by class; empty if no run was made."""
        return {name: count for name, count in self.get("errors", {}).items() if count and name != "total"}

    def expect_no_errors(self, what="errors"):
        self.expect_no_time_outs(what)
        expect_equal(what, self.errors, {})

    def expect_no_time_outs(self, what="errors"):
        """Fails as late if all errors are time-outs; for checks of other figures."""
        expect_in_time(not self.has_only_time_outs(), f"{what}: {self.errors}")

    def has_only_time_outs(self):
        return bool(self.errors) and set(self.errors) <= TIME_OUTS

    def p99_ms(self, which):
        return self["latency_us"][which]["p99"] / 1e3


def start_load(world, *words, wrap=(), **options):
    """Starts `weft load WORDS`."""
    return world.start(*wrap, world.binary, "load", *words, **options)


def load(world, *words, status=0, seconds=30, wrap=(), **options):
    """Runs `weft load WORDS --json FILE` to its end within `seconds`, and returns the report."""
    file = report_file(world)
    process = start_load(world, *words, "--json", file, wrap=wrap, **options)
    return finished(process, file, status, seconds)


REPORTS = itertools.count()


def report_file(world):
    """A path for a report, used only once, also by concurrent generators."""
    return world.scratch / f"load-{next(REPORTS)}.json"


def finished(process, file, status, seconds):
    try:
        _, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise StillWaiting(f"weft load has not ended after {seconds} s") from error
    said = err.decode(errors="replace").strip()
    expect("panicked" not in said, f"weft load panicked: {said}")
    report = Report(json.loads(file.read_text()) if file.exists() else {}, process.returncode, said)
    kept = process.returncode == status
    expect_in_time(kept or status != 0 or not report.has_only_time_outs(), f"weft load says: {report.errors}")
    expect(kept, f"weft load ended with {process.returncode}, not {status}: {said}")
    return report


class Badly:
    """A server with a thread per connection, which runs `greet` and then `behave(connection)`."""

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
