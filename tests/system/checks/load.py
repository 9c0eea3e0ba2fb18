"""Other load generators, which must report no error at all."""

import re

from world import ALL, check, expect, expect_equal

REQUESTS = 10_000


@check(*ALL, limit_s=60)
def ab_keeps_alive(world):
    report = ab(world, "-k", "-n", REQUESTS, "-c", 50)
    expect_equal("ab's kept-alive requests", number(report, "Keep-Alive requests"), REQUESTS)


@check(*ALL, limit_s=60)
def ab_connects_for_every_request(world):
    ab(world, "-n", REQUESTS, "-c", 50)


def ab(world, *flags):
    with world.server() as server:
        report = world.output_of("ab", "-q", *flags, server.url("/favicon.svg"), seconds=50).decode()
        expect_equal("ab's complete requests", number(report, "Complete requests"), REQUESTS)
        expect_equal("ab's failed requests", number(report, "Failed requests"), 0)
        expect("Non-2xx" not in report, f"ab saw other replies than 200: {report}")
        wanted = (world.site / "favicon.svg").stat().st_size * REQUESTS
        expect_equal("ab's bytes of bodies", number(report, "HTML transferred"), wanted)
        server.has_counted("weft_http_replies_total", REQUESTS)
    return report


def number(report, name):
    found = re.search(rf"^{name}:\s+(\d+)", report, re.M)
    return int(found[1]) if found else None


@check(*ALL, limit_s=120)
def wrk_counts_no_error(world):
    with world.server() as server:
        for path in ("/favicon.svg", "/style.css", "/data/loom.wav"):
            # Seen on a busy machine: after two seconds none of the 64 had received 3.5 MB. A longer run decides.
            for seconds in (2, 8, 30):
                flags = ("-t1", "-c64", f"-d{seconds}s", "--timeout", "60s")
                report = world.output_of("wrk", *flags, server.url(path), seconds=seconds + 38).decode()
                if replies_without_error(report):
                    break
            expect_no_error(report)


def expect_no_error(wrk_report):
    expect(replies_without_error(wrk_report) > 0, f"wrk got nothing: {wrk_report}")


def replies_without_error(wrk_report):
    words = " ".join(wrk_report.split())
    expect("Socket errors" not in words and "Non-2xx" not in words, f"wrk: {words}")
    return int(re.search(r"(\d+) requests in", words)[1])


@check(*ALL, limit_s=60)
def httperf_counts_no_error(world):
    with world.server() as server:
        report = world.output_of("httperf", "--hog", "--server", "127.0.0.1", "--port", server.port, "--uri", "/style.css",
                                 "--num-conns", 500, "--num-calls", 10, "--rate", 250, "--timeout", 20, seconds=45).decode()
        expect(re.search(r"^Errors: total 0 ", report, re.M), f"httperf: {report}")
        expect_equal("httperf's replies", re.search(r"replies (\d+)", report)[1], "5000")
        expect(re.search(r"2xx=5000 ", report), f"httperf: {report}")
