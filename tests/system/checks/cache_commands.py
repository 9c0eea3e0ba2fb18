"""`weft cache` from an operator's view: flags, sockets, TLS, datagrams, limits, signals, restarts."""

import hashlib
import os
import pathlib
import pwd
import shutil
import signal
import socket
import ssl
import stat
import struct
import tempfile
import threading
import time

from memcache import Client, cache, certificate, run_weft_cache
from world import ALL, FIBERS, MANY, Failure, check, expect, expect_equal, free_port, wait_for


@check(*ALL)
def cache_answers_on_every_protocol(world):
    with cache(world) as server, server.client() as client:
        client.must_set(b"text", b"value", flags=5)
        expect_equal("the value", client.get(b"text"), b"value")
        expect_equal("meta", client.ask(b"mg text v f"), b"VA 5 f5")
        client.line()
        with server.connect() as binary:
            # GET of "text". memcached's protocol_binary.txt
            binary.sendall(struct.pack(">BBHBBHIIQ", 0x80, 0, 4, 0, 0, 0, 4, 7, 0) + b"text")
            header = binary.recv(24, socket.MSG_WAITALL)
            _magic, _op, _key, _extras, _type, status, length, opaque, _cas = struct.unpack(">BBHBBHIIQ", header)
            expect_equal("the binary status, opaque and body", (status, opaque, binary.recv(length, socket.MSG_WAITALL)),
                         (0, 7, b"\0\0\0\5value"))


@check()
def cache_says_what_is_wrong_with_flags(world):
    """Mistakes in single flags are in the tests of crates/weft/src/command/cache."""
    for flags, expected in [
        (["-p", "99999"], "-p: '99999' is not a port"),
        (["-Z", "-o", "ssl_chain_cert=/nonexistent.pem", "-u", "root"], "cannot read the certificate chain /nonexistent.pem"),
        (["-Y", "/nonexistent", "-u", "root"], "-Y: /nonexistent"),
        (["-p", "0"], "-u root"),
        (["-p", "0", "-u", "root"], "no address to listen at"),
        (["-u", "nobody-of-this-name"], "no user 'nobody-of-this-name'"),
        (["--no-such-flag"], "unexpected argument"),
    ]:
        text = run_weft_cache(world, *flags, status=2)
        expect(expected in text, f"{' '.join(flags)} is answered with {text!r}")


@check()
def cache_prints_help_version_and_license_as_memcached_does(world):
    text = run_weft_cache(world, "-h", status=0)
    for words in ("-p, --port=<num>", "-o, --extended=<list>", "-vv", "- maxconns_fast:", "ssl_chain_cert=<file>:"):
        expect(words in text, f"-h does not have {words}")
    expect_equal("-h and --help", run_weft_cache(world, "--help", status=0), text)
    version = run_weft_cache(world, "-Z", "--version", status=0)
    expect(version.startswith("weft cache ") and version.count("\n") == 1, f"-V prints {version!r}")
    expect("MIT" in run_weft_cache(world, "-i", status=0), "-i does not name the license")


@check(*ALL)
def a_port_in_use_is_named(world):
    with cache(world) as server:
        text = run_weft_cache(world, "-u", "root", "-l", "127.0.0.1", "-p", str(server.port), status=1)
        expect(f"127.0.0.1:{server.port}" in text, f"it says {text!r}")


@check(*ALL)
def a_unix_socket_has_its_mask_and_goes_with_the_server(world):
    path = world.scratch / "cache.sock"
    for mask, mode in (([], 0o700), (["-a", "0660"], 0o660)):
        with cache(world, "-s", path, *mask) as server:
            expect_equal("the socket's mode", stat.S_IMODE(path.stat().st_mode), mode)
            with Client.unix(path) as client:
                client.must_set(b"key", b"by a file")
                expect_equal("the socket in stats", client.stats("settings")["domain_socket"], str(path))
            try:
                server.connect()
            except ConnectionRefusedError:
                pass
            else:
                raise Failure("-s listens on the network as well")
        expect(not path.exists(), "the socket's file is still there")


@check(*ALL)
def one_connection_above_the_limit_is_told_so(world):
    with cache(world, "-c", "20") as server:
        inside = [server.client() for _ in range(20)]
        for client in inside:
            client.ask(b"mn")
        for _ in range(10):
            with server.client() as late:
                expect_equal("above -c", late.line(), b"ERROR Too many open connections")
        wait_for("each is counted", lambda: int(inside[0].stats()["rejected_connections"]) >= 10)
        expect_equal("rejected_connections", inside[0].stats()["rejected_connections"], "10")
        inside.pop().close()
        wait_for("the place is free", lambda: inside[0].stats()["curr_connections"] == "19")
        with server.client() as next_one:
            expect_equal("when one has left", next_one.ask(b"mn"), b"MN")
        for client in inside:
            client.close()


