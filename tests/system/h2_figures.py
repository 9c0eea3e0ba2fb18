#!/usr/bin/env python3
"""HTTP/2 of weft, nginx and h2o compared: the server's CPU time per request under h2load, in turns, minimum of the rounds. The server has
processor 0, its clients processor 1, in their own network namespace. `page` is the time from connect(2) with a resumed TLS session to
the last byte of 1 + 60 files (median of 50), `idle` the growth of resident memory per connection (of 1,000, TLS, one request each).

    sudo tests/system/h2_figures.py [-r ROUNDS] ROW[,ROW...] nginx h2o 'NAME=target/release/weft [OPTION...]'...
"""

import argparse
import os
import pathlib
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time

import frames

# Path, TLS, connections, streams per connection, requests.
ROWS = {
    "400x100": ("/400.html", False, 16, 100, 150_000),
    "400x1": ("/400.html", False, 64, 1, 30_000),
    "64k": ("/64k.html", False, 4, 10, 8_000),
    "64k-tls": ("/64k.html", True, 4, 10, 6_000),
    "1m-tls": ("/1m.bin", True, 4, 1, 600),
}
FILES = {"400.html": 400, "64k.html": 65536, "1m.bin": 1 << 20, "page.html": 12_000}
PARTS = {f"part{at}.{'css js svg'.split()[at % 3]}": 500 + 137 * at for at in range(60)}

NGINX = """daemon off; user root; pid {tmp}/pid; error_log stderr warn; worker_processes 1;
events {{ worker_connections 4096; multi_accept on; }}
http {{
  access_log off; types {{ text/html html; }} sendfile on; tcp_nopush on; keepalive_requests 1000000000; open_file_cache max=30000 inactive=1h;
  client_body_temp_path {tmp}/b; proxy_temp_path {tmp}/p; fastcgi_temp_path {tmp}/f; uwsgi_temp_path {tmp}/u; scgi_temp_path {tmp}/g;
  ssl_certificate {keys}/cert.pem; ssl_certificate_key {keys}/key.pem; ssl_session_cache shared:x:10m;
  server {{ listen 127.0.0.1:{port} {tls} http2; root {site}; }}
}}
"""
H2O = """user: root
num-threads: 1
max-connections: 4096
http2-idle-timeout: 3600
error-log: {tmp}/log
listen: {{ port: {port}, host: 127.0.0.1{tls} }}
hosts: {{ default: {{ paths: {{ /: {{ file.dir: {site} }} }} }} }}
"""


