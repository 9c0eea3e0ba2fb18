"""Full disks and read-only folders: a one-line message, no truncated older file, and servers that keep running."""

import os
import resource
import signal

from memcache import CacheServer
from world import expect, check, expect_equal, free_port, wait_for

OLD = "what an earlier run has left\n"


def full_disk(world, name="full", **files):
    """A file system with these files and no free space."""
    folder = world.scratch / name
    folder.mkdir()
    world.output_of("mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=32", "tmpfs", folder)
    world.at_end(lambda: world.output_of("umount", "--lazy", folder))
    for file, text in files.items():
        (folder / file).write_text(text)
    fill(folder)
    return folder


def fill(folder):
    with open(folder / "filler", "ab", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 4096)
        except OSError:
            pass


def read_only(world, **files):
    folder = full_disk(world, "read-only", **files)
    world.output_of("mount", "-o", "remount,ro", folder)
    return folder


@check(limit_s=60)
def a_result_that_has_no_room_costs_no_older_one(world):
    """Seen: a run whose result did not fit emptied the file of the run before."""
    flags = ("json", "csv", "hgrm", "interval-log")
    folder = full_disk(world, **{flag: OLD for flag in flags})
    with world.server() as server:
        for flag in flags:
            for words in ((), ("--rate", 200)):
                process = world.start(world.binary, "load", "http", server.url("/style.css"), "-c", 2, "-d", "300ms", *words,
                                      f"--{flag}", folder / flag)
                out, err = process.communicate(timeout=20)
                expect_equal(f"--{flag}: exit status", process.returncode, 1)
                expect(f"cannot write {folder / flag}: No space left on device" in err.decode(), err.decode())
                expect(b"verdict" in out, "the screen is shown all the same")
                expect_equal(f"the old file of --{flag}", (folder / flag).read_text(), OLD)
        expect_equal("what is there", sorted(path.name for path in folder.iterdir()), sorted([*flags, "filler"]))
        # With free space the file is written, whole.
        (folder / "filler").unlink()
        process = world.start(world.binary, "load", "http", server.url("/style.css"), "-c", 2, "-d", "300ms", "--csv", folder / "csv")
        process.communicate(timeout=20)
        expect((folder / "csv").read_text().startswith("begins_s,"), "the new file")


@check(limit_s=60)
def the_table_of_a_sweep_on_a_full_disk_is_an_error(world):
    """Seen: `weft load --sweep` panicked when standard output could not be written."""
    with world.server() as server:
        command = [world.binary, "load", "http", server.url("/style.css"), "--sweep", "100,200", "-c", 2, "-d", "200ms", "--pause", "0s"]
        with open("/dev/full", "wb") as full:
            process = world.start(*command, stdout=full)
            _, err = process.communicate(timeout=20)
        expect_equal("exit status", process.returncode, 1)
        expect(b"No space left" in err and b"panicked" not in err, err.decode())
        # A closed reader is no failure, and no panic.
        read, write = os.pipe()
        os.close(read)
        process = world.start(*command, stdout=write)
        os.close(write)
        _, err = process.communicate(timeout=20)
        expect_equal("exit status", (process.returncode, err), (0, b""))


@check(limit_s=60)
def a_folder_that_is_read_only_is_named_at_once(world):
    folder = read_only(world, old=OLD)
    port, other = free_port(), free_port()
    sets = world.scratch / "set"
    world.output_of(world.binary, "load", "fileset", sets, "--scale", "0.001")
    with world.server() as server:
        commands = [
            (["load", "http", server.url(), "-d", "20s", "--json", folder / "new"], 2, "new"),
            (["load", "http", server.url(), "-d", "20s", "--csv", folder / "old"], 2, "old"),
            (["load", "fileset", folder / "set", "--scale", "0.001"], 1, "set"),
            (["load", "traces", sets, folder / "logs"], 1, "logs"),
            (["load", "traces", sets, folder], 1, "session-00.log"),
            (["man", "--dir", folder], 1, str(folder)),
            (["serve", world.site, "--listen", f"127.0.0.1:{port}", "--access-log", folder / "log"], 1, "log"),
            (["serve", world.site, "--listen", f"127.0.0.1:{port}", "--access-log", folder / "old"], 1, "old"),
            (["serve", world.site, "--listen", f"127.0.0.1:{port}", "--pid-file", folder / "pid"], 1, "pid"),
            (["serve", world.site, "--listen", f"unix:{folder / 'socket'}"], 1, "socket"),
            (["cache", "-u", "root", "-l", "127.0.0.1", "-p", other, "-P", folder / "pid"], 1, "pid"),
            (["cache", "-u", "root", "-l", "127.0.0.1", "-p", other, "-e", folder / "items"], (1, 2), str(folder)),
            (["cache", "-u", "root", "-s", folder / "socket"], 1, "socket"),
        ]
        commands = [(world.binary, *command) for command in commands]
        commands.append((world.laboratory, ["lab", "run", "rt-yield", "--quick", "--out", folder / "lab"], 1, "lab"))
        for program, words, statuses, name in commands:
            process = world.start(program, *words)
            out, err = process.communicate(timeout=10)
            said = err.decode()
            statuses = statuses if isinstance(statuses, tuple) else (statuses,)
            expect(process.returncode in statuses, f"{words}: {process.returncode}, {said!r}")
            expect("read-only file system" in said.lower() and name in said and "panicked" not in said, f"{words}: {said!r}")
    expect_equal("the old file", (folder / "old").read_text(), OLD)


