"""A link between two network namespaces, isolated from the machine's network."""

import pathlib
import sys

from link import ip
from world import wait_for

SERVER = "10.9.0.1"
HERE = pathlib.Path(__file__).parent


def namespace(world):
    """Creates a network namespace that lives as long as a process. Returns the command prefix that enters it, and the process id."""
    process = world.start("unshare", "--net", "sleep", "infinity")
    own = pathlib.Path("/proc/thread-self/ns/net").readlink()
    theirs = pathlib.Path(f"/proc/{process.pid}/ns/net")
    wait_for("the namespace is made", lambda: theirs.readlink() != own)
    return ("nsenter", f"--net={theirs}"), process.pid


def start_host(world, name, address):
    """Creates a network namespace with this address, on the bridge `lan`. Returns the command prefix that enters it."""
    inside, process = namespace(world)
    ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(process))
    ip("link", "set", name, "master", "lan", "up")
    for words in (("address", "add", f"{address}/24", "dev", "eth0"), ("link", "set", "eth0", "up"), ("link", "set", "lo", "up")):
        world.output_of(*inside, "ip", *words)
    return inside


class Lan:
    """`server` and `clients` are command prefixes that enter the two namespaces. The server's end is an interface with the address
    SERVER. The other end is `device`, for a netstack: the kernel has no address there."""

    def __init__(self, world, kind):
        self.world = world
        self.server, _ = namespace(world)
        if kind == "tap":
            self.clients, self.device = self.server, "tap:server"
            self.ip(self.server, "tuntap", "add", "server", "mode", "tap")
        else:
            self.clients, clients_pid = namespace(world)
            self.device = f"{kind}:clients"
            self.ip(self.server, "link", "add", "server", "type", "veth", "peer", "name", "clients", "netns", clients_pid)
            self.ip(self.clients, "link", "set", "clients", "addrgenmode", "none", "up")
        if kind == "xdp":
            world.output_of(*self.server, "env", f"PYTHONPATH={HERE}", sys.executable, "-c", "import link; link.make_checksums('server')")
        self.ip(self.server, "address", "add", f"{SERVER}/24", "dev", "server")
        self.ip(self.server, "link", "set", "server", "up")

    def give_kernel(self, address):
        """Gives the kernel an address at the clients' end, for clients with sockets."""
        self.ip(self.clients, "address", "add", f"{address}/24", "dev", "clients")

    def ip(self, where, *words):
        self.world.output_of(*where, "ip", *words)
