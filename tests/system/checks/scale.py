"""Several machines: HAProxy in front of two servers, with the documented configuration; and manifests for clusters."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import tempfile

from checks.netstack_engine import own_network
from generator import TIME_OUTS
from lan import start_host
from link import ip
from world import check, expect, expect_equal, expect_in_time, free_port, wait_for

TREE = pathlib.Path(__file__).parents[3]


@contextlib.contextmanager
def cluster(world):
    """Two members and an HAProxy, each its own host, at the addresses of docs/haproxy.cfg; the check's network has the clients."""
    with own_network():
        ip("link", "add", "lan", "type", "bridge")
        ip("address", "add", "10.0.0.1/24", "dev", "lan")
        ip("link", "set", "lan", "up")
        settings = world.scratch / "members.toml"
        settings.write_text('proxy_from = ["10.0.0.5"]\nproxy_header = "proxy-protocol"\n')
        members = []
        for name, address in (("one", "10.0.0.6"), ("two", "10.0.0.7")):
            members.append(world.server("--config", settings, host=address, admin_host=address, ports=(8080, 9090),
                                        wrap=start_host(world, name, address)))
        world.start(*start_host(world, "proxy", "10.0.0.5"), "haproxy", "-db", "-f", TREE / "docs/haproxy.cfg")
        wait_for("HAProxy listens", is_open)
        yield members


def is_open():
    try:
        socket.create_connection(("10.0.0.5", 80), timeout=1).close()
        return True
    except OSError:
        return False


def start_load(world):
    return world.start(world.binary, "load", "http", "http://10.0.0.5/style.css", "--rate", "500", "-d", "15s", "-c", 16, "--json", "-")


def replies_of(members):
    return [member.metric("weft_http_request_duration_seconds_count") for member in members]


def expect_no_error(load):
    out, err = load.communicate(timeout=60)
    result = json.loads(out)
    wrong = {name: count for name, count in result["errors"].items() if count and name != "total"}
    expect_in_time(not wrong or not set(wrong) <= TIME_OUTS, f"errors: {wrong}")
    expect(load.returncode in (0, 3) and not any(result["errors"].values()), f"errors: {result['errors']}; {err.decode(errors='replace')[-500:]}")


@check("uring", "event", limit_s=90)
def a_rolling_restart_fails_no_request(world):
    with cluster(world) as members:
        load = start_load(world)
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
    with cluster(world) as members:
        load = start_load(world)
        wait_for("both serve", lambda: all(count > 100 for count in replies_of(members)))
        members[0].signal(signal.SIGKILL)
        members[0].process.wait()
        expect_no_error(load)
        with members[1]:
            pass


SLURM = """ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs={processors}
PartitionName=all Nodes=ALL Default=YES
"""


@check(limit_s=90)
def slurm_starts_agents_that_are_one(world):
    """A cluster of one node, where `srun` starts three agents."""
    # A short folder name, for the paths of sockets.
    folder = pathlib.Path(tempfile.mkdtemp())
    world.at_end(lambda: shutil.rmtree(folder))
    for name in ("state", "spool"):
        (folder / name).mkdir()
    settings = folder / "slurm.conf"
    settings.write_text(SLURM.format(host=socket.gethostname().split(".")[0], folder=folder, ports=(free_port(), free_port()),
                                     processors=os.cpu_count()))
    environment = os.environ | {"SLURM_CONF": str(settings)}
    for daemon in ("slurmctld", "slurmd"):
        log = (world.scratch / f"{daemon}.log").open("wb")
        world.start(daemon, "-D", "-f", settings, stdout=log, stderr=log, env=environment)
    wait_for("the node is idle", lambda: world.start("sinfo", "--noheader", "--format=%t", env=environment).communicate()[0].strip() == b"idle", 30)
    with world.server() as server:
        file = world.scratch / "merged.json"
        agents = world.start("srun", "--ntasks", 3, "--overcommit", world.binary, "load", "http", server.url("/style.css"), "-c", 30,
                             "--rate", 600, "-d", "2s", "--json", file, env=environment)
        out, err = agents.communicate(timeout=40)
        expect_equal("the exit code", (agents.returncode, err.decode()[-500:]), (0, ""))
        report = json.loads(file.read_text())
        expect_equal("replies", report["replies"], 1200)
        expect_equal("replies by the server", server.has_counted("weft_http_replies_total", 1200), 1200)
        expect_equal("generator threads", report["generator"]["threads"], 3)


@check()
def the_kubernetes_manifest_is_valid(world):
    tools = world.binary.parents[1] / "python/bin"
    manifest = TREE / "packaging/kubernetes/weft.yaml"
    world.output_of(tools / "kubernetes-validate", "--strict", manifest)
    script = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))"
    settings_map, deployment, _ = json.loads(world.output_of(tools / "python3", "-c", script, manifest))
    settings = world.scratch / "serve.toml"
    settings.write_text(settings_map["data"]["serve.toml"].replace('"/site"', f'"{world.site}"'))
    world.output_of(world.binary, "check-config", settings)
    # Seen: a stopped member refused connections after 0.3 s, as it should; but the nodes of a cluster send new ones until all
    # know of the stop, which takes seconds. Cure: preStop delays the stop.
    pod = deployment["spec"]["template"]["spec"]
    pause = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = int(re.search('drain_timeout = "(.*)s"', settings.read_text())[1])
    grace = pod["terminationGracePeriodSeconds"]
    expect(pause >= 5, f"the nodes have {pause} s to hear")
    expect(pause + drain < grace, f"{pause} s and a drain of {drain} s in {grace} s")
