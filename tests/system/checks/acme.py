"""Certificates by ACME from `pebble`, Let's Encrypt's authority for tests, built from the Go module proxy. It resolves names by the
check's own name server, `pebble-challtestsrv`, and refuses a third of all nonces."""

import contextlib
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.request

from checks.pasted import PAGE
from memcache import certificate
from world import ALL, Failure, check, expect, expect_equal, fetch, free_port, made_once, wait_for

VERSION = "v2.10.1"
NAMES = "example.org", "www.example.org", "other.example.org"
SETTING = re.search('`(acme = "[^"]*")`', PAGE.read_text())[1]


@check(*ALL, limit_s=300)
def a_certificate_comes_by_http_01(world):
    authority = Authority(world)
    with server_of(world, authority, http=True) as server:
        expect(refuses(server, "example.org"), "there is a certificate before there is one")
        authority.answer("127.0.0.1")
        server.signal(signal.SIGHUP)
        for name in NAMES:
            expect_names(server, authority, name)
        expect_equal("names in one certificate", names_of(shown(server, authority, "example.org")), {"example.org", "www.example.org"})
        expect(server.metric("weft_acme_not_after_seconds") > 2 * time.time(), "the ends of two certificates")


@check(*ALL, limit_s=300)
def a_certificate_comes_by_tls_alpn_01(world):
    authority = Authority(world)
    authority.answer("127.0.0.1")
    with server_of(world, authority) as server:
        for name in NAMES:
            expect_names(server, authority, name)
        expect(not server.metric("weft_acme_failures_total"), server.output())


@check(limit_s=300)
def restarts_and_reloads_order_nothing(world):
    """A second server with the same state directory orders nothing either."""
    authority = Authority(world)
    authority.answer("127.0.0.1")
    with server_of(world, authority) as server:
        # During an order.
        for _ in range(10):
            server.signal(signal.SIGHUP)
            time.sleep(0.1)
        for name in NAMES:
            expect_names(server, authority, name)
        first = shown(server, authority, "example.org")
    with server_of(world, authority) as server:
        expect_equal("certificate after a restart", shown(server, authority, "example.org"), first)
        server.signal(signal.SIGHUP)
        wait_for("a reload", lambda: "\nreloaded" in server.output())
        with server_of(world, authority, port=free_port()) as second:
            expect_equal("certificate of a second server", shown(second, authority, "example.org"), first)
    expect_equal("orders", authority.orders(), 2)


@check(limit_s=300)
def a_certificate_is_renewed_before_its_end(world):
    """Clients are always shown a certificate that they accept."""
    authority = Authority(world, life_s=24)
    authority.answer("127.0.0.1")
    with server_of(world, authority) as server:
        expect_names(server, authority, "example.org")
        first = shown(server, authority, "example.org")
        end = time.monotonic() + 60
        while shown(server, authority, "example.org") == first:
            expect(time.monotonic() < end, f"no other certificate: {server.output()}")
            time.sleep(0.2)


@check(limit_s=300)
def the_authority_names_the_time_of_a_renewal(world):
    authority = Authority(world)
    authority.answer("127.0.0.1")
    with server_of(world, authority) as server:
        expect_names(server, authority, "example.org")
        first = shown(server, authority, "example.org")
        past = [datetime.datetime.fromtimestamp(time.time() - ago, datetime.UTC).isoformat() for ago in (120, 60)]
        window = {"suggestedWindow": dict(zip(("start", "end"), past)), "explanationURL": "https://ca.example/why"}
        authority.manage("set-renewal-info/", {"certificate": first, "ariResponse": json.dumps(window)})
    with server_of(world, authority, clock="+4d") as server:
        wait_for("another certificate", lambda: shown(server, authority, "example.org") != first, 30)
        expect("wants example.org renewed early; see https://ca.example/why" in server.output(), server.output())


@check(limit_s=300)
def a_certificate_is_renewed_after_a_long_sleep(world):
    authority = Authority(world)
    authority.answer("127.0.0.1")
    with server_of(world, authority) as server:
        expect_names(server, authority, "example.org")
        first = shown(server, authority, "example.org")
    with server_of(world, authority, clock="+50d") as server:
        wait_for("a look", lambda: server.metric("weft_acme_not_after_seconds") > 0)
        expect_equal("certificate after 50 days", shown(server, authority, "example.org"), first)
    with server_of(world, authority, clock="+62d") as server:
        wait_for("another certificate", lambda: shown(server, authority, "example.org") != first, 30)
        # The authority's clock is not ahead, so the new certificate is in its last third at once.
        wait_for("a warning", lambda: "for other.example.org is old already: is the clock right?" in server.output(), 30)
        orders = authority.orders()
        time.sleep(4)
        expect_equal("orders for the clock's sake", authority.orders(), orders)


