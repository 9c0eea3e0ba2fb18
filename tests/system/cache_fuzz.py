#!/usr/bin/env python3
"""Compares a cache with memcached over random operations: text, meta and binary, mixed, pipelined and cut.

    cache_fuzz.py MEMCACHED OURS [--seed N] [--operations N]     two addresses, HOST:PORT or a Unix socket's path

A session flushes both caches and then sends the same batches of operations to both, each batch over a new connection.
The replies must be byte-identical after normalisation: cas numbers become their order of first appearance, times to live
the nearest start value, idle times and item sizes a placeholder. A session that differs is shrunk until each operation
is needed, and printed with the seed that replays it.

Operations on which memcached 1.6.45 differs for a known reason are left out; LEFT_OUT lists them with the reasons.
Both servers are flushed repeatedly, so use servers for this purpose alone, with -I 1m, and memcached with
-o no_lru_maintainer: items held by that thread are counted into a new item, not where they are.
"""

import argparse
import base64
import random
import re
import struct
import sys
import time

from cache_oracle import NOOP, connect, converse, count, header, store, u32

LEFT_OUT = """
* E (all), S (mg), x (md), N with MA or MP (ms), s and c (ms and md): covered by the conversations of cache_oracle.py.
* A key above 250 bytes in a get: memcached drops the replies of the whole packet, and adds an empty line.
* Lines above 2,000 bytes: memcached's buffer ends the conversation at a place that depends on the packets.
* Exptimes beyond 2038: memcached truncates them to 32 bits, so the items have expired; here they have not.
* Flags of meta commands other than letters: memcached's error differs, and it executes the value of an ms as commands.
* Missing flags or exptime, which turn a cas number into the length of a value.
* A minus alone, which memcached reads as 0, and negative flags.
* NUL in a line, which ends memcached's C string; here it is an ordinary byte.
* Unknown binary opcodes, t after a negative T, and a negative N: faults of older versions.
* incr and decr of a blank value: memcached reads past the value, into the chunk's old content.
* incr and decr of a value that the same packet read: memcached then omits the spaces after a shortened number.
* incr and decr from 2^63 on: memcached looks for a minus after the number, in the chunk's old content.
* Bytes other than a binary header: memcached closes without sending the replies before them.
* T of an ma that lengthens its number: memcached sets the time of the discarded version.
* Opaques of 32 bytes and more in ma and mg: memcached executes the command and then refuses it.
* Bad Base64 beside another bad token: memcached reports the later one.
* N with u (mg): the created item counts as fetched here, and not in memcached.
* Base64 with padding inside, which memcached takes as the end.
* k in plain text for a key that was stored in Base64: memcached shows it in Base64.
* Delayed flush_all and exptimes of seconds: their replies depend on when the clock ticks.
"""

TRIES = 4  # for a session that differs
SILENCE_S = 20  # of silence that count as a server's answer
TTLS = (100, 1000, 20000, 300000, 2000000)  # far apart, so that passing seconds do not turn one into another
KEYS = (b"a", b"b", b"c", b"d", b"number", b"k" * 249, b"k" * 250, b"bin\xff\x80", b"x:y", b"\x01\x7f")
BASE64_KEYS = (b"Zm9v", b"YmFy", b"/w==", b"Zm9vYmFyYmF6", b"AAEC", b"DQog")
BAD_BASE64 = (b"Zm9", b"!!!!", b"Z===")
BLANK_KEYS = (b"c", b"k" * 249)  # may hold an empty value, and are never counted
NUMBERS = (b"0", b"1", b"9", b"10", b"99", b"100", b"255", b"4294967295", b"4294967296", b"9223372036854775807",
           b"9223372036854775808", b"18446744073709551614", b"18446744073709551615")
BAD_NUMBERS = (b"", b"x", b"-1", b"+", b"1x", b"18446744073709551616", b"99999999999999999999999", b"0x10",
               b"1.5", b"-9223372036854775808", b"-18446744073709551615", b"--1")
