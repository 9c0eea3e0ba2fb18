"""Several caches: nutcracker, and memcached's own proxy, in front of three, with the configurations of the documentation."""

import hashlib
import pathlib
import signal
import socket

from checks.cache_clients import environment
from memcache import Client, cache
from world import Failure, check, expect, expect_equal, free_port, wait_for

DOCS = pathlib.Path(__file__).parents[3] / "docs"


@check(limit_s=120)
def nutcracker_spreads_keys_and_survives_a_lost_cache(world):
    servers = [cache(world) for _ in range(3)]
    port = free_port()
    text = (DOCS / "nutcracker.yml").read_text().replace("127.0.0.1:22121", f"127.0.0.1:{port}")
    for name, server in zip(("11211", "11212", "11213"), servers):
        expect(f"127.0.0.1:{name}:1" in text, f"the sample does not name 127.0.0.1:{name}")
        text = text.replace(f"127.0.0.1:{name}:1", f"127.0.0.1:{server.port}:1")
    # The sample waits half a minute before it retries a lost cache. Each try fails a request, so on a slow, busy machine
    # there must not be many.
    expect("server_retry_timeout: 30000" in text, "the sample has no server_retry_timeout")
    text = text.replace("server_retry_timeout: 30000", "server_retry_timeout: 5000")
    configuration = world.scratch / "nutcracker.yml"
    configuration.write_text(text)
    world.output_of("nutcracker", "--test-conf", "--conf-file", configuration)
    world.start("nutcracker", "--conf-file", configuration, "--stats-port", str(free_port()),
                "--output", world.scratch / "nutcracker.log")
    wait_for("nutcracker listens", lambda: is_open(port))
    survives_a_lost_cache(world, servers, port)


@check(limit_s=120)
def memcacheds_proxy_spreads_keys_and_survives_a_lost_cache(world):
    servers = [cache(world) for _ in range(3)]
    port = free_port()
    text = (DOCS / "memcached-proxy.lua").read_text()
    for name, server in zip(("11211", "11212", "11213"), servers):
        expect(f'"127.0.0.1:{name}"' in text, f"the sample does not name 127.0.0.1:{name}")
        text = text.replace(f'"127.0.0.1:{name}"', f'"127.0.0.1:{server.port}"')
    expect("retrytimeout = 30" in text, "the sample has no retrytimeout")
    text = text.replace("retrytimeout = 30", "retrytimeout = 5")
    configuration = world.scratch / "proxy.lua"
    configuration.write_text(text)
    log = (world.scratch / "proxy.log").open("wb")
    world.start("memcached", "-u", "root", "-l", "127.0.0.1", "-p", port, "-o", f"proxy_config=routelib,proxy_arg={configuration}",
                stdout=log, stderr=log)
    wait_for("the proxy listens", lambda: is_open(port))
    survives_a_lost_cache(world, servers, port)


def survives_a_lost_cache(world, servers, port):
    """Checks a proxy on this port in front of three caches, of which one dies and returns."""
    # Random-looking keys: nutcracker's hash places keys that differ in their last digits side by side, so, depending on the
    # ports, all of them on one cache.
    keys = [b"key-" + hashlib.md5(b"%d" % number).hexdigest().encode() for number in range(3000)]
    with connect(port) as client:
        for key in keys:
            client.must_set(key, b"value of " + key)
        for at in range(0, len(keys), 100):
            expect_equal("a multi-get through it", len(client.get_many(*keys[at:at + 100])), 100)
    counts = [int(server.stats()["curr_items"]) for server in servers]
    expect(min(counts) > 300 and sum(counts) == 3000, f"the keys are spread as {counts}")

    servers[1].signal(signal.SIGKILL)
    servers[1].process.wait()
    errors = sum(not stores(port, key) for key in keys)
    expect(errors < 30, f"{errors} of 3000 stores failed with one cache lost")
    lost_port = servers[1].port
    found = sum(has(port, key) for key in keys)
    expect(found >= 3000 - errors - 30, f"only {found} values are there with one cache lost")

    servers[1] = cache(world, port=lost_port)
    wait_for("it is used again", lambda: stores(port, b"again") and all(stores(port, key) for key in keys[:300])
             and int(servers[1].stats()["curr_items"]) > 0, 60)
    world.note = f"{errors} errors of 3,000 while it was lost"
    for server in servers:
        with server:
            pass


KETAMA = """
import sys, pylibmc
ports, mode = sys.argv[2:], sys.argv[1]
client = pylibmc.Client([f"127.0.0.1:{port}" for port in ports],
                        behaviors={"ketama": True, "remove_failed": 1, "retry_timeout": 3600, "no_block": False})
keys = [f"key-{number}" for number in range(3000)]
if mode == "fill":
    assert all(client.set(key, "value of " + key) for key in keys)
    assert len(client.get_multi(keys)) == 3000
else:
    failed = 0
    for key in keys:
        try:
            client.set(key, "again")
        except pylibmc.Error:
            failed += 1
    print(failed)
"""


@check(limit_s=120)
def ketama_clients_go_on_without_a_lost_cache(world):
    python = environment(world) / "bin" / "python"
    servers = [cache(world) for _ in range(3)]
    ports = [str(server.port) for server in servers]
    world.output_of(python, "-c", KETAMA, "fill", *ports)
    counts = [int(server.stats()["curr_items"]) for server in servers]
    expect(min(counts) > 300 and sum(counts) == 3000, f"the keys are spread as {counts}")
    servers[1].signal(signal.SIGKILL)
    servers[1].process.wait()
    failed = int(world.output_of(python, "-c", KETAMA, "again", *ports))
    expect(failed < 30, f"{failed} of 3000 stores failed with one cache lost")
    counts = [int(server.stats()["curr_items"]) for server in (servers[0], servers[2])]
    expect(sum(counts) >= 3000 - failed, f"the other two have {counts}")
    world.note = f"{failed} errors of 3,000"
    for server in (servers[0], servers[2]):
        with server:
            pass


def connect(port):
    return Client(socket.create_connection(("127.0.0.1", port), timeout=10))


def is_open(port):
    try:
        connect(port).close()
        return True
    except OSError:
        return False


def has(port, key):
    try:
        with connect(port) as client:
            return client.get(key) is not None
    except (OSError, Failure, ValueError):
        return False


def stores(port, key):
    try:
        with connect(port) as client:
            return client.set(key, b"new value") == b"STORED"
    except (OSError, Failure):
        return False
