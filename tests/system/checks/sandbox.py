"""The sandbox confines each thread, and operators' changes to a running server still work."""

import errno
import os
import pathlib
import re
import signal
import subprocess

from memcache import cache
from world import ALL, check, expect, expect_equal, wait_for

from .denials import deny

# landlock_create_ruleset, whose number is the same on all architectures, and seccomp.
LANDLOCK, SECCOMP = 444, {"x86_64": 317, "aarch64": 277}[os.uname().machine]


def expect_confined(server):
    for thread in pathlib.Path(f"/proc/{server.pid}/task").iterdir():
        try:
            status = (thread / "status").read_text()
        except OSError:
            continue  # The thread has ended meanwhile.
        expect(re.search(r"^Seccomp:\t2$", status, re.M) and re.search(r"^NoNewPrivs:\t1$", status, re.M),
               f"a thread is outside of the sandbox: {status}")


@check(*ALL)
def a_log_is_rotated_and_a_root_replaced_in_the_sandbox(world):
    site = world.folder("sites")
    for release in ("one", "two", "three"):
        (site / release / "public").mkdir(parents=True)
        (site / release / "public/page.txt").write_text(release)
    (site / "current").symlink_to("one")
    logs = world.folder("logs")
    settings = world.scratch / "serve.toml"
    settings.write_text("")
    flags = ("--access-log", logs / "log", "--config", settings, "--sandbox", "require")
    with world.server(*flags, site=site / "current/public") as server:
        shows = lambda text: (lambda: server.get("/page.txt").body == text)
        expect(shows(b"one")(), "the page is not served")
        expect_confined(server)
        # Switched as by Capistrano.
        (site / "next").symlink_to("two")
        os.rename(site / "next", site / "current")
        wait_for("the link is followed", shows(b"two"))
        # Switched by hand: one directory replaces another.
        os.rename(site / "two/public", site / "two/old")
        os.rename(site / "three/public", site / "two/public")
        wait_for("the new directory is served", shows(b"three"))
        os.rename(logs / "log", logs / "log.1")
        # Editors replace a file by a new one.
        (world.scratch / "serve.new").write_text('server_header = "new"\n')
        os.rename(world.scratch / "serve.new", settings)
        server.signal(signal.SIGHUP)
        wait_for("the log is opened anew", (logs / "log").exists)
        wait_for("the settings are read again", lambda: server.get("/page.txt").header("Server") == "new")
        expect("not reloaded" not in server.output(), server.output())
        expect(server.metric("process_open_fds") > 0, "it cannot count its own descriptors")
        expect_confined(server)


@check()
def a_root_outside_of_the_sandbox_needs_a_restart(world):
    settings = world.scratch / "serve.toml"
    settings.write_text("")
    other = world.folder("other", page__txt=b"page")
    # Not the suite's site: its parent contains the scratch folder, and is inside the sandbox.
    world.folder("sites")
    site = world.folder("sites/site", index__html=b"old")
    with world.server("--config", settings, site=site) as server:
        settings.write_text(f'[[host]]\nnames = ["other.example"]\nroot = "{other}"\n')
        server.signal(signal.SIGHUP)
        wait_for("the answer", lambda: f"{other} is outside of the sandbox" in server.output())
        expect_equal("the old site", server.get("/").body, b"old")


@check(*ALL)
def a_cache_keeps_its_items_in_the_sandbox(world):
    items = world.folder("state") / "items"
    for expected in (None, b"value"):
        with cache(world, "-e", items, "--sandbox", "require") as server, server.client() as client:
            expect_confined(server)
            expect_equal("the item", client.get(b"key"), expected)
            client.must_set(b"key", b"value")


@check()
def a_kernel_without_it_is_said_and_required_is_refused(world):
    for name, call in (("Landlock", LANDLOCK), ("seccomp", SECCOMP)):
        for number in (errno.ENOSYS, errno.EPERM):
            with world.server(before_exec=deny([call], number)) as server:
                wait_for("the start is told", lambda: re.search(f"sandbox .*no {name}", server.output()))
                expect_equal("the page", server.get("/").body, (world.site / "index.html").read_bytes())
            command = [str(world.binary), "serve", str(world.site), "--listen", "127.0.0.1:0", "--sandbox", "require"]
            ended = subprocess.run(command, capture_output=True, preexec_fn=deny([call], number), timeout=20, check=False)
            expect_equal("the exit status", ended.returncode, 1)
            expect(re.search(f"--sandbox require: .*no {name}", ended.stderr.decode()), ended.stderr.decode())


@check()
def the_shipped_units_are_exposed_to_little(world):
    for unit in ("weft", "weft-cache"):
        shipped = pathlib.Path(__file__).parents[3] / f"packaging/systemd/{unit}.service"
        said = world.output_of("systemd-analyze", "security", "--offline=true", "--no-pager", shipped).decode()
        level = float(re.search(r"Overall exposure level for .*: ([0-9.]+)", said)[1])
        expect(level <= 2.0, f"{unit}.service: {level}")
