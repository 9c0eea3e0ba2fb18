"""Base of all checks: their own servers, clients as processes, replies, bounded waits."""

import contextlib
import fcntl
import functools
import http.client
import itertools
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import time

# Below ip_local_port_range (from 32768, Linux' default): a client's port in TIME_WAIT there would
# block a server's.
PORTS = iter(range(20_100, 32_000))

# Concurrency models, as flags. The promises are the same under each.
VARIANTS = {
    "uring": ["--engine", "fiber:io=uring"],
    "epoll": ["--engine", "fiber:io=epoll"],
    "thread": ["--engine", "thread"],
    "event": ["--engine", "event"],
    "pipeline": ["--engine", "pipeline"],
}
ALL = tuple(VARIANTS)
FIBERS = ("uring", "epoll")
# Variants without a fixed maximum of connections.
MANY = ("uring", "epoll", "event", "pipeline")

# Dispatchers of event loops and stages, besides the default, epoll-edge.
DISPATCHERS = ("select", "poll", "fdm", "lap", "rtsig", "rtsig-kept-poll", "rtsig-select", "rtsig-signalfd", "epoll",
               "uring")
VARIANTS["distributed"] = ["--engine", "event:accept=distributed"]
for _engine, _keys in (("event", "event:"), ("distributed", "event:accept=distributed,"), ("pipeline", "pipeline:")):
    VARIANTS |= {f"{_engine}-{name}": ["--engine", f"{_keys}dispatcher={name}"] for name in DISPATCHERS}
EVENT_DISPATCHERS = tuple(f"event-{name}" for name in DISPATCHERS)
# Every engine with every back end and dispatcher. Most checks are independent of these and run under ALL.
COMBINATIONS = tuple(VARIANTS)


class Failure(Exception):
    """A broken promise."""


class StillWaiting(Failure):
    """An expired wait: a broken promise, or a machine that stood still."""


class TookTooLong(BaseException):
    """The check's time limit. No `except Exception` of a check may catch it."""


class Check:
    def __init__(self, name, run, variant, limit_s, by_hand):
        self.name, self.run, self.variant, self.limit_s, self.by_hand = name, run, variant, limit_s, by_hand
        self.module = getattr(run, "func", run).__module__.rpartition(".")[2]

    def is_wanted(self, texts):
        """True if --only with these texts selects the check."""
        if self.by_hand:
            return self.name in texts
        return not texts or any(text in self.name for text in texts)


REGISTRY = []


def check(*variants, limit_s=30, by_hand=False):
    """Registers a function of a world as a check under each of these variants, or once without variants. With `by_hand` it runs only
    if --only has its whole name."""

    def register(run):
        for variant in variants or (None,):
            name = f"{variant}/{run.__name__}" if variant else run.__name__
            REGISTRY.append(Check(name, run, variant or "uring", limit_s, by_hand))
        return run

    return register


def check_over(*kinds, variant=None, limit_s=30):
    """Registers a function of a world and a kind of device as a check over each of these kinds."""

    def register(run):
        for kind in kinds:
            over_kind = functools.partial(run, kind=kind)
            over_kind.__name__ = f"{run.__name__}_over_{kind}"
            check(variant, limit_s=limit_s)(over_kind)
        return run

    return register


def expect(kept, why):
    if not kept:
        raise Failure(why)


def expect_in_time(kept, why):
    """Fails as late. For durations and time limits, which a machine that stands still breaks as a server does."""
    if not kept:
        raise StillWaiting(why)


def expect_no_failures(errors, of):
    """Fails for errors of a check's threads; as late if all of them are expired waits."""
    wrong = [error for error in errors if not isinstance(error, (StillWaiting, TimeoutError))]
    expect(not wrong, f"{of}: {wrong[:3]}")
    expect_in_time(not errors, f"{of}: {errors[:3]}")


def expect_equal(what, is_, should):
    if is_ != should:
        raise Failure(f"{what} is {shorten(is_)}, not {shorten(should)}")


def shorten(value):
    text = repr(value)
    return text if len(text) < 200 else f"{text[:120]} … ({len(value)} long)"


def wait_for(what, holds, seconds=10.0):
    """Waits until `holds()` is true, and fails after `seconds`. Checks wait by it instead of sleeping."""
    end = time.monotonic() + seconds
    while True:
        value = holds()
        if value:
            return value
        if time.monotonic() > end:
            raise StillWaiting(f"{what}: still not so after {seconds:g} s")
        time.sleep(0.02)


def limit_threads(count):
    """Returns a preexec function that limits the threads of an otherwise unused account."""

    def before_exec():
        resource.setrlimit(resource.RLIMIT_NPROC, (count, count))
        os.setgroups([])
        os.setgid(54_321)
        os.setuid(54_321)

    return before_exec


def free_port(host="127.0.0.1"):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in PORTS:
        with socket.socket(family) as probe:
            try:
                probe.bind((host, port))
                return port
            except OSError:
                continue
    raise Failure("no free port below the local port range")


