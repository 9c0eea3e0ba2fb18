"""Reverse proxies: the log shows the client's address behind each, and the client cannot forge it.

The client connects to the proxy from 127.0.0.7, and the proxy to the server from 127.0.0.1.
"""

import re
import signal

from checks.neighbours import beside, make_site
from memcache import certificate
from peers import answers
from world import ALL, check, expect, expect_equal, free_port, wait_for

CLIENT = "127.0.0.7"
INVENTED = {"X-Forwarded-For": "192.0.2.66", "Forwarded": "for=192.0.2.66", "X-Real-IP": "192.0.2.66"}


def haproxy(world, lines, mode="http"):
    """Starts an HAProxy with these lines for its server; returns its port."""
    port, config = free_port(), world.scratch / "haproxy.cfg"
    config.write_text(f"""
defaults
    mode {mode}
    timeout connect 5s
    timeout client 30s
    timeout server 30s
listen front
    bind 127.0.0.1:{port}
{lines}
""")
    world.start("haproxy", "-db", "-f", config)
    wait_for("HAProxy listens", lambda: answers(port))
    return port


def nginx(world, server):
    port, config, folder = free_port(), world.scratch / "nginx.conf", world.scratch
    config.write_text(f"""
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log; events {{ }}
http {{
    access_log off; client_body_temp_path {folder}; proxy_temp_path {folder};
    fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
    upstream weft {{ server {server}; keepalive 4; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://weft; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        }}
    }}
}}""")
    world.start("nginx", "-p", folder, "-c", config)
    wait_for("nginx listens", lambda: answers(port))
    return port


def caddy(world, server):
    port, config = free_port(), world.scratch / "Caddyfile"
    config.write_text(f"""{{
    admin off
}}
http://127.0.0.1:{port} {{
    reverse_proxy {server}
}}
""")
    world.start("caddy", "run", "--config", config, "--adapter", "caddyfile")
    wait_for("caddy listens", lambda: answers(port))
    return port


def behind(world, start_proxy, header, *flags, scheme="http", nth=0):
    """Checks that a server that trusts the proxy logs its client, despite forged header fields."""
    config, log = world.scratch / "serve.toml", world.scratch / f"access-{nth}.log"
    config.write_text(f'proxy_header = "{header}"\nproxy_from = ["127.0.0.1", "unix"]\n')
    with world.server("--config", config, "--access-log", log, *flags) as server:
        port = start_proxy(server)
        invented = [word for name, value in INVENTED.items() for word in ("-H", f"{name}: {value}")]
        for words in ([], invented, invented):
            world.output_of("curl", "-skf", "--interface", CLIENT, *words, f"{scheme}://127.0.0.1:{port}/index.html")
        lines = wait_for("the requests are logged", lambda: logged(log, 3))
    expect_equal("the client in the log", {line.split(" ")[0] for line in lines}, {CLIENT})
    return lines


def logged(log, count):
    lines = log.read_text().splitlines() if log.exists() else []
    return lines if len(lines) >= count else None


@check("uring", "event", "thread", "pipeline")
def haproxy_names_clients_by_proxy_protocol(world):
    for nth, version in enumerate(("send-proxy", "send-proxy-v2")):
        front = f"    server one 127.0.0.1:{{port}} {version} check\n"
        behind(world, lambda server: haproxy(world, front.format(port=server.port)), "proxy-protocol", nth=nth)


@check("uring", "event", "thread", "pipeline")
def haproxy_names_clients_before_tls(world):
    _, chain, key = certificate(world.scratch)
    flags = ("--tls-cert", chain, "--tls-key", key)
    front = "    server one 127.0.0.1:{port} send-proxy-v2 proxy-v2-options ssl,unique-id,crc32c\n"
    behind(world, lambda server: haproxy(world, front.format(port=server.port), "tcp"), "proxy-protocol", *flags, scheme="https")


