#!/usr/bin/env python3
"""The system suite: real clients, real signals and real limits against the release binary.

    tests/system/run.py --binary target/release/weft --site target/site [--only TEXT] [--list]

Started by `./ci.sh system`, which builds both and installs the clients. Needs root. Every check runs against its own
servers, within a time limit, and ends its processes by their ids. Checks mostly wait, so LANES of them run at a time:
each lane takes the next module. Those in ALONE come last, one by one. Output:

    ok NAME (SECONDS)           or           FAIL NAME: why

and finally the number and names of failed checks. Files of a failed check stay below target/system.

A check that exceeds a time limit while its servers are well runs again, once, alone, and the second result counts: on a
machine that stood still, an expired wait, a client's time-out or a slow reply are no evidence against a server. Any other
fault fails at once, and so do more than LATE_MAX such moments. Files of the first try are kept as NAME.late, with the
wait state of each process. The last lines give the longest time for which the machine gave this process no processor,
and the network packets that it dropped.
"""

import argparse
import multiprocessing
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback

from machine import Drops, Standstill, roomy_network
from world import REGISTRY, Failure, StillWaiting, TookTooLong, World, use_share_of_ports
import checks

LANES = 3
# Limit of standstills. One affects every lane: checks late within LATE_APART_S of each other count as one.
LATE_MAX = 6
LATE_APART_S = 15
# A passed check's files of this size are deleted.
LARGE = 1 << 20
# Free space that the suite's files need while it runs.
SPACE_GB = 4
# The slowest modules, which begin first.
LONG = ["cache_clients", "http2", "netstack_engine", "acme", "starts", "crowds", "lifecycle"]
# Modules that share the account whose threads are counted, so one lane takes both.
TOGETHER = [{"load_attacks", "starts"}]
# Modules that measure, or change global state of the machine.
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
    options.scratch.mkdir(parents=True, exist_ok=True)
    if (free_gb := shutil.disk_usage(options.scratch).free / 1e9) < SPACE_GB:
        sys.exit(f"the system suite writes up to {SPACE_GB} GB below {options.scratch}, where {free_gb:.1f} GB are free")
    raise_open_files()
    # Ctrl-C and a cancelled CI run must unwind the stack, so that no server and no changed sysctl remains.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wanted = [check for check in REGISTRY if check.is_wanted(options.only or [])]
    if not wanted:
        sys.exit(f"no check has {' or '.join(options.only)} in its name; see --list")
    with roomy_network():
        return run_all(wanted, options)


def run_all(wanted, options):
    standstill, drops = Standstill(), Drops()
    failed, late = failures_of_lanes(groups([check for check in wanted if check.module not in ALONE]), options)
    failed += failures([check for check in wanted if check.module in ALONE], options, late)
    names = {name for name, _ in late}
    failed += failures([check for check in wanted if check.name in names], options)
    if moments(late) > LATE_MAX:
        failed.append(f"FAIL {len(late)} checks were too late at first, at {moments(late)} moments: this is no single standstill")
    told = "; ".join(filter(None, (f"the machine stood still for {standstill.longest_s:.1f} s at most", str(drops))))
    print(f"{told}; too late at first: {', '.join(sorted(names)) or 'none'}")
    print(f"{len(wanted) - len(failed)} passed, {len(failed)} failed", *failed, sep="\n", flush=True)
    return 1 if failed else 0


def moments(late):
    """Number of moments of lateness: checks within LATE_APART_S of each other count once."""
    ends_s = sorted(end_s for _, end_s in late)
    return sum(nth == 0 or end_s - ends_s[nth - 1] > LATE_APART_S for nth, end_s in enumerate(ends_s))


def groups(checks):
    """Groups of checks that one lane runs in a row: those of a module, or of modules that share a resource."""
    found = {}
    for check in checks:
        modules = next((together for together in TOGETHER if check.module in together), {check.module})
        found.setdefault(tuple(sorted(modules)), []).append(check)
    last = len(LONG)
    return [found[modules] for modules in sorted(found, key=lambda modules: min(place(LONG, one, last) for one in modules))]


def place(names, name, otherwise):
    return names.index(name) if name in names else otherwise


def failures_of_lanes(waiting, options):
    """Runs groups of checks in LANES processes, each of which takes the next one when it is done. Returns a line per failure, and the names
    of late checks with the time of their end."""
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
    """Raises the limit on descriptors: ten thousand connections need as many in the server and in this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def failures(checks, options, late=None):
    """Runs checks. Returns a line per failure; late checks are added to `late` instead, if it is given."""
    return list(filter(None, (failure_of(check, options, late) for check in checks)))


def failure_of(check, options, late=None):
    scratch = options.scratch / check.name.replace("/", "-")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    world = World(options.binary, options.site, scratch, check.variant)
    began, drops, why, is_late = time.monotonic(), Drops(), None, False
    signal.signal(signal.SIGALRM, took_too_long)
    signal.alarm(check.limit_s)
    try:
        check.run(world)
    except Failure as failure:
        why, is_late = str(failure), is_late_by(failure)
    except TookTooLong:
        why, is_late = f"not finished after {check.limit_s} s, at {place_of(sys.exc_info()[2])}", True
    except Exception as error:
        why, is_late = described(error), is_late_by(error)
    finally:
        signal.alarm(0)
        is_late = is_late and not world.has_fallen()
        if is_late:
            world.keep_state()
        try:
            world.end()
        except Exception as error:
            is_late = is_late_by(error) and (is_late or why is None)
            why = why or f"at its end: {described(error)}"
    took = time.monotonic() - began
    if why is None:
        remove_large_files(scratch)
        note = f", {world.note}" if world.note else ""
        print(f"ok {check.name} ({took:.1f} s{note})\n", end="", flush=True)
        return None
    why = "; meanwhile ".join(filter(None, (why, str(drops))))
    if is_late and late is not None:
        print(f"late {check.name}: {why}; it runs again by itself\n{world.last_words()}", end="", flush=True)
        late.append((check.name, time.monotonic()))
        kept = scratch.with_name(f"{scratch.name}.late")
        shutil.rmtree(kept, ignore_errors=True)
        scratch.rename(kept)
        return None
    line = f"FAIL {check.name}: {why}"
    print(f"{line}\n{world.last_words()}", end="", flush=True)
    return line


def remove_large_files(scratch):
    """Keeps logs and screenshots, and deletes generated pages and downloads, which are gigabytes over the whole suite."""
    for path in scratch.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size > LARGE:
            path.unlink(missing_ok=True)


def is_late_by(error):
    """True if the only fault is an expired wait: of a check, of a client's socket, or for the end of a process."""
    # urllib wraps the socket's error.
    return isinstance(error, (StillWaiting, subprocess.TimeoutExpired)) or isinstance(getattr(error, "reason", error), TimeoutError)


def described(error):
    return f"{type(error).__name__}: {str(error)[:300]} at {place_of(error.__traceback__)}"


def place_of(trace):
    """Last line of the suite in the trace, without the handler of the time limit."""
    frames = [frame for frame in traceback.extract_tb(trace) if "/system/" in frame.filename and frame.name != took_too_long.__name__]
    return f"{pathlib.Path(frames[-1].filename).name}:{frames[-1].lineno}"


def took_too_long(*_):
    raise TookTooLong


if __name__ == "__main__":
    sys.exit(main())