VALUES = (b"x", b"hi", b"5", b"10", b"007", b"9000000000000000000", b"18446744073709551616", b"1 ", b"12   ",
          b" 12", b"+3", b"9\x00", b"12\x0099", b"12abc", b"1\t", b"1\n2", b"a\r\nb", b"99999", b"x" * 40,
          b"y" * 500, b"1" + b" " * 100, b"1" + b" " * 30, b"0" * 19 + b"7", b"0" * 30)
LONG_KEY = b"k" * 251


def base64_key(word):
    """The key that a word in Base64 stands for."""
    return base64.b64decode(word) if word in BASE64_KEYS else b"none"


class Draw(random.Random):
    """Random operations."""

    read = set()  # keys that this batch reads

    def one_of(self, *choices):
        return choices[self.randrange(len(choices))]

    def chance(self, percent):
        return self.randrange(100) < percent

    def key(self):
        return LONG_KEY if self.chance(1) else self.choice(KEYS)

    def read_key(self, is_long=False):
        key = LONG_KEY if is_long and self.chance(1) else self.choice(KEYS)
        self.read.add(key)
        return key

    def counted_key(self):
        keys = [key for key in KEYS if key not in self.read and key not in BLANK_KEYS]
        return LONG_KEY if self.chance(1) or not keys else self.choice(keys)

    def number(self, bad=6):
        if self.chance(bad):
            return self.choice(BAD_NUMBERS)
        return self.choice(NUMBERS) if self.chance(70) else b"%d" % self.getrandbits(self.randrange(1, 65))

    def small_number(self, bad):
        """A summand: many of them stay below 2^63."""
        return self.choice(BAD_NUMBERS) if self.chance(bad) else b"%d" % self.getrandbits(self.randrange(1, 41))

    def ttl(self, bad=3):
        if self.chance(bad):
            return self.one_of(b"x", b"1x", b"18446744073709551616", b"+1x")
        return self.one_of(b"0", b"0", b"0", b"-1", b"-100", *(b"%d" % ttl for ttl in TTLS))

    def value(self, key):
        if key in BLANK_KEYS and self.chance(20):
            return self.one_of(b"", b"\r\n", b" ")
        if self.chance(4):
            return b"v" * self.one_of(1000, 1023, 1024, 1025)
        return self.choice(VALUES)

    def flags(self):
        number = self.number(2) if self.chance(40) else b"0"
        return b"x" if number.startswith(b"-") or not number else number

    def noreply(self):
        return b" noreply" if self.chance(12) else b" foo" if self.chance(1) else b""

    # Text.

    def text(self):
        kind = self.randrange(100)
        if kind < 22:
            return self.retrieval()
        if kind < 50:
            return self.storage()
        if kind < 60:
            verb = self.one_of(b"incr", b"decr")
            words = [verb, self.counted_key(), self.small_number(6) if verb == b"incr" else self.number()]
            if self.chance(3):
                words.pop()
            return b" ".join(words) + self.noreply() + b"\r\n"
        if kind < 66:
            return b"delete " + self.key() + (self.one_of(b" 0", b" 1", b" x", b"") if self.chance(10) else b"") \
                + self.noreply() + b"\r\n"
        if kind < 72:
            return b"touch " + self.key() + b" " + self.ttl() + self.noreply() + b"\r\n"
        if kind < 74:
            return self.one_of(b"mn\r\n", b"version\r\n", b"\r\n", b"foo\r\n", b"get\r\n", b"set a\r\n", b"gat\r\n", b"mg\r\n",
                               b"ms\r\n", b"md\r\n", b"ma\r\n", b"me\r\n", b"ms a\r\n", b"verbosity 0\r\n", b"verbosity\r\n",
                               b"incr\r\n", b"touch a\r\n", b"cas a 0 0 1\r\n", b"  \r\n", b"gets \r\n", b"mn x\r\n")
        if kind < 75:
            return b"flush_all" + self.one_of(b"", b" 0", b" noreply", b" x", b" 0 noreply", b" -1") + b"\r\n"
        return self.meta()

    def retrieval(self):
        keys = [self.read_key() for _ in range(self.one_of(1, 1, 1, 2, 3, 7))]
        words = self.one_of([b"get"], [b"get"], [b"gets"], [b"gets"], [b"gat", self.ttl()], [b"gats", self.ttl()])
        return self.one_of(b" ", b" ", b" ", b"  ").join(words + keys) + self.one_of(b"\r\n", b"\r\n", b"\r\n", b"\n", b" \r\n")

    def storage(self):
        verb = self.one_of(b"set", b"set", b"set", b"add", b"replace", b"append", b"prepend", b"cas")
        key = self.key()
        value = self.value(key) if key != LONG_KEY else b"x"
        flags, ttl = self.flags(), self.ttl(2)
        if not re.fullmatch(rb"\d+ -?\d{1,10}", flags + b" " + ttl):
            value = value[:40]  # short enough to be read as a line
        length = b"%d" % len(value)
        if self.chance(2):
            value = value[:40]
            length = self.one_of(b"%d" % (len(value) + 1), b"%d" % max(len(value) - 1, 0), b"-1", b"x")
        words = [verb, key, flags, ttl, length]
        cas = None
        if verb == b"cas":
            if self.chance(90):
                words.append(b"%CAS%")
                cas = (key, self.one_of(0, 0, 0, -1, 1 << 40))
            else:
                words.append(self.token(b"C", b"cas"))
        line = b" ".join(words) + self.noreply() + b"\r\n" + value + b"\r\n"
        return (line, cas) if cas else line

    def meta(self):
        verb = self.one_of(b"mg", b"mg", b"mg", b"ms", b"ms", b"md", b"ma", b"ma", b"me")
        is_base64 = self.chance(8) and verb in (b"mg", b"ms", b"md")
        key = self.counted_key() if verb == b"ma" else self.read_key(True) if verb == b"mg" else self.key()
        if is_base64:
            key = self.choice(BASE64_KEYS) if self.chance(85) else self.choice(BAD_BASE64)
        if verb == b"me":
            return b"me " + key + b"\r\n"
        letters = {b"mg": b"cfhklqstuvOTNRPLMIDJFC", b"ms": b"kqOTCFIMPLhltfuvRDJ", b"md": b"kqOTCIPLFhltfuvRNDJM",
                   b"ma": b"ckqtvOTCNJDMPLhlfsuRFI"}[verb]
        own = {b"mg": b"ckfhlstuvqOTNR", b"ms": b"kqOTCFIM", b"md": b"kqOTCI", b"ma": b"ckqtvOTCNJDM"}[verb]
        drawn = [self.choice(own if self.chance(93) else letters) for _ in range(self.one_of(0, 1, 2, 2, 3, 4, 5, 6))]
        if not self.chance(3):
            drawn = list(dict.fromkeys(drawn))
        if verb == b"mg" and key not in BLANK_KEYS and ord("N") in drawn:
            drawn.remove(ord("N"))  # it would make an empty value
        if verb == b"mg" and ord("N") in drawn and ord("u") in drawn:
            drawn.remove(ord("u"))
        if verb == b"ms" and ord("N") in drawn and ord("M") in drawn:
            drawn.remove(ord("N"))
        if verb == b"ma" and ord("T") in drawn:
            drawn = [at for at in drawn if at not in b"TM"]
            is_down, drawn = True, drawn + [ord("T"), ord("M")]
        else:
            is_down = False
        cas = None
        words = []
        for letter in drawn:
            letter = bytes([letter])
            token = self.token(letter, verb)
            if is_down and letter == b"M":
                token = self.one_of(b"D", b"-")
            if letter == b"N" or letter == b"T" and set(b"tN") & set(drawn):
                token = token.lstrip(b"-")
            if letter == b"C" and self.chance(85):
                token, cas = b"%CAS%", (base64_key(key) if is_base64 else key, self.one_of(0, 0, 0, -1, 1 << 40))
            # memcached refuses a long opaque only after the operation.
            if letter == b"O" and len(token) > 31 and verb in (b"ma", b"mg"):
                token = token[:31]
            words.append(letter + token)
        if key in BAD_BASE64:
            words, cas = [word for word in words if word[:1] not in b"TNRCFJDMO"], None
        if is_base64:
            words.append(b"b")
        if self.chance(1):
            words.append(self.one_of(b"z", b"a", b"Z", b"S5" if verb == b"ms" else b"z"))
        self.shuffle(words)
        head = [verb, key]
        value = b""
        if verb == b"ms":
            value = self.value(key) if key != LONG_KEY else b"x"
            if self.chance(98):
                head.append(b"%d" % len(value))
            else:
                value = value[:40]
                head.append(self.one_of(b"%d" % (len(value) + 1), b"x", b"-1", b""))
            value += b"\r\n"
        line = b" ".join(head + words) + b"\r\n" + value
        return (line, cas) if cas else line

    def token(self, letter, verb):
        if letter == b"O":
            return self.one_of(b"1", b"123", b"x", b"", b"o" * 30, b"o" * 31, b"o" * 32, b"\x01")
        if letter in b"TNR":
            return self.ttl(4) if letter != b"R" else self.one_of(b"50", b"500", b"5000", b"0", b"-1", b"x", b"500000")
        if letter in b"PL":
            return self.one_of(b"", b"x", b"1", b"/path/to")
        if letter == b"C":  # far from either server's cas numbers
            return self.one_of(b"0", b"9223372036854775808", b"18446744073709551615", self.choice(BAD_NUMBERS))
        if letter == b"F":
            return self.number(8)
        if letter in b"JD":
            return self.small_number(8)
        if letter == b"M":
            if verb == b"ms":
                return self.one_of(b"S", b"E", b"A", b"P", b"R", b"s", b"e", b"a", b"p", b"r", b"set", b"X", b"")
            return self.one_of(b"I", b"D", b"i", b"d", b"+", b"-", b"incr", b"X", b"")
        return b"1" if self.chance(2) else b""

    # Binary.

    def binary(self):
        key = self.choice(KEYS)
        kind = self.randrange(100)
        if kind < 38:
            self.read.add(key)
        elif kind in range(80, 95):
            key = self.counted_key()
            if key == LONG_KEY:
                return NOOP
        opaque = self.getrandbits(32)
        cas = (key, self.one_of(0, 0, -1, 1 << 40)) if self.chance(25) else None
        ttl = self.one_of(0, 0, 0, *TTLS)
        if kind < 30:
            request = header(self.one_of(0x00, 0x09, 0x0C, 0x0D), key, opaque=opaque)
        elif kind < 38:
            request = header(self.one_of(0x1C, 0x1D, 0x1E, 0x23, 0x24), key, u32(ttl), opaque=opaque)
        elif kind < 62:
            opcode = self.one_of(0x01, 0x01, 0x11, 0x02, 0x12, 0x03, 0x13)
            request = store(opcode, key, self.value(key), self.getrandbits(32), ttl, opaque=opaque)
        elif kind < 72:
            opcode = self.one_of(0x0E, 0x0F, 0x19, 0x1A)
            request = header(opcode, key, value=self.value(key), opaque=opaque)
        elif kind < 80:
            request = header(self.one_of(0x04, 0x14), key, opaque=opaque)
        elif kind < 95:
            delta, initial = int(self.small_number(0)), int(self.small_number(0))
            request = count(self.one_of(5, 6, 0x15, 0x16), key, delta, initial,
                            self.one_of(0xFFFFFFFF, 0, *TTLS), opaque=opaque)
        elif kind < 96:
            request, cas = header(self.one_of(0x08, 0x18), opaque=opaque), None
        else:
            request, cas = header(self.one_of(0x0A, 0x0A, 0x0B), opaque=opaque), None
        return (request, cas) if cas else request

    def last_binary(self):
        """An operation that may close the connection, and therefore comes last."""
        key = self.choice(KEYS)
        return self.one_of(
            header(self.one_of(0x07, 0x17)), header(0, b""), header(0, b"k" * 251), header(0, key, b"1234"),
            header(1, key, b"1234"), header(1, key), header(0x1C, key), header(5, key, b"x" * 19), header(4, key, value=b"x"),
            header(8, extras=b"12"), header(8, key), header(0x0A, key), header(0, key, lens=(len(key), 0, 0)), header(0x0E, key, b"12345678", b"v"))

    def session(self, binary_percent):
        """Batches: a protocol, operations, and the number of cuts."""
        batches = []
        for _ in range(self.randrange(4, 16)):
            depth = self.one_of(1, 2, 4, 8, 16, 32, 64)
            is_binary = self.chance(binary_percent)
            self.read = set()
            operations = [self.binary() if is_binary else self.text() for _ in range(depth)]
            is_closing = is_binary and self.chance(15)
            if is_closing:
                operations.append(self.last_binary())
            if not is_binary:
                # No data block longer than announced may come last: memcached would drop the replies before it.
                operations.append(self.one_of(b"quit\r\n", b"mn\r\nquit\r\n", b"mn\r\n", b"mn\r\n", b"mn\r\n"))
            cut_count = self.randrange(13) if self.chance(40) else 0
            # No cuts: memcached closes with unread bytes after a bad header, and the kernel then drops its replies.
            batches.append((is_binary, operations, 0 if is_closing else cut_count))
        return batches


