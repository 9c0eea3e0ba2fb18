"""Influence of the machine on the checks: standstills, dropped packets, and network limits that a suite in lanes reaches before any
server does."""

import contextlib
import pathlib
import threading
import time

# Packets that wait for a processor, of loopback and every veth. Connections tracked by netfilter, where rules make it track (iptables' nat
# table, as with containers): each keeps its entry for two minutes after its end. With a full table packets are dropped silently, and
# connect(2) takes 1, 3, 7 or 15 s, whatever the server does. Seen: with 262,144 entries `nf_conntrack: table full, dropping packet` in
# the kernel's log for 76 s of the suite, which opens more connections than that in two minutes.
LEAST = {"net/core/netdev_max_backlog": 100_000, "net/netfilter/nf_conntrack_max": 1_000_000}
MOST = {"net/netfilter/nf_conntrack_tcp_timeout_time_wait": 10}


@contextlib.contextmanager
def roomy_network():
    """Raises these limits where allowed, and restores them."""
    with contextlib.ExitStack() as before:
        for limits, choose in ((LEAST, max), (MOST, min)):
            for name, limit in limits.items():
                path = pathlib.Path("/proc/sys") / name
                # A container may lack these files, or may only read them.
                with contextlib.suppress(OSError):
                    is_ = path.read_text()
                    if choose(int(is_), limit) != int(is_):
                        path.write_text(str(limit))
                        before.callback(path.write_text, is_)
        yield


class Standstill:
    """Longest time without a processor for this process, which otherwise only sleeps."""

    STEP_S = 0.1

    def __init__(self):
        self.longest_s = 0.0
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while True:
            began = time.monotonic()
            time.sleep(self.STEP_S)
            self.longest_s = max(self.longest_s, time.monotonic() - began - self.STEP_S)


class Drops:
    """Packets that the kernel dropped since this was created, of all processes."""

    def __init__(self):
        self.before = counted()

    def __str__(self):
        """Empty if nothing was dropped."""
        more = {where: count - self.before.get(where, 0) for where, count in counted().items()}
        said = ", ".join(f"{count} {where}" for where, count in more.items() if count > 0)
        return f"the machine dropped {said}" if said else ""


def counted():
    softnet, conntrack = lines_of("/proc/net/softnet_stat"), lines_of("/proc/net/stat/nf_conntrack")
    tcp, udp = named("/proc/net/netstat", "TcpExt:"), named("/proc/net/snmp", "Udp:")
    drop = conntrack[0].index("drop") if conntrack and "drop" in conntrack[0] else None
    return {
        "packets at a full backlog of a processor": sum(int(line[1], 16) for line in softnet),
        "packets at a full table of connections": sum(int(line[drop], 16) for line in conntrack[1:]) if drop is not None else 0,
        "SYNs at full listen queues": tcp.get("ListenDrops", 0),
        "datagrams at full sockets": udp.get("RcvbufErrors", 0),
    }


def lines_of(path):
    """Words of each line; empty without the file."""
    with contextlib.suppress(OSError):
        return [line.split() for line in pathlib.Path(path).read_text().splitlines()]
    return []


def named(path, kind):
    """Counters from a line of names and a line of numbers. proc(5)"""
    found = [line[1:] for line in lines_of(path) if line[0] == kind]
    return dict(zip(found[0], map(int, found[1]))) if len(found) == 2 else {}
