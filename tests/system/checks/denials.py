"""io_uring denied in each way that there is: what may do without it says so and does; what was told to use it says why not."""

import errno
import os
import pathlib
import re
import resource
import shutil
import tempfile

from checks.starts import DISABLED, IO_URING, deny
from generator import load
from memcache import CacheServer
from world import check, expect, expect_equal, free_port, wait_for

SETUP, ENTER, REGISTER = IO_URING.values()
# Container runtimes deny all three; a profile by hand may forget one of them.
FILTERS = {
    "all, as docker does": deny([SETUP, ENTER, REGISTER], errno.EPERM),
    "all, as if they were not there": deny([SETUP, ENTER, REGISTER], errno.ENOSYS),
    "setup": deny([SETUP], errno.EPERM),
    "register": deny([REGISTER], errno.EPERM),
    "enter": deny([ENTER], errno.EPERM),
    "enter, as if it was not there": deny([ENTER], errno.ENOSYS),
}


def started_cache(world, *flags, **options):
    server = CacheServer(world, list(flags), **options)
    world.servers.append(server)
    server.start()
    return server


@check(limit_s=120)
def each_filter_is_survived_by_auto_and_named_by_uring(world):
    """Seen: a filter that let io_uring_setup through, and not io_uring_register, kept the server from starting; one that forbade
    io_uring_enter alone made it panic. Cause: only the first of the three calls was tried."""
    for name, before_exec in FILTERS.items():
        with world.server(variant="auto", before_exec=before_exec) as server:
            said = wait_for("the start is told", lambda: "limits" in server.output() and server.output().split("\n", 1)[1])
            expect("epoll" in said and "seccomp" in said, f"{name}: the start of serve says {said!r}")
            expect_equal(name, server.get("/").body, (world.site / "index.html").read_bytes())
        with started_cache(world, "-v", variant="auto", before_exec=before_exec) as server, server.client() as client:
            client.socket.sendall(b"set a 0 0 1\r\nx\r\n")
            expect_equal(f"{name}: a set", client.file.readline(), b"STORED\r\n")
        dispatchers = [["--engine", engine, "--dispatcher", "uring"] for engine in ("event", "pipeline")]
        # A dispatcher registers nothing.
        for words in ([["--io", "uring"]] if name == "register" else [["--io", "uring"], *dispatchers]):
            for refused in (
                    world.server(*words, variant="auto", before_exec=before_exec, expect_ready=False),
                    started_cache(world, *words, variant="auto", before_exec=before_exec, expect_ready=False)):
                expect(refused.wait_end() in (1, 2), f"{name}: {words} ended with {refused.process.returncode}")
                said = refused.output()
                is_clear = "seccomp" in said and "io_uring" in said and "panicked" not in said
                expect(is_clear, f"{name}: {words} says {said!r}")


@check(limit_s=120)
def each_filter_is_survived_by_the_generator(world):
    with world.server() as server:
        for name, before_exec in FILTERS.items():
            words = ["http", server.url("/style.css"), "-c", 4, "-d", "300ms"]
            report = load(world, *words, preexec_fn=before_exec)
            io = report["generator"]["io"]
            expect(io.startswith("epoll (a seccomp filter"), f"{name}: it took {io}")
            expect(report["replies"] > 0 and not report.errors, f"{name}: {report.errors}")
            report = load(world, *words, "--io", "uring", preexec_fn=before_exec, status=1)
            expect("seccomp filter" in report.said and "--io epoll does without" in report.said, f"{name}: {report.said}")


@check(limit_s=60)
def an_unprivileged_process_is_told_of_the_switch(world):
    expect(DISABLED.exists(), f"{DISABLED} does not exist: this kernel has no such switch (Linux 6.6 and newer do)")
    before = DISABLED.read_text()
    world.at_end(lambda: DISABLED.write_text(before))
    binary = os.open(world.binary, os.O_RDONLY)
    world.at_end(lambda: os.close(binary))
    site = pathlib.Path(tempfile.mkdtemp(prefix="weft-"))
    world.at_end(lambda: shutil.rmtree(site))
    site.chmod(0o755)
    (site / "index.html").write_text("in")
    program = f"/proc/self/fd/{binary}"
    for value in ("1", "2"):
        DISABLED.write_text(value)
        for command in (["serve", site, "--listen"], ["cache", "-v", "-l"]):
            process = world.start(program, *command, f"127.0.0.1:{free_port()}", pass_fds=[binary], preexec_fn=unprivileged)
            said = said_of_engine(process)
            expect("epoll" in said and f"io_uring_disabled is {value}" in said, f"{command[0]} with {value} says {said!r}")
            process.terminate()
            expect_equal("exit status", process.wait(10), 0)
            process = world.start(program, *command, f"127.0.0.1:{free_port()}", "--io", "uring", pass_fds=[binary], preexec_fn=unprivileged)
            _, err = process.communicate(timeout=10)
            expect(process.returncode == 1 and f"io_uring_disabled is {value}".encode() in err, f"{process.returncode}, {err}")
    with world.server(variant="epoll") as server:
        process = world.start(program, "load", "http", server.url("/style.css"), "--io", "uring", "-d", "1s", pass_fds=[binary],
                              preexec_fn=unprivileged)
        _, err = process.communicate(timeout=10)
        expect(process.returncode == 1 and b"kernel.io_uring_disabled forbids io_uring" in err, f"{process.returncode}, {err}")