@check(*ALL)
def connections_above_the_limit_wait_without_maxconns_fast(world):
    # One processor, so that a waiting client is assigned to it, and waits for a free slot there.
    with cache(world, "-t", "1", "-c", "5", "-o", "no_maxconns_fast") as server:
        inside = [server.client() for _ in range(5)]
        for client in inside:
            client.ask(b"mn")
        with server.client() as waiting:
            waiting.send(b"mn\r\n")
            inside.pop().close()
            expect_equal("the one that waited", waiting.line(), b"MN")
        for client in inside:
            client.close()


@check(*ALL)
def idle_connections_are_closed_only_if_asked_to(world):
    with cache(world, "-o", "idle_timeout=1") as server, server.client() as idle:
        idle.must_set(b"key", b"value")
        expect_equal("the end of an idle connection", idle.file.read(), b"")
        wait_for("it is counted", lambda: server.stats()["idle_kicks"] == "1")


# ---- TLS

def tls_client(server, authority, **options):
    context = ssl.create_default_context(cafile=authority)
    context.minimum_version = options.pop("version", ssl.TLSVersion.TLSv1_2)
    if "maximum" in options:
        context.maximum_version = options.pop("maximum")
    if "shows" in options:
        context.load_cert_chain(*options.pop("shows"))
    return Client(context.wrap_socket(server.connect(), server_hostname="localhost"))


@check(*ALL)
def tls_carries_the_protocols(world):
    authority, chain, key = certificate(world.scratch)
    plain = free_port()
    with cache(world, "-Z", "-o", f"ssl_chain_cert={chain},ssl_key={key}", "-l", f"notls:127.0.0.1:{plain}") as server:
        for maximum in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            with tls_client(server, authority, maximum=maximum) as client:
                client.must_set(b"key", b"secret")
                big = os.urandom(900_000)
                client.must_set(b"big", big)
                expect_equal("the values", client.get_many(b"key", b"big", b"none"), {b"key": b"secret", b"big": big})
        with Client(socket.create_connection(("127.0.0.1", plain), timeout=10)) as client:
            expect_equal("the same value without TLS", client.get(b"key"), b"secret")
        with server.client() as client:
            client.send(b"get key\r\n")
            expect(not client.file.read().startswith(b"VALUE"), "plain text is answered where TLS is spoken")


@check()
def a_new_certificate_is_taken_without_a_restart(world):
    authority, chain, key = certificate(world.scratch)
    with cache(world, "-Z", "-o", f"ssl_chain_cert={chain},ssl_key={key}") as server:
        old = tls_client(server, authority)
        old.must_set(b"key", b"value")
        newer = world.scratch / "newer"
        newer.mkdir()
        new_authority, new_chain, new_key = certificate(newer)
        for new, place in ((new_chain, chain), (new_key, key)):
            place.write_bytes(new.read_bytes())
        expect_equal("refresh_certs", old.ask(b"refresh_certs"), b"OK")
        with tls_client(server, new_authority) as client:
            expect_equal("by the new certificate", client.get(b"key"), b"value")
        expect_equal("by the old connection", old.get(b"key"), b"value")
        chain.write_text("torn")
        server.signal(signal.SIGHUP)
        wait_for("the mistake is said", lambda: "not reloaded" in server.output())
        with tls_client(server, new_authority) as client:
            expect_equal("after a mistake", client.get(b"key"), b"value")
        old.close()


@check()
def clients_show_certificates_if_asked_to(world):
    authority, chain, key = certificate(world.scratch)
    options = f"ssl_chain_cert={chain},ssl_key={key},ssl_verify_mode=2,ssl_ca_cert={authority}"
    with cache(world, "-Z", "-o", options) as server:
        with tls_client(server, authority, shows=(chain, key)) as client:
            client.must_set(b"key", b"value")
        try:
            with tls_client(server, authority) as client:
                client.must_set(b"key", b"value")
        except (ssl.SSLError, ConnectionError, Failure):
            pass
        else:
            raise Failure("a client without a certificate is served")


# ---- datagrams

