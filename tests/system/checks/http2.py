"""HTTP/2 as its own clients see it: h2spec, curl, nghttp and h2load, over TLS and by prior knowledge; and neighbours of hostile ones."""

import os
import re
import socket
import struct
import subprocess
import threading
import time

from world import ALL, Failure, check, expect, expect_equal

H2SPEC = "v2.2.1+incompatible"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, RST_STREAM, SETTINGS, CONTINUATION = 1, 3, 4, 9


def secured(world):
    """A server with TLS on one address, and without it on the other."""
    key, certificate = world.scratch / "key.pem", world.scratch / "certificate.pem"
    world.output_of("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate)
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
    for server, tls in (world.server(), []), (secured(world), ["-t", "-k"]):
        with server:
            said = world.output_of(program, "--strict", "-h", "localhost" if tls else "127.0.0.1", "-p", server.port, *tls,
                                   status=0 if tls else 1, seconds=140).decode()
            # Without TLS an address speaks HTTP/1.1 as well, so what does not begin with the preface gets its 400. RFC 9113 3.4
            passed = "146 passed" if tls else "145 passed"
            expect(passed in said and (tls or "Sends invalid connection preface" in said.split("Failures:")[-1]), said[-900:])


@check(*ALL, limit_s=60)
def clients_of_http2_get_every_file(world):
    files = sorted(path for path in world.site.rglob("*") if path.is_file())
    for server, scheme, how in (world.server(), "http", ["--http2-prior-knowledge"]), (secured(world), "https", ["-k", "--http2"]):
        with server:
            url = f"{scheme}://localhost:{server.port}"
            for file in files:
                got = world.output_of("curl", "-sf", *how, "-w", "%{http_version}", f"{url}/{file.relative_to(server.site)}")
                expect(got == file.read_bytes() + b"2", f"{file}: {len(got)} bytes of {file.stat().st_size}")
            urls = [f"{url}/{file.relative_to(server.site)}" for file in files]
            shown = world.output_of("nghttp", "-ns", "--no-dep", *urls).decode()
            expect_equal("replies to nghttp", len(re.findall(r" 200 ", shown)), len(files))
            loaded = world.output_of("h2load", "-n", "5000", "-c", "5", "-m", "50", f"{url}/style.css").decode()
            expect("5000 succeeded, 0 failed, 0 errored" in loaded, loaded)


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def head(server, path):
    return b"\x82\x86" + literal(b":path", path) + literal(b":authority", f"127.0.0.1:{server.port}".encode())


def attack(server, send, stop):
    """Connections that send so for as long as they are let, and then anew. Nothing is read."""
    while not stop.is_set():
        try:
            with socket.create_connection(("127.0.0.1", server.port), timeout=2) as connection:
                connection.sendall(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1)))
                for nth in range(100_000):
                    if stop.is_set():
                        return
                    connection.sendall(send(2 * nth + 1))
        except OSError:
            continue


@check(*ALL, limit_s=120)
def hostile_streams_leave_neighbours_alone(world):
    with world.server() as server:
        request = head(server, b"/data/loom.wav")
        attacks = {
            "rapid reset": lambda id: frame(HEADERS, 5, id, request) + frame(RST_STREAM, 0, id, b"\0\0\0\x08"),
            "CONTINUATION": lambda id: frame(HEADERS if id == 1 else CONTINUATION, 0, 1, literal(b"a", b"b" * 100)),
            "readers of nothing": lambda id: frame(HEADERS, 5, id, request) if id < 200 else time.sleep(0.1) or b"",
        }
        for name, send in attacks.items():
            stop = threading.Event()
            threads = [threading.Thread(target=attack, args=(server, send, stop)) for _ in range(4)]
            for thread in threads:
                thread.start()
            try:
                for _ in range(100):
                    reply = server.get("/style.css")
                    expect_equal(f"status beside {name}", reply.status, 200)
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
        expect(int(server.status("VmRSS").split()[0]) < 200 * 1024, f"it holds {server.status('VmRSS')}")