@check("uring", "event", "thread", "pipeline")
def haproxy_asks_over_http2(world):
    _, chain, key = certificate(world.scratch)
    over_tls = ("--tls-cert", chain, "--tls-key", key)
    for nth, (words, flags) in enumerate((("proto h2", ()), ("ssl verify none alpn h2", over_tls))):
        front = f"    option forwardfor\n    server one 127.0.0.1:{{port}} {words}\n"
        lines = behind(world, lambda server: haproxy(world, front.format(port=server.port)), "x-forwarded-for", *flags, nth=nth)
        expect_equal("requests over HTTP/2", sum('HTTP/2.0" 200' in line for line in lines), 3)


@check()
def haproxy_names_clients_by_forwarded(world):
    front = "    http-request set-header Forwarded for=%[src]\n    server one 127.0.0.1:{port}\n"
    behind(world, lambda server: haproxy(world, front.format(port=server.port)), "forwarded")


@check("uring", "event", "thread", "pipeline")
def nginx_names_clients(world):
    behind(world, lambda server: nginx(world, f"127.0.0.1:{server.port}"), "x-forwarded-for")


@check()
def nginx_names_clients_over_a_unix_socket(world):
    socket = world.scratch / "web.sock"
    behind(world, lambda _: nginx(world, f"unix:{socket}"), "x-forwarded-for", "--listen", f"unix:{socket}?mode=0666")


@check("uring", "event", "thread", "pipeline")
def caddy_names_clients(world):
    behind(world, lambda server: caddy(world, f"127.0.0.1:{server.port}"), "x-forwarded-for")


@check()
def clients_without_a_proxy_cannot_name_themselves(world):
    log = world.scratch / "access.log"
    with world.server("--proxy-from", "127.0.0.1", "--access-log", log) as server:
        invented = [word for name, value in INVENTED.items() for word in ("-H", f"{name}: {value}")]
        world.output_of("curl", "-sf", "--interface", CLIENT, *invented, server.url("/index.html"))
        lines = wait_for("the request is logged", lambda: logged(log, 1))
    expect_equal("the client in the log", lines[0].split(" ")[0], CLIENT)


@check()
def limits_hold_for_clients_of_a_proxy(world):
    config = world.scratch / "serve.toml"
    config.write_text('proxy_from = "127.0.0.1"\nlimit_requests = "1/h burst 3"\n')
    with world.server("--config", config) as server:
        port = caddy(world, f"127.0.0.1:{server.port}")
        ask = ("curl", "-s", "-o", world.scratch / "body", "-w", "%{http_code} ", f"http://127.0.0.1:{port}/index.html")
        for client in (CLIENT, "127.0.0.8"):
            seen = [world.output_of(*ask, "--interface", client).decode().strip() for _ in range(5)]
            expect_equal(f"the replies to {client}", seen, ["200"] * 3 + ["429"] * 2)
        config.write_text(config.read_text().replace("burst 3", "burst 4"))
        server.signal(signal.SIGHUP)
        wait_for("the new limit holds", lambda: world.output_of(*ask, "--interface", CLIENT).startswith(b"200"))


@check(*ALL, limit_s=180)
def ten_thousand_addresses_leave_neighbours_in_peace(world):
    config = world.scratch / "serve.toml"
    config.write_text('proxy_from = "127.0.0.1"\nlimit_requests = "1/h burst 2"\nlimit_connections = 5\n')
    flags, site = ("--config", config, "--workers", 2), make_site(world)
    with world.server(*flags, site=site) as server, world.server(*flags, site=site) as idle:
        beside(world, server, idle, requests_of_many_addresses, "http")
        refused = re.search(r'status="429"\} (\d+)', server.admin("/metrics").body.decode())
        expect(int(refused[1]) > 10_000, f"only {refused[1]} requests were refused")


def requests_of_many_addresses(attackers):
    get = "GET /small.txt HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 198.18.%d.%d\r\n\r\n"
    requests = "".join(get % (at >> 8, at & 255) for at in range(10_000)).encode()
    last = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    attackers.repeat(3, lambda: attackers.exchange(requests + last))
