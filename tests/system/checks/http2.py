"""HTTP/2 as its clients and `weft load` see it: h2spec, curl, nghttp and h2load, over TLS and by prior knowledge."""

import os
import re
import subprocess

from generator import load
from peers import nginx
from world import ALL, Failure, check, expect, expect_equal, wait_for

H2SPEC = "v2.2.1+incompatible"


def certified(world):
    """A key and its certificate, for localhost."""
    key, certificate = world.scratch / "key.pem", world.scratch / "certificate.pem"
    world.output_of("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate)
    return key, certificate


def secured(world):
    key, certificate = certified(world)
    return world.server("--tls-cert", certificate, "--tls-key", key)


def h2spec(world):
    """The program, built once."""
    folder = world.scratch.parent / f"h2spec-{H2SPEC}"
    if not (folder / "h2spec").exists():
        module = f"github.com/summerwind/h2spec/cmd/h2spec@{H2SPEC}"
        built = subprocess.run(["go", "install", module], env={**os.environ, "GOBIN": str(folder)}, capture_output=True, text=True)
        if built.returncode:
            raise Failure(f"go install {module}: {built.stderr[-300:]}")
    return folder / "h2spec"


@check(*ALL, limit_s=300)
def h2spec_passes(world):
    program = h2spec(world)
    for start, tls in (world.server, []), (lambda: secured(world), ["-t", "-k"]):
        with start() as server:
            said = world.output_of(program, "--strict", "-h", server.host, "-p", server.port, *tls,
                                   status=0 if tls else 1, seconds=140).decode()
            # Without TLS an address speaks HTTP/1.1 as well, so what does not begin with the preface gets its 400. RFC 9113 3.4
            passed = "146 passed" if tls else "145 passed"
            expect(passed in said and (tls or "Sends invalid connection preface" in said.split("Failures:")[-1]), said[-900:])


@check(*ALL, limit_s=60)
def clients_of_http2_get_every_file(world):
    files = sorted(path for path in world.site.rglob("*") if path.is_file())
    for start, scheme, how in (world.server, "http", ["--http2-prior-knowledge"]), (lambda: secured(world), "https", ["-k", "--http2"]):
        with start() as server:
            url = f"{scheme}://{server.host}:{server.port}"
            for file in files:
                got = world.output_of("curl", "-sf", *how, "-w", "%{http_version}", f"{url}/{file.relative_to(server.site)}")
                expect(got == file.read_bytes() + b"2", f"{file}: {len(got)} bytes of {file.stat().st_size}")
            urls = [f"{url}/{file.relative_to(server.site)}" for file in files]
            shown = world.output_of("nghttp", "-ns", "--no-dep", *urls).decode()
            expect_equal("replies to nghttp", len(re.findall(r" 200 ", shown)), len(files))
            loaded = world.output_of("h2load", "-n", "5000", "-c", "5", "-m", "50", f"{url}/style.css").decode()
            expect("5000 succeeded, 0 failed, 0 errored" in loaded, loaded)
            expect_load(world, f"{url}/style.css", "-n", 5000)


def expect_load(world, url, *words, replies=5000):
    """Runs `weft load --http2`, which has to see this many replies and no error."""
    insecure = ["-k"] if url.startswith("https") else []
    report = load(world, "http", url, "--http2", "-c", 5, "--streams", 50, *insecure, *words)
    expect_equal(f"errors of {url}", report.errors, {})
    expect_equal(f"replies of {url}", report["replies"], replies)
    return report


@check(limit_s=90)
def load_over_http2_counts_what_nginx_and_h2load_do(world):
    key, certificate = certified(world)
    tls = f"ssl_certificate {certificate}; ssl_certificate_key {key};"
    folder = world.folder(a__txt=b"some text\n" * 40)
    for scheme, more, how in ("http", "", "http2"), ("https", tls, "ssl http2"):
        with nginx(world, folder, more, how=how) as (url, log):
            url = f"{scheme}{url[4:]}/a.txt"
            expect_load(world, url, "-n", 5000, "--verify", "-H", "User-Agent: weft")
            expect_load(world, url, "--rate", 2500, "-d", "2s", "-H", "User-Agent: weft")
            loaded = world.output_of("h2load", "-n", "5000", "-c", "5", "-m", "50", url).decode()
            expect("5000 succeeded, 0 failed, 0 errored" in loaded, loaded)
            body = world.scratch / "body"
            body.write_bytes(b"x" * 200_000)
            expect_load(world, url, "-n", 100, "-m", "POST", "--body-file", body, "--expect", 405, replies=100)
            # nginx logs a request when it has ended.
            wait_for("nginx has logged all", lambda: log.read_text().count(" weft 200") >= 10_000)
            expect_equal("requests that nginx saw", log.read_text().count(" weft 200"), 10_000)
        with nginx(world, folder, more, how=f"{how}; keepalive_requests 100") as (url, _):
            report = expect_load(world, f"{scheme}{url[4:]}/a.txt", "-n", 5000)
            expect(report["opened"] >= 50, f"{report['opened']} connections for 5000 requests, 100 on each")
        log.unlink()