class Datagrams:
    """memcached's requests over UDP. Its doc/protocol.txt, "UDP protocol"."""

    def __init__(self, port):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(("127.0.0.1", port))
        self.socket.settimeout(10)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.id = 0

    def ask(self, request):
        self.id += 1
        self.socket.send(struct.pack(">HHHH", self.id, 0, 1, 0) + request)
        pieces, total = {}, 1
        while len(pieces) < total:
            datagram = self.socket.recv(65536)
            number, sequence, total, _ = struct.unpack(">HHHH", datagram[:8])
            if number == self.id:
                pieces[sequence] = datagram[8:]
        return b"".join(pieces[sequence] for sequence in range(total))


@check(*ALL)
def datagrams_are_answered(world):
    udp_port = free_port()
    with cache(world, "-U", udp_port) as server:
        datagrams = Datagrams(udp_port)
        expect_equal("a set", datagrams.ask(b"set key 3 0 5\r\nvalue\r\n"), b"STORED\r\n")
        expect_equal("a get", datagrams.ask(b"get key\r\n"), b"VALUE key 3 5\r\nvalue\r\nEND\r\n")
        with server.client() as client:
            expect_equal("the same over TCP", client.get(b"key"), b"value")
            long = os.urandom(100_000)
            client.must_set(b"long", long)
        expect_equal("a long get", datagrams.ask(b"get long\r\n"), b"VALUE long 0 100000\r\n" + long + b"\r\nEND\r\n")
        # Shorter than its header: dropped, without effect on others.
        datagrams.socket.send(b"short")
        expect_equal("after a short one", datagrams.ask(b"mn\r\n"), b"MN\r\n")
        # Seen: a number in such a long value ended the receiver of datagrams, and ten of them the service.
        with server.client() as client:
            client.must_set(b"number", b"1".ljust(70_001))
        for number in range(2, 22):
            expect_equal("a count in a long value", datagrams.ask(b"incr number 1\r\n"), b"%d\r\n" % number)
        expect(server.metric("weft_datagrams_received_total") >= 25, "datagrams are not counted")
        expect_equal("panics", server.metric("weft_datagrams_panicked_total"), 0)


@check()
def there_are_no_datagrams_unless_asked_for(world):
    with cache(world) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", server.port))


# ---- permissions

@check()
def a_mistake_in_the_users_keeps_no_certificate_away(world):
    # Seen: while the file of users could not be read, a new certificate was not loaded either.
    authority, chain, key = certificate(world.scratch)
    users, newer = world.scratch / "users", world.scratch / "newer"
    users.write_text("ada:lovelace\n")
    newer.mkdir()
    new_authority, new_chain, new_key = certificate(newer)
    with cache(world, "-v", "-Z", "-o", f"ssl_chain_cert={chain},ssl_key={key}", "-Y", users) as server:
        users.write_text("torn\n")
        for new, place in ((new_chain, chain), (new_key, key)):
            place.write_bytes(new.read_bytes())
        server.signal(signal.SIGHUP)
        wait_for("the mistake is said", lambda: "not reloaded: -Y" in server.output())
        wait_for("and what was read", lambda: "reloaded nevertheless: the certificate" in server.output())
        with tls_client(server, new_authority) as client:
            expect_equal("the password", client.set(b"auth", b"ada lovelace"), b"STORED")


@check(*ALL)
def users_are_asked_for_passwords(world):
    users = world.scratch / "users"
    users.write_text("ada:lovelace\n")
    with cache(world, "-Y", users) as server:
        with server.client() as stranger:
            expect(stranger.ask(b"get key").startswith(b"CLIENT_ERROR"), "a stranger is answered")
        with server.client() as client:
            expect_equal("the password", client.set(b"auth", b"ada lovelace"), b"STORED")
            client.must_set(b"key", b"value")
            users.write_text("grace:hopper\n")
            server.signal(signal.SIGHUP)

            def knows_grace():
                with server.client() as other:
                    return other.set(b"auth", b"grace hopper") == b"STORED"
            wait_for("the new user is known", knows_grace)
            expect_equal("who is in", client.get(b"key"), b"value")


@check()
def the_cache_becomes_another_user(world):
    with cache(world, user="nobody") as server:
        expect(server.status("Uid").split()[0] != "0", "it is still root")


@check()
def a_unix_socket_is_the_other_users(world):
    # Seen: `-s FILE -u nobody` made a socket that only root could use, and left it behind.
    nobody, folder = pwd.getpwnam("nobody"), pathlib.Path(tempfile.mkdtemp(prefix="weft-"))
    world.at_end(lambda: shutil.rmtree(folder))
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    path = folder / "cache.sock"
    with cache(world, "-s", path, user="nobody"):
        found = path.stat()
        expect_equal("the socket's owner", (found.st_uid, found.st_gid), (nobody.pw_uid, nobody.pw_gid))
        expect_equal("the socket's mode", stat.S_IMODE(found.st_mode), 0o700)
    expect(not path.exists(), "the socket's file is still there")


