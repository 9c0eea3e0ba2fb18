"""The servers that python-binary-memcached's tests expect (its source package leaves them out): `memcached` on the path is weft
cache, see checks/cache_clients.py."""

import subprocess
import time

import pytest

IPV6_PORT = 11219
SASL_PORT = 11220


def start(*flags):
    process = subprocess.Popen(["memcached", *flags])
    time.sleep(0.3)
    assert process.poll() is None, f"memcached {flags} ended with {process.returncode}"
    return process


@pytest.fixture(scope="session")
def memcached_ipv6():
    process = start("-l", "::1", "-p", str(IPV6_PORT))
    yield IPV6_PORT
    process.kill()
    process.wait()


@pytest.fixture(scope="session")
def memcached_sasl(tmp_path_factory):
    users = tmp_path_factory.mktemp("sasl") / "users"
    users.write_text("user:password\n")
    process = start("-S", "-Y", str(users), "-l", "127.0.0.1", "-p", str(SASL_PORT))
    yield SASL_PORT, "user", "password"
    process.kill()
    process.wait()