@check(limit_s=300)
def failures_say_what_to_do_and_are_few(world):
    authority = Authority(world)
    with server_of(world, authority, http=True) as server:
        wait_for("a failure", lambda: "example.org could not be validated by http-01" in server.output(), 30)
        # However often the operator retries.
        for _ in range(20):
            server.signal(signal.SIGHUP)
            time.sleep(0.5)
        wait_for("the limit", lambda: authority.orders() == 8, 30)
        time.sleep(3)
        expect_equal("orders of two certificates in an hour", authority.orders(), 8)
        expect_equal("health", server.admin("/healthz").status, 200)


@check(limit_s=300)
def an_authority_may_be_down(world):
    authority = Authority(world)
    authority.answer("127.0.0.1")
    authority.stop()
    with server_of(world, authority, http=True) as server:
        wait_for("a failure", lambda: "the authority cannot be reached" in server.output(), 30)
        expect(refuses(server, "example.org"), "there is a certificate")
        authority.start()
        server.signal(signal.SIGHUP)
        for name in NAMES:
            expect_names(server, authority, name)


@check(limit_s=300)
def an_authority_may_want_its_own_customers(world):
    key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W"
    authority = Authority(world, externalAccountBindingRequired=True, externalAccountMACKeys={"kid-1": key})
    authority.answer("127.0.0.1")
    (world.scratch / "external").write_text(f"kid-1 {key}\n")
    with server_of(world, authority, more=f'acme_external = "{world.scratch}/external"\n') as server:
        expect_names(server, authority, "example.org")


@check(limit_s=300)
def the_user_keeps_the_certificates(world):
    """The state directory is made by root and belongs to the user; other users cannot read it."""
    authority = Authority(world)
    authority.answer("127.0.0.1")
    world.scratch.chmod(0o755)
    with server_of(world, authority, "--user", "nobody:nogroup") as server:
        expect_names(server, authority, "example.org")
    found = list((world.scratch / "state/acme").rglob("*"))
    expect(len(found) > 5, f"{found}")
    for path in found:
        expect_equal(f"owner of {path}", path.owner(), "nobody")
        expect_equal(f"mode of {path}", path.stat().st_mode & 0o077, 0)


def server_of(world, authority, *flags, http=False, more="", port=None, clock=None):
    """Starts a server with two hosts, whose certificates come from `authority`; the server's clock is ahead."""
    folder = world.scratch / "site"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    (folder / "index.html").write_text("<p>hello")
    config = world.scratch / "serve.toml"
    redirect = f'https_redirect = "127.0.0.1:{authority.http_port}"\n' if http else ""
    # Without `root`, the check of the file would take the current folder, which may contain the keys.
    config.write_text(f"""
root = "{folder}"
{redirect}{more}{SETTING}
acme_directory = "{authority.url}"
acme_state = "{world.scratch}/state"
[[host]]
names = ["example.org"]
aliases = ["www.example.org"]
[[host]]
names = ["other.example.org"]
""")
    world.output_of(world.binary, "check-config", config)
    port = port or authority.tls_port
    server = world.server("--config", config, *flags, site=folder, listen=[f"127.0.0.1:{port}"],
                          wrap=["env", f"SSL_CERT_FILE={authority.root}", *(faked(clock) if clock else ())])
    server.tls_port = port
    return server


def faked(clock):
    """Environment of a process whose wall clock is ahead."""
    library = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return f"LD_PRELOAD={library}", f"FAKETIME={clock}", "FAKETIME_DONT_FAKE_MONOTONIC=1"


