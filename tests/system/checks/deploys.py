"""Releases that are switched by a symbolic link while clients are served, as with Capistrano."""

import os
import random
import shutil
import socket
import ssl
import threading

from memcache import certificate
from world import ALL, Incomplete, check, expect, expect_equal, expect_in_time, read_reply, request, wait_for

# In memory, from the page cache, a compressed variant, an error page.
FILES = {"small.css": 2_000, "middle.bin": 300_000, "page.html": 9_000, "page.html.br": 3_000, "404.html": 1_500}
PATHS = {"/small.css": 200, "/middle.bin": 200, "/page.html": 200, "/missing": 404}
LONG = 6_000_000
SWITCHES = 4


@check(*ALL, limit_s=120)
def each_reply_is_of_one_release_while_a_link_is_switched(world):
    """No reply mixes two releases or is older than one before it, downloads finish unchanged, and the certificate is switched too."""
    deploy = Deploy(world)
    socket_file = world.scratch / "socket"
    config = world.scratch / "serve.toml"
    config.write_text('recheck = "100ms"\n')
    with world.server("--listen", f"unix:{socket_file}", "--config", config, "--tls-cert", deploy.current / "tls/cert.pem",
                      "--tls-key", deploy.current / "tls/key.pem", site=deploy.current / "public") as server:
        def plain():
            client = socket.socket(socket.AF_UNIX)
            client.settimeout(20)
            client.connect(str(socket_file))
            return client

        def secure():
            return deploy.trusting().wrap_socket(server.connect(timeout=20), server_hostname="localhost")

        clients = [Client(connect, deploy) for connect in (plain, plain, secure, secure)]
        for number in range(1, SWITCHES + 1):
            downloads = [begun_download(connect) for connect in (plain, secure)]
            deploy.switch(number)
            wait_for(f"release {number} everywhere", lambda: all(client.has_seen(number) for client in clients if not client.failures), 40)
            failures = [failure for client in clients for failure in client.failures]
            expect(not failures, f"release {number}: {failures[:3]}")
            for file in downloads:
                body = file.read(LONG)
                expect(body == deploy.letter(number - 1) * LONG, f"a download of {len(body)} bytes does not end as it began")
            # Nothing needs it any more.
            shutil.rmtree(deploy.folder / str(number - 1) / "public")
        for client in clients:
            client.stop()
        expect_equal("failures", [failure for client in clients for failure in client.failures], [])
        late = [why for client in clients for why in client.late]
        expect_in_time(not late, f"clients without a reply so far: {late[:3]}")
        wait_for("the certificate of the last release", lambda: deploy.is_certificate_of(SWITCHES, secure), 30)
        expect("not reloaded" not in server.output(), server.output()[-600:])


class Deploy:
    """Releases in numbered folders, each of one letter, and the link to the current one."""

    def __init__(self, world):
        self.folder = world.folder("deploy")
        self.current = self.folder / "current"
        self.authorities = []
        for number in range(SWITCHES + 1):
            self.make(number)
        self.current.symlink_to("0")

    def make(self, number):
        public, tls = (self.folder / str(number) / name for name in ("public", "tls"))
        public.mkdir(parents=True)
        tls.mkdir()
        for name, length in (*FILES.items(), ("long.bin", LONG)):
            # Different lengths, so that no head fits another release's body.
            (public / name).write_bytes(self.letter(number) * (length if name == "long.bin" else length + number))
        authority, chain, key = certificate(tls)
        chain.rename(tls / "cert.pem")
        key.rename(tls / "key.pem")
        self.authorities.append(authority.read_text())

    @staticmethod
    def letter(number):
        return bytes([ord("a") + number])

    def switch(self, number):
        (self.folder / "next").symlink_to(str(number))
        os.rename(self.folder / "next", self.current)

    def trusting(self):
        return ssl.create_default_context(cadata="".join(self.authorities))

    def is_certificate_of(self, number, connect):
        with connect() as client:
            shown = ssl.DER_cert_to_PEM_cert(client.getpeercert(binary_form=True))
        return shown == (self.folder / str(number) / "tls/cert.pem").read_text()


class Client:
    """Gets one file after another, on kept and on new connections, and records faults."""

    def __init__(self, connect, deploy):
        self.connect, self.deploy, self.failures, self.late = connect, deploy, [], []
        self.releases = dict.fromkeys(PATHS, 0)
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stopping.is_set() and not self.failures:
            try:
                with self.connect() as connection, connection.makefile("rb") as file:
                    for left in range(random.randrange(1, 60), 0, -1):
                        path = random.choice(list(PATHS))
                        coding = random.choice(("br", "identity"))
                        connection.sendall(request(path, close=left == 1, Accept_Encoding=coding))
                        self.judge(path, coding, read_reply(file))
            except TimeoutError as error:
                self.late.append(str(error))
                return
            except (OSError, Incomplete) as error:
                self.failures.append(f"{type(error).__name__}: {error}")

    def judge(self, path, coding, reply):
        release = reply.body[0] - ord("a")
        name = "404.html" if path == "/missing" else path[1:]
        if reply.header("content-encoding") == "br":
            name += ".br"
        whole = self.deploy.letter(release) * (FILES[name] + release)
        if reply.status != PATHS[path] or reply.body != whole:
            self.failures.append(f"{path} ({coding}): status {reply.status}, {len(reply.body)} bytes, some of release {release}")
        if release < self.releases[path]:
            self.failures.append(f"{path}: release {release} after {self.releases[path]}")
        self.releases[path] = release

    def has_seen(self, number):
        return all(release >= number for release in self.releases.values())

    def stop(self):
        self.stopping.set()
        self.thread.join(30)


def begun_download(connect):
    """A client that has received the head of a long reply and its first bytes."""
    connection = connect()
    connection.sendall(request("/long.bin", close=True))
    file = connection.makefile("rb")
    while file.readline() != b"\r\n":
        pass
    return file
