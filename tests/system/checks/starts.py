"""Start of the servers: addresses, accounts, and messages about missing permissions."""

import http.client
import os
import pathlib
import pty
import pwd
import re
import shutil
import socket
import tempfile

from world import ALL, VARIANTS, Failure, check, expect, expect_equal, free_port, limit_threads, wait_for


@check(*ALL)
def many_listeners_serve(world):
    ports = [free_port() for _ in range(3)]
    path = world.scratch / "weft.sock"
    page = (world.site / "index.html").read_bytes()
    with world.server(listen=[*(f"127.0.0.1:{port}" for port in ports), f"[::1]:{ports[0]}", f"unix:{path}"]):
        for port in ports:
            expect_equal("the page", world.output_of("curl", "-sf", f"http://127.0.0.1:{port}/"), page)
        expect_equal("the page over IPv6", world.output_of("curl", "-sfg", f"http://[::1]:{ports[0]}/"), page)
        expect_equal("the page by the socket", world.output_of("curl", "-sf", "--unix-socket", path, "http://weft/"), page)
    expect(not path.exists(), "the socket is left behind")


@check(*ALL)
def systemd_passes_the_socket(world):
    port = free_port()
    wrap = ["systemd-socket-activate", "-l", f"127.0.0.1:{port}"]
    server = world.server(listen=[], wrap=wrap, expect_ready=False)
    page = wait_for("the activated server answers", lambda: page_or_none(world, f"http://127.0.0.1:{port}/"))
    expect_equal("the page", page, (world.site / "index.html").read_bytes())
    with server:
        pass


@check()
def the_shipped_socket_and_configuration_start_together(world):
    """Seen: both name port 80, and the address that systemd already held was bound again."""
    port = free_port()
    shipped = pathlib.Path(__file__).parents[3] / "packaging/systemd"
    [listen] = [line for line in (shipped / "weft.socket").read_text().splitlines() if line.startswith("ListenStream=")]
    expect_equal("what weft.socket listens at", listen, "ListenStream=80")
    config = (shipped / "serve.toml").read_text()
    for theirs, ours in ((":80", f":{port}"), ("/usr/share/weft/site", world.site), ("/var/log/weft/access.log", world.scratch / "log")):
        expect(f'"{theirs}"' in config, f"serve.toml does not name {theirs}")
        config = config.replace(f'"{theirs}"', f'"{ours}"')
    (world.scratch / "serve.toml").write_text(config)
    # systemd's socket for a bare port.
    wrap = ["systemd-socket-activate", "-l", f"[::]:{port}"]
    server = world.server("--config", world.scratch / "serve.toml", listen=[], wrap=wrap, expect_ready=False)
    for host in ("127.0.0.1", "[::1]"):
        page = wait_for("the activated server answers", lambda: page_or_none(world, f"http://{host}:{port}/"))
        expect_equal("the page", page, (world.site / "index.html").read_bytes())
    with server:
        pass


@check()
def a_terminal_shows_requests_unless_it_is_told_not_to(world):
    """Seen: started in a terminal, the server printed nothing."""
    for flags, is_shown in (((), True), (("--access-log", "off"), False), (("--quiet",), False)):
        port = free_port()
        ours, theirs = pty.openpty()
        server = world.start(world.binary, "serve", world.site, "--listen", f"127.0.0.1:{port}", *flags, stderr=theirs)
        os.close(theirs)
        wait_for("it answers", lambda: page_or_none(world, f"http://127.0.0.1:{port}/"))
        server.terminate()
        said = said_on(ours)
        line = re.search(rb'^\d\d:\d\d:\d\d 127\.0\.0\.1 "GET / HTTP/1\.1" 200 \d+ [\d.]+\r$', said, re.M)
        expect_equal(f"with {flags}, a line for a request in {said!r}", line is not None, is_shown)
        expect_equal("status", server.wait(10), 0)
        os.close(ours)


def said_on(terminal):
    """All output to a terminal until its last writer ends. pty(7)"""
    said = b""
    while True:
        try:
            said += os.read(terminal, 65536)
        except OSError:
            return said


def page_or_none(world, url):
    try:
        return world.output_of("curl", "-sf", url)
    except Failure:
        return None


