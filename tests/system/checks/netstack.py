"""The devices of crate netstack against the kernel, each in a network namespace of its own: its example `answer` is a host there, and
`link.py` is what asks."""

import pathlib

from world import check, expect, expect_equal

LINK = pathlib.Path(__file__).parent.parent / "link.py"


@check()
def a_host_on_a_tap_interface_answers_the_kernel(world):
    answers(world, "tap")


@check()
def a_host_on_two_queues_of_a_tap_interface_answers_the_kernel(world):
    answers(world, "taps")


@check()
def a_host_on_a_tap_interface_without_offloads_answers_the_kernel(world):
    answers(world, "wire")


@check()
def a_host_on_a_packet_socket_answers_the_kernel(world):
    answers(world, "packet")


@check()
def a_host_on_two_packet_sockets_answers_the_kernel(world):
    answers(world, "packets")


@check()
def a_host_on_af_xdp_answers_the_kernel(world):
    answers(world, "xdp")


def answers(world, kind):
    expect_equal("what it says", world.output_of("unshare", "--net", LINK, example_of(world), kind), b"kept\n")


def example_of(world):
    # Beside the binary, where cargo puts examples: ./ci.sh system builds both.
    example = world.binary.parent / "examples" / "answer"
    expect(example.exists(), f"{example} does not exist: cargo build --package weftwork-netstack --example answer, in the binary's profile")
    return example