class Authority:
    """Pebble and its name server, which knows no names at first."""

    def __init__(self, world, life_s=7_776_000, nonces_refused=30, **settings):
        self.world, self.process, self.nonces_refused = world, None, nonces_refused
        self.bin = programs(world)
        self.http_port, self.tls_port, self.port, self.manager, self.dns, self.dns_manager = ports(6)
        self.url = f"https://localhost:{self.port}/dir"
        self.root, chain, key = certificate(world.scratch, days=100)
        self.log = world.scratch / "pebble.log"
        self.config = world.scratch / "pebble.json"
        profile = {"description": "the only one", "validityPeriod": life_s}
        self.config.write_text(json.dumps({"pebble": {
            "listenAddress": f"127.0.0.1:{self.port}", "managementListenAddress": f"127.0.0.1:{self.manager}",
            "certificate": str(chain), "privateKey": str(key), "httpPort": self.http_port, "tlsPort": self.tls_port,
            "keyAlgorithm": "ecdsa", "retryAfter": {"authz": 1, "order": 1}, "profiles": {"default": profile}, **settings}}))
        world.start(self.bin / "pebble-challtestsrv", "-defaultIPv4", "", "-defaultIPv6", "", "-dnsserver", f"127.0.0.1:{self.dns}",
                    "-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-management", f"127.0.0.1:{self.dns_manager}",
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for("the name server is there", lambda: answers(self.dns_manager))
        self.start()

    def start(self):
        log = open(self.log, "ab")
        self.process = self.world.start(
            self.bin / "pebble", "-config", self.config, "-dnsserver", f"127.0.0.1:{self.dns}", stdout=log, stderr=log,
            env={**os.environ, "PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": str(self.nonces_refused)})
        wait_for("pebble is there", lambda: answers(self.port))

    def stop(self):
        self.process.kill()
        self.process.wait()

    def answer(self, address):
        """Resolves every name to this address from now on."""
        post(f"http://127.0.0.1:{self.dns_manager}/set-default-ipv4", {"ip": address})

    def manage(self, path, body):
        post(f"https://localhost:{self.manager}/{path}", body, ssl.create_default_context(cafile=self.root))

    def orders(self):
        return self.log.read_text().count("Added order")

    def roots(self):
        """Certificate of the authority, which signs only certificates of this check."""
        context = ssl.create_default_context(cafile=self.root)
        with urllib.request.urlopen(f"https://localhost:{self.manager}/roots/0", context=context, timeout=10) as reply:
            return reply.read().decode()


def programs(world):
    """Pebble's programs, built once. Seen: once in a few hundred orders pebble stopped answering about one of them, and the server reported a
    time-out. Cause: it takes an order's read lock twice, and the issuing thread waits for the write lock in between (its issue 554). Cure:
    the first lock is released."""
    def make(folder):
        source = folder / "source"
        found = json.loads(fetch(["go", "mod", "download", "-json", f"github.com/letsencrypt/pebble/v2@{VERSION}"]))
        # Without the modes: the module cache is read-only.
        shutil.copytree(found["Dir"], source, copy_function=shutil.copyfile)
        file = source / "wfe/wfe.go"
        text, twice = file.read_text(), "\torderAccountID := order.AccountID\n\tdefer order.RUnlock()\n"
        expect_equal(f"places of pebble {VERSION} that lock twice", text.count(twice), 1)
        file.write_text(text.replace(twice, twice.replace("defer ", "")))
        fetch(["go", "build", "-buildvcs=false", "-o", folder, "./cmd/pebble", "./cmd/pebble-challtestsrv"], cwd=source)

    return made_once(world.scratch.parent / f"pebble-{VERSION}", make)


def ports(count):
    """Different free ports."""
    found = set()
    while len(found) < count:
        found.add(free_port())
    return found


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def post(url, body, context=None):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, context=context, timeout=10) as reply:
        reply.read()


def expect_names(server, authority, name):
    """Waits for a certificate that a client accepts."""
    try:
        wait_for(f"a certificate of {name}", lambda: not refuses(server, name), 60)
    except Failure as failure:
        raise type(failure)(f"{failure}: {server.output()[-600:]}") from None
    expect(name in names_of(shown(server, authority, name)), f"the certificate of {name} is of another name")


def refuses(server, name):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(("127.0.0.1", server.tls_port), timeout=10) as plain:
            with context.wrap_socket(plain, server_hostname=name):
                return False
    except ssl.SSLError:
        return True


def shown(server, authority, name):
    """The certificate that the server presents, in PEM, if a client accepts it."""
    context = ssl.create_default_context(cadata=authority.roots())
    with socket.create_connection(("127.0.0.1", server.tls_port), timeout=10) as plain:
        with context.wrap_socket(plain, server_hostname=name) as tls:
            return ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True))


def names_of(pem):
    words = subprocess.run(["openssl", "x509", "-noout", "-ext", "subjectAltName"], input=pem, capture_output=True, text=True, check=True)
    return {word.strip().removeprefix("DNS:") for word in words.stdout.splitlines()[1].split(",")}
