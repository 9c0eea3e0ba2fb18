"""gVisor's TCP/IP as the peer of ours, after the kernel's and smoltcp's: it has its own SACK and RACK. `gvisor/main.go` is a host with it
on a packet socket; go builds it once, with the module pinned in its go.mod."""

import contextlib
import functools
import hashlib
import pathlib
import subprocess

import link
from generator import load
from world import check_over, expect, expect_equal, expect_in_time, fetch, wait_for

from .cache_clients import clients_folder
from .netstack import example_of
from .netstack_engine import PORT, SERVER, SERVER_V6, ip, own_network, server_on_link

SOURCE = pathlib.Path(__file__).parent.parent / "gvisor"
GVISOR, GVISOR_V6 = "10.9.0.1", "fd00:9::1"
# Lost frames per thousand, in each direction.
LOSS = 20

# The first check waits for the build.
check_over = functools.partial(check_over, "packet", "xdp", variant="netstack", limit_s=300)


@check_over()
def gvisor_gets_every_file(world, kind):
    with link_to_gvisor(world, kind) as peer:
        world.server()
        expect_gvisor_to_get(world, peer, [path for path in world.site.rglob("*") if path.is_file()])


@check_over()
def gvisor_gets_a_file_though_frames_are_lost(world, kind):
    """Retransmissions follow gVisor's SACK blocks, with few time-outs."""
    with link_to_gvisor(world, kind) as peer:
        server = world.server()
        counted = expect_gvisor_to_get(world, [*peer, "-loss", LOSS], [world.site / "data/loom.wav"])
        expect(counted["lost"] > LOSS, f"only {counted['lost']} frames were lost")
        # The counters include connections that have ended.
        wait_for("what was sent again is counted", lambda: server.metric("weft_netstack_retransmissions_total") > LOSS)
        again, timeouts = (server.metric(f"weft_netstack_{what}_total") for what in ("retransmissions", "retransmission_timeouts"))
        world.note = f"{counted['lost']} lost, {again:.0f} sent again, {timeouts:.0f} time-outs"
        expect(timeouts < again / 4, f"{timeouts:.0f} time-outs for {again:.0f} segments that were sent again")


def expect_gvisor_to_get(world, peer, files):
    """Compares each file over IPv4 and IPv6, byte for byte. Returns gVisor's counters."""
    wanted = {f"http://{host}:{PORT}/{file.relative_to(world.site)}": hashlib.sha256(file.read_bytes()).hexdigest()
              for host in (SERVER, f"[{SERVER_V6}]") for file in files}
    *lines, last = world.output_of(*peer, "gvisor", "get", *wanted, seconds=100).decode().splitlines()
    got = {url: digest for digest, url in map(str.split, lines)}
    for url, digest in wanted.items():
        expect_equal(f"the SHA-256 of what gVisor got of {url}", got.get(url), digest)
    return counts_of(last)


@check_over()
def gvisor_gets_back_what_it_sends(world, kind):
    """Both directions at once. gVisor closes its half first; our half closes after the last byte."""
    with link_to_gvisor(world, kind) as peer, mirror(world, kind):
        for target in (f"{SERVER}:80", f"[{SERVER_V6}]:80"):
            world.output_of(*peer, "gvisor", "mirror", target, 0, 1, 1000, 1460, 1461, 30_000, 3_000_000)


@check_over()
def gvisor_gets_back_what_it_sends_though_frames_are_lost(world, kind):
    """gVisor retransmits by our SACK blocks."""
    with link_to_gvisor(world, kind) as peer, mirror(world, kind):
        for target in (f"{SERVER}:80", f"[{SERVER_V6}]:80"):
            said = world.output_of(*peer, "-loss", LOSS, "gvisor", "mirror", target, 3_000_000, seconds=100)
            counted = counts_of(said.decode())
            expect(counted["by_sack"] > 0, f"gVisor has mended nothing by SACK to {target}: {counted}")


@check_over()
def connections_to_gvisor_bring_what_it_serves(world, kind):
    """Connections are opened by a generator on the netstack, which compares replies with the files."""
    files = world.scratch / "files"
    world.output_of(world.binary, "load", "fileset", files, "--scale", "0.001")
    with link_to_gvisor(world, kind) as peer:
        for loss in (0, LOSS):
            server = world.start(*peer, "-loss", loss, "gvisor", "serve", files, stdin=subprocess.PIPE)
            expect_equal("what gVisor says", server.stdout.readline(), b"ready\n")
            for host, own in ((GVISOR, f"{SERVER}/24"), (f"[{GVISOR_V6}]", f"{SERVER_V6}/64")):
                report = load(world, "http", f"http://{host}/", "--fileset", files, "--verify", "--close", "-c", 8, "-n", 200,
                              "--network", "netstack", "--device", f"{kind}:stack", "--address", own, seconds=100)
                # Seen in a capture, once in 30,000: gVisor lacked the acknowledgement of a full window, and did not retransmit for 10 s.
                late = report.errors.get("client_timeout", 0)
                expect_in_time(late <= (1 if loss else 0), f"{late} of 200 replies did not come from {host} with {loss} of 1000 frames lost")
                expect_equal(f"errors at {host} with {loss} of 1000 frames lost", sum(report.errors.values()), late)
                expect_equal("replies", report["replies"], 200 - late)
            last, err = server.communicate(timeout=20)
            expect_equal(f"how gVisor ended, which said {err.decode()!r}", server.returncode, 0)
            expect((counts_of(last.decode())["lost"] > 0) == (loss > 0), f"with a loss of {loss} gVisor counted {last}")


def counts_of(line):
    words = line.split()
    return dict(zip(words[::2], map(int, words[1::2])))


@contextlib.contextmanager
def link_to_gvisor(world, kind):
    """A veth between gVisor's interface and ours, `stack`. Yields the command that starts gVisor."""
    program = clients_folder(world) / "gvisor"
    # Before entering the namespace, which has no network to download the module.
    fetch(["go", "build", "-buildvcs=false", "-o", program, "."], cwd=SOURCE)
    with own_network():
        ip("link", "add", "gvisor", "type", "veth", "peer", "name", "stack")
        # Without addresses, the kernel sends nothing there.
        for end in ("gvisor", "stack"):
            ip("link", "set", end, "addrgenmode", "none", "up")
        # The packet socket at gVisor's end has no offloads.
        link.make_checksums("stack")
        world.server = server_on_link(world, kind)
        yield [program]


@contextlib.contextmanager
def mirror(world, kind):
    host = world.start(example_of(world), f"{kind}:stack", f"{SERVER}/24", f"{SERVER_V6}/64", stdin=subprocess.PIPE)
    expect_equal("what the host says", host.stdout.readline(), b"ready\n")
    yield
    _, err = host.communicate(timeout=20)
    expect_equal(f"how the host ended, which said {err.decode()!r}", host.returncode, 0)
