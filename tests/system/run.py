#!/usr/bin/env python3
"""The system suite: real clients, real signals and real limits against the release binary.

    tests/system/run.py --binary target/release/weft --site target/site [--only TEXT] [--list]

Started by `./ci.sh system`, which builds both and installs the clients. Needs root. Every check runs against servers
of its own, within a bounded time, and ends what it started by process id. Checks mostly wait, so LANES of them run at
a time: each lane takes the next module. Those of ALONE follow. It prints

    ok NAME (SECONDS)           or           FAIL NAME: why

and at last how many failed, with their names. Files of a failed check stay below target/system.

A check whose time was over while others ran beside it, and whose servers are well, runs again by itself, once, and what
it says then counts: a wait that was too short says nothing of a server on a machine that stood still. Anything else
that is wrong fails at once, and so do more than LATE_MAX such checks. Files of the first try stay beside those of the
second, as NAME.late. The last lines tell the longest time for which the machine gave this process no processor, and
how many packets the kernel dropped because its table of connections was full.
"""

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import resource
import shutil
import signal
import sys
import threading
import time
import traceback

from world import REGISTRY, Failure, StillWaiting, TookTooLong, World, use_share_of_ports
import checks

LANES = 3
LATE_MAX = 6
# Modules that take longest: they begin first.
LONG = ["cache_clients", "http2", "netstack_engine", "acme", "starts", "crowds", "lifecycle"]
# Modules that share the account whose threads are counted: one lane takes both.
TOGETHER = [{"load_attacks", "starts"}]
# Those that measure, or change what all processes have in common.
ALONE = {"cache_neighbours", "denials", "lab", "load_truth", "neighbours", "proxies", "scale", "small_memory"}


def main():
    options = parse()
    # Importing the package has registered every check.
    assert checks.__all__
    if options.list:
        print(*(check.name for check in REGISTRY), sep="\n")
        return 0
    if os.geteuid() != 0:
        sys.exit("the system suite needs root: it sets limits, drops privileges and turns io_uring off and on")
    raise_open_files()
    # Ctrl-C and a CI that gives up must leave no server and no changed sysctl behind: both unwind the stack.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wanted = [check for check in REGISTRY if check.is_wanted(options.only or [])]
    if not wanted:
        sys.exit(f"no check has {' or '.join(options.only)} in its name; see --list")
    standstill = Standstill()
    with ConnectionTable() as table:
        failed, late = failures_of_lanes(groups([check for check in wanted if check.module not in ALONE]), options)
        failed += failures([check for check in wanted if check.module in ALONE or check.name in late], options)
    if len(late) > LATE_MAX:
        failed.append(f"FAIL {len(late)} checks were too late beside others: this is no single standstill")
    print(f"the machine stood still for {standstill.longest_s:.1f} s at most; its connection table dropped {table.dropped:,} packets; "
          f"too late beside others: {', '.join(late) or 'none'}")
    print(f"{len(wanted) - len(failed)} passed, {len(failed)} failed", *failed, sep="\n", flush=True)
    return 1 if failed else 0


class Standstill:
    """The longest time for which the machine gave this process, which only sleeps, no processor."""

    STEP_S = 0.1

    def __init__(self):
        self.longest_s = 0.0
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while True:
            began = time.monotonic()
            time.sleep(self.STEP_S)
            self.longest_s = max(self.longest_s, time.monotonic() - began - self.STEP_S)


class ConnectionTable:
    """Connections that end leave the kernel's table for its firewall (nf_conntrack) soon, until the end of the suite. Where a rule uses
    that table, each stays there for two minutes, checks close ten thousand in a second, and once it is full every new connection
    on the machine waits. Another kernel has no such table, or no rule."""

    FOLDER = pathlib.Path("/proc/sys/net/netfilter")

    def __enter__(self):
        names = ("time_wait", "close", "last_ack")
        paths = [path for name in names if (path := self.FOLDER / f"nf_conntrack_tcp_timeout_{name}").exists()]
        self.times = {path: path.read_text() for path in paths}
        self.before, self.dropped = self.drops(), 0
        self.set({path: "1" for path in paths})
        return self

    def __exit__(self, *_):
        self.set(self.times)
        self.dropped = self.drops() - self.before

    def set(self, times):
        for path, seconds in times.items():
            with contextlib.suppress(OSError):  # In a container they may be read only.
                path.write_text(seconds)

    def drops(self):
        """Packets that were dropped because it was full, of all processors."""
        try:
            names, *processors = pathlib.Path("/proc/net/stat/nf_conntrack").read_text().splitlines()
        except OSError:
            return 0
        column = names.split().index("drop")
        return sum(int(one.split()[column], 16) for one in processors)


