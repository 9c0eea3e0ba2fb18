#!/usr/bin/env python3
"""The kernel's side of a link to a host of crate netstack (its example `answer`). It sends requests as any host would, and prints
`kept` if every promise was kept. Run it in its own network namespace.

    unshare --net tests/system/link.py EXAMPLE KIND
"""

import array
import fcntl
import os
import random
import select
import socket
import struct
import subprocess
import sys

OURS, THEIRS = ("10.9.0.1", "fd00:9::1"), ("10.9.0.2", "fd00:9::2")
# Longer than the limit of the check that runs this.
SECONDS_MAX = 60


def main():
    example, kind = sys.argv[1:]
    on_veth = kind.startswith(("packet", "xdp"))
    kernels, theirs = ("kernel", "stack") if on_veth else ("stack", "stack")
    if on_veth:
        ip("link", "add", kernels, "type", "veth", "peer", "name", theirs)
        # Without an address, the kernel sends nothing there.
        ip("link", "set", theirs, "addrgenmode", "none", "up")
    if kind == "xdp":
        make_checksums(kernels)
    host = subprocess.Popen([example, f"{kind}:{theirs}", f"{THEIRS[0]}/24", f"{THEIRS[1]}/64"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE)
    try:
        assert host.stdout.readline() == b"ready\n", "the host has not started"
        ip("address", "add", f"{OURS[0]}/24", "dev", kernels)
        ip("address", "add", f"{OURS[1]}/64", "dev", kernels, "nodad")
        ip("link", "set", kernels, "up")
        ask_all()
    finally:
        host.stdin.close()
    last = host.stdout.read().decode()
    assert host.wait(SECONDS_MAX) == 0, f"the host ended with {host.returncode}"
    merged, cut = int(last.split()[1]), int(last.split()[3])
    if kind in ("wire", "xdp"):
        assert (merged, cut) == (0, 0), f"offloads where there are none: {last}"
    else:
        assert merged > 0 and cut > 0, f"no frame was merged or cut: {last}"
    print("kept")


def make_checksums(interface):
    """Same as `ethtool -K INTERFACE tx off`: the kernel leaves neither checksums nor segmentation to the device."""
    set_transmit_checksum, siocethtool = 0x17, 0x8946
    value = array.array("I", [set_transmit_checksum, 0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sP8x", interface.encode(), value.buffer_info()[0])
        fcntl.ioctl(any_socket, siocethtool, request)


def ask_all():
    for theirs in THEIRS:
        for length in (0, 1, 56, 1400):
            ping(theirs, length)
        expect_refused(theirs)
        expect_no_listener(theirs)
        # Several connections, so that each of two queues gets some.
        for _ in range(8):
            mirror(theirs, [1, 1000, 1460, 1461, 30_000])
        mirror(theirs, [3_000_000])


def ping(theirs, length):
    """Checks that an echo of this length returns with the right identifier and bytes."""
    is_v6 = ":" in theirs
    request, reply, protocol = (128, 129, socket.IPPROTO_ICMPV6) if is_v6 else (8, 0, socket.IPPROTO_ICMP)
    data = random.randbytes(length)
    with socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_RAW, protocol) as raw:
        raw.settimeout(SECONDS_MAX)
        message = struct.pack("!BBHHH", request, 0, 0, os.getpid() & 0xffff, length) + data
        if not is_v6:
            # ICMPv6's checksum, which covers the addresses, is computed by the kernel.
            message = message[:2] + struct.pack("!H", checksum(message)) + message[4:]
        raw.sendto(message, (theirs, 0))
        while True:
            came, (source, *_) = raw.recvfrom(2000)
            came = came if is_v6 else came[20:]
            # The socket receives other messages as well, such as neighbour discovery's.
            if came[0] == reply and source == theirs:
                break
    assert came[4:] == message[4:], f"an echo of {length} bytes from {theirs} came back as {came[4:]!r}"
    assert is_v6 or checksum(came) == 0, "an echo with a wrong checksum"


def checksum(message):
    padded = message + b"\0" * (len(message) % 2)
    total = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return total ^ 0xffff


def expect_refused(theirs):
    """Checks that a datagram to an unused port gets an ICMP error, which the kernel reports to the sending socket."""
    with socket.socket(socket.AF_INET6 if ":" in theirs else socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(SECONDS_MAX)
        datagrams.connect((theirs, 999))
        datagrams.send(b"is it open?")
        try:
            datagrams.recv(100)
        except ConnectionRefusedError:
            return
    raise AssertionError(f"a datagram to {theirs} was not refused")


def expect_no_listener(theirs):
    try:
        socket.create_connection((theirs, 81), SECONDS_MAX).close()
    except ConnectionRefusedError:
        return
    raise AssertionError(f"{theirs} has a listener at a port where none is")


def mirror(theirs, lengths):
    """Checks that bytes return as they were sent. With the kernel's offloads on, both sides cut and merge segments."""
    with socket.create_connection((theirs, 80), SECONDS_MAX) as connection:
        connection.setblocking(False)
        for length in lengths:
            sent = random.randbytes(length)
            assert echo_of(connection, sent) == sent, f"other bytes than the {length} that were sent came back from {theirs}"
        connection.settimeout(SECONDS_MAX)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"", "more than was sent came back"


def echo_of(connection, sent):
    """Sends and reads in turns, since the host accepts no more than it can send back."""
    left, came = memoryview(sent), bytearray()
    while len(came) < len(sent):
        readable, writable, _ = select.select([connection], [connection] if left else [], [], SECONDS_MAX)
        assert readable or writable, f"{len(came)} of {len(sent)} bytes came back"
        if writable:
            left = left[connection.send(left):]
        if readable:
            piece = connection.recv(1 << 20)
            assert piece, f"the connection ended after {len(came)} of {len(sent)} bytes"
            came += piece
    return came


def ip(*words):
    subprocess.run(["ip", *words], check=True)


if __name__ == "__main__":
    main()
