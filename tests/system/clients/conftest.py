"""Fixtures that python-binary-memcached's tests expect, and its source package lacks. `memcached` on the path is weft cache,
see checks/cache_clients.py."""

import socket
import subprocess
import time

import pytest

IPV6_PORT = 11219
SASL_PORT = 11220


def start(host, port, *flags):
    process = subprocess.Popen(["memcached", "-l", host, "-p", str(port), *flags])
    for _ in range(1000):
        assert process.poll() is None, f"memcached {flags} ended with {process.returncode}"
        try:
            socket.create_connection((host, port), timeout=10).close()
            return process
        except OSError:
            time.sleep(0.02)
    raise AssertionError(f"memcached does not listen at {host}:{port}")


@pytest.fixture(scope="session")
def memcached_ipv6():
    process = start("::1", IPV6_PORT)
    yield IPV6_PORT
    process.kill()
    process.wait()


@pytest.fixture(scope="session")
def memcached_sasl(tmp_path_factory):
    users = tmp_path_factory.mktemp("sasl") / "users"
    users.write_text("user:password\n")
    process = start("127.0.0.1", SASL_PORT, "-S", "-Y", str(users))
    yield SASL_PORT, "user", "password"
    process.kill()
    process.wait()
