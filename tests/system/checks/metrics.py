"""/metrics for Prometheus: promtool has no complaint, and each query of the dashboard returns data."""

import json
import pathlib
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from memcache import cache, certificate
from world import ALL, check, expect, free_port, wait_for

DASHBOARD = pathlib.Path(__file__).parents[3] / "packaging/grafana/weft.json"


def complaints(server):
    """Complaints of promtool about a server's metrics."""
    text = server.admin("/metrics").body
    linted = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=20)
    said = (linted.stdout + linted.stderr).decode()
    return said if linted.returncode or said.strip() else ""


@check(*ALL)
def promtool_has_no_complaint(world):
    _, chain, key = certificate(world.scratch)
    log = world.scratch / "access.log"
    with world.server("--tls-cert", chain, "--tls-key", key, "--access-log", log) as server, cache(world) as items:
        # A slab class has metrics once it has an item.
        with items.client() as client:
            client.must_set(b"key", b"value")
        for one in (server, items):
            said = complaints(one)
            expect(not said, f"promtool of weft {one.command[1]}: {said}")


def queries():
    """Panel title and text of each query of the dashboard, with the variables filled in."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"].replace("$__rate_interval", "5s")
            yield panel["title"], re.sub(r"\$(job|instance)\b", ".+", text)


@check(limit_s=120)
def each_query_of_the_dashboard_has_data(world):
    _, chain, key = certificate(world.scratch)
    port = free_port()
    plain = world.server()
    secure = world.server("--tls-cert", chain, "--tls-key", key)
    with plain, secure, cache(world) as items:
        targets = ", ".join(f"'127.0.0.1:{server.admin_port}'" for server in (plain, secure, items))
        config = world.scratch / "prometheus.yml"
        config.write_text("global: {scrape_interval: 1s}\nscrape_configs:\n"
                          f"- {{job_name: weft, static_configs: [{{targets: [{targets}]}}]}}\n")
        with open(world.scratch / "prometheus.log", "wb") as log:
            world.start("prometheus", f"--config.file={config}", f"--storage.tsdb.path={world.scratch / 'tsdb'}",
                        f"--web.listen-address=127.0.0.1:{port}", stdout=log, stderr=log)
        load = [world.binary, "load"]
        for command in (["http", plain.url("/"), plain.url("/nothing"), "--rate", "200", "--close"],
                        ["cache", f"127.0.0.1:{items.port}", "--populate", "--sets", "3", "--rate", "200"]):
            world.start(*load, *command, "--duration", "90s", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def series(query):
            url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
            try:
                with urllib.request.urlopen(url, timeout=5) as reply:
                    return json.load(reply)["data"]["result"]
            except urllib.error.HTTPError as error:
                expect(error.code == 503, f"{query}: {error.read().decode()}")
                return []
            except OSError:
                return []  # Prometheus is still starting.

        count = 0
        for title, query in queries():
            wait_for(f"{title}: data for {query}", lambda: series(query), seconds=40)
            count += 1
        world.note = f"{count} queries"
