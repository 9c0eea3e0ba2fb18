"""`weft load --network netstack`: the generator is a host on a link, and the servers use the kernel's TCP/IP."""

import re

from checks.load_truth import logged
from generator import load
from lan import SERVER, Lan
from peers import memcached, nginx
from world import check, check_over, expect, expect_equal, wait_for

ADDRESSES = 8


def netstack(lan):
    return "--network", "netstack", "--device", lan.device, "--address", f"10.9.0.2-10.9.0.{1 + ADDRESSES}/24"


@check_over("tap", "packet", "xdp", limit_s=60)
def a_netstack_reports_what_nginx_logged(world, kind):
    lan = Lan(world, kind)
    with nginx(world, host=SERVER, wrap=lan.server) as (url, log):
        for words in (("--close",), ("--rate", 1000, "--arrivals", "poisson", "--close"), ("--depth", 8)):
            log.write_text("")
            report = load(world, "http", f"{url}/a.txt", f"{url}/none", *words, "-c", 100, "-n", 3000, "--expect", "200,404", "-H",
                          "User-Agent: measured", *netstack(lan), wrap=lan.clients)
            report.expect_no_errors(f"errors with {words}")
            expect_equal(f"replies with {words}", report["replies"], 3000)
            lines = wait_for("nginx logs all", lambda: logged(log, 3000))
            by_status = {status: sum(line.endswith(f" {status}") for line in lines) for status in ("200", "404")}
            expect_equal("replies by status", report["replies_by_status"], {
                "1xx": 0, "2xx": by_status["200"], "3xx": 0, "4xx": by_status["404"], "5xx": 0})


@check(limit_s=180)
def over_a_netstack_the_port_range_is_no_limit(world):
    """More connections than the kernel has ports for a pair of addresses: none is refused, and none is left open."""
    lan = Lan(world, "tap")
    with nginx(world, host=SERVER, wrap=lan.server) as (url, _):
        report = load(world, "http", f"{url}/a.txt", "--close", "-c", 64, "-n", 40_000, *netstack(lan), wrap=lan.clients, seconds=150)
        report.expect_no_errors()
        expect_equal("replies", report["replies"], 40_000)
        expect(report["opened"] >= 40_000, f"{report['opened']} connections")
        wait_for("nginx' connections are closed", lambda: not world.output_of(*lan.server, "ss", "-Htn", "state", "established"))


@check(limit_s=60)
def a_netstack_and_memcached_agree(world):
    lan = Lan(world, "tap")
    with memcached(world, host=SERVER, wrap=lan.server) as cache:
        report = load(world, "cache", f"{SERVER}:{cache.port}", "--populate", "--keys", 2000, "--sets", 10, "-n", 20_000, "--verify", "-c", 20,
                      *netstack(lan), wrap=lan.clients)
        report.expect_no_errors()
        classes = {kind: figures["replies"] for kind, figures in report["classes"].items()}
        expect_equal("commands", sum(classes.values()), 20_000)
        expect_equal("hits", report["hits"], classes["get"])


@check(limit_s=60)
def a_netstack_says_what_is_missing(world):
    """A port without a listener, an address without a host, a missing interface."""
    lan = Lan(world, "packet")
    address = ("--network", "netstack", "--address", "10.9.0.2/24", "--connect-timeout", "3s")
    for target, device, why in (
            (SERVER, lan.device, f"cannot connect to {SERVER}:80: Connection refused"),
            ("10.9.0.250", lan.device, "cannot connect to 10.9.0.250:80: no answer"),
            (SERVER, "packet:nowhere", "there is no interface nowhere")):
        report = load(world, "http", f"http://{target}/", *address, "--device", device, status=1, wrap=lan.clients)
        expect(why in report.said, f"{target} on {device}: {report.said}")


@check(limit_s=90)
def sessions_per_second_of_a_core(world):
    """Not a promise: the note compares the rates of three generators over the same veth, and their CPU time per session."""
    lan = Lan(world, "packet")
    with nginx(world, host=SERVER, wrap=lan.server) as (url, _):
        words = ("http", f"{url}/a.txt", "--close", "-c", 64, "-d", "2s")
        rates = {"netstack": rate_of(load(world, *words, *netstack(lan), wrap=lan.clients))}
        lan.give_kernel("10.9.0.100")
        rates["sockets"] = rate_of(load(world, *words, wrap=lan.clients))
        out = world.output_of(*lan.clients, "wrk", "-t1", "-c64", "-d2s", "-H", "Connection: close", f"{url}/a.txt").decode()
        requests_per_s = float(re.search(r"Requests/sec:\s+([0-9.]+)", out)[1])
        rates["wrk"] = f"{requests_per_s:.0f}/s"
        world.note = ", ".join(f"{name} {rate}" for name, rate in rates.items())


def rate_of(report):
    report.expect_no_errors()
    return f"{report['achieved_rate_per_s']:.0f}/s ({report['generator']['cpu_us_per_reply']:.0f} us of the generator's CPU each)"
