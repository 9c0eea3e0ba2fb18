"""The Debian package in a clean, booted Debian: installation, first minutes, upgrade, removal; and the static binary."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess

from checks.clients import chromium
from world import Failure, check, expect, expect_equal, expect_in_time, wait_for


class Machine:
    """A clean Debian with systemd, booted in its own namespaces from a copy of the root made by `./ci.sh debian_root`."""

    def __init__(self, world):
        made = world.binary.parents[1] / "debian-root"
        expect(made.is_dir(), f"{made} is missing: run ./ci.sh debian_root")
        self.world, self.root = world, world.scratch / "root"
        subprocess.run(["cp", "--archive", "--reflink=auto", made, self.root], check=True)
        world.at_end(lambda: shutil.rmtree(self.root))
        # No machine registry and no scope: the host may not run systemd.
        words = ["--quiet", "--boot", "--register=no", "--keep-unit", "--private-network", "--directory", self.root]
        log = (world.scratch / "boot.log").open("wb")
        self.process = world.start("systemd-nspawn", *words, stdout=log, stderr=log)
        self.init = wait_for("the machine has an init", self.find_init)
        # The machine and its processes would outlive systemd-nspawn.
        world.at_end(self.kill)
        wait_for("it has started", lambda: self.run("systemctl", "is-system-running", status=None)[1].strip() == b"running", 60)

    def find_init(self):
        """The child with process id 1 in a namespace. An earlier child sets up the folders, and ends."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [child for child in children.read_text().split() if numbers_of(child)[1:] == ["1"]]

    def kill(self):
        if self.init:
            os.kill(int(self.init[0]), signal.SIGKILL)

    def enter(self, *command, network_only=False):
        spaces = ["-n"] if network_only else ["-m", "-u", "-i", "-n", "-p", "-C", "--wd=/"]
        return ["nsenter", "-t", self.init[0], *spaces, *command]

    def run(self, *command, status=0):
        done = subprocess.run(self.enter(*command), stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
        if status is not None and done.returncode != status:
            raise Failure(f"{' '.join(command)} ended with {done.returncode}: {(done.stdout + done.stderr).decode(errors='replace')[-600:]}")
        return done.returncode, done.stdout

    def get(self, path="/"):
        return self.run("curl", "--silent", "--show-error", "--include", f"http://127.0.0.1{path}")[1].decode()

    def count(self, metric):
        page = self.run("curl", "--silent", "http://127.0.0.1:9090/metrics")[1].decode()
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(metric))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)
        self.init = []