@check()
def shutdown_is_obeyed_only_if_allowed(world):
    with cache(world) as server, server.client() as client:
        expect_equal("a client's shutdown", client.ask(b"shutdown"), b"SERVER_ERROR: shutdown not enabled")
        client.must_set(b"key", b"value")
    with cache(world, "-A") as server:
        with server.client() as client:
            client.send(b"shutdown\r\n")
            expect_equal("the server's exit status", server.wait_end(), 0)


# ---- the background, ports, files

@check(*ALL)
def a_daemon_is_up_when_the_command_returns(world):
    pid_file, port = world.scratch / "cache.pid", free_port()
    started = [world.binary, "cache", "-d", "-u", "nobody", "-l", "127.0.0.1", "-p", port, "-P", pid_file]
    world.output_of(*started)
    pid = int(pid_file.read_text())
    try:
        with Client(socket.create_connection(("127.0.0.1", port), timeout=10)) as client:
            client.must_set(b"key", b"value")
            expect_equal("pid in stats", client.stats()["pid"], str(pid))
        expect_equal("its session", os.getsid(pid), pid)
        why = world.start(*started)
        _, said = why.communicate(timeout=10)
        expect(why.returncode == 1 and b"error" in said, f"a second one ended with {why.returncode} and {said!r}")
    finally:
        os.kill(pid, signal.SIGTERM)
    wait_for("the daemon is gone", lambda: not pathlib.Path(f"/proc/{pid}/exe").exists())


@check()
def any_port_is_written_where_asked(world):
    ports = world.scratch / "ports"
    process = world.start("env", f"MEMCACHED_PORT_FILENAME={ports}", world.binary, "cache", "-u", "root", "-l", "127.0.0.1",
                          "-p", "-1", "-U", "-1")
    wait_for("the ports are written", ports.exists)
    lines = ports.read_text().splitlines()
    expect_equal("the kinds", [line.split(":")[0] for line in lines], ["TCP INET", "UDP INET"])
    tcp, udp = (int(line.split(": ")[1]) for line in lines)
    with Client(socket.create_connection(("127.0.0.1", tcp), timeout=10)) as client:
        client.must_set(b"key", b"value")
    expect_equal("over UDP", Datagrams(udp).ask(b"get key\r\n"), b"VALUE key 0 5\r\nvalue\r\nEND\r\n")
    process.terminate()
    expect_equal("the exit status", process.wait(10), 0)


@check(*ALL)
def verbosity_says_what_memcached_says(world):
    with cache(world, "-vv") as server, server.client() as client:
        client.must_set(b"key", b"value")
        client.get(b"key")
        text = server.wait_for_output("get key", "slab class   1: chunk size", " set key 0 0 5")
        expect("slab class   1: chunk size" in text and "perslab" in text, "-vv prints no slab classes")
        expect(" set key 0 0 5" in text, "-vv prints no set")
    with cache(world) as server, server.client() as client:
        client.must_set(b"key", b"value")
        server.wait_for_output("for items")
    [_, line] = server.output().splitlines()
    expect(f"listening on {server.host}:{server.port}, http://" in line and "64 MiB for items" in line, f"without -v it prints {line!r}")


@check(*ALL)
def metrics_and_health_are_there(world):
    with cache(world) as server, server.client() as client:
        client.must_set(b"key", b"value")
        client.get_many(b"key", b"none")
        expect_equal("items", server.metric("memcached_current_items"), 1)
        text = server.admin("/metrics").body.decode()
        for line in ('memcached_commands_total{command="get",status="hit"} 1',
                     'memcached_commands_total{command="get",status="miss"} 1'):
            expect(line in text, f"/metrics does not have {line}")
        expect_equal("connections", server.metric("weft_connections_active"), 1)
        fibers = server.admin("/fibers")
        expect_equal("status of /fibers", fibers.status, 200 if world.variant in FIBERS else 404)
        expect(b"there are no fibers" in fibers.body or world.variant in FIBERS, f"/fibers says {fibers.body}")
        if world.variant in FIBERS:
            expect("accept on descriptor" in fibers.body.decode(), f"/fibers says {fibers.body.decode()}")


# ---- restarts

