"""The devices of crate netstack with the kernel as peer, each in its own network namespace: the example `answer` is a host there, and
`link.py` sends the requests."""

import pathlib

from world import check_over, expect, expect_equal

LINK = pathlib.Path(__file__).parent.parent / "link.py"


# `taps` and `packets` have two queues; `wire` is a TAP interface without offloads.
@check_over("tap", "taps", "wire", "packet", "packets", "xdp")
def a_host_answers_the_kernel(world, kind):
    expect_equal("what it says", world.output_of("unshare", "--net", LINK, example_of(world), kind), b"kept\n")


def example_of(world, name="answer", package="weftwork-netstack"):
    # Examples lie beside the binary, where ./ci.sh system has cargo build them.
    example = world.binary.parent / "examples" / name
    expect(example.exists(), f"{example} does not exist: cargo build --package {package} --example {name}, in the binary's profile")
    return example
