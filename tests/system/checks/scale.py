"""More than one machine: HAProxy before two servers, by the configuration of the documentation; and what is shipped for clusters."""

import json
import pathlib
import signal

from peers import answers
from world import check, expect, free_port, wait_for

TREE = pathlib.Path(__file__).parents[3]


def start_haproxy(world, members):
    """An HAProxy with docs/haproxy.cfg before these servers; returns its port."""
    port, config = free_port(), world.scratch / "haproxy.cfg"
    text = (TREE / "docs/haproxy.cfg").read_text()
    names = ("server one 10.0.0.6:8080", "server two 10.0.0.7:8080")
    replaced = [("bind :80", f"bind 127.0.0.1:{port}")]
    replaced += [(name, f"{name.rsplit(' ', 1)[0]} 127.0.0.1:{member.port} port {member.admin_port}") for name, member in zip(names, members)]
    for theirs, ours in replaced:
        expect(theirs in text, f"haproxy.cfg has no {theirs!r}")
        text = text.replace(theirs, ours)
    config.write_text(text)
    world.start("haproxy", "-db", "-f", config)
    wait_for("HAProxy listens", lambda: answers(port))
    return port


def start_members(world):
    settings = world.scratch / "members.toml"
    settings.write_text('proxy_from = ["127.0.0.0/8"]\nproxy_header = "proxy-protocol"\n')
    return [world.server("--config", settings) for _ in range(2)]


def start_load(world, port):
    load = world.start(world.binary, "load", "http", f"http://127.0.0.1:{port}/style.css", "--rate", "500", "-d", "15s", "-c", 16,
                       "--json", "-")
    return load


def replies_of(members):
    return [member.metric("weft_http_request_duration_seconds_count") for member in members]


def expect_no_error(load):
    out, err = load.communicate(timeout=60)
    result = json.loads(out)
    expect(load.returncode in (0, 3) and not any(result["errors"].values()), f"errors: {result['errors']}; {err.decode(errors='replace')[-500:]}")


@check("uring", "event", limit_s=90)
def a_rolling_restart_fails_no_request(world):
    members = start_members(world)
    port = start_haproxy(world, members)
    load = start_load(world, port)
    for member in members:
        wait_for("both serve", lambda: all(count > 100 for count in replies_of(members)))
        member.signal(signal.SIGTERM)
        member.wait_end(30)
        member.start()
    wait_for("the last one is back", lambda: replies_of(members)[-1] > 100)
    expect_no_error(load)
    for member in members:
        with member:
            pass


@check("uring", limit_s=90)
def a_dead_member_fails_no_request(world):
    members = start_members(world)
    port = start_haproxy(world, members)
    load = start_load(world, port)
    wait_for("both serve", lambda: all(count > 100 for count in replies_of(members)))
    members[0].signal(signal.SIGKILL)
    members[0].process.wait()
    expect_no_error(load)
    with members[1]:
        pass


@check()
def the_kubernetes_manifest_is_valid(world):
    tools = world.binary.parents[1] / "python/bin"
    manifest = TREE / "packaging/kubernetes/weft.yaml"
    world.output_of(tools / "kubernetes-validate", "--strict", manifest)
    script = "import sys, yaml; print(next(iter(yaml.safe_load_all(open(sys.argv[1]))))['data']['serve.toml'])"
    settings = world.scratch / "serve.toml"
    settings.write_bytes(world.output_of(tools / "python3", "-c", script, manifest).replace(b'"/site"', f'"{world.site}"'.encode()))
    world.output_of(world.binary, "check-config", settings)