def numbers_of(process):
    """Ids of a process in its process namespaces."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        lines = pathlib.Path(f"/proc/{process}/status").read_text().splitlines()
        return next(line.split()[1:] for line in lines if line.startswith("NSpid:"))
    return []


@check(limit_s=240)
def the_package_installs_upgrades_under_load_and_goes(world):
    packages = sorted((world.binary.parents[1] / "debian").glob("weft_*.deb"), key=lambda path: path.stat().st_mtime)
    expect(packages, "there is no package: run ./ci.sh deb")
    newer = world.scratch / "newer"
    subprocess.run(["dpkg-deb", "--raw-extract", packages[-1], newer], check=True)
    control = newer / "DEBIAN/control"
    control.write_text(control.read_text().replace("\nVersion: ", "\nVersion: 9:"))
    machine = Machine(world)
    shutil.copy(packages[-1], machine.root / "srv/weft.deb")
    subprocess.run(["dpkg-deb", "--build", newer, machine.root / "srv/newer.deb"], check=True, stdout=subprocess.DEVNULL)

    machine.run("dpkg", "--install", "/srv/weft.deb")
    seen = machine.enter(*chromium(world, "--dump-dom", "http://127.0.0.1/"), network_only=True)
    expect(b"weft is running" in world.output_of(*seen, seconds=60), "a browser sees the site")
    page = machine.get()
    expect(page.startswith("HTTP/1.1 200 ") and "weft is running" in page, f"the first page: {page[:300]}")
    expect(machine.get("/none").startswith("HTTP/1.1 404 "), "an absent page")
    expect_equal("the cache", machine.run("systemctl", "is-enabled", "weft-cache", status=None)[1].strip(), b"disabled")
    for command in (["weft", "--version"], ["weft", "check-config", "/etc/weft/serve.toml"], ["weft", "top", "127.0.0.1:9090", "--once"]):
        machine.run(*command)

    # A restart serves another folder, as the first page says; a reload changes headers.
    (machine.root / "srv/www").mkdir()
    (machine.root / "srv/www/index.html").write_text("mine")
    settings = machine.root / "etc/weft/serve.toml"
    settings.write_text(settings.read_text().replace('"/usr/share/weft/site"', '"/srv/www"'))
    machine.run("systemctl", "restart", "weft")
    expect(machine.get().endswith("mine"), "the other folder is served")
    settings.write_text(settings.read_text().replace('"DENY"', '"SAMEORIGIN"'))
    machine.run("systemctl", "reload", "weft")
    wait_for("the other header is sent", lambda: "SAMEORIGIN" in machine.get())

    # A reload with a mistake fails and changes nothing. After a restart with a mistake, a client waits in the socket's queue:
    # the service fails more often than systemd allows in 10 s, but the socket stays open, and works once the file is right.
    right = settings.read_text()
    settings.write_text(f"redirct = 1\n{right}")
    machine.run("systemctl", "reload", "weft", status=1)
    expect(machine.get().endswith("mine"), "a reload with a mistake leaves the server as it was")
    machine.run("systemctl", "restart", "weft", status=1)
    client = world.start(*machine.enter("curl", "--silent", "--show-error", "http://127.0.0.1/", network_only=True))
    mistakes = ("journalctl", "--unit=weft", "--output=cat", "--grep=^error: .*'redirct'")
    wait_for("many starts failed", lambda: len(machine.run(*mistakes, status=None)[1].splitlines()) > 6, 60)
    settings.write_text(right)
    out, err = client.communicate(timeout=60)
    expect_equal("what the client gets", (out, err), (b"mine", b""))

    # Connections wait in the socket's queue between the old version's end and the new one's start; no request fails. With ten
    # connections, each sends a request in the quarter of a second in which the old version answers `Connection: close`. An idle
    # one would be closed, and the client would have to repeat a request that crosses the close (RFC 9112 9.3.1).
    load = machine.enter(world.binary, "load", "http", "http://127.0.0.1/", "-c", "10", "--rate", "500", "-d", "10s",
                         "--fail-if", "errors>0", network_only=True)
    client = world.start(*load)
    wait_for("the load runs", lambda: machine.count("weft_http_request_duration_seconds_count") > 200)
    before = machine.run("systemctl", "show", "--property=MainPID", "weft")[1]
    machine.run("dpkg", "--install", "--force-confdef", "/srv/newer.deb")
    said = b"".join(client.communicate(timeout=60)).decode(errors="replace")[-900:]
    # The machine delayed a connection's request beyond that quarter of a second.
    expect_in_time(client.returncode == 0 or not re.search("short reply|reset|timeout", said), f"the load says: {said}")
    expect(client.returncode == 0, f"the load ended with {client.returncode}: {said}")
    expect(machine.run("systemctl", "show", "--property=MainPID", "weft")[1] != before, "the old version still runs")
    expect(machine.get().endswith("mine"), "the settings are kept")

    machine.run("dpkg", "--remove", "weft")
    machine.run("curl", "-s", "http://127.0.0.1/", status=7)
    expect(settings.exists(), "settings outlive a removal")
    machine.run("dpkg", "--purge", "weft")
    left = machine.run("find", "/etc", "/usr", "/lib", "/var", "-name", "*weft*", "-not", "-path", "/var/log/journal/*")[1].decode().split()
    expect_equal("files that are left", left, [])
    machine.stop()


@check()
def the_installed_command_says_where_the_laboratory_is(world):
    """Nothing else mentions the laboratory. Not a unit test, because CI builds those only with the laboratory."""
    tip, refusal = "`cargo build --release` makes one that has it", "weft has no command 'lab'"
    for words, expected in (("lab", tip), ("lab run web-rows --quick", tip), ("lab --help", tip), ("man lab", refusal)):
        said = world.output_of("sh", "-c", f"{world.binary} {words} 2>&1", status=2).decode()
        expect(expected in said, f"weft {words}: {said}")
    for words in ("--help", "completions bash", "completions fish", "man"):
        said = world.output_of(world.binary, *words.split()).decode()
        expect(not re.search(r"\blab\b", said), f"weft {words} names it")


@check(limit_s=60, by_hand=True)
def the_static_binary_runs_in_an_empty_root(world):
    """Needs `./ci.sh static dev`, which takes minutes."""
    [binary] = (world.binary.parents[1]).glob("*-linux-gnu/debug/weft")
    libraries = world.output_of("ldd", binary, status=(0, 1))
    expect(b"=>" not in libraries, f"it needs {libraries}")
    root = world.scratch / "empty"
    (root / "site").mkdir(parents=True)
    # The check starts it by this path.
    inside = root / world.binary.relative_to("/")
    inside.parent.mkdir(parents=True)
    shutil.copy(binary, inside)
    (root / "site/index.html").write_text("from an empty root")
    # The only files needed: names of hosts and accounts.
    (root / "etc").mkdir()
    (root / "etc/hosts").write_text("127.0.0.1 weft.test\n")
    (root / "etc/passwd").write_text("weft:x:1234:1234::/:\n")
    key, chain = root / "key.pem", root / "chain.pem"
    world.output_of("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:weft.test",
                    "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", chain)
    server = world.server("--user", "weft", "--tls-cert", "/chain.pem", "--tls-key", "/key.pem", site="/site",
                          wrap=["unshare", "--root", str(root)])
    page = world.output_of("curl", "--silent", "--cacert", chain, "--resolve", f"weft.test:{server.port}:127.0.0.1",
                           f"https://weft.test:{server.port}/")
    expect_equal("the page", page, b"from an empty root")
    expect("io_uring" in server.output(), f"no io_uring: {server.output()}")
    world.output_of("unshare", "--root", root, world.binary, "load", "http", f"https://weft.test:{server.port}/", "-n", "9",
                    "--cacert", "/chain.pem", "--fail-if", "errors>0")
    with server:
        pass