@check(*ALL)
def user_drops_every_privilege(world):
    # The checkout may be inaccessible to other accounts.
    site = world.folder(pathlib.Path(tempfile.mkdtemp(prefix="weft-")) / "site", index__html=b"in", private__txt=b"not for nobody")
    site.parent.chmod(0o755)
    world.at_end(lambda: shutil.rmtree(site.parent))
    (site / "private.txt").chmod(0o600)
    nobody = pwd.getpwnam("nobody")
    # A port below 1024 shows that the listener is opened while root.
    port = next(port for port in range(1023, 512, -1) if is_free(port))
    socket_file = site.parent / "weft.sock"
    listen = [f"127.0.0.1:{port}", f"unix:{socket_file}?mode=0600"]
    with world.server("--user", "nobody", "--workers", 2, site=site, listen=listen) as server:
        expect_equal("the owner of the Unix socket", socket_file.stat().st_uid, nobody.pw_uid)
        # The account "nobody" can neither bind such a port nor join a SO_REUSEPORT group of root's.
        expect_equal("the sockets that listen", listening(port), 2 if world.variant == "event" else 1)
        expect_equal("the user ids", set(server.status("Uid").split()), {str(nobody.pw_uid)})
        expect_equal("the group ids", set(server.status("Gid").split()), {str(nobody.pw_gid)})
        expect(set(server.status("Groups").split()) <= {str(nobody.pw_gid)}, f"groups {server.status('Groups')}")
        expect_equal("the capabilities", int(server.status("CapEff"), 16), 0)
        threads = statuses_of_threads(server.pid)
        expect(threads and all(f"Uid:\t{nobody.pw_uid}\t" in text for text in threads), "a thread is still root")
        expect_equal("the page", world.output_of("curl", "-sf", f"http://127.0.0.1:{port}/"), b"in")
        private = world.output_of("curl", "-s", "-o", world.scratch / "body", "-w", "%{http_code}", f"http://127.0.0.1:{port}/private.txt")
        expect(private in (b"403", b"404"), f"a file of root's alone is answered with {private}")


def listening(port):
    """Number of sockets that listen at a port. proc(5)"""
    rows = [row.split() for row in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def statuses_of_threads(pid):
    statuses = []
    for folder in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            statuses.append((folder / "status").read_text())
        except (FileNotFoundError, ProcessLookupError):
            pass  # The thread has ended meanwhile.
    return statuses


def is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False


@check()
def with_io_uring_auto_takes_it(world):
    with world.server(variant="auto") as server:
        expect("io_uring" in server.wait_for_output("limits ").split("\n", 1)[1], f"the start says {server.output()!r}")


@check(*ALL, limit_s=60)
def whichever_thread_is_one_too_many_the_limit_is_named(world):
    """Seen: `weft cache` said only "Resource temporarily unavailable (os error 11)", and `weft serve` that it could not open its log.
    Cause: not every error of a thread's start named the limit."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-"))
    world.at_end(lambda: shutil.rmtree(folder))
    folder.chmod(0o777)
    # The checkout may be inaccessible to other accounts.
    binary = os.open(world.binary, os.O_RDONLY)
    world.at_end(lambda: os.close(binary))
    for words in (["serve", folder, "--access-log", folder / "log", "--listen"], ["cache", "-c", "10", "-U", free_port(), "-l"]):
        for threads in range(1, 100):
            admin_port = free_port()
            command = [f"/proc/self/fd/{binary}", *words, f"127.0.0.1:{free_port()}", "--admin", f"127.0.0.1:{admin_port}"]
            process = world.start(*command, *VARIANTS[world.variant], pass_fds=[binary], preexec_fn=limit_threads(threads))
            said = next(line for line in process.stderr if line.startswith((b"error: ", b"weft "))).decode()
            if said.startswith("weft "):
                break
            expect("ulimit -u" in said and "os error" not in said, f"with {threads} threads it says {said!r}")
            expect(process.wait(10) in (1, 2), f"it ended with {process.returncode}")
        expect(threads > 2, "no limit was too low")
        # No further thread can start for its replies.
        for path in ("/healthz", "/metrics"):
            admin = http.client.HTTPConnection("127.0.0.1", admin_port, timeout=10)
            admin.request("GET", path)
            expect_equal(f"the status of {path}", admin.getresponse().status, 200)
        process.terminate()
        expect_equal("the exit status at the end", process.wait(10), 0)
