"""Helpers for the checks of `weft cache`: a server with memcached's flags, and a client of the text protocol."""

import pathlib
import socket
import subprocess

from world import Failure, Server, VARIANTS, expect, free_port


class CacheServer(Server):
    """A `weft cache` process on ports of its own, with an admin listener."""

    def __init__(self, world, flags, variant=None, host="127.0.0.1", port=None, user="root", wrap=(), nofile=None,
                 before_exec=None, expect_ready=True):
        self.world, self.host = world, host
        self.port, self.admin_port = port or free_port(host), free_port()
        self.log = world.scratch / f"cache-{len(world.servers)}.log"
        self.command = [*wrap, str(world.binary), "cache", "-l", host, "-p", str(self.port), "-u", user,
                        *(VARIANTS[variant or world.variant] if variant != "auto" else []), "--admin", f"127.0.0.1:{self.admin_port}", *flags]
        self.nofile, self.before_exec, self.expect_ready = nofile, before_exec, expect_ready
        self.process = None

    def client(self, timeout=10):
        return Client(self.connect(timeout))

    def stats(self, what=""):
        with self.client() as client:
            return client.stats(what)


def cache(world, *flags, **options):
    """Starts a cache for a `with` statement, which checks that it ends well."""
    server = CacheServer(world, [str(flag) for flag in flags], **options)
    world.servers.append(server)
    server.start()
    return server


def run_weft_cache(world, *flags, status, seconds=20):
    """Runs `weft cache` to its end, and returns its output and errors."""
    process = world.start(world.binary, "cache", *flags)
    out, err = process.communicate(timeout=seconds)
    text = out.decode() + err.decode()
    expect(process.returncode == status, f"weft cache {' '.join(flags)} ended with {process.returncode}, not {status}: {text}")
    return text


class Client:
    """Connection in the text protocol, which fails on any unexpected reply."""

    def __init__(self, connection):
        self.socket = connection
        self.file = connection.makefile("rb")

    @classmethod
    def unix(cls, path):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(10)
        connection.connect(str(path))
        return cls(connection)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.file.close()
        self.socket.close()

    def send(self, request):
        self.socket.sendall(request)

    def line(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise Failure(f"the connection ended in the line {line!r}")
        return line[:-2]

    def ask(self, line):
        self.send(line + b"\r\n")
        return self.line()

    def set(self, key, value, flags=0, exptime=0, verb=b"set"):
        self.send(b"%s %s %d %d %d\r\n%s\r\n" % (verb, key, flags, exptime, len(value), value))
        return self.line()

    def must_set(self, key, value, **options):
        answer = self.set(key, value, **options)
        expect(answer == b"STORED", f"set {key.decode()} is answered with {answer!r}")

    def get_many(self, *keys):
        """Values that were found, by key."""
        self.send(b"get " + b" ".join(keys) + b"\r\n")
        return self.read_values()

    def read_values(self):
        found = {}
        while (line := self.line()) != b"END":
            word, key, _flags, length = line.split(b" ")
            expect(word == b"VALUE", f"instead of a value there is {line!r}")
            value = self.file.read(int(length) + 2)
            expect(value[-2:] == b"\r\n", f"the value of {key!r} ends with {value[-2:]!r}")
            found[key] = value[:-2]
        return found

    def get(self, key):
        return self.get_many(key).get(key)

    def stats(self, what=""):
        self.send(f"stats {what}".strip().encode() + b"\r\n")
        found = {}
        while (line := self.line()) != b"END":
            word, name, value = line.decode().split(" ", 2)
            expect(word == "STAT", f"stats has the line {line!r}")
            found[name] = value
        return found


def certificate(folder, days=2):
    """Creates an authority's certificate, and a certificate and key that it signed. Returns three files."""
    folder = pathlib.Path(folder)

    def openssl(*words):
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)

    authority, authority_key = folder / "ca.pem", folder / "ca.key"
    chain, key, request, names = (folder / f"localhost.{ending}" for ending in ("pem", "key", "csr", "names"))
    names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=authority", "-days", days,
            "-keyout", authority_key, "-out", authority)
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-keyout", key, "-out", request)
    openssl("x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key, "-CAcreateserial",
            "-days", days, "-extfile", names, "-out", chain)
    return authority, chain, key