@check(limit_s=60)
def a_full_disk_at_the_start_is_named(world):
    folder = full_disk(world, pid=OLD)
    port = free_port()
    for words, name in (
            (["serve", world.site, "--listen", f"127.0.0.1:{port}", "--pid-file", folder / "pid"], "pid"),
            (["cache", "-u", "root", "-l", "127.0.0.1", "-p", port, "-P", folder / "pid"], "pid"),
            (["man", "--dir", folder], str(folder)),
            (["load", "traces", fileset(world), folder], "session-00.log"),
            (["load", "fileset", folder / "set", "--scale", "0.001"], "set")):
        process = world.start(world.binary, *words)
        _, err = process.communicate(timeout=10)
        said = err.decode()
        expect(process.returncode == 1 and name in said and "panicked" not in said, f"{words}: {process.returncode}, {said!r}")
    expect_equal("the old file", (folder / "pid").read_text(), OLD)


def fileset(world):
    folder = world.scratch / "set-of-files"
    if not folder.exists():
        world.output_of(world.binary, "load", "fileset", folder, "--scale", "0.001")
    return folder


@check()
def a_device_as_pid_file_stays(world):
    """Seen: `--pid-file /dev/null`, as root, deleted /dev/null."""
    device = world.scratch / "null"
    os.mknod(device, 0o600 | 0o020000, os.makedev(1, 3))
    with world.server("--pid-file", device) as server:
        expect_equal("status", server.get("/style.css").status, 200)
    expect(device.exists(), "the device was deleted")


def limit_files(bytes_):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))


@check("uring", "thread", limit_s=60)
def a_limit_on_the_length_of_files_does_not_end_a_server(world):
    """Seen: SIGXFSZ ended `weft serve` as soon as its access log had reached the limit (ulimit -f, LimitFSIZE=)."""
    log = world.scratch / "access.log"
    with world.server("--access-log", log, before_exec=limit_files(16_384)) as server:
        for _ in range(400):
            expect_equal("status", server.get("/style.css").status, 200)
        wait_for("the log could not be written", lambda: server.metric("weft_log_write_errors_total") > 0)
        expect_equal("status", server.get("/style.css").status, 200)
        server.wait_for_output("File too large")
        expect(log.stat().st_size <= 16_384, "the log is longer than its limit")
        # With a new file after a reload, logging resumes.
        log.rename(world.scratch / "access.log.1")
        server.signal(signal.SIGHUP)
        wait_for("the new log is written", lambda: log.exists() and log.stat().st_size > 0)


@check(limit_s=60)
def a_result_beyond_the_limit_on_the_length_of_files_is_an_error(world):
    old = world.scratch / "old.json"
    old.write_text(OLD)
    with world.server() as server:
        process = world.start(world.binary, "load", "http", server.url("/style.css"), "-c", 2, "-d", "300ms", "--json", old,
                              preexec_fn=limit_files(1024))
        out, err = process.communicate(timeout=20)
        expect_equal("exit status", process.returncode, 1)
        expect(b"File too large" in err and b"verdict" in out, f"{err}")
        expect_equal("the old file", old.read_text(), OLD)


@check("uring", "thread", limit_s=60)
def a_server_goes_on_when_its_disk_is_full(world):
    folder = full_disk(world)
    (folder / "filler").unlink()
    log = folder / "access.log"
    with world.server("--access-log", log) as server:
        server.get("/style.css")
        wait_for("the log is written", lambda: log.exists() and log.stat().st_size > 0)
        fill(folder)
        # More lines than the free part of the log's last block.
        for _ in range(100):
            expect_equal("status", server.get("/style.css").status, 200)
        wait_for("the log could not be written", lambda: server.metric("weft_log_write_errors_total") > 0)
        server.wait_for_output("No space left on device")
        (folder / "filler").unlink()
        wait_for("it is written again", lambda: log.read_text().count("\n") >= 101)
        expect_equal("lines that are lost", server.metric("weft_log_lines_dropped_total"), 0)


@check(limit_s=60)
def items_that_have_no_room_are_said_to_be_lost(world):
    """`-e FILE` on a disk that is full when items are saved: the server says so and leaves no partial file."""
    folder = full_disk(world)
    items = folder / "items"
    for limit in ("disk", "file"):
        if limit == "file":
            (folder / "filler").unlink()
        before_exec = limit_files(4096) if limit == "file" else None
        server = CacheServer(world, ["-e", str(items)], before_exec=before_exec)
        world.servers.append(server)
        server.start()
        with server.client() as client:
            for number in range(50):
                client.socket.sendall(b"set key%d 0 0 1000\r\n%b\r\n" % (number, b"x" * 1000))
                expect_equal("a set", client.file.readline(), b"STORED\r\n")
        server.signal(signal.SIGTERM)
        status = server.wait_end()
        said = server.output()
        why = "No space left on device" if limit == "disk" else "File too large"
        expect(why in said and str(items) in said and "panicked" not in said, said)
        expect(status in (0, 1), f"it ended with {status}")
        expect_equal("what is there", sorted(path.name for path in folder.iterdir() if path.name != "filler"), [])