def use_share_of_ports(nth, shares):
    """Takes every `shares`-th port; the others belong to other processes."""
    global PORTS
    PORTS = itertools.islice(PORTS, nth, None, shares)


FETCH_TRIES = 3


def fetch(command, **options):
    """Runs a command that may download from a registry, again if it fails. Returns its output."""
    for nth in range(FETCH_TRIES):
        time.sleep(5 * nth)
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
        if done.returncode == 0:
            return done.stdout
    last = " | ".join((done.stdout + done.stderr).strip().splitlines()[-5:])
    raise Failure(f"{' '.join(map(str, command))} ended with {done.returncode}: {last}")


def made_once(folder, make):
    """A folder that `make` fills in the first lane that needs it; the others wait."""
    made = folder.with_name(f"{folder.name}.made")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or not folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            made.touch()
    return folder


class World:
    """Servers, processes and files of one check."""

    def __init__(self, binary, site, scratch, variant):
        self.binary, self.site, self.scratch = binary, site, scratch
        # The program under test is built as installed, without a laboratory.
        self.laboratory = binary.parents[1] / "debug/weft"
        self.variant = variant
        self.servers, self.processes, self.cleanups = [], [], contextlib.ExitStack()
        self.note = ""

    def server(self, *flags, **options):
        """Starts a server for a `with` statement, which checks that it ends well."""
        server = Server(self, [str(flag) for flag in flags], **options)
        self.servers.append(server)
        server.start()
        return server

    def start(self, *command, **options):
        """Starts a process that ends with the check."""
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen([str(word) for word in command], **options)
        self.processes.append(process)
        return process

    def output_of(self, *command, status=0, seconds=25):
        """A client's output, as bytes. Fails at another exit status."""
        process = self.start(*command)
        out, err = process.communicate(timeout=seconds)
        statuses = status if isinstance(status, tuple) else (status,)
        if process.returncode not in statuses:
            last = err.decode(errors="replace").strip().splitlines()[-3:]
            raise Failure(f"{pathlib.Path(str(command[0])).name} ended with {process.returncode}: {' | '.join(last)}")
        return out

    def folder(self, name="site", **files):
        """The check's own site. `__` in a name stands for a dot."""
        folder = self.scratch / name
        folder.mkdir()
        folder.chmod(0o755)
        for file, content in files.items():
            (folder / file.replace("__", ".")).write_bytes(content)
        return folder

    def big_site(self):
        """A site with `/big.bin`, 64 MiB: more than the socket buffers of both sides (10 MiB with Linux' defaults), so that a client that
        does not read blocks the reply."""
        chance = random.Random(64)
        return self.folder(big__bin=b"".join(chance.randbytes(1 << 20) for _ in range(64)), small__txt=b"small")

    def at_end(self, cleanup):
        """Runs `cleanup` after the check, however it ends."""
        self.cleanups.callback(cleanup)

    def end(self):
        for process in self.processes + [server.process for server in self.servers if server.process]:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()
        self.cleanups.close()

    def has_fallen(self):
        """True if a server has panicked, or has ended in a way that no check intends. A server that is expected to refuse its start may end
        in any way."""
        ends = {server.process.poll() for server in self.servers if server.process and server.expect_ready}
        return not ends <= {None, 0, -signal.SIGKILL} or any("panicked" in server.output() for server in self.servers)

    def keep_state(self):
        """Records the wait state of each process: a lost wake-up shows there, and nowhere else once the processes have ended."""
        processes = [*(server.process for server in self.servers if server.process), *self.processes]
        lines = []
        for process in processes:
            if process.poll() is None:
                lines += [f"process {process.pid}: {process.args}", *map(state_of, thread_folders(process.pid))]
        for server in self.servers:
            if server.process and server.process.poll() is None:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    lines += [f"{path} of {server.pid}:\n{server.admin(path).body.decode()}" for path in ("/fibers", "/metrics")]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            lines.append(subprocess.run(["ss", "-tanemi"], capture_output=True, text=True, timeout=10).stdout[:1 << 20])
        with contextlib.suppress(OSError):
            (self.scratch / "late.txt").write_text("\n".join(lines))

    def last_words(self):
        lines = [line for server in self.servers for line in server.output().splitlines()[-12:]]
        return "".join(f"    | {line}\n" for line in lines)


def thread_folders(pid):
    with contextlib.suppress(OSError):
        return list(pathlib.Path(f"/proc/{pid}/task").iterdir())
    return []


def state_of(thread):
    """Number, name, state, wait channel and system call of a thread. proc(5)"""
    try:
        name, stat, wait, call = ((thread / file).read_text().strip() for file in ("comm", "stat", "wchan", "syscall"))
    except OSError as error:
        return f"  {thread.name}: {error}"
    return f"  {thread.name} {name}: {stat.rsplit(') ', 1)[1][0]} in {wait}, {call}"


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def header(self, name, default=None):
        return self.headers.get(name, default)


