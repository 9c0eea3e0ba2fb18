"""Certificates in files: renewed by certbot and lego as docs/serve.md says, damaged in every way; client certificates; testssl's findings."""

import json
import re
import shutil
import signal
import socket
import ssl
import subprocess

from checks.acme import Authority, shown
from checks.clients import browse
from checks.lifecycle import Clients
from memcache import certificate
from world import ALL, check, expect, expect_equal, expect_in_time, free_port, wait_for

NAME = "example.org"


@check(limit_s=300)
def certbot_renews_by_webroot(world):
    authority = Authority(world, nonces_refused=0)
    folder = world.scratch / "letsencrypt"
    folder.mkdir(mode=0o755)
    folders = [f"--{kind}-dir={folder / kind}" for kind in ("config", "work", "logs")]

    def certbot(*words):
        world.output_of("env", f"REQUESTS_CA_BUNDLE={authority.root}", "certbot", "-n", *folders, "--no-random-sleep-on-renew", *words,
                        seconds=100)

    def first():
        certbot("certonly", "--webroot", "-w", world.scratch / "site", "-d", NAME, "--server", authority.url, "--agree-tos",
                "-m", "mail@example.org")
        live = folder / "config/live" / NAME
        # Commands of the manual: the server's user may read links, certificates and keys.
        for path in (folder / "config", folder / "config/live", folder / "config/archive"):
            path.chmod(0o750)
            shutil.chown(path, group="nogroup")
        for path in (live, folder / "config/archive" / NAME):
            shutil.chown(path, group="nogroup")
        for path in (folder / "config/archive" / NAME).glob("privkey*"):
            path.chmod(0o640)
            shutil.chown(path, group="nogroup")
        return live / "fullchain.pem", live / "privkey.pem"

    renewed_while_requests_run(world, authority, first, lambda: certbot("renew", "--force-renewal"))


@check(limit_s=300)
def lego_renews_by_webroot(world):
    authority = Authority(world, nonces_refused=0)
    folder = world.scratch / "lego"

    def lego(*words):
        world.output_of("env", f"LEGO_CA_CERTIFICATES={authority.root}", "lego", "--path", folder, "--server", authority.url,
                        "--email", "mail@example.org", "--accept-tos", "--domains", NAME, "--http", "--http.webroot",
                        world.scratch / "site", *words, seconds=100)

    def first():
        lego("run")
        files = folder / "certificates"
        folder.chmod(0o755)
        files.chmod(0o755)
        for name, mode in ((f"{NAME}.crt", 0o644), (f"{NAME}.key", 0o640)):
            (files / name).chmod(mode)
            shutil.chown(files / name, group="nogroup")
        return files / f"{NAME}.crt", files / f"{NAME}.key"

    # Without a terminal lego sleeps up to 8 minutes first, unless told otherwise.
    renewed_while_requests_run(world, authority, first, lambda: lego("renew", "--days", "100", "--no-random-sleep"))


def renewed_while_requests_run(world, authority, first, renew):
    """A certificate is issued while the server speaks HTTP alone, and then renewed, without a signal and without a failed request."""
    world.scratch.chmod(0o755)
    site = world.folder(index__html=b"hello")
    authority.answer("127.0.0.1")
    with world.server(site=site, listen=[f"127.0.0.1:{authority.http_port}"]):
        chain, key = first()
    config = world.scratch / "serve.toml"
    config.write_text(f'https_redirect = "127.0.0.1:{authority.http_port}"\ntls_cert = "{chain}"\ntls_key = "{key}"\n')
    with world.server("--config", config, "--user", "nobody:nogroup", site=site, listen=[f"127.0.0.1:{authority.tls_port}"]) as server:
        server.tls_port = authority.tls_port
        older = shown(server, authority, NAME)
        clients = Clients(Secure(server, site, authority), 2, path="/index.html", close=True)
        renew()
        wait_for("the new certificate", lambda: shown(server, authority, NAME) != older, 30)
        clients.stop()
        expect_equal("connections that failed", clients.refused, 0)
        clients.expect_none_lost("while it is renewed")
        expect_in_time(clients.complete > 50, f"only {clients.complete} requests")
        expect("not reloaded" not in server.wait_for_output("reloaded: "), server.output())


