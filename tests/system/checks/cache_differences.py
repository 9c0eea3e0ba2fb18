"""`weft cache` compared with current memcached: written conversations, and random operations."""

import cache_fuzz
import cache_oracle
from memcache import cache
from peers import answers
from world import ALL, check, expect, free_port, wait_for

# Enough to find all differences that were found at first; other seeds are tried by hand.
SEED, OPERATIONS = 1, 100_000


@check(*ALL, limit_s=90)
def cache_answers_conversations_as_memcached_does(world):
    with cache(world, "-I", "1m") as ours:
        expect(cache_oracle.main([memcached(world), address(ours)]) == 0, "they differ where it says FAIL above")


@check(*ALL)
def cache_authenticates_as_memcached_does(world):
    users = world.scratch / "users"
    users.write_text("joe:secret\nann:p:w\n")
    with cache(world, "-Y", users) as ours:
        addresses = [memcached(world, "-Y", users), address(ours)]
        expect(cache_oracle.main(["--ascii-auth", *addresses]) == 0, "they differ where it says FAIL above")


@check(limit_s=240)
def cache_answers_random_operations_as_memcached_does(world):
    with cache(world, "-I", "1m") as ours:
        addresses = [memcached(world, "-o", "no_lru_maintainer"), address(ours)]
        done, failed = cache_fuzz.run(addresses, SEED, OPERATIONS)
        expect(failed == 0, "they differ where it says FAIL above")
        world.note = f"{done} operations from seed {SEED}"


def memcached(world, *flags):
    """Starts memcached and returns its address."""
    port = free_port()
    world.start("memcached", "-u", "root", "-l", "127.0.0.1", "-p", port, "-I", "1m", *flags)
    wait_for("memcached listens", lambda: answers(port))
    return f"127.0.0.1:{port}"


def address(server):
    return f"{server.host}:{server.port}"