def groups(checks):
    """Checks that one lane runs in a row: those of a module, or of modules that share something."""
    found = {}
    for check in checks:
        modules = next((together for together in TOGETHER if check.module in together), {check.module})
        found.setdefault(tuple(sorted(modules)), []).append(check)
    last = len(LONG)
    return [found[modules] for modules in sorted(found, key=lambda modules: min(place(LONG, one, last) for one in modules))]


def place(names, name, otherwise):
    return names.index(name) if name in names else otherwise


def failures_of_lanes(waiting, options):
    """Runs groups of checks in LANES processes, each of which takes the next one when it is done. Returns a line for each failure, and
    the names of checks whose time was over."""
    context = multiprocessing.get_context("fork")
    taken = context.Value("i", 0)

    def next_group():
        with taken.get_lock():
            taken.value += 1
            return taken.value - 1

    def run(lane, pipe):
        use_share_of_ports(lane, LANES)
        failed, late = [], []
        while (nth := next_group()) < len(waiting):
            failed += failures(waiting[nth], options, late)
        pipe.send((failed, late))

    pipes = []
    for lane in range(LANES):
        ours, theirs = context.Pipe(duplex=False)
        context.Process(target=run, args=(lane, theirs), daemon=True).start()
        theirs.close()
        pipes.append(ours)
    failed, late = [], []
    for lane, pipe in enumerate(pipes):
        try:
            of_lane = pipe.recv()
            failed += of_lane[0]
            late += of_lane[1]
        except EOFError:
            failed.append(f"FAIL lane {lane} of checks ended")
    return failed, late


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", type=pathlib.Path, default="target/release/weft", help="the weft to test")
    parser.add_argument("--site", type=pathlib.Path, default="target/site", help="what ./ci.sh site made")
    parser.add_argument("--scratch", type=pathlib.Path, help="where logs and screenshots go (beside the site)")
    parser.add_argument("--only", action="append", metavar="TEXT", help="only checks with TEXT in their name; may be repeated")
    parser.add_argument("--list", action="store_true", help="list the checks and run none")
    options = parser.parse_args()
    options.scratch = (options.scratch or options.site.parent / "system").resolve()
    options.binary, options.site = options.binary.resolve(), options.site.resolve()
    if not options.list:
        for path in (options.binary, options.site):
            if not path.exists():
                parser.error(f"{path} does not exist; ./ci.sh system makes it")
    return options


def raise_open_files():
    """Ten thousand connections need as many descriptors in the server and in this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def failures(checks, options, late=None):
    """Runs checks. Returns a line for each that fails. Where there is a list for those whose time was over, their names go there."""
    return list(filter(None, (failure_of(check, options, late) for check in checks)))


def failure_of(check, options, late=None):
    scratch = options.scratch / check.name.replace("/", "-")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    world = World(options.binary, options.site, scratch, check.variant)
    began, why, is_late = time.monotonic(), None, False
    signal.signal(signal.SIGALRM, took_too_long)
    signal.alarm(check.limit_s)
    try:
        check.run(world)
    except Failure as failure:
        why, is_late = str(failure), isinstance(failure, StillWaiting) and not world.has_fallen()
    except TookTooLong:
        is_late = not world.has_fallen()
        where = traceback.extract_tb(sys.exc_info()[2])[-1]
        why = f"not finished after {check.limit_s} s, at {pathlib.Path(where.filename).name}:{where.lineno}"
    except Exception as error:
        why = described(error)
    finally:
        signal.alarm(0)
        try:
            world.end()
        except Exception as error:
            why, is_late = why or f"at its end: {described(error)}", False
    took = time.monotonic() - began
    if why is None:
        note = f", {world.note}" if world.note else ""
        print(f"ok {check.name} ({took:.1f} s{note})\n", end="", flush=True)
        return None
    if is_late and late is not None:
        print(f"late {check.name}: {why}; it runs again by itself\n{world.last_words()}", end="", flush=True)
        late.append(check.name)
        kept = scratch.with_name(f"{scratch.name}.late")
        shutil.rmtree(kept, ignore_errors=True)
        scratch.rename(kept)
        return None
    line = f"FAIL {check.name}: {why}"
    print(f"{line}\n{world.last_words()}", end="", flush=True)
    return line


def described(error):
    where = [frame for frame in traceback.extract_tb(error.__traceback__) if "/system/" in frame.filename][-1]
    return f"{type(error).__name__}: {error} at {pathlib.Path(where.filename).name}:{where.lineno}"


def took_too_long(*_):
    raise TookTooLong


if __name__ == "__main__":
    sys.exit(main())