class Peer:
    """One of the two servers during a session."""

    def __init__(self, address):
        self.address, self.order = address, {0: b"0"}
        self.talk(b"flush_all\r\n")

    def cas_of(self, key):
        """The item's current cas number; 1 without an item."""
        reply = self.talk(b"mg " + base64.b64encode(key) + b" b c\r\n")
        found = re.match(rb"HD c(\d+)", reply)
        return int(found.group(1)) if found else 1

    def render(self, is_binary, operations):
        """The bytes of a batch, with this server's cas numbers."""
        known = {}
        sent = []
        for operation in operations:
            if isinstance(operation, bytes):
                sent.append(operation)
                continue
            request, (key, change) = operation
            if key not in known:
                known[key] = self.cas_of(key) if len(key) <= 250 else 1
            cas = max(known[key] + change, 1)
            sent.append(request[:16] + struct.pack(">Q", cas) + request[24:] if is_binary
                        else request.replace(b"%CAS%", b"%d" % cas))
        return b"".join(sent)

    def talk(self, sent, cuts=()):
        if len(sent) > 60_000:
            return converse(self.address, sent, cuts)
        peer = connect(self.address)
        peer.settimeout(SILENCE_S)
        replied = bytearray()
        try:
            at = 0
            for cut in (*cuts, len(sent)):
                peer.sendall(sent[at:cut])
                at = cut
            peer.shutdown(1)
            while piece := peer.recv(1 << 18):
                replied += piece
        except TimeoutError:
            replied += b"<the server said no more and did not close>"
        except OSError:
            pass  # the server may close first
        peer.close()
        return bytes(replied)

    def seen(self, cas):
        return self.order.setdefault(cas, b"cas%d" % len(self.order))

    def same_text(self, replied):
        replied = re.sub(rb"VERSION [^\r]*", b"VERSION", replied)
        replied = re.sub(rb"(VALUE \S+ \d+ \d+) (\d+)\r", lambda m: m[1] + b" " + self.seen(int(m[2])) + b"\r", replied)
        replied = re.sub(rb"exp=\S+ la=\d+ cas=(\d+) (fetch=\w+) cls=\d+ size=\d+",
                         lambda m: b"ME " + self.seen(int(m[1])) + m[2], replied)
        return re.sub(rb"(?m)^(?:VA \d+|HD|EX|NS|NF|EN) [^\r\n]*", lambda m: self.same_flags(m[0]), replied)

    def same_flags(self, line):
        line = re.sub(rb" c(\d+)", lambda m: b" c" + self.seen(int(m[1])), line)
        line = re.sub(rb" t(\d+)", lambda m: b" t%d" % min((at for at in (0, *TTLS) if at >= int(m[1])), default=-9), line)
        return re.sub(rb" l\d\b", b" l", line)

    def same_binary(self, replied):
        replies, at = [], 0
        while len(replied) - at >= 24:
            head, cas = replied[at : at + 16], struct.unpack_from(">Q", replied, at + 16)[0]
            body = replied[at + 24 : at + 24 + struct.unpack_from(">I", head, 8)[0]]
            at += 24 + len(body)
            if head[1] == 0x0B:
                head, body = head[:8], b"version"
            replies.append((head, self.seen(cas), body))
        return replies, replied[at:]