class Server:
    port = 20_000

    def __init__(self, system, keys, over_tls):
        Server.port += 1
        self.port = Server.port
        self.tmp = tempfile.mkdtemp()
        site = keys / "site"
        names = {"tmp": self.tmp, "keys": keys, "site": site, "port": self.port}
        config = pathlib.Path(self.tmp) / "config"
        if system == "nginx":
            config.write_text(NGINX.format(**names, tls="ssl" if over_tls else ""))
            command = ["nginx", "-c", config, "-p", self.tmp, "-e", "stderr"]
        elif system == "h2o":
            tls = f", ssl: {{ certificate-file: {keys}/cert.pem, key-file: {keys}/key.pem }}"
            config.write_text(H2O.format(**names, tls=tls if over_tls else ""))
            command = ["h2o", "-c", config]
        else:
            tls = ["--tls-cert", keys / "cert.pem", "--tls-key", keys / "key.pem"] if over_tls else []
            program, *options = system.partition("=")[2].split()
            command = [program, "serve", site, "--listen", f"127.0.0.1:{self.port}", "--quiet", "--workers", "1", *tls, *options]
        self.child = subprocess.Popen(["taskset", "-c", "0", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(500):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.01)
        sys.exit(f"{system} does not listen")

    def processes(self):
        found = [self.child.pid]
        for pid in found:
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        return found

    def cpu_us(self):
        tasks = [task for pid in self.processes() for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1000

    def resident(self):
        statuses = [pathlib.Path(f"/proc/{pid}/status").read_text() for pid in self.processes()]
        return sum(int(status.split("VmRSS:")[1].split()[0]) * 1024 for status in statuses)

    def stop(self):
        self.child.send_signal(signal.SIGTERM)
        self.child.wait()
        shutil.rmtree(self.tmp, ignore_errors=True)


def cpu_per_request(server, row):
    path, over_tls, connections, streams, count = ROWS[row]
    url = f"http{'s' * over_tls}://127.0.0.1:{server.port}{path}"

    def load(count):
        command = ["h2load", "-t", "1", "-n", str(count), "-c", str(connections), "-m", str(streams), url]
        said = subprocess.run(command, capture_output=True, text=True).stdout
        assert f"status codes: {count} 2xx" in said, said

    load(max(count // 20, connections))
    before = server.cpu_us()
    load(count)
    return (server.cpu_us() - before) / count


class Client:
    def __init__(self, server, context, session=None):
        plain = socket.create_connection(("127.0.0.1", server.port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = context.wrap_socket(plain, server_hostname="localhost", session=session)
        self.greeting = frames.PREFACE + frames.settings((4, 1 << 30)) + frames.window(0, 1 << 30)
        self.buffer, self.stream = bytearray(), -1

    def get(self, names):
        """Requests all files at once. Returns the total length of the bodies."""
        out, self.greeting = self.greeting, b""
        for name in names:
            self.stream += 2
            path, host = f"/{name}".encode(), b"localhost"
            fields = b"\x82\x87\x04" + bytes([len(path)]) + path + b"\x01" + bytes([len(host)]) + host
            out += frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, self.stream, fields)
        self.socket.sendall(out)
        total, open_streams = 0, len(names)
        while open_streams:
            self.buffer += self.socket.recv(65536) or sys.exit("the server has closed")
            at = 0
            while len(self.buffer) >= at + 9:
                length = int.from_bytes(self.buffer[at : at + 3], "big")
                if len(self.buffer) < at + 9 + length:
                    break
                kind, flags = self.buffer[at + 3 : at + 5]
                assert kind not in (3, 7), "RST_STREAM or GOAWAY"
                total += length * (kind == 0)
                open_streams -= kind in (0, 1) and flags & 1
                if kind == 4 and not flags & 1:
                    self.socket.sendall(frames.frame(frames.SETTINGS, 1, 0))
                at += 9 + length
            del self.buffer[:at]
        return total


def tls_context():
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def page(server):
    context, session, times = tls_context(), None, []
    for nth in range(60):
        begun = time.perf_counter()
        client = Client(server, context, session)
        total = client.get(["page.html"]) + client.get(PARTS)
        times.append(time.perf_counter() - begun)
        assert total == FILES["page.html"] + sum(PARTS.values()), total
        assert nth < 3 or client.socket.session_reused, "not resumed"
        session = client.socket.session
        client.socket.close()
    return sorted(times[10:])[25] * 1e6


def idle(server):
    context, kept = tls_context(), []

    def grow(count):
        kept.extend(Client(server, context) for _ in range(count))
        for client in kept[-count:]:
            client.get(["400.html"])
        time.sleep(0.5)
        return server.resident()

    return -(grow(50) - grow(1000)) / 1000


def make_site(folder):
    (folder / "site").mkdir()
    for name, size in {**FILES, **PARTS}.items():
        (folder / "site" / name).write_bytes(b"x" * size)
        os.utime(folder / "site" / name, (1e9, 1e9))
    folder.chmod(0o755)
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost -keyout key.pem -out cert.pem"
    alternative = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command.split(), *alternative], cwd=folder, check=True, capture_output=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-r", dest="rounds", type=int, default=9)
    parser.add_argument("rows")
    parser.add_argument("systems", nargs="+")
    args = parser.parse_args()
    if "H2_FIGURES" not in os.environ:
        os.environ["H2_FIGURES"] = "in a namespace"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    subprocess.run("ip link set lo up && sysctl -qw net.ipv4.tcp_congestion_control=reno", shell=True, check=True)
    os.nice(-19)
    os.sched_setaffinity(0, {1})
    resource.setrlimit(resource.RLIMIT_NOFILE, (16384, 16384))
    with tempfile.TemporaryDirectory() as folder:
        make_site(pathlib.Path(folder))
        for row in args.rows.split(","):
            found = {system: [] for system in args.systems}
            for nth in range(args.rounds):
                for system in args.systems[:: 1 - nth % 2 * 2]:
                    server = Server(system, pathlib.Path(folder), row in ("page", "idle") or ROWS[row][1])
                    measure = {"page": page, "idle": idle}.get(row)
                    found[system].append(measure(server) if measure else cpu_per_request(server, row))
                    server.stop()
            for system, values in found.items():
                ratios = [f"{other} / it {min(found[other]) / min(values):.2f}" for other in args.systems if "=" not in other]
                print(f"{row:8} {system.partition('=')[0]:10} {min(values):9.2f} (median {sorted(values)[len(values) // 2]:.2f})", *ratios, flush=True)


if __name__ == "__main__":
    main()