@check(*ALL, limit_s=60)
def a_restart_keeps_the_items(world):
    file = world.scratch / "items"
    flags = ("-e", file, "-m", "200", "-I", "8m", "-v")
    values = {b"small%d" % number: b"value %d" % number for number in range(20_000)}
    values |= {b"large%d" % number: os.urandom(3_000_000) for number in range(3)}
    with cache(world, *flags) as server, server.client() as client:
        for key, value in values.items():
            client.must_set(key, value, flags=len(key))
        client.must_set(b"short", b"gone soon", exptime=1)
        client.must_set(b"long", b"for an hour", exptime=3600)
        client.send(b"gets small7\r\n")
        cas = client.line().split()[-1]
        client.file.readline(), client.line()
        server.signal(signal.SIGUSR1)
        expect_equal("the exit status", server.wait_end(), 0)
    expect(file.exists(), f"nothing was saved: {server.output()}")
    expect_equal("the mode of the file", stat.S_IMODE(file.stat().st_mode), 0o600)
    time.sleep(1.1)
    with cache(world, *flags) as server, server.client() as client:
        expect(not file.exists(), "the file is still there, to bring back old items after a crash")
        names = list(values)
        for at in range(0, len(names), 500):
            wanted = names[at:at + 500]
            expect(client.get_many(*wanted) == {name: values[name] for name in wanted}, "some values are lost or torn")
        expect_equal("what expired meanwhile", client.get(b"short"), None)
        expect_equal("what did not", client.get(b"long"), b"for an hour")
        ttl = int(client.ask(b"mg long t")[4:])
        expect(3000 < ttl <= 3600, f"it lives {ttl} seconds more")
        client.send(b"cas small7 0 0 3 %s\r\nnew\r\n" % cas)
        expect_equal("cas over the restart", client.line(), b"STORED")
        client.send(b"gets small8\r\n")
        client.line(), client.file.readline(), client.line()


@check(*MANY, limit_s=60)
def an_upgrade_under_load_loses_nothing(world):
    """Four writers count up, each in its own keys, while the server is replaced twice. No acknowledged value is lost."""
    file, port = world.scratch / "items", free_port()
    written, over, failures = [0, 0, 0, 0], threading.Event(), []

    def write(which):
        client = None
        while not over.is_set():
            try:
                client = client or Client(socket.create_connection(("127.0.0.1", port), timeout=10))
                number = written[which] + 1
                key = b"writer%d-%d" % (which, number)
                if client.set(key, hashlib.sha256(key).hexdigest().encode()) == b"STORED":
                    written[which] = number
            except (OSError, Failure):
                client = client and client.close()
                time.sleep(0.005)
            except Exception as error:
                failures.append(error)
                return

    writers = [threading.Thread(target=write, args=(which,)) for which in range(4)]
    flags = ("-e", file, "-m", "256")
    server = cache(world, *flags, port=port)
    for writer in writers:
        writer.start()
    try:
        for _ in range(2):
            before = sum(written)
            wait_for("writers are at it", lambda: sum(written) > before + 2000)
            server.signal(signal.SIGUSR1)
            expect_equal("the exit status", server.wait_end(), 0)
            server = cache(world, *flags, port=port)
        before = sum(written)
        wait_for("writers go on", lambda: sum(written) > before + 500)
    finally:
        over.set()
        for writer in writers:
            writer.join()
    expect(not failures, f"a writer failed: {failures}")
    with server, server.client() as client:
        for which in range(4):
            for number in range(1, written[which] + 1):
                key = b"writer%d-%d" % (which, number)
                expect(client.get(key) == hashlib.sha256(key).hexdigest().encode(), f"{key} was acknowledged and is lost")
    world.note = f"{sum(written):,} acknowledged"


@check()
def a_torn_file_is_put_aside(world):
    file = world.scratch / "items"
    with cache(world, "-e", file) as server, server.client() as client:
        for number in range(1000):
            client.must_set(b"key%d" % number, b"value")
    whole = file.read_bytes()
    file.write_bytes(whole[:len(whole) // 2])
    with cache(world, "-e", file) as server, server.client() as client:
        server.wait_for_output("cut off", "items.refused")
        expect_equal("a value of the torn file", client.get(b"key1"), None)
        client.must_set(b"key1", b"new")
    expect(pathlib.Path(f"{file}.refused").exists() and file.exists(), "the torn file is not beside the new one")


@check()
def a_crash_brings_back_nothing_old(world):
    file = world.scratch / "items"
    with cache(world, "-e", file) as server, server.client() as client:
        client.must_set(b"key", b"old")
    server = cache(world, "-e", file)
    with server.client() as client:
        client.must_set(b"key", b"new")
    server.signal(signal.SIGKILL)
    server.process.wait()
    with cache(world, "-e", file) as server, server.client() as client:
        expect_equal("after a crash", client.get(b"key"), None)
