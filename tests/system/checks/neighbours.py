"""A normal client during attacks, compared with a client of an idle server of the same engine in the same seconds: its replies are right
and complete, it does not wait much longer, the memory taken by the attack is returned, and SIGTERM ends the server. CI runs each attack
once, under one of the engines. All attacks under each engine:

    tests/system/run.py --only uring/every_attack_leaves_neighbours_in_peace    (and so on)
"""

import json
import os
import subprocess
import sys
import pathlib
import time

import attacks
from memcache import cache, certificate
from world import ALL, check, expect, expect_equal, expect_in_time, wait_for

# Largest difference to the client of the idle server, in the 99th percentile. With a server that lets attackers starve others it is
# seconds.
WAITS_MORE_MS_MAX = {"kept": 1000, "new": 1000}

# A TLS handshake queues behind those of the attackers.
WAITS_MORE_MS_MAX["new https"] = 5000

# A starving server fails each try; other load on the processors does not.
TRIES = 3

# Length of an attack.
ATTACK_S = 1.0

# Memory that an allocator may keep, in MiB: less than a thousand connections had.
KEPT_MIB_MAX = 96

NEIGHBOUR = pathlib.Path(__file__).parent.parent / "neighbour.py"


def shares(part):
    """Attacks for one engine: they are distributed over all engines."""
    at = ALL.index(part)
    kinds = attacks.WEB, attacks.HTTP2, attacks.TLS, attacks.CACHE
    return [[attack for number, attack in enumerate(kind) if number % len(ALL) == at] for kind in kinds]


@check(*ALL, limit_s=180)
def attacks_leave_neighbours_in_peace(world):
    run(world, *shares(world.variant))


@check(*ALL, limit_s=600, by_hand=True)
def every_attack_leaves_neighbours_in_peace(world):
    run(world, attacks.WEB, attacks.HTTP2, attacks.TLS, attacks.CACHE)


@check(*ALL, limit_s=200, by_hand=True)
def attacks_of_http2_leave_neighbours_in_peace(world):
    run(world, [], attacks.HTTP2, [], [])


def run(world, web, http2, tls, caches):
    site = make_site(world)
    _, chain, key = certificate(world.scratch)
    flags = ("--listing", "--head-timeout", "60s", "--workers", 2)
    with world.server(*flags, site=site) as server, world.server(*flags, site=site) as idle:
        beside_each(world, server, idle, web, "http")
        beside_each(world, server, idle, http2, "http2")
    flags += ("--tls-cert", chain, "--tls-key", key)
    with world.server(*flags, site=site) as server, world.server(*flags, site=site) as idle:
        beside_each(world, server, idle, tls, "https")
    with cache(world, "-m", 64, "-t", 2) as server, cache(world, "-m", 64, "-t", 2) as idle:
        beside_each(world, server, idle, caches, "cache")


def make_site(world):
    site = world.folder(small__txt=b"small", medium__bin=b"m" * 200_000, growing__log=b"a line\n" * 1000)
    with open(site / "big.bin", "wb") as big:
        big.truncate(64 << 20)
    # Settled files, which are not checked again.
    for name in ("small.txt", "medium.bin", "big.bin"):
        os.utime(site / name, (10**9, 10**9))
    wide = site / "wide"
    wide.mkdir()
    for number in range(200):
        (wide / f"{'n' * 200}{number}").touch()
    return site


def beside_each(world, server, idle, all_of_them, protocol):
    for attack in all_of_them:
        is_lossy = attack in attacks.TAKES_KEYS
        beside(world, server, idle, attack, "forgetful" if is_lossy else protocol)


def beside(world, server, idle, attack, protocol):
    name = f"{attack.__name__} under {world.variant}"
    before_mib, fds = memory_mib(server), server.fd_count()
    for _ in range(TRIES):
        worst, too_long = wait_beside(world, server, idle, attack, protocol, name)
        wait_for(f"the descriptors are back after {name}", lambda: server.fd_count() <= fds + 4, 20)
        wait_for(f"the memory is back after {name}", lambda: memory_mib(server) <= before_mib + KEPT_MIB_MAX, 20)
        if not too_long:
            break
    expect_in_time(not too_long, f"a client waited for {too_long} (p99)")
    world.note += f"{', ' if world.note else ''}{attack.__name__} {worst:+.0f}"


def wait_beside(world, server, idle, attack, protocol, name):
    """Largest increase of the neighbour's p99 in milliseconds, and what of it is too long."""
    neighbour, control = (Neighbour(world, it, protocol) for it in (server, idle))
    attackers = attacks.Attackers(server)
    try:
        attack(attackers)
        time.sleep(ATTACK_S)  # length of the measurement
        felt, without = neighbour.end(), control.end()
    finally:
        attackers.leave()
    expect_nothing_wrong(felt, f"beside {name}")
    more = {kind: felt[kind]["p99"] - without[kind]["p99"] for kind in ("kept", "new")}
    too_long = [
        f"{felt[kind]['p99']} ms on {kind} connections beside {name}, {without[kind]['p99']} ms without"
        for kind in more
        if more[kind] > WAITS_MORE_MS_MAX.get(f"{kind} {protocol}", WAITS_MORE_MS_MAX[kind])
    ]
    return max(more.values()), " and ".join(too_long)


def expect_nothing_wrong(felt, where):
    wrong = felt["wrong"]
    expect_in_time(not wrong or not all("timed out" in why for why in wrong), f"no reply {where}: {wrong}")
    expect_equal(f"what went wrong {where}", wrong, [])


def memory_mib(server):
    return int(server.status("VmRSS").split()[0]) / 1024


class Neighbour:
    def __init__(self, world, server, protocol):
        self.process = world.start(sys.executable, NEIGHBOUR, server.port, protocol, stdin=subprocess.PIPE)
        expect_equal("the neighbour", self.process.stdout.readline(), b"ready\n")

    def end(self):
        out, err = self.process.communicate(b"end\n", timeout=60)
        expect(self.process.returncode == 0, f"the neighbour ended with {err.decode()!r}")
        return json.loads(out)
