"""Where a sample is taken: an own network, a core for each side, priority, a memory limit.

Everything here ends with the process that made it: the network namespace has no name and goes
with its last process, children get SIGTERM when the harness dies, scratch folders and memory
groups are removed on the way out.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000  # unshare(2)
PR_SET_PDEATHSIG = 1  # prctl(2)
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1  # netdevice(7)

# Tools and the Debian packages that bring them.
PACKAGES = {
    "nginx": "nginx-light",
    "lighttpd": "lighttpd",
    "wrk": "wrk",
    "memcached": "memcached",
    "strace": "strace",
    "cc": "gcc libc6-dev",
}

# Ports of the servers lie below the range of the clients' ports: a connection left in TIME_WAIT
# must never hold the port that the next server wants.
CLIENT_PORTS = (10240, 65000)
SERVER_PORT_FIRST = 2001

SYSCTLS = {
    # bbr paces with timers; on loopback that turned one server's 168,000 requests/s into 75,000.
    # cubic cannot be chosen inside a new namespace, reno can.
    "ipv4/tcp_congestion_control": "reno",
    "ipv4/ip_local_port_range": "{} {}".format(*CLIENT_PORTS),
    "core/somaxconn": "16384",
    "ipv4/tcp_max_syn_backlog": "16384",
    # A connection for every request uses up 25,000 ports a second; both make them free again.
    "ipv4/tcp_tw_reuse": "1",
    "ipv4/tcp_max_tw_buckets": "4096",
}


@dataclass(frozen=True)
class Stand:
    """The test stand: who runs where, and the built `closed_loop`, or None to use only wrk."""

    server_core: int
    generator_core: int
    closed_loop: Path | None


class Unfit(Exception):
    """This machine cannot take the measurement; the text says what to do about it."""


def require(tools: list[str]) -> None:
    """Refuse to start without root, two cores, or a tool; name every missing package at once."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [PACKAGES[tool] for tool in tools if shutil.which(tool) is None]
    if missing:
        raise Unfit(f"missing tools: apt-get install --no-install-recommends {' '.join(missing)}")
    if os.geteuid() != 0:
        raise Unfit("root is needed (network namespace, priority, memory group): use sudo")


def require_cores(server: int, generator: int) -> None:
    """Both cores exist, may be used, and are not the same."""
    usable = os.sched_getaffinity(0)
    if server == generator or not {server, generator} <= usable:
        raise Unfit(
            f"cores {server} and {generator}: two different ones of {sorted(usable)} are needed, "
            "for the server and for the generator"
        )


def enter_own_network() -> None:
    """Move this process, and so all its children, into a fresh network namespace.

    unshare(2) and not `ip netns exec`: that remounts /sys and hides the memory groups.
    """
    if LIBC.unshare(CLONE_NEWNET) != 0:
        raise Unfit(f"unshare(CLONE_NEWNET): {os.strerror(ctypes.get_errno())}")
    raise_loopback()
    for name, value in SYSCTLS.items():
        (Path("/proc/sys/net") / name).write_text(value)


def raise_loopback() -> None:
    """`ip link set lo up`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14x", b"lo", 0)
        _, flags = struct.unpack("16sH14x", fcntl.ioctl(control, SIOCGIFFLAGS, request))
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def raise_file_limit() -> None:
    """As many open files as the hard limit gives."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def launch(
    argv: list[str], core: int, log: Path, group: MemoryGroup | None = None
) -> subprocess.Popen[str]:
    """Start a program on one core, ahead of everything else, its stdout a pipe and stderr `log`."""

    def settle() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        os.sched_setaffinity(0, {core})
        raise_file_limit()
        # Both: under sched_autogroup_enabled nice only counts inside a session, and the
        # autogroup's own nice counts between sessions. sched(7)
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        autogroup = Path("/proc/self/autogroup")
        if autogroup.exists():
            autogroup.write_text("-20")
        if group is not None:
            group.join()

    with log.open("w") as errors:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            preexec_fn=settle,
        )


def stop(process: subprocess.Popen[str], patience_s: float = 5.0) -> None:
    """SIGTERM, then SIGKILL to the program's own process group."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextlib.contextmanager
def scratch(parent: str) -> Iterator[Path]:
    """A folder that other users may read (workers drop privileges) and that goes away again."""
    folder = Path(tempfile.mkdtemp(prefix="weft-bench-", dir=parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def filesystem_of(path: Path) -> str:
    """The type of the file system that holds `path`, from the longest mount point above it."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, fstype, *_ = line.split()
        above = point == "/" or path.is_relative_to(point)
        if above and len(point) >= len(best):
            best, kind = point, fstype
    return kind


class MemoryGroup:
    """A memory cgroup (version 1 or 2) with a limit, for one server; removed by `close`."""

    def __init__(self, name: str, limit_bytes: int) -> None:
        root, version = memory_hierarchy()
        self.folder = root / name
        if version == 2:
            (root / "cgroup.subtree_control").write_text("+memory")
        self.folder.mkdir()
        limit = "memory.limit_in_bytes" if version == 1 else "memory.max"
        (self.folder / limit).write_text(str(limit_bytes))

    def join(self) -> None:
        """Put the calling process into the group."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def close(self, patience_s: float = 2.0) -> None:
        """Remove the group; its processes have been killed and may still be on their way out."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return self.folder.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)


def memory_hierarchy() -> tuple[Path, int]:
    """The root of the memory groups and their version; cgroups(7)."""
    unified = None
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, fstype, options, *_ = line.split()
        if fstype == "cgroup" and "memory" in options.split(","):
            return Path(point), 1
        if fstype == "cgroup2":
            unified = Path(point)
    if unified and "memory" in (unified / "cgroup.controllers").read_text().split():
        return unified, 2
    raise Unfit(
        "no memory cgroup is mounted: mkdir -p /sys/fs/cgroup/memory && "
        "mount -t cgroup -o memory cgroup /sys/fs/cgroup/memory"
    )
