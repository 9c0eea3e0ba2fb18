"""HTTP/2 with many clients and `weft load`: h2spec, curl, nghttp, h2load, Go, Python's httpx and Chromium, over TLS and by prior
knowledge."""

import hashlib
import os
import pathlib
import re
import signal
import sys

import frames
from checks.clients import chromium, files_below
from generator import load
from peers import nginx
from world import ALL, check, expect, expect_equal, expect_in_time, fetch, made_once, wait_for

H2SPEC = "v2.2.1+incompatible"


def certified(world):
    """A key and a certificate for localhost."""
    key, certificate = world.scratch / "key.pem", world.scratch / "certificate.pem"
    world.output_of("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate)
    return key, certificate


def secured(world):
    key, certificate = certified(world)
    return world.server("--tls-cert", certificate, "--tls-key", key)


def h2spec(world):
    """h2spec, built once."""
    module = f"github.com/summerwind/h2spec/cmd/h2spec@{H2SPEC}"
    folder = made_once(world.scratch.parent / f"h2spec-{H2SPEC}",
                       lambda folder: fetch(["go", "install", module], env={**os.environ, "GOBIN": str(folder)}))
    return folder / "h2spec"


@check(*ALL, limit_s=300)
def h2spec_passes(world):
    program = h2spec(world)
    for start, tls in (world.server, []), (lambda: secured(world), ["-t", "-k"]):
        with start() as server:
            # By default a reply has 2 s, which a machine that stands still may exceed.
            said = world.output_of(program, "--strict", "--timeout", 10, "-h", server.host, "-p", server.port, *tls, status=(0, 1),
                                   seconds=140).decode()
            # Without TLS an address also speaks HTTP/1.1, so anything but the preface gets a 400. RFC 9113 3.4
            passed = "146 passed" if tls else "145 passed"
            expect_in_time(not re.search("(Actual|Error): Timeout|i/o timeout", said), said[-900:])
            expect(passed in said and (tls or "Sends invalid connection preface" in said.split("Failures:")[-1]), said[-900:])


@check(*ALL, limit_s=60)
def clients_of_http2_get_every_file(world):
    files = files_below(world.site)
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


@check("uring", "event", "thread", "pipeline", limit_s=180)
def go_and_httpx_get_every_file(world):
    """Both request compressed replies and print decompressed sums."""
    files = [file for file in files_below(world.site) if file.suffix not in (".br", ".gz", ".zst")]
    sums = {hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    folder = pathlib.Path(__file__).parent.parent / "clients"
    for start, scheme in (world.server, "http"), (lambda: secured(world), "https"):
        with start() as server:
            urls = [f"{scheme}://{server.host}:{server.port}/{file.relative_to(server.site)}" for file in files]
            for client in [go_client(world, folder)], [httpx(world), folder / "http2.py"]:
                lines = [line.split() for line in world.output_of(*client, *urls, seconds=60).decode().splitlines()]
                said = {" ".join(line[:2]) for line in lines}
                expect(said in ({"HTTP/2.0 200"}, {"HTTP/2 200"}), f"{scheme}: protocols and statuses are {said}")
                expect_equal(f"{scheme}: addresses", sorted(line[3] for line in lines), sorted(urls))
                expect_equal(f"{scheme}: bodies", {line[2] for line in lines}, sums)


def go_client(world, folder):
    program = world.scratch.parent / "http2-go"
    if not program.exists():
        fetch(["go", "build", "-o", program, folder / "http2.go"])
    return program


def httpx(world):
    """A Python with httpx, installed once."""
    def make(folder):
        fetch([sys.executable, "-m", "venv", "--clear", folder])
        fetch([folder / "bin" / "pip", "install", "--quiet", "httpx[http2]==0.28.1"])

    return made_once(world.scratch.parent / "httpx-0.28.1", make) / "bin" / "python"


GALLERY = """<!doctype html><title>gallery</title><link rel="icon" href="data:,"><body><script>
const names = [...Array(200).keys()].map(at => `${at}.svg`);
const shown = name => new Promise(done => {
  const picture = new Image();
  picture.onload = () => done(picture.naturalWidth);
  picture.onerror = () => done(0);
  picture.src = name;
  document.body.append(picture);
});
Promise.all(names.map(shown)).then(widths => document.body.setAttribute("data-shown", widths.filter(width => width == 9).length));
</script>"""


@check("uring", "event", "thread", "pipeline", limit_s=120)
def a_browser_shows_a_gallery_over_http2(world):
    picture = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><!--%s--></svg>'
    gallery = world.folder("many", index__html=GALLERY.encode(), **{f"{at}__svg": picture % (b"x" * 40 * at) for at in range(200)})
    key, certificate = certified(world)
    for nth, (site, in_page) in enumerate(((gallery, 'data-shown="200"'), (world.site, "carried across few cores"))):
        log = world.scratch / f"access-{nth}.log"
        with world.server("--tls-cert", certificate, "--tls-key", key, "--access-log", log, site=site) as server:
            browser = chromium(world, "--ignore-certificate-errors", "--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom",
                               f"https://localhost:{server.port}/")
            dom, said = world.start(*browser).communicate(timeout=60)
            expect(in_page in dom.decode(), f"the page is {dom[-300:]}")
            expect_equal("messages of the page", re.findall(r".*CONSOLE.*", said.decode()), [])
        lines = log.read_text().splitlines()
        expect(len(lines) > (200 if nth == 0 else 3), f"{len(lines)} requests")
        expect_equal("requests that are not HTTP/2", [line for line in lines if 'HTTP/2.0" 200' not in line], [])


@check(*ALL, limit_s=60)
def a_drain_loses_no_stream(world):
    """Requests sent before the client knows of the drain are answered, and the large download completes."""
    with world.server(site=world.big_site()) as server, server.connect() as connection:
        connection.sendall(frames.PREFACE + frames.settings((4, frames.WINDOW_MAX)) + frames.window(0, frames.WINDOW_MAX - 65_535)
                           + frames.get(1, b"/big.bin") + b"".join(frames.get(stream) for stream in range(3, 43, 2)))
        bodies, ended, last = {}, set(), []
        with connection.makefile("rb") as replies:
            while head := replies.read(9):
                payload = replies.read(int.from_bytes(head[:3], "big"))
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
                if kind == frames.DATA:
                    if not bodies:
                        server.signal(signal.SIGTERM)
                    bodies[stream] = bodies.get(stream, 0) + len(payload)
                    if flags & frames.END_STREAM:
                        ended.add(stream)
                elif kind == frames.GOAWAY:
                    last.append(int.from_bytes(payload[:4], "big"))
                elif kind == frames.PING:
                    more = b"".join(frames.get(stream) for stream in range(43, 83, 2))
                    connection.sendall(more + frames.frame(frames.PING, 1, 0, payload))
        server.wait_end()
        expect_equal("last streams of GOAWAY", last, [frames.WINDOW_MAX, 81])
        expect_equal("streams that ended", sorted(ended), list(range(1, 83, 2)))
        expect_equal("the bytes of the large one", bodies[1], 64 << 20)


@check(*ALL, limit_s=60)
def a_drain_tells_idle_clients_their_last_stream(world):
    """A client that sends a request just as its idle connection ends learns that it may repeat it."""
    with world.server() as server, server.connect() as connection:
        connection.sendall(frames.PREFACE + frames.settings() + frames.get(1))
        last = []
        with connection.makefile("rb") as replies:
            while head := replies.read(9):
                payload = replies.read(int.from_bytes(head[:3], "big"))
                kind, flags = head[3], head[4]
                if kind == frames.DATA and flags & frames.END_STREAM:
                    server.signal(signal.SIGTERM)
                elif kind == frames.GOAWAY:
                    last.append(int.from_bytes(payload[:4], "big"))
        server.wait_end()
        expect_equal("last streams of GOAWAY", last, [frames.WINDOW_MAX, 1])


def expect_load(world, url, *words, replies=5000):
    """Runs `weft load --http2`, and expects this many replies and no error."""
    insecure = ["-k"] if url.startswith("https") else []
    report = load(world, "http", url, "--http2", "-c", 5, "--streams", 50, *insecure, *words)
    report.expect_no_errors(f"errors of {url}")
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
            # nginx logs a request at its end.
            wait_for("nginx has logged all", lambda: log.read_text().count(" weft 200") >= 10_000)
            expect_equal("requests that nginx saw", log.read_text().count(" weft 200"), 10_000)
        with nginx(world, folder, more, how=f"{how}; keepalive_requests 100") as (url, _):
            report = expect_load(world, f"{scheme}{url[4:]}/a.txt", "-n", 5000)
            expect(report["opened"] >= 50, f"{report['opened']} connections for 5000 requests, 100 on each")
        log.unlink()
