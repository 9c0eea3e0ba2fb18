"""io_uring denied in every way: `auto` does without and says so; an explicit `uring` says why it fails."""

import ctypes
import errno
import os
import pathlib
import re
import resource
import shutil
import struct
import tempfile

from generator import load
from memcache import cache
from world import check, expect, expect_equal, free_port, wait_for

DISABLED = pathlib.Path("/proc/sys/kernel/io_uring_disabled")
# io_uring_setup, io_uring_enter, io_uring_register: the same numbers on all architectures.
SETUP, ENTER, REGISTER = 425, 426, 427


def deny(calls, number):
    """Returns a preexec function with a classic BPF filter: these calls fail with this errno. seccomp(2)"""
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    allow, fail = 0x7FFF0000, 0x00050000 | number
    tests = [(jump_if_equal, len(calls) - at, 0, call) for at, call in enumerate(calls)]
    program = [(load, 0, 0, 0), *tests, (give, 0, 0, allow), (give, 0, 0, fail)]

    def before_exec():
        code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
        filter_ = struct.pack("=H6xQ", len(program), ctypes.addressof(code))
        libc = ctypes.CDLL(None, use_errno=True)
        pr_set_no_new_privs, pr_set_seccomp, seccomp_mode_filter = 38, 22, 2
        if libc.prctl(pr_set_no_new_privs, 1, 0, 0, 0) or libc.prctl(pr_set_seccomp, seccomp_mode_filter, filter_, 0, 0):
            raise OSError(ctypes.get_errno(), "the seccomp filter was not accepted")

    return before_exec


# Container runtimes deny all three; a hand-written profile may omit one.
FILTERS = {
    "all, as docker does": deny([SETUP, ENTER, REGISTER], errno.EPERM),
    "all, as if they were not there": deny([SETUP, ENTER, REGISTER], errno.ENOSYS),
    "setup": deny([SETUP], errno.EPERM),
    "register": deny([REGISTER], errno.EPERM),
    "enter": deny([ENTER], errno.EPERM),
    "enter, as if it was not there": deny([ENTER], errno.ENOSYS),
}


@check(limit_s=120)
def each_filter_is_survived_by_auto_and_named_by_uring(world):
    """Seen: a filter that let io_uring_setup through, and not io_uring_register, kept the server from starting; one that forbade
    io_uring_enter alone made it panic. Cause: only the first of the three calls was tried."""
    for name, before_exec in FILTERS.items():
        with world.server(variant="auto", before_exec=before_exec) as server:
            said = wait_for("the start is told", lambda: "limits" in server.output() and server.output().split("\n", 1)[1])
            expect(re.search("engine .*epoll.*seccomp", said), f"{name}: the start of serve says {said!r}")
            expect_equal(name, server.get("/").body, (world.site / "index.html").read_bytes())
        with cache(world, "-v", variant="auto", before_exec=before_exec) as server, server.client() as client:
            client.socket.sendall(b"set a 0 0 1\r\nx\r\n")
            expect_equal(f"{name}: a set", client.file.readline(), b"STORED\r\n")
        dispatchers = [["--engine", f"{engine}:dispatcher=uring"] for engine in ("event", "pipeline")]
        # A dispatcher does not call io_uring_register.
        fibers = ["--engine", "fiber:io=uring"]
        for words in ([fibers] if name == "register" else [fibers, *dispatchers]):
            for refused in (
                    world.server(*words, variant="auto", before_exec=before_exec, expect_ready=False),
                    cache(world, *words, variant="auto", before_exec=before_exec, expect_ready=False)):
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
            expect("seccomp filter" in report.said and "use --io epoll" in report.said, f"{name}: {report.said}")


@check()
def without_io_uring_it_serves_and_says_why(world):
    expect(DISABLED.exists(), f"{DISABLED} does not exist: this kernel has no such switch (Linux 6.6 and newer do)")
    before = DISABLED.read_text()
    world.at_end(lambda: DISABLED.write_text(before))
    DISABLED.write_text("2")
    with world.server(variant="auto") as server:
        said = server.wait_for_output("limits ").split("\n", 1)[1]
        expect("epoll" in said and "io_uring_disabled" in said, f"the start says {said!r}")
        expect_equal("the page", server.get("/").body, (world.site / "index.html").read_bytes())
    refused = world.server("--engine", "fiber:io=uring", variant="auto", expect_ready=False)
    expect(refused.wait_end() != 0, "io=uring started without io_uring")
    expect("io_uring_disabled" in refused.output(), f"io=uring says {refused.output()!r}")
    for engine in ("event", "pipeline"):
        refused = world.server("--engine", f"{engine}:dispatcher=uring", variant="auto", expect_ready=False)
        expect(refused.wait_end() != 0, "dispatcher=uring started without io_uring")
        expect("dispatcher=uring: " in refused.output() and "io_uring_disabled" in refused.output(),
               f"dispatcher=uring says {refused.output()!r}")
    doctor = world.start(world.binary, "doctor")
    out, err = doctor.communicate(timeout=10)
    expect(b"io_uring_disabled" in out + err, f"doctor says {out!r}")


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
            process = world.start(program, *command, f"127.0.0.1:{free_port()}", "--engine", "fiber:io=uring", pass_fds=[binary], preexec_fn=unprivileged)
            _, err = process.communicate(timeout=10)
            expect(process.returncode == 1 and f"io_uring_disabled is {value}".encode() in err, f"{process.returncode}, {err}")
    with world.server(variant="epoll") as server:
        process = world.start(program, "load", "http", server.url("/style.css"), "--io", "uring", "-d", "1s", pass_fds=[binary],
                              preexec_fn=unprivileged)
        _, err = process.communicate(timeout=10)
        expect(process.returncode == 1 and b"kernel.io_uring_disabled forbids io_uring" in err, f"{process.returncode}, {err}")


def said_of_engine(process):
    """Standard error up to the line that names the engine."""
    said = ""
    for line in process.stderr:
        said += line.decode()
        if "fibers on" in said:
            break
    return said


def kernel():
    """Linux's version as two numbers."""
    return tuple(int(number) for number in re.match(r"(\d+)\.(\d+)", os.uname().release).groups())


def unprivileged():
    os.setgroups([])
    os.setgid(54_321)
    os.setuid(54_321)


@check(limit_s=60)
def no_locked_memory_is_survived_by_auto_and_named_by_uring(world):
    """Since Linux 6.14 rings count towards the limit on locked memory, unless the process is privileged."""
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
    on_ring = ["cache", "-l", f"127.0.0.1:{free_port()}", "--engine", "fiber:io=uring"]
    for refused in ([*words, "--io", "uring"], on_ring):
        process = world.start(program, *refused, **started)
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
    # The loader needs a free descriptor before the program runs at all.
    first = max(binary + 1, 6)
    for words in (["serve", folder, "--max-connections", "4", "--workers", "2", "--listen"], ["cache", "-c", "4", "-t", "2", "-l"]):
        has_started = False
        # The program itself is passed as a descriptor.
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