def said_of_engine(process):
    """What it says on standard error, up to the line that names its engine, whichever that is."""
    said = ""
    for line in process.stderr:
        said += line.decode()
        if "fibers on" in said:
            break
    return said


def kernel():
    """Linux's version, as two numbers."""
    return tuple(int(number) for number in re.match(r"(\d+)\.(\d+)", os.uname().release).groups())


def unprivileged():
    os.setgroups([])
    os.setgid(54_321)
    os.setuid(54_321)


@check(limit_s=60)
def no_locked_memory_is_survived_by_auto_and_named_by_uring(world):
    """Rings count for the limit of locked memory since Linux 6.14, unless the process is privileged."""
    expect(kernel() >= (6, 14), f"this is Linux {os.uname().release}: rings do not count for the limit before 6.14")

    def before_exec():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
        unprivileged()

    binary = os.open(world.binary, os.O_RDONLY)
    world.at_end(lambda: os.close(binary))
    program, port = f"/proc/self/fd/{binary}", free_port()
    started = {"pass_fds": [binary], "preexec_fn": before_exec}
    process = world.start(program, "cache", "-v", "-l", f"127.0.0.1:{port}", "-c", "50", **started)
    said = said_of_engine(process)
    expect("epoll" in said and "ulimit -l" in said, said)
    words = ["load", "cache", f"127.0.0.1:{port}", "--populate", "--keys", "100", "-d", "300ms", "-c", 4]
    out, err = world.start(program, *words, **started).communicate(timeout=10)
    expect(b"verdict" in out and b"failed" not in err, f"{out} {err}")
    for refused in (words, ["cache", "-l", f"127.0.0.1:{free_port()}"]):
        process = world.start(program, *refused, "--io", "uring", **started)
        _, err = process.communicate(timeout=10)
        expect(process.returncode == 1 and b"ulimit -l" in err and err.count(b"\n") == 1, f"{process.returncode}, {err}")


@check(limit_s=120)
def however_few_descriptors_there_are_it_is_one_sentence(world):
    def limited(count):
        def before_exec():
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
            unprivileged()
        return before_exec

    binary = os.open(world.binary, os.O_RDONLY)
    world.at_end(lambda: os.close(binary))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-"))
    world.at_end(lambda: shutil.rmtree(folder))
    folder.chmod(0o755)
    program = f"/proc/self/fd/{binary}"
    # The loader needs a descriptor that is free, before there is a program to say anything.
    first = max(binary + 1, 6)
    for words in (["serve", folder, "--max-connections", "4", "--workers", "2", "--listen"], ["cache", "-c", "4", "-t", "2", "-l"]):
        has_started = False
        # The program itself is given as a descriptor.
        for count in [*range(first, binary + 64, 3), 200]:
            command = [program, *words, f"127.0.0.1:{free_port()}", "--admin", f"127.0.0.1:{free_port()}"]
            process = world.start(*command, pass_fds=[binary], preexec_fn=limited(count))
            said = process.stderr.readline().decode()
            has_started = said.startswith("weft ")
            if has_started:
                process.terminate()
                expect_equal(f"with {count} descriptors: exit status", process.wait(10), 0)
                break
            expect(said.startswith("error: ") and "panicked" not in said, f"with {count} descriptors {words[0]} says {said!r}")
            expect("open files" in said or "descriptor" in said, f"with {count} descriptors {words[0]} says {said!r}")
            expect(process.wait(10) in (1, 2), f"it ended with {process.returncode}")
        expect(has_started, f"{words[0]} does not start with {count} descriptors")
    with world.server() as server:
        for count in range(first, binary + 64, 3):
            process = world.start(program, "load", "http", server.url("/style.css"), "-c", 4, "-d", "200ms", pass_fds=[binary],
                                  preexec_fn=limited(count))
            _, err = process.communicate(timeout=10)
            said = err.decode()
            if process.returncode == 0:
                break
            expect(process.returncode == 1 and said.count("\n") == 1 and "panicked" not in said, f"with {count} it says {said!r}")
            expect("open files" in said or "descriptor" in said or "ulimit -n" in said, f"with {count} it says {said!r}")
        expect_equal("exit status in the end", process.returncode, 0)
