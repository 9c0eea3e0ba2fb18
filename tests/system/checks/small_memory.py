"""Servers in a small memory group: greedy clients do not get them killed, memory is returned, and files stay in the page cache."""

import os
import pathlib
import re

import attacks
import frames
from checks.neighbours import Neighbour, expect_nothing_wrong
from memcache import certificate
from world import check, expect, expect_equal, expect_in_time, read_reply, wait_for

MIB = 1 << 20

# Memory of an attacked server. Without a bound on the memory of connections, each attack exceeds it.
GROUP_MIB = 40
# Memory that an allocator and idle threads may keep after an attack.
KEPT_MIB_MAX = 16

# Disk reads per reply once the files are in the page cache.
READ_KIB_PER_REPLY_MAX = 0.05
# Passes over the files until that holds.
PASSES_MAX = 6


class MemoryGroup:
    """A memory cgroup of version 1 or 2 for processes that `enter` before exec. It is removed at the end of the check."""

    ROOT = pathlib.Path("/sys/fs/cgroup")

    def __init__(self, world, max_bytes):
        is_v1 = (self.ROOT / "memory").is_dir()
        parent = self.ROOT / "memory" if is_v1 else self.ROOT
        if not is_v1:
            (parent / "cgroup.subtree_control").write_text("+memory")
        self.folder = parent / f"weft-system-{os.getpid()}"
        self.folder.mkdir()
        world.at_end(self.remove)
        (self.folder / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(max_bytes))

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        # A killed process leaves its group shortly after it was waited for.
        wait_for("the group is empty", lambda: not (self.folder / "cgroup.procs").read_text())
        self.folder.rmdir()


def pipelines_unread(attackers):
    attackers.crowd(400, b"".join(attacks.GET % (b"/f%d.txt" % (number % 50)) for number in range(3000)))


def handshakes_half_open(attackers):
    """A quarter sends a whole ClientHello, which costs a signature; the others send half of one."""
    hello = attacks.hello()
    attackers.crowd(1000, hello)
    attackers.crowd(3000, hello[:200])


def streams_closed(attackers):
    """A hundred streams on each of a thousand connections with closed windows: whole files, and parts that are made per stream."""
    ranges = frames.literal(b"range", b"bytes=" + b",".join(b"%d-%d" % (at * 1000, at * 1000) for at in range(11)))
    gets = (frames.get(2 * number + 1, b"/f%d.txt" % (number % 50), ranges if number % 2 else b"") for number in range(100))
    attackers.crowd(1000, frames.PREFACE + attacks.CLOSED + b"".join(gets))


# Attacks, each with the neighbour's protocol and two or three engines. All engines share the bound on the memory of connections.
ATTACKS = [
    (pipelines_unread, "http", ("uring", "pipeline")),
    (handshakes_half_open, "https", ("event", "thread")),
    (streams_closed, "http2", ("uring", "event", "pipeline")),
]


def check_attack(attack, protocol):
    def run(world):
        attack_in_a_small_group(world, attack, protocol)

    run.__name__ = f"a_small_memory_group_survives_{attack.__name__}"
    return run


for _attack, _protocol, _engines in ATTACKS:
    check(*_engines, limit_s=90)(check_attack(_attack, _protocol))


def attack_in_a_small_group(world, attack, protocol):
    site = world.folder(small__txt=b"small", **{f"f{number}__txt": b"x" * 15_000 for number in range(50)})
    group = MemoryGroup(world, GROUP_MIB * MIB)
    flags = []
    if protocol == "https":
        _, chain, key = certificate(world.scratch)
        flags = ["--tls-cert", chain, "--tls-key", key]
    with world.server(*flags, site=site, before_exec=group.enter) as server:
        neighbour = Neighbour(world, server, protocol)
        before_mib = anonymous_mib(server)
        attackers = attacks.Attackers(server)
        try:
            attack(attackers)
            for thread in attackers.threads:
                thread.join(10)
            wait_for("300 clients have come", lambda: len(attackers.sockets) >= 300)
            peak_mib = anonymous_mib(server)
        finally:
            attackers.leave()
        felt = neighbour.end()
        expect(server.process.poll() is None, f"the server ended with {server.process.returncode}")
        expect_nothing_wrong(felt, "for a neighbour")
        for kind in ("kept", "new"):
            expect_in_time(felt[kind]["count"] > 0, f"no reply came on {kind} connections")
        wait_for("the memory is back", lambda: anonymous_mib(server) <= before_mib + KEPT_MIB_MAX, 20)
        world.note = f"{len(attackers.sockets)} clients, {before_mib:.0f}, {peak_mib:.0f} and {anonymous_mib(server):.0f} MiB"


def anonymous_mib(server):
    """Memory that the kernel cannot reclaim: without pages of the program and of files."""
    return int(server.status("RssAnon").split()[0]) / 1024


@check("uring", "event", limit_s=90)
def files_that_fit_stay_in_the_page_cache(world):
    """In a group of 1.2 times the files' size, the page cache holds them and the rest: the program (20 MiB), and 3 KiB per file of its tables
    and the kernel's. 1.1 times leaves 2 MiB, which other processes may use up. Seen: with a budget fixed at the start, a part of the files
    did not fit, and each pass read it again."""
    count = 4000
    length = 64 << 10
    site = world.folder()
    write_out(site, count, length)
    group = MemoryGroup(world, count * length * 12 // 10)
    with world.server(site=site, before_exec=group.enter) as server:
        passes = []
        while not passes or passes[-1] > READ_KIB_PER_REPLY_MAX:
            expect(len(passes) < PASSES_MAX, f"a reply still reads from the disk (KiB, pass by pass): {passes}")
            before = read_bytes(server)
            ask_for_each(server, count, length)
            passes.append(round((read_bytes(server) - before) / 1024 / count, 2))
        expect(passes[0] > 32, f"the first pass read {passes[0]} KiB a reply: the scratch folder is not on a disk")
        world.note = f"KiB read a reply: {', '.join(map(str, passes))}"


def write_out(site, count, length):
    """Writes files that are on the disk and not in memory."""
    content = os.urandom(length)
    for number in range(count):
        with open(site / f"f{number}.bin", "wb") as file:
            file.write(content)
            os.utime(file.fileno(), (10**9, 10**9))
    os.sync()
    for number in range(count):
        with open(site / f"f{number}.bin", "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def ask_for_each(server, count, length, burst=20):
    with server.connect(timeout=30) as connection, connection.makefile("rb") as file:
        for first in range(0, count, burst):
            connection.sendall(b"".join(attacks.GET % (b"/f%d.bin" % number) for number in range(first, first + burst)))
            for _ in range(burst):
                reply = read_reply(file)
                expect_equal("a file's length", (reply.status, len(reply.body)), (200, length))


def read_bytes(server):
    return int(re.search(r"read_bytes: (\d+)", pathlib.Path(f"/proc/{server.pid}/io").read_text())[1])
