"""memcached's own clients, unmodified, with their own tests. They look for memcached at its usual port and start it by its name,
so each suite runs in its own network namespace, with a `memcached` on the path that is weft cache.

pip and go download them into target/system-clients, once. A suite that skips an unexpected test fails.
"""

import hashlib
import os
import pathlib
import re
import subprocess
import sys

from checks.cache_differences import memcached
from memcache import cache
from world import ALL, FIBERS, VARIANTS, Failure, StillWaiting, check, expect, expect_equal, fetch, made_once

PINNED = [
    "pytest==9.2.0", "pymemcache==4.0.0", "pylibmc==1.6.3", "python-binary-memcached==0.33.0",
    # Imports of their tests.
    "faker==40.54.0", "zstd==1.5.7.2", "trustme==1.2.1",
]
# Clients whose tests are in the source package only.
SOURCES = {"pylibmc": "pylibmc-1.6.3", "python-binary-memcached": "python_binary_memcached-0.33.0"}
GOMEMCACHE = "github.com/bradfitz/gomemcache@v0.0.0-20260422231931-4d751bb6e37c"


@check("uring", "event")
def memccapable_finds_every_capability(world):
    with cache(world) as server:
        out = memccapable(world, server.port)
        # Current memcached answers a delete without a key in other words than memccapable expects.
        theirs = memccapable(world, memcached(world).split(":")[1])
        expect_equal("capabilities that lack", lacking(out), lacking(theirs))
        protocols = {protocol: out.count(f"\n{protocol} ") for protocol in ("ascii", "binary")}
        expect(protocols["ascii"] > 20 and protocols["binary"] > 20, f"only {protocols} capabilities were asked for")
        world.note = f"{out.count('[pass]')} capabilities"


def memccapable(world, port):
    """Output of memccapable: a line per capability."""
    asks = world.start("memccapable", "-h", "127.0.0.1", "-p", port, "-t", "20", stderr=subprocess.STDOUT)
    return asks.communicate(timeout=25)[0].decode()


def lacking(out):
    expect("tests passed" in out or "tests failed" in out, out[-300:])
    return [line.split("[")[0].strip() for line in out.splitlines() if "[FAIL]" in line]


@check(*ALL, limit_s=180)
def pymemcache_passes_its_tests(world):
    folder = next(environment(world).glob("lib/python3*/site-packages"))
    # Benchmarks are left out. One test, for three kinds of clients, is disabled in its source (its issue 39).
    pytest(world, folder, "pymemcache/test", "-k", "not bench", least=500, skipped=3)


@check(*ALL, limit_s=180)
def pylibmc_passes_its_tests(world):
    pytest(world, source(world, "pylibmc"), "tests", least=40)


@check(*ALL, limit_s=180)
def bmemcached_passes_its_tests(world):
    folder = source(world, "python-binary-memcached")
    ours = pathlib.Path(__file__).parent.parent / "clients" / "conftest.py"
    (folder / "test" / "conftest.py").write_bytes(ours.read_bytes())
    pytest(world, folder, "test", least=100)


# Variants with one thread for all connections, see SCRIPT.
@check(*FIBERS, "event", limit_s=180)
def gomemcache_passes_its_tests(world):
    folder = clients_folder(world) / "go"
    if not (folder / "go.sum").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "go.mod").write_text("module clients\n\ngo 1.18\n")
        fetch(["go", "get", GOMEMCACHE.replace("@", "/memcache@")], cwd=folder)
    out = in_own_network(world, ["go", "test", "-count=1", "-v", "github.com/bradfitz/gomemcache/memcache"], folder)
    passed = re.findall(r"^--- PASS: (\w+)", out, re.M)
    expect({"TestLocalhost", "TestUnixSocket", "TestTLS"} <= set(passed) and "--- SKIP" not in out,
           f"only {passed} ran: {out[-300:]}")
    world.note = f"{len(passed)} tests"


def pytest(world, folder, *tests, least, skipped=0):
    """Runs a whole suite, and checks that at least `least` tests passed."""
    python = environment(world) / "bin" / "python"
    command = [python, "-m", "pytest", "-q", "-rs", "-W", "ignore", "-p", "no:cacheprovider", *tests]
    out = in_own_network(world, command, folder)
    passed = int((re.search(r"(\d+) passed", out) or [0, 0])[1])
    expect(int((re.search(r"(\d+) skipped", out) or [0, 0])[1]) == skipped, f"some were skipped: {out[-400:]}")
    expect(passed >= least and not re.search(r"\d+ (failed|error)", out), f"not all passed: {out[-400:]}")
    world.note = f"{passed} tests"


# One thread: a test of gomemcache sends flush_all, closes the connection and uses another one. With two threads
# the flush may run during the rest of that test.
SCRIPT = """
ip link set lo up
rm -f /tmp/memcached.sock
memcached -t 1 & first=$!
memcached -p 5000 & second=$!
memcached -s /tmp/memcached.sock -a 777 & third=$!
trap 'kill $first $second $third; wait; rm -f /tmp/memcached.sock' EXIT
for port in 11211 5000; do
    until (: < /dev/tcp/127.0.0.1/$port) 2> /dev/null; do kill -0 $first || exit 1; sleep 0.05; done
done
until [ -S /tmp/memcached.sock ]; do kill -0 $third || exit 1; sleep 0.05; done
"$@"
"""


def in_own_network(world, command, folder):
    """Runs a command in a network where port 11211 is weft cache's, and returns its output."""
    names = world.scratch / "bin"
    names.mkdir()
    memcached = names / "memcached"
    engine = " ".join(VARIANTS[world.variant])
    memcached.write_text(f'#!/bin/sh\nexec "{world.binary}" cache -u root {engine} "$@"\n')
    memcached.chmod(0o755)
    process = world.start("unshare", "--net", "bash", "-c", SCRIPT, "suite", *command, cwd=folder,
                          env={**ENVIRONMENT, "PATH": f"{names}:{ENVIRONMENT['PATH']}", "MEMCACHED_HOST": "127.0.0.1"})
    out, err = process.communicate()
    if process.returncode != 0:
        (world.scratch / "suite.log").write_bytes(out + err)
        last = " | ".join((out + err).decode(errors="replace").strip().splitlines()[-8:])
        # The message of clients with a time-out of half a second.
        is_late = re.search(r"timed? ?out|i/o timeout", (out + err).decode(errors="replace"), re.I)
        kind = StillWaiting if is_late else Failure
        raise kind(f"{pathlib.Path(str(command[0])).name} ended with {process.returncode}: {last}")
    return out.decode()


# ---- downloads

ENVIRONMENT = dict(os.environ)


def clients_folder(world):
    return world.scratch.parent.parent / "system-clients"


def environment(world):
    """A virtual environment with the pinned clients, remade when the pins change."""
    pins = hashlib.sha256(" ".join(PINNED).encode()).hexdigest()[:8]

    def make(folder):
        fetch([sys.executable, "-m", "venv", "--clear", folder])
        fetch([folder / "bin" / "pip", "install", "--quiet", *PINNED])

    return made_once(clients_folder(world) / f"python-{pins}", make)


def source(world, name):
    """Unpacked source package of a client."""
    python = environment(world)
    folder = clients_folder(world) / SOURCES[name]
    if not folder.exists():
        pin = next(pin for pin in PINNED if pin.startswith(name + "=="))
        fetch([python / "bin" / "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
               "--dest", clients_folder(world), pin])
        fetch(["tar", "--extract", "--directory", clients_folder(world), "--file", f"{folder}.tar.gz"])
    return folder