class Server:
    """A `weft serve` process on ports of its own, with an admin listener."""

    admin_host = "127.0.0.1"

    def __init__(self, world, flags, site=None, variant=None, host="127.0.0.1", listen=None, wrap=(), nofile=None,
                 before_exec=None, expect_ready=True, admin_host=admin_host, ports=None):
        self.world, self.host, self.admin_host = world, host, admin_host
        self.port, self.admin_port = ports or (free_port(host), free_port())
        self.site = site or world.site
        self.log = world.scratch / f"server-{len(world.servers)}.log"
        bracketed = f"[{host}]" if ":" in host else host
        self.origin = f"http://{bracketed}:{self.port}"
        listens = [f"{bracketed}:{self.port}"] if listen is None else listen
        engine = VARIANTS[variant or world.variant] if variant != "auto" else []
        self.command = [*wrap, str(world.binary), "serve", str(self.site), *engine,
                        *(word for address in listens for word in ("--listen", str(address))),
                        "--admin", f"{admin_host}:{self.admin_port}", "--color", "never", *flags]
        self.nofile, self.before_exec, self.expect_ready = nofile, before_exec, expect_ready
        self.process = None

    def start(self):
        def before_exec():
            if self.nofile:
                resource.setrlimit(resource.RLIMIT_NOFILE, (self.nofile, self.nofile))
            if self.before_exec:
                self.before_exec()

        with open(self.log, "ab") as log:
            log.write(f"$ {' '.join(self.command)}\n".encode())
            log.flush()
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            preexec_fn=before_exec)
        if self.expect_ready:
            wait_for("the server is healthy", self.is_healthy)

    def is_healthy(self):
        expect(self.process.poll() is None, f"the server ended with {self.process.returncode} at its start")
        try:
            return self.admin("/healthz").status == 200
        except OSError:
            return False

    # ---- requests

    def url(self, path="/"):
        return self.origin + path

    def get(self, path="/", **headers):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        try:
            headers = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("GET", path, headers=headers)
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())
        finally:
            connection.close()

    def connect(self, timeout=10):
        return socket.create_connection((self.host, self.port), timeout=timeout)

    def admin(self, path):
        connection = http.client.HTTPConnection(self.admin_host, self.admin_port, timeout=10)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())
        finally:
            connection.close()

    def metrics(self):
        """All metrics; those with labels are summed up under their plain names."""
        found = {}
        for line in self.admin("/metrics").body.decode().splitlines():
            match = re.fullmatch(r"(\w+)(?:\{[^}]*\})? ([0-9.eE+-]+)", line)
            if match:
                found[match[1]] = found.get(match[1], 0) + float(match[2])
        return found

    def metric(self, name):
        metrics = self.metrics()
        expect(name in metrics, f"/metrics has no {name}; it has {', '.join(sorted(metrics))}")
        return metrics[name]

    def has_counted(self, name, least):
        """Waits until a counter reaches `least`. A reply is counted after it is sent, and its client may see it first."""
        wait_for(f"{name} is {least:g}", lambda: self.metrics().get(name, 0) >= least)
        return self.metric(name)

    # ---- observation from outside

    @property
    def pid(self):
        return self.process.pid

    def fd_count(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def status(self, field):
        """A field of /proc/PID/status: `VmRSS`, `Uid`, `Threads`…"""
        text = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return re.search(rf"^{field}:\s*(.*)$", text, re.M)[1]

    def is_stopped(self):
        """True if each thread has obeyed SIGSTOP."""
        threads = pathlib.Path(f"/proc/{self.pid}/task").iterdir()
        return all("\nState:\tT" in (thread / "status").read_text() for thread in threads)

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def output(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait_for_output(self, *texts):
        """Waits until the output has all of these texts, and returns it. The server is healthy just before it reports its start, and counts an
        error just before it reports it."""
        wait_for(f"it says {' and '.join(map(repr, texts))}", lambda: all(text in self.output() for text in texts))
        return self.output()

    # ---- end

    def signal(self, number):
        os.kill(self.pid, number)

    def wait_end(self, seconds=10):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise StillWaiting(f"the server has not ended after {seconds} s") from None

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            return
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            self.wait_end(15)
        expect_equal("the server's exit status", self.process.returncode, 0)
        expect("panicked" not in self.output(), "the server panicked on the way")


# ---- raw bytes

def request(path="/", close=False, **headers):
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += ["Connection: close"] if close else []
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Incomplete(Exception):
    """The connection ended before the reply. `received` is the number of bytes received."""

    def __init__(self, received):
        super().__init__(f"the connection ended after {received} bytes of a reply")
        self.received = received


def read_reply(file):
    """Reads one reply with a Content-Length from a socket's file."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = file.readline()
        if not line:
            raise Incomplete(len(head))
        head += line
    status = int(head.split(b" ", 2)[1])
    headers = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:] if line)
    headers = {name.lower(): value for name, value in headers.items()}
    length = int(headers.get("content-length", 0)) if status not in (204, 304) else 0
    body = file.read(length)
    if len(body) < length:
        raise Incomplete(len(head) + len(body))
    return Reply(status, headers, body)
