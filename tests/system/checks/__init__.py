"""All checks, in the order in which they run: each module registers its own."""

from . import clients, pages, load, lifecycle, crowds, starts, disks, denials, load_truth, load_attacks
from . import load_manual, load_netstack, load_transports, cache_commands, cache_clients, cache_differences, cache_crowds
from . import cache_neighbours, cache_cluster, neighbours, small_memory, proxies, pasted, acme, certificates, metrics
from . import deploys, sandbox, lab, netstack, netstack_engine, netstack_gvisor, package, scale, http2, libraries

__all__ = [
    "clients", "pages", "load", "lifecycle", "crowds", "starts", "disks", "denials",
    "load_truth", "load_attacks", "load_manual", "load_netstack", "load_transports", "cache_commands",
    "cache_clients", "cache_differences", "cache_crowds", "cache_neighbours", "cache_cluster",
    "neighbours", "small_memory", "proxies", "pasted", "acme", "certificates", "metrics", "deploys", "sandbox",
    "lab", "netstack", "netstack_engine", "netstack_gvisor", "package", "scale", "http2", "libraries",
]
