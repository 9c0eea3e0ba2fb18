"""Other people's blocking libraries on fibers: the programs of examples/libraries, each with its counterpart."""

import glob
import re
import subprocess

from world import check, expect, expect_equal, free_port, wait_for


def program(world, name):
    path = world.binary.parents[1] / "libraries/release" / name
    expect(path.exists(), f"{path} is missing: run ./ci.sh libraries")
    return path


@check(limit_s=120)
def fifteen_thousand_idle_websockets(world):
    said = world.output_of(program(world, "websockets"), 15_000, seconds=110).decode()
    bytes_each = [int(count) for count in re.findall(r"15000 idle WebSockets, (\d+) bytes each", said)]
    expect_equal("how many sides told", len(bytes_each), 2)
    world.note = "client and server: " + " and ".join(f"{count} bytes each" for count in bytes_each)
    # A waiting fiber has a page or two of stack; the rest are the library's buffers.
    expect(max(bytes_each) < 32_768, f"an idle WebSocket takes {bytes_each} bytes")


@check(limit_s=60)
def rustls_streams_on_fibers(world):
    expect_equal("what it said", world.output_of(program(world, "tls")), b"200 echoes over TLS\n")


@check(limit_s=60)
def a_crawler_of_ureq_on_fibers(world):
    with world.server() as server:
        said = world.output_of(program(world, "crawler"), server.url()).decode()
    pages, broken = re.fullmatch(r"(\d+) pages, \d+ bytes, (\d+) broken links\n", said).groups()
    expect(int(pages) >= 10, f"only {pages} pages")
    expect_equal("broken links, of which the site has one on purpose", broken, "1")


@check(limit_s=60)
def sqlite_through_offload(world):
    expect_equal("what it said", world.output_of(program(world, "sqlite")), b"sqlite: 5050\n")


@check(limit_s=120)
def postgresql_in_three_ways(world):
    tools = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    expect(tools, "there is no PostgreSQL: run ./ci.sh system")
    data, port = world.scratch / "postgres", free_port()
    data.mkdir()
    world.output_of("chown", "postgres:", data)
    # PostgreSQL refuses to run as root; it is set up without passwords for local clients.
    as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]
    world.output_of(*as_postgres, f"{tools[-1]}/initdb", "--auth=trust", "--no-sync", "--pgdata", data, seconds=60)
    log = (world.scratch / "postgres.log").open("wb")
    options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]
    database = world.start(*as_postgres, f"{tools[-1]}/postgres", "-D", data, "-p", port, *options, stdout=log, stderr=log)
    ready = [f"{tools[-1]}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    wait_for("the database takes connections", lambda: subprocess.run(ready, check=False).returncode == 0, 30)
    said = world.output_of(program(world, "postgres"), f"127.0.0.1:{port}", seconds=60).decode()
    expect_equal("what it said", said.split("\n"), ["wire: 2450", "offload: 2450", "futures: 2450", ""])
    # The helper processes end with it.
    database.terminate()
    database.wait(timeout=20)
