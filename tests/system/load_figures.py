#!/usr/bin/env python3
"""`weft load`, wrk and h2load compared against one nginx: the generator's CPU time per request (rusage of its process), rates, and the
server's CPU time per request and share of its processor; in turns, minimum of the rounds (median for rates). nginx has processor 0, the
generator processor 1.

    tests/system/load_figures.py [-r ROUNDS] [-d SECONDS] ROW[,ROW...] PATH/TO/weft
"""

import argparse
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

# URL's scheme and path, connections, streams per connection; 0 for HTTP/1.1.
ROWS = {
    "400": ("http", "/400.html", 64, 0), "400x1000": ("http", "/400.html", 1000, 0), "64k": ("http", "/64k.html", 64, 0),
    "400-tls": ("https", "/400.html", 64, 0), "64k-tls": ("https", "/64k.html", 64, 0),
    "h2-64x1": ("http", "/400.html", 64, 1), "h2-8x100": ("http", "/400.html", 8, 100), "h2-64k-8x10": ("http", "/64k.html", 8, 10),
    "h2-tls-64x1": ("https", "/400.html", 64, 1), "h2-tls-8x100": ("https", "/400.html", 8, 100),
    # The server compresses each reply, so that it is the bottleneck.
    "gzip": ("http", "/16k.html", 64, 0), "h2-gzip-64x1": ("http", "/16k.html", 64, 1), "h2-gzip-8x100": ("http", "/16k.html", 8, 100),
    "h2-gzip-8x10": ("http", "/16k.html", 8, 10),
}
NGINX = """daemon off; master_process off; user root; pid {tmp}/pid; error_log stderr crit;
events {{ worker_connections 4096; multi_accept on; }}
http {{
  access_log off; gzip on; types {{ text/html html; }} sendfile on; tcp_nopush on; keepalive_requests 1000000000; open_file_cache max=1000 inactive=1h;
  client_body_temp_path {tmp}/b; proxy_temp_path {tmp}/p; fastcgi_temp_path {tmp}/f; uwsgi_temp_path {tmp}/u; scgi_temp_path {tmp}/g;
  ssl_certificate {tmp}/cert.pem; ssl_certificate_key {tmp}/key.pem;
  server {{ listen 127.0.0.1:20080; listen 127.0.0.1:20443 ssl; root {tmp}; }}
  # With sendfile a small reply to a single stream waits 40 ms: for its head's acknowledgement.
  server {{ sendfile off; listen 127.0.0.1:20081 http2; listen 127.0.0.1:20444 ssl http2; root {tmp}; }}
}}
"""


def start_nginx(tmp):
    for name, length in (("400.html", 400), ("16k.html", 16384), ("64k.html", 65536)):
        (tmp / name).write_bytes(bytes(random.Random(length).choices(b"etaoin shrdlu<>/", k=length)))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost",
                    "-keyout", tmp / "key.pem", "-out", tmp / "cert.pem"], check=True, capture_output=True)
    (tmp / "conf").write_text(NGINX.format(tmp=tmp))
    child = subprocess.Popen(["taskset", "-c", "0", "nginx", "-c", tmp / "conf", "-p", tmp, "-e", "stderr"])
    while not (tmp / "pid").exists():
        if child.poll() is not None:
            sys.exit("nginx does not start; is one of its ports taken?")
        time.sleep(0.01)
    return child


def commands(row, weft, io, seconds):
    scheme, path, connections, streams = ROWS[row]
    port = {("http", False): 20080, ("https", False): 20443, ("http", True): 20081, ("https", True): 20444}[scheme, streams > 0]
    url = f"{scheme}://127.0.0.1:{port}{path}"
    ours = [weft, "load", "http", url, "-q", "-c", connections, "-d", f"{seconds}s", "--json", "-", "--interval", f"{seconds}s", "--io", io]
    ours += ["-k"] * (scheme == "https") + ["--http2", "--streams", streams] * (streams > 0)
    accepts = ["-H", "accept-encoding: gzip"] * ("gzip" in row)
    ours += accepts
    if streams:
        return ours, ["h2load", *accepts, "-t", 1, "-c", connections, "-m", streams, "-D", seconds, url]
    return ours, ["wrk", *accepts, "-t1", f"-c{connections}", f"-d{seconds}s", url]


def measure(command, server, seconds):
    """CPU time of the generator per request in µs, requests per second, CPU time of the server per request in µs, and its share."""
    began = cpu_ns(server)
    child = subprocess.Popen(["taskset", "-c", "1", *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = status
    served_us = (cpu_ns(server) - began) / 1e3
    found = re.search(r'"replies": ?(\d+)|(\d+) requests in|requests: (\d+) total', said)
    if status or not found:
        sys.exit(f"{command}: {said[-500:]}{child.stderr.read()[-500:]}")
    count = int(next(filter(None, found.groups())))
    # weft waits for the last replies, without counting them in its rate; the others drop them.
    rate = re.search(r'"achieved_rate_per_s": ?([0-9.]+)', said)
    rate = float(rate[1]) if rate else count / seconds
    return (used.ru_utime + used.ru_stime) * 1e6 / count, rate, served_us / count, served_us / 1e6 / seconds


def cpu_ns(server):
    return int(pathlib.Path(f"/proc/{server.pid}/schedstat").read_text().split()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-r", "--rounds", type=int, default=9)
    parser.add_argument("-d", "--seconds", type=int, default=1)
    parser.add_argument("--io", default="auto", help="weft load's back end")
    parser.add_argument("rows", type=lambda text: text.split(",") if text != "all" else list(ROWS))
    parser.add_argument("weft")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        server = start_nginx(pathlib.Path(tmp))
        try:
            for row in options.rows:
                pair = commands(row, options.weft, options.io, options.seconds)
                rounds = [[measure(command, server, options.seconds) for command in pair] for _ in range(options.rounds)]
                ours, theirs = ([round[at] for round in rounds] for at in (0, 1))
                least = [min(sample[0] for sample in samples) for samples in (ours, theirs)]
                rates = [statistics.median(sample[1] for sample in samples) for samples in (ours, theirs)]
                served = [min(sample[2] for sample in samples) for samples in (ours, theirs)]
                share = [statistics.median(sample[3] for sample in samples) for samples in (ours, theirs)]
                print(f"{row:12} generator µs {least[0]:6.2f} {least[1]:6.2f} ratio {least[0] / least[1]:.3f}   rate {rates[0]:9.0f} {rates[1]:9.0f} "
                      f"ratio {rates[0] / rates[1]:.3f}   server µs {served[0]:6.2f} {served[1]:6.2f}   share {share[0]:.2f} {share[1]:.2f}",
                      flush=True)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
