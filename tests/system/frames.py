"""HTTP/2 frames of a peer that may violate any rule. RFC 9113"""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION, PRIORITY_UPDATE = 0, 1, 3, 4, 6, 7, 8, 9, 16
END_STREAM, END_HEADERS = 1, 4
WINDOW_MAX = (1 << 31) - 1


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    """A literal field of at most 126 bytes, without indexing."""
    assert len(name) < 127 and len(value) < 127, "longer ones need another form"
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def settings(*values):
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *value) for value in values))


def get(stream, path=b"/small.txt", more=b"", ends=True):
    block = b"\x82\x86" + literal(b":path", path) + literal(b":authority", b"h") + more
    return frame(HEADERS, END_HEADERS | ends, stream, block)


def window(stream, increment):
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))


def reset(stream):
    return frame(RST_STREAM, 0, stream, struct.pack(">I", 8))