def differs(addresses, session, seed):
    """Runs a session; returns the difference, or None."""
    peers = [Peer(address) for address in addresses]
    for at, (is_binary, operations, cut_count) in enumerate(session):
        draw = random.Random(f"{seed}/{at}")
        replies = []
        for peer in peers:
            sent = peer.render(is_binary, operations)
            cuts = sorted(draw.randrange(len(sent)) for _ in range(cut_count)) if sent else []
            replied = peer.talk(sent, cuts)
            replies.append(peer.same_binary(replied) if is_binary else peer.same_text(replied))
        if replies[0] != replies[1]:
            return at, replies
    return None


def smaller(addresses, session, seed):
    """The smallest part of a session that still differs, found by leaving operations out."""
    flat = [(at, operation) for at, (_, operations, _) in enumerate(session) for operation in operations]

    def rebuilt(parts, cuts=True):
        batches = []
        for at, (is_binary, _, cut_count) in enumerate(session):
            operations = [operation for place, operation in parts if place == at]
            if operations:
                batches.append((is_binary, operations, cut_count if cuts else 0))
        return batches

    cuts = not differs(addresses, rebuilt(flat, False), seed)
    width = max(len(flat) // 2, 1)
    while width:
        at = 0
        while at < len(flat):
            without = flat[:at] + flat[at + width :]
            if without and differs(addresses, rebuilt(without, cuts), seed):
                flat = without
            else:
                at += width
        width //= 2
    return rebuilt(flat, cuts)


def show(session, found):
    at, (theirs, ours) = found
    for is_binary, operations, cuts in session[: at + 1]:
        print("  " + ("binary" if is_binary else "text") + (f", cut {cuts} times" if cuts else ""))
        for operation in operations:
            request, cas = (operation, None) if isinstance(operation, bytes) else operation
            print(f"    {request if len(request) < 400 else request[:200] + b' ... ' + request[-100:]!r}" + (f" cas of {cas}" if cas else ""))
    print(f"  memcached {str(theirs)[-1500:]}\n  ours      {str(ours)[-1500:]}", flush=True)


def run(addresses, seed, operations_min, failures_max=1):
    """Runs sessions from `seed` on. Returns the numbers of operations and of sessions that differed.

    Binary sessions come last: in memcached 1.6.45 a text connection that reuses the descriptor of a binary one gives all
    items that it stores that one's cas number.
    """
    done = failed = 0
    while done < operations_min and failed < failures_max:
        session = Draw(seed).session(0 if done < 0.7 * operations_min else 100)
        found = differs(addresses, session, seed)
        # Repeat: a second may have passed in one cache only, or the machine stood still. Real differences stay.
        for _ in range(TRIES - 1):
            if found:
                print(f"seed {seed} differs; once more", flush=True)
                found = differs(addresses, session, seed)
        if found:
            failed += 1
            batch, (theirs, ours) = found
            print(f"FAIL seed {seed}, batch {batch}: memcached {str(theirs)[-120:]}, ours {str(ours)[-120:]}", flush=True)
            least = smaller(addresses, session, seed)
            again = differs(addresses, least, seed)
            show(*(least, again) if again else (session, found))
        done += sum(len(operations) for _, operations, _ in session)
        seed += 1
    return done, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("memcached")
    parser.add_argument("ours")
    parser.add_argument("--seed", type=int, default=1, help="the first session's; the next have the numbers that follow")
    parser.add_argument("--operations", type=int, default=100_000, help="how many at least")
    parser.add_argument("--failures", type=int, default=1, help="end after so many sessions that differ")
    options = parser.parse_args()
    began = time.monotonic()
    done, failed = run([options.memcached, options.ours], options.seed, options.operations, options.failures)
    took = time.monotonic() - began
    print(f"{done} operations from seed {options.seed} in {took:.1f} s, {failed} sessions differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
