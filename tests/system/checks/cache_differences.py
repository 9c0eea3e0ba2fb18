"""`weft cache` beside memcached itself: conversations that were thought of. cache_fuzz.py compares random operations,
by hand: the memcached that Debian 12 has answers malformed lines in another way than 1.6.45, which is the model."""

import cache_oracle
from memcache import cache
from peers import answers
from world import ALL, check, expect, free_port, wait_for


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


def memcached(world, *flags):
    """Starts memcached and returns its address."""
    port = free_port()
    world.start("memcached", "-u", "root", "-l", "127.0.0.1", "-p", port, "-I", "1m", *flags)
    wait_for("memcached listens", lambda: answers(port))
    return f"127.0.0.1:{port}"


def address(server):
    return f"{server.host}:{server.port}"
