"""All command lines of docs/load.md: each is valid, and has the documented effect, scaled down to this machine."""

import itertools
import pathlib
import re
import shlex
import shutil

from peers import memcached, nginx
from world import check, expect, free_port

MANUAL = pathlib.Path(__file__).parents[3] / "docs" / "load.md"
# Durations, rates and counts, reduced to those of a check.
SMALLER = {
    "--sweep": "100,200", "--duration": "300ms", "-d": "300ms", "--pause": "0s", "--repeat": "1", "--rate": "200",
    "--idle": "100", "--connect-rate": "2k",
}


def lines_of_the_manual():
    """Lines of code blocks, without the explanations in columns behind them, and those of tables."""
    text = MANUAL.read_text()
    parts = re.split(r"^```\w*\n", text, flags=re.M)
    blocks, prose = re.sub(r"\\\n\s*", " ", "".join(parts[1::2])), "".join(parts[0::2])
    found = [re.split(r"\s{3,}", line)[0] for line in blocks.splitlines() if re.match(r"(mpirun .*)?weft load", line)]
    found += [line for line in re.findall(r"`([^`]+)`", prose) if re.match(r"weft load \w+ .", line)]
    return sorted({" ".join(line.split()) for line in found})


@check(limit_s=180)
def every_line_of_the_manual_runs(world):
    lines = lines_of_the_manual()
    expect(len(lines) >= 20, f"only {len(lines)} lines were found in {MANUAL}")
    # One set of folders for all lines: a scaled file set, the pages, and two more files.
    names = {"DIR": world.scratch / "set", "PAGES": world.scratch / "pages", "LOGS": world.scratch / "logs"}
    world.output_of(world.binary, "load", "fileset", names["DIR"], "--scale", "0.01")
    world.output_of(world.binary, "load", "fileset", names["PAGES"], "--model", "pages")
    world.output_of(world.binary, "load", "traces", names["DIR"], names["LOGS"], "--requests", 200, "--think", 0)
    shutil.copytree(names["PAGES"], names["DIR"], dirs_exist_ok=True, ignore=shutil.ignore_patterns("fileset.tsv"))
    for name, content in (("a.txt", b"some text"), ("1k.html", b"x" * 1024), ("index.html", b"hello")):
        (names["DIR"] / name).write_bytes(content)
    with nginx(world, names["DIR"]) as (url, _), memcached(world) as cache:
        for name in ("a.json", "b.json"):
            world.output_of(world.binary, "load", "http", f"{url}/a.txt", "-d", "200ms", "--json", world.scratch / name)
        wrong = []
        for line in lines:
            words = line.replace("…", "http URL -d 300ms").split("weft load ", 1)[1]
            wrong += refused(world, words)
            if "--network" in words:
                continue  # It needs a link of its own: load_netstack.py runs such lines.
            wrong += ended_otherwise(world, line, scaled(words, url, cache.port, names))
        expect(not wrong, f"{len(wrong)} of {len(lines)}:\n" + "\n".join(wrong))
        world.note = f"{len(lines)} lines"


def refused(world, words):
    """Runs a line against a port without a listener: a valid one finds no server. Lines that need files run below."""
    if "--help" in words or re.search(r"fileset|traces|merge|sessions|paths|agents", words):
        return []
    port = free_port()
    for name, real in (("HOST:11211", f"127.0.0.1:{port}"), ("127.0.0.1:11211", f"127.0.0.1:{port}"), ("127.0.0.1:8080", f"127.0.0.1:{port}"),
                       ("http://HOST", f"http://127.0.0.1:{port}"), ("URL", f"http://127.0.0.1:{port}/")):
        words = words.replace(name, real)
    process = world.start(world.binary, "load", *shlex.split(words), cwd=world.scratch)
    _, err = process.communicate(timeout=20)
    said = err.decode().strip()
    return [] if process.returncode == 1 and "is the server running?" in said else [f"{words}: {process.returncode} {said[:300]}"]


def scaled(words, url, port, names):
    words = words.replace("HOST:11211", f"127.0.0.1:{port}").replace("127.0.0.1:11211", f"127.0.0.1:{port}")
    words = re.sub(r"http://(HOST|server|127\.0\.0\.1:8080)", url, words).replace("URL", f"{url}/a.txt")
    words = re.sub(r"\blogs/|\bLOGS\b/?", f"{names['LOGS']}/", words)
    words = re.sub(r"(?<=[ =])(DIR|PAGES)\b", lambda found: str(names[found[1]]), words)
    if words.startswith("fileset ") and "--table" not in words:
        words += " --scale 0.01"
    if "--rendezvous" in words:
        words = re.sub(r"--(rendezvous|agents|rank) \S+", "", words)
    typed = shlex.split(words)
    for at, (word, _) in enumerate(itertools.pairwise(typed)):
        if word in SMALLER and not (word == "-d" and "/" in typed[at + 1]):
            typed[at + 1] = SMALLER[word]
        if word in ("-c", "--connections"):
            typed[at + 1] = str(min(64, int(float(typed[at + 1].replace("k", "e3")))))
    if "--fileset" in typed:
        # The file set lies below the server's root.
        typed += ["--verify"] if "--verify" not in typed else []
    if not {"-d", "--duration"} & set(typed) and typed[0] in ("http", "cache", "idle"):
        typed += ["-d", "300ms"]
    return typed


def ended_otherwise(world, line, typed):
    process = world.start(world.binary, "load", *typed, cwd=world.scratch)
    _, err = process.communicate(timeout=60)
    said = err.decode().strip()
    # A busy machine finds the generator's knee, and says so.
    is_ours = "--knee" in typed and process.returncode == 1 and "the generator was the bottleneck" in said
    return [] if process.returncode == 0 or is_ours else [f"{line}\n    as {' '.join(typed)}: {process.returncode} {said[:300]}"]