class Secure:
    """A server as TLS clients see it that trust the authority alone."""

    def __init__(self, server, site, authority):
        self.site, self.port = site, server.tls_port
        self.context = ssl.create_default_context(cadata=authority.roots())

    def connect(self):
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        return self.context.wrap_socket(plain, server_hostname=NAME)


@check(limit_s=120)
def each_kind_of_broken_pem_has_its_word(world):
    folder = world.scratch
    config = folder / "serve.toml"

    def openssl(*words):
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, cwd=folder)

    def text(name):
        return (folder / name).read_text()

    for name, algorithm in (("ec", ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")), ("rsa", ("rsa:2048",)), ("other", ("rsa:2048",))):
        openssl("req", "-x509", "-newkey", *algorithm, "-nodes", "-days", 9, "-subj", "/CN=a", "-addext", "subjectAltName=DNS:a",
                "-keyout", f"{name}.key", "-out", f"{name}.pem")
    (folder / "names").write_text("subjectAltName=DNS:a\n")
    openssl("req", "-new", "-key", "ec.key", "-subj", "/CN=a", "-out", "old.csr")
    openssl("x509", "-req", "-in", "old.csr", "-CA", "ec.pem", "-CAkey", "ec.key", "-CAcreateserial", "-days", "-1", "-extfile", "names",
            "-out", "old.pem")
    openssl("ec", "-in", "ec.key", "-out", "sec1.key")
    openssl("ecparam", "-name", "prime256v1", "-out", "parameters")
    openssl("rsa", "-in", "rsa.key", "-traditional", "-out", "pkcs1.key")
    openssl("rsa", "-in", "rsa.key", "-traditional", "-aes128", "-passout", "pass:x", "-out", "encrypted1.key")
    openssl("pkey", "-in", "rsa.key", "-aes128", "-passout", "pass:x", "-out", "encrypted8.key")
    openssl("x509", "-in", "ec.pem", "-outform", "DER", "-out", "der.pem")
    openssl("pkey", "-in", "ec.key", "-outform", "DER", "-out", "der.key")
    parts = {
        "empty": "", "with_parameters.key": text("parameters") + text("sec1.key"), "cut.pem": text("ec.pem").split("-----END")[0],
        "reversed.pem": text("rsa.pem") + text("ec.pem"), "both.pem": text("ec.key") + text("ec.pem"),
        "crlf.pem": text("ec.pem").replace("\n", "\r\n"), "crlf.key": text("ec.key").replace("\n", "\r\n"),
        "bom.pem": "\ufeff" + text("ec.pem"), "bom.key": "\ufeff" + text("ec.key"),
    }
    for name, content in parts.items():
        (folder / name).write_bytes(content.encode())
    for chain, key, word in (
            ("ec.pem", "ec.key", None), ("ec.pem", "sec1.key", None), ("ec.pem", "with_parameters.key", None),
            ("rsa.pem", "pkcs1.key", None), ("rsa.pem", "rsa.key", None), ("crlf.pem", "crlf.key", None), ("bom.pem", "bom.key", None),
            ("both.pem", None, None),
            ("empty", "ec.key", "no certificate in PEM: it is empty"), ("ec.pem", "empty", "no private key in PEM: it is empty"),
            ("der.pem", "ec.key", "it is DER; openssl"), ("ec.pem", "der.key", "it is DER; openssl"),
            ("ec.key", "ec.key", "it holds a private key"), ("rsa.pem", "encrypted1.key", "is encrypted; write it without"),
            ("rsa.pem", "encrypted8.key", "is encrypted; write it without"), ("cut.pem", "ec.key", "a section has no -----END line"),
            ("reversed.pem", "ec.key", "is number 2, and must be the first"), ("other.pem", "rsa.key", "do not belong together")):
        more = f'tls_key = "{folder / key}"\n' if key else ""
        config.write_text(f'root = "{world.site}"\ntls_cert = "{folder / chain}"\n{more}')
        process = world.start(world.binary, "check-config", config)
        said = b"".join(process.communicate(timeout=20)).decode()
        expect_equal(f"status for {chain} and {key}: {said}", process.returncode, 2 if word else 0)
        expect(word is None or word in said, f"{chain} and {key}: {said}")
    site = world.folder(a__txt=b"a")
    with world.server("--tls-cert", folder / "old.pem", "--tls-key", folder / "ec.key", site=site) as server:
        wait_for("a warning", lambda: "old.pem expired on " in server.output())


@check(*ALL, limit_s=90)
def clients_of_a_site_show_certificates(world):
    folder, config, log = world.scratch, world.scratch / "serve.toml", world.scratch / "access.log"
    (folder / "stranger").mkdir()
    authority, chain, key = certificate(folder)
    _, *stranger = certificate(folder / "stranger")
    trusted = shutil.copy(authority, folder / "trusted.pem")
    port = free_port()

    def configure(**more):
        lines = "".join(f'{name} = "{value}"\n' for name, value in more.items())
        host = f'[[host]]\nnames = ["localhost"]\ntls_cert = "{chain}"\ntls_key = "{key}"\n'
        config.write_text(f'log_format = "json"\n{lines}{host}')

    def status(pair=None, path="/a.txt"):
        shown = ("--cert", pair[0], "--key", pair[1]) if pair else ()
        return world.output_of("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", trusted, *shown,
                               f"https://localhost:{port}{path}", status=tuple(range(256))).decode()

    configure(tls_client_ca=authority)
    with world.server("--config", config, "--access-log", log, site=world.folder(a__txt=b"a"), listen=[f"127.0.0.1:{port}"]) as server:
        expect_equal("required", (status((chain, key)), status(), status(stranger)), ("200", "000", "000"))
        wait_for("a line in the log", lambda: log.read_text().count("\n") == 1)
        expect('"tls_client":"CN=localhost"' in log.read_text(), log.read_text())
        configure(tls_client_ca=folder / "none.pem")
        server.signal(signal.SIGHUP)
        wait_for("a refusal", lambda: "not reloaded: " in server.output() and "none.pem" in server.output())
        expect_equal("still required", status(), "000")
        configure(tls_client_ca=authority, tls_client_auth="optional")
        server.signal(signal.SIGHUP)
        wait_for("those without one are served", lambda: status() == "200")
        expect_equal("optional", (status((chain, key)), status(stranger)), ("200", "000"))
        # The file is read again without a signal, and old client certificates are refused.
        (folder / "stranger/ca.pem").rename(authority)
        wait_for("the other authority", lambda: status(stranger) == "200", 30)


@check(limit_s=900)
def testssl_finds_nothing_above_low(world):
    root, chain, key = certificate(world.scratch, days=100)
    found = world.scratch / "testssl.json"
    config = world.scratch / "serve.toml"
    config.write_text('hsts = "max-age=31536000"\n')
    port = free_port()
    with world.server("--config", config, "--tls-cert", chain, "--tls-key", key, site=world.folder(index__html=b"hello"),
                      listen=[f"127.0.0.1:{port}"]):
        world.output_of("testssl", "--quiet", "--color", "0", "--warnings", "batch", "--ip", "127.0.0.1", "--add-ca", root,
                        "--jsonfile", found, f"localhost:{port}", status=tuple(range(256)), seconds=880)
    findings = json.loads(found.read_text())
    expect(len(findings) > 100, f"testssl looked at {len(findings)} things")
    # An authority for tests has no revocation lists.
    bad = [f"{it['id']}: {it['finding']}" for it in findings
           if it["severity"] in ("MEDIUM", "HIGH", "CRITICAL") and it["id"] != "cert_revocation"]
    expect(not bad, "; ".join(bad))


@check("uring", "event", limit_s=60)
def a_browser_exchanges_keys_by_ml_kem(world):
    """Half of X25519MLKEM768 is our own code, so a client by others must compute the same secret."""
    _, chain, key = certificate(world.scratch)
    log = world.scratch / "net.json"
    with world.server("--tls-cert", chain, "--tls-key", key) as server:
        url = f"https://localhost:{server.port}/"
        dom = browse(world, "--ignore-certificate-errors", f"--log-net-log={log}", "--dump-dom", url).decode()
        expect("<title>weftwork" in dom, dom[-300:])
        groups = set(re.findall(r'"key_exchange_group":(\d+)', log.read_text(errors="replace")))
        # The codepoint of the hybrid. draft-ietf-tls-ecdhe-mlkem
        expect_equal("groups of the key exchange", groups, {"4588"})
