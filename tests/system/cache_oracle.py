#!/usr/bin/env python3
"""Compares a cache with memcached, byte by byte.

    cache_oracle.py MEMCACHED OURS              two addresses, HOST:PORT or a Unix socket's path
    cache_oracle.py --ascii-auth MEMCACHED OURS both started with -Y and the users joe:secret, ann:p:w
    cache_oracle.py --list                      names of all conversations

Each conversation is sent whole to both, and in pieces to ours. The replies must be the same, except for cas numbers,
sizes and classes of items, and the version. Accidental behaviour of memcached 1.6.45 is left out; DIFFERENCES lists it.
With an older memcached, conversations that it answers differently are left out; SINCE lists them. Both servers are
flushed repeatedly, so use servers for this purpose alone, with -I 1m and without -A.
"""

import random
import re
import socket
import struct
import sys
import threading
import time

DIFFERENCES = """
* After a key that is too long in a get, memcached discards the replies of all commands of the same packet, and adds
  an empty line to the error; here the replies are kept, and no line is added.
* Spaces before get, set and other frequent commands are refused by memcached since 1.6.23; here they are ignored.
* The value of an ms with a flag other than a letter is executed as commands by memcached; here it is skipped.
* bget and stats sizes_enable are gone in 1.6.45; here they work.
* incr and decr keep a number's length here; in memcached they may shorten it while a reply holds the old value.
* me honours b only if another word follows it, in memcached.
* metadump and watch behind other commands in one packet are refused by memcached; here they run in order.
* memcached shows TTLs below 0 as 4294967061.
* A line longer than memcached's buffer gets an error line here.
* memcached shows a key stored in Base64 in Base64, even to a client that uses plain text.
* Before a login a line of a few bytes, or one other than text, ends memcached's connection; here it gets a reply.
* Before a login memcached reports only the last refused command of a packet; here each gets a reply.
* An unknown binary opcode makes 1.6.18 hang; here it gets a reply.
"""

# Older versions have another parser, which answers malformed lines differently.
MEMCACHED_MIN = (1, 6, 45)

BIG = b"x" * 2_000_000
KEY = b"k" * 250
LONG_KEY = b"k" * 251


def text(*lines):
    """A conversation of lines; bytes are sent unchanged."""
    return b"".join(line if isinstance(line, bytes) else line.encode() + b"\r\n" for line in lines)


def header(opcode, key=b"", extras=b"", value=b"", cas=0, opaque=0xDEADBEEF, lens=None):
    key_len, extras_len, body_len = lens or (len(key), len(extras), len(key + extras + value))
    fields = (0x80, opcode, key_len, extras_len, 0, 0, body_len, opaque, cas)
    return struct.pack(">BBHBBHIIQ", *fields) + extras + key + value


def store(opcode, key, value, flags=0, exptime=0, **more):
    return header(opcode, key, struct.pack(">II", flags, exptime), value, **more)


def count(opcode, key, delta, initial, exptime, **more):
    return header(opcode, key, struct.pack(">QQI", delta, initial, exptime), **more)


def u32(number):
    return struct.pack(">I", number)


NOT_MADE = 0xFFFFFFFF
NOOP = header(0x0A)

TEXT = {
    "empty lines": text("", b"\n", "version "),
    "retrieval of nothing": text("get", "get ", "gets", "gat", "gat 0", "gat x a", "gats 10"),
    "many keys": text("get " + " ".join("a%d" % at for at in range(400))),
    "set and get": text("set a 5 0 1", "x", "get a  a", b"get a\n", "gets a nokey", "get a noreply"),
    "key of 250": text(b"set " + KEY + b" 1 0 1\r\nx\r\nget " + KEY + b"\r\n"),
    "key of 251": text(
        *(line.replace(b"KEY", LONG_KEY) for line in (
            b"delete KEY\r\n", b"touch KEY 0\r\n", b"incr KEY 1\r\n", b"mg KEY\r\n", b"md KEY\r\n",
            b"ma KEY\r\n", b"me KEY\r\n", b"ms KEY 1\r\nx\r\n", b"set KEY 0 0 1\r\nx\r\n",
            b"set KEY 0 0 1 noreply\r\nx\r\n"))),
    "value too long for its line": text("set b 5 0 3", "abcd", "get b"),
    "value too short for its line": text("set b 5 0 3", "ab", "get b"),
    "value without its end": text("set b 0 0 1", b"x\n\n", "get b"),
    "lengths out of range": text("set b 5 0 -1", "abc", "set b 5 0 2147483646", "abc", "set b 5 0 x", "abc"),
    "numbers that are none": text("set b x 0 1", "set b -1 0 1", "set b 0 x 1", "touch b x", "set b 0 0 1x"),
    "numbers in odd dress": text("set b 0 0 01", "x", "set b +1 +0 +1", "x", "get b", "set b -0 0 1\t", "x",
                                 "set b 4294967296 0 1", "x", "get b", "set b 4294967295 0 1", "x", "get b"),
    "words too many": text("set b 0 0 1 foo", "x", "set b 0 0 1 foo bar", "x", "touch b 0 x", "touch b 0 0 x",
                           "set " + " ".join(map(str, range(28))), "abc", "version"),
    "values of bad lines": text(*sum(([line, "flush_all"] for line in (
        b"set %b 0 0 9\r\n" % LONG_KEY, "set b 0 1.5 9", "set b x 0 9", "add b 0 None 9", "replace b 0x1 0 9",
        "append b 0 - 9", b"prepend %b 0 0 9 noreply\r\n" % LONG_KEY, "cas b 0 0 9", "cas b 0 0 9 noreply", "cas b 0 0 9 x",
        b"ms %b 9\r\n" % LONG_KEY, "ms b 9 v v", "ms b 9 Tx", "ms b 9 MX")), ["set b 0 0 1", "x"]), "get b"),
    "lengths that are none": text("set b 0 0 nine", "set b 0 0 -1", "set b 0 0 +1", "set b 0 0", "ms b x", "get b"),
    "words too few": text("set b 0 0", "cas b 0 0 1", "touch", "touch b", "incr", "incr b", "delete", "verbosity"),
    "noreply": text("set q 0 0 1 noreply", "1", "incr q 1 noreply", "decr q 1 noreply", "touch q 0 noreply",
                    "add q 0 0 1 noreply", "x", "append q 0 0 1 noreply", "2", "get q", "delete q noreply", "get q",
                    "incr q x noreply", "touch q x noreply", "verbosity x noreply", "set q x 0 1 noreply",
                    "set q 0 0 1 noreply", "xx", "verbosity 0 noreply", "flush_all x noreply"),
    "add replace append prepend": text("add c 1 0 1", "x", "add c 1 0 1", "y", "replace c 2 0 1", "z", "append c 5 0 2",
                                       "AA", "prepend c 5 0 2", "BB", "get c", "append no 0 0 1", "x", "prepend no 0 0 1",
                                       "x", "replace no 0 0 1", "x", "set c 0 0 0", "", "append c 0 0 1", "x", "get c"),
    "cas": text("set d 0 0 1", "x", "cas d 0 0 1 1", "y", "cas no 0 0 1 1", "y", "cas d 0 0 1 x", "cas d 0 0 1 -1",
                "cas d 0 0 1 1 noreply", "y", "get d"),
    "touch and gat": text("set e 3 0 1", "x", "touch e 0", "touch no 0", "gat 0 e", "gats 0 no", "gat 10 e no e",
                          "gat  10  e", "gat e", "touch e -1", "get e"),
    "incr and decr": text("set n 0 0 2", "10", "incr n 5", "decr n 6", "decr n 100", "get n",
                          "incr n 18446744073709551615", "incr n 1", "get n", "incr n 18446744073709551616",
                          "incr n -1", "incr n x", "incr no 1", "incr n 1 foo", "incr n 1 2 3"),
    "incr wraps": text("set n 0 0 20", "18446744073709551615", "incr n 2", "incr n 100", "get n"),
    "incr of what is no number": text(*sum((["set n 0 0 %d" % len(value), value, "incr n 2", "get n"] for value in (
        "-12", " 12", "12 ", "12x", "+12", "", "184467440737095516150")), [])),
    "delete": text("set f 0 0 1", "x", "delete f", "delete f", "delete f 0", "delete f 1", "delete f 0 noreply",
                   "delete f 0 x", "delete f noreply x", "delete f 1 2 3"),
    "expiry times": text("set g 0 -1 1", "x", "get g", "set g 0 2592000 1", "x", "mg g t", "set g 0 2592001 1", "x",
                         "get g", "set g 0 2147483647 1", "x", "get g", "set g 0 100 1", "x", "mg g t"),
    "flush_all": text("set h 0 0 1", "x", "flush_all", "get h", "flush_all 0", "flush_all noreply", "flush_all x",
                      "flush_all 0 noreply", "flush_all 0 x", "flush_all 0 0 0", "flush_all -1", "set h 0 0 1", "x"),
    "verbosity": text("verbosity 1", "verbosity x", "verbosity 0 0", "verbosity noreply", "verbosity -1",
                      "verbosity 1 2 3", "verbosity 0"),
    "version": text("version", "version x", "versions"),
    "quit": text("quit", "version"),
    "quit with words": text("quit now", "version"),
    "memory limit": text("cache_memlimit", "cache_memlimit x", "cache_memlimit 1", "cache_memlimit 2000000000",
                         "cache_memlimit 64", "cache_memlimit 64 noreply", "cache_memlimit 0"),
    "shutdown is off": text("shutdown", "shutdown graceful", "shutdown x"),
    "lru": text("lru", "lru tune", "lru tune x", "lru tune 60 60 1 1", "lru tune 10 25 x 2.0", "lru tune 10 25 0 2",
                "lru mode", "lru mode x", "lru tune 10 25 0.1 2.0", "lru mode flat", "lru mode segmented",
                "lru temp_ttl 60", "lru temp_ttl", "lru temp_ttl -1", "lru temp_ttl x", "lru x", "lru x y"),
    "lru_crawler": text("lru_crawler", "lru_crawler enable", "lru_crawler sleep", "lru_crawler sleep 100",
                        "lru_crawler sleep 1000001", "lru_crawler sleep x", "lru_crawler tocrawl 5",
                        "lru_crawler tocrawl x", "lru_crawler tocrawl 0", "lru_crawler x", "lru_crawler x y",
                        "lru_crawler crawl 99", "lru_crawler crawl x", "lru_crawler crawl 64", "lru_crawler crawl 0"),
    "metadump of a bad class": text("lru_crawler metadump 99"),
    "metadump of nothing": text("lru_crawler metadump all"),
    "mgdump of nothing": text("lru_crawler mgdump all"),
    "slabs": text("slabs", "slabs automove", "slabs automove 1", "slabs automove 2", "slabs automove 3",
                  "slabs automove x", "slabs reassign", "slabs reassign 1 1", "slabs reassign 99 1",
                  "slabs reassign x y", "slabs x", "slabs automove -1"),
    "watch of nothing": text("watch x"),
    "no such command": text("foo", "GET a", "mx", "m", "a", "s", "g", "mn", "mn x", "verify", "extstore"),
    "a browser": text("GET / HTTP/1.1", "Host: x", "", "version"),
    "stats": text("stats foo", "stats reset", "stats reset x", "stats detail", "stats detail x", "stats detail on",
                  "stats detail dump", "stats detail off", "stats cachedump", "stats cachedump 1",
                  "stats cachedump x 0", "stats cachedump 99 0", "stats sizes", "stats noreply", "stats a b c d", "stats extstore"),
    "stats detail": text("stats detail on", "set p:a 0 0 1", "x", "get p:a p:b", "delete p:a", "stats detail dump",
                         "stats detail off", "stats reset"),
    "line feeds alone": b"set i 0 0 1\nx\r\nget i\n",
    "odd bytes in keys": b"set j\tk 0 0 1\r\nx\r\nget j\tk\r\nget j k\rl m\r\nset \xff\x80 0 0 1\r\n\x00\r\nget \xff\x80\r\n",
    "values above the limit": text("set l 0 0 1", "x", b"set l 0 0 2000000\r\n" + BIG + b"\r\n", "get l",
                                   "set l 0 0 1", "x", b"add l 0 0 2000000\r\n" + BIG + b"\r\n", "get l",
                                   b"set l 0 0 2000000 noreply\r\n" + BIG + b"\r\n", "get l",
                                   b"ms l 2000000 q O1 k\r\n" + BIG + b"\r\n", "mg l v"),
    "append above the limit": text(b"set l 0 0 600000\r\n" + BIG[:600000] + b"\r\n", b"append l 0 0 600000\r\n"
                                   + BIG[:600000] + b"\r\n", "mg l s"),
    "large values": text(b"set l 7 0 1000000\r\n" + BIG[:1000000] + b"\r\n", "get l l", "mg l s v", "delete l",
                         b"set l 7 0 20000\r\n" + BIG[:20000] + b"\r\n", "gets no l no"),
}

META = {
    "mg": text("ms c 2", "hi", "mg c v", "mg c", "mg c s v k f t h l O123 q", "mg no v", "mg no v q",
               "mg no v k O1", "mg no s t O1 v f k", "mg c h", "mg c  v  k", "mg c v ", "mn"),
    "mg C": text("ms c 2 E5", "hi", "mg c C5 v c", "mg c C6 v s", "mg c C5 v k s", "mg no C5 v", "mg new N30 E7 C7 v"),
    "mg flags": text("mg", "mg c c c", "mg c v v", "mg c !", "mg c z", "mg c Tx", "mg c Nx", "mg c Rx", "mg c vk",
                     "mg c v1", "mg c S1 v", "mg c a", "mg c O" + "1" * 31, "mg c O" + "1" * 32, "mg c W"),
    "ttl": text("ms t 2 T100 F7", "hi", "mg t t f v", "mg t v T200 t", "mg t t", "mg t t T50", "ms t 2 T0", "hi",
                "mg t t", "ms t 2 T-1", "hi", "mg t t"),
    "modes": text("ms d 2 ME", "hi", "ms d 2 ME", "hi", "ms d 2 MA", "XX", "mg d v", "ms d 2 MP", "YY", "mg d v",
                  "ms e 1 MR", "z", "ms d 1 MR", "z", "ms d 1 MS", "q", "mg d v", "ms no 1 MA", "q", "ms no 1 MP", "q"),
    "modes that are none": text(*sum((["ms d 1 " + mode, "q"] for mode in (
        "Me", "Ma", "Mr", "Mp", "Ms", "MX", "M", "Mset")), [])),
    "ms that fails": text("ms", "ms a", "ms a x", "ms a -1", "ms a 2147483646", "ms a 2 2", "hi",
                          "ms a 2 Cx", "hi", "ms a 2 Fx", "hi", "ms a 2 Tx", "hi", "ms a 2 C", "hi", "ms a 2 S5", "hi",
                          "ms a 2", "hix", "mg a v", "ms a 2 noreply", "hi", "ms a b c"),
    "ms replies": text("ms c 2 q", "hi", "ms c 2 q k O1", "hi", "ms c 2 k O1", "hi", "ms c 2 C1 q O5 k", "hi",
                       "ms zz 2 C1", "hi", "ms zz 2 C1 q", "hi", "ms c 2 O", "hi", "ms c 2 I", "hi", "ms c 2 c", "hi",
                       "ms c 2 C1 c k", "hi", "ms c 2 ME q", "hi", "ms c 2 MR q", "hi", "mn"),
    "base64": text("ms Zm9v 2 b k", "hi", "mg Zm9v b v k", "mg foo v", "mg bm8= O1 k b", "md Zm9v b k O1", "mg foo v",
                   "mg !! b", "mg Zm9 b k", "ms no 2 b", "hi", "ma bnVt b N0 k O1 v", "ma bnVt b k O1",
                   "md cQ b", "ma cQ b", "md c k b"),
    "too many flags": text(*(name + " ".join("ABCDEFGHIJKLMNOPQRSTU"[:count]) for name in ("mg c ", "md c ", "ma c ")
                             for count in (16, 17, 18, 21)), "ms c 2 " + " ".join("ABCDEFGHIJKLMNOPQRSTU"), "hi"),
    "vivify": text("mg v1 N30 v t s f k O9", "mg v1 N30 v t", "ms v1 2", "hi", "mg v1 N30 v t", "mg v2 N30 q v t",
                   "mg v2 N30 q v t", "mg v3 N0 t", "mn"),
    "recache": text("ms r 2 T30", "hi", "mg r R60 v t", "mg r R60 v t", "mg r R10 v t", "ms r 2 T30", "hi", "mg r R10 v"),
    "stale": text("ms s 2 T30", "hi", "md s I T40", "mg s v t", "mg s v t", "ms s 2 C1", "hi", "ms s 2 I C1", "ho",
                  "mg s v t", "ms s 2", "yo", "mg s v t", "md s I", "mg s s v", "mg s s"),
    "md x": text("ms x 2 E9 F7 T50", "hi", "md x I E20", "md x x", "mg x v t f", "md x I T30", "md x x T60", "mg x v t",
                 "md x x I T70", "mg x v t", "md no x"),
    "md": text("md no", "md no q", "md no k O1", "ms x 1", "x", "md x C1", "md x C1 q k O1", "md x Cx", "md x z",
               "md x q O2 k", "md x q", "md", "ms x 1", "x", "md x T30", "mg x t", "mn"),
    "ma": text("ma no", "ma no q", "ma no k O1", "ma n N0 J5 v", "ma n", "ma n v", "ma n D10 v", "ma n MD D3 v t",
               "ma n M- D300 v", "ma n MI v", "ma n M+ v", "ma n Mincr v", "ma n Mx v", "ma n Mi Md v", "ma n MD v",
               "ma n Dx", "ma n Nx", "ma n Jx", "ma n q", "ma n q v k O1", "ma n T30 t v k", "ma n C1 v", "ma n C1 q",
               "ma n z", "ma", "ma n N60 T90 t v", "ma n2 N60 J13 t v", "ma n2 N60 J13 t v", "ma n3 N60 q", "ma n3 v",
               "ma n4 N0 J18446744073709551615 v", "ma n4 v", "ma n D-1 v", "ms c 2", "hi", "ma c", "ma c q", "mn"),
    "me": text("ms c 2", "hi", "me c", "me no", "me", "me c x", "mg c", "me c"),
    "unset marks": text("ms u 2", "hi", "mg u u h", "mg u u h l", "mg u h", "mg u h"),
}

BINARY = {
    "set and get": [store(1, b"k", b"v", 5), header(0, b"k"), header(0xC, b"k"), header(9, b"k"), header(0xD, b"k"),
                    header(0, b"no"), header(0xC, b"no"), header(9, b"no"), header(0xD, b"no"), NOOP],
    "quiet stores": [store(0x11, b"k", b"w"), store(0x12, b"k", b"w"), store(0x13, b"no", b"w"),
                     store(0x12, b"k3", b"w"), store(0x13, b"k3", b"w"), NOOP],
    "add and replace": [store(2, b"k", b"w"), store(2, b"ka", b"w"), store(3, b"ka", b"w2"), store(3, b"no", b"x"),
                        header(0, b"ka")],
    "cas": [store(1, b"c", b"1"), store(1, b"c", b"2", cas=1), store(1, b"no", b"2", cas=1), store(2, b"c", b"2", cas=1),
            store(3, b"c", b"2", cas=1), store(2, b"no", b"2", cas=1), header(4, b"c", cas=1),
            header(0xE, b"c", value=b"x", cas=1), header(4, b"c"), header(4, b"c"), header(0x14, b"c"), NOOP],
    "append and prepend": [store(1, b"a", b"mid"), header(0xE, b"a", value=b"end"), header(0xF, b"a", value=b"pre"),
                           header(0, b"a"), header(0xE, b"no", value=b"x"), header(0xF, b"no", value=b"x"),
                           header(0x19, b"a", value=b"1"), header(0x1A, b"a", value=b"2"),
                           header(0x19, b"no", value=b"1"), header(0, b"a")],
    "counting": [count(5, b"n", 1, 10, NOT_MADE), count(5, b"n", 1, 10, 0), count(5, b"n", 5, 10, 0),
                 count(6, b"n", 7, 10, 0), count(6, b"n", 100, 0, 0), header(0, b"n"), store(1, b"a", b"x"),
                 count(5, b"a", 1, 1, 0), count(0x15, b"n", 3, 0, 0), count(0x16, b"n", 1, 0, 0),
                 count(0x15, b"nx", 3, 0, NOT_MADE), count(0x15, b"ny", 3, 4, 0), header(0, b"ny"), header(0, b"n"),
                 count(5, b"n", 1, 0, 0, cas=7)],
    "flush": [store(1, b"f", b"x"), header(8), header(0, b"f"), store(1, b"f", b"x"), header(8, extras=u32(0)),
              header(0, b"f"), header(0x18), NOOP],
    "quit": [NOOP, header(0xB), header(7), NOOP],
    "quit quietly": [NOOP, header(0x17), NOOP],
    "no SASL": [header(0x20), header(0x21, b"PLAIN", value=b"\0a\0b"), header(0x22, b"PLAIN", value=b"x"), NOOP],
    "touch and gat": [store(1, b"t", b"val", 9)] + [header(opcode, key, u32(100)) for key in (b"t", b"no")
                                                    for opcode in (0x1C, 0x1D, 0x1E, 0x23, 0x24)] + [NOOP],
    "long values": [store(1, b"big", b"x"), store(1, b"big", BIG), header(0, b"big"), store(2, b"big", BIG),
                    store(0x11, b"big", BIG), NOOP, store(1, b"mid", BIG[:300000], 3), header(0, b"mid"),
                    header(0xE, b"mid", value=BIG[:900000]), header(0xC, b"mid")],
    "stat": [header(0x10, b"nosuch"), header(0x10, b"reset"), header(0x10, b"detail on"), header(0x10, b"detail dump"),
             header(0x10, b"detail off"), header(0x10, b"detail"), NOOP],
    "expiry times": [store(1, b"e", b"v", 0, 2592001), header(0, b"e"), store(1, b"e", b"v", 0, 100), header(0, b"e")],
    "opaques": [store(1, b"o", b"v", opaque=1), header(0, b"o", opaque=2), header(0, b"no", opaque=3)],
    **{"malformed %d" % at: [request, NOOP] for at, request in enumerate((
        header(0, b"k", b"xx"), header(0), header(1, b"k"), header(0xA, b"k"), header(0, b"k" * 251),
        header(0, b"k", lens=(5, 0, 1)), b"get a\r\n", header(5, b"k", b"x" * 19), header(0x1C, b"k"),
        header(0xE, b"k", b"x" * 8, b"v"), header(4, b"k", value=b"v"), header(0, b"k", value=b"v"),
        store(1, b"", b"v"), header(4), header(8, b"k"), header(0xB, b"k"), header(7, b"k"), header(0x21),
        header(0x20, b"x"), header(8, extras=b"\0\0")))},
}

# Each request is sent after the reply to the one before.
ASCII_AUTH = {
    "nobody": [b"get aaaa\r\n", b"get aaaa\r\n"],
    "without a login nothing goes on": [b"get aaaa\r\n", b"get bbbb\r\n", b"set a 0 0 10\r\njoe secret\r\n", b"get aaaa\r\n"],
    "joe": [b"set a 0 0 10\r\njoe secret\r\n", b"get aaaa\r\n"],
    "joe with odd numbers": [b"set a x y 10 z\r\njoe secret\r\n", b"get aaaa\r\n"],
    "not joe": [b"set a 0 0 10\r\njoe secre2\r\n", b"get aaaa\r\n", b"set a 0 0 10\r\njoe secret\r\n", b"get aaaa\r\n"],
    "ann": [b"set a 0 0 7\r\nann p:w\r\n", b"set b 0 0 1\r\nx\r\n", b"get b\r\n"],
    "noreply": [b"set a 0 0 7 noreply\r\nann p:w\r\n", b"get aaaa\r\n"],
    "without a space": [b"set a 0 0 9\r\njoesecret\r\n", b"get aaaa\r\n"],
    "another command": [b"add a 0 0 10\r\n", b"joe secret secret\r\n", b"get aaaa\r\n"],
    "too few words": [b"set aaaa 0 0\r\n", b"ann p:w ann p:w\r\n"],
    "a length below 0": [b"set a 0 0 -1\r\n", b"ann p:w ann p:w\r\n"],
    "too long a password": [b"set a 0 0 2049\r\n" + b"x" * 2049 + b"\r\n", b"set a 0 0 10\r\njoe secret\r\n", b"get aaaa\r\n"],
}

# Groups of statistics: monitors read them by name, so each name of memcached's must be there, whatever its value.
STATS = [b"stats\r\n", b"stats settings\r\n", b"stats items\r\n", b"stats slabs\r\n"]


def connect(address):
    if "/" in address:
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(address)
        return peer
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)))


def converse(address, sent, cuts=()):
    """Sends, shuts down the sending side, and reads until the server closes."""
    peer = connect(address)
    peer.settimeout(10)

    def send():
        at = 0
        try:
            for cut in (*cuts, len(sent)):
                peer.sendall(sent[at:cut])
                at = cut
                if cuts:
                    time.sleep(0.002)  # the pieces must arrive as pieces
            peer.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the server may close first

    sender = threading.Thread(target=send)
    sender.start()
    replied = bytearray()
    try:
        while piece := peer.recv(1 << 16):
            replied += piece
    except ConnectionResetError:
        pass  # the replies were read
    except TimeoutError:
        replied += b"<the server said no more and did not close>"
    sender.join()
    peer.close()
    return bytes(replied)


def in_turns(address, requests):
    """Sends each request after the reply to the one before; returns the replies."""
    with connect(address) as peer:
        peer.settimeout(10)
        replies = []
        for request in requests:
            peer.sendall(request)
            replies.append(peer.recv(1 << 16))
        return b"".join(replies)


def same_text(replied):
    """Removes what differs between two servers."""
    replied = re.sub(rb"VERSION [^\r]*", b"VERSION", replied)
    replied = re.sub(rb"(VALUE \S+ \d+ \d+) \d+\r", rb"\1 CAS\r", replied)
    replied = re.sub(rb"cas=\d+ ", b"cas=N ", replied)
    replied = re.sub(rb"cls=\d+ size=\d+", b"cls=N size=N", replied)
    return re.sub(rb"((?:VA \d+|HD|EX|NS|NF)[^\r]*) c[1-9]\d*", rb"\1 cN", replied)


def same_binary(replied):
    """List of replies, without cas numbers and the version."""
    replies = []
    while len(replied) >= 24:
        _, opcode, _, _, _, _, body_len, _, cas = struct.unpack(">BBHBBHIIQ", replied[:24])
        body = replied[24 : 24 + body_len]
        head = replied[:16]
        if opcode == 0xB:
            head, body = head[:8], b"version"
        replies.append((head, cas > 0, body))
        replied = replied[24 + body_len :]
    return replies, replied


def stat_names(address, command):
    """Names of a group of statistics, without those of single classes, for a cache of one item."""
    lines = converse(address, b"flush_all\r\nset stats 0 0 1\r\nx\r\n" + command).split(b"\r\n")
    names = (line.split()[1].decode() for line in lines if line.startswith(b"STAT "))
    return {re.sub(r"^(items:)?\d+:", r"\1CLASS:", name) for name in names}


def show(replied):
    return repr(replied if len(replied) < 1500 else replied[:700] + b" ... " + replied[-700:])


def fresh(kind, address, sent, cuts=()):
    """A conversation with an empty cache."""
    if kind != "ascii auth":
        converse(address, b"flush_all\r\n")
    return converse(address, sent, cuts)


def compare(kind, name, sent, same, addresses):
    """Compares memcached, ours, and ours in pieces. Returns True if all replies were the same."""
    if isinstance(sent, list):
        theirs, ours = (in_turns(address, sent) for address in addresses)
        if same(ours) != same(theirs):
            print(f"FAIL {kind}: {name}\n  sent      {sent}\n  memcached {show(theirs)}\n  ours      {show(ours)}")
        return same(ours) == same(theirs)
    draw = random.Random(name)
    cuts = sorted(draw.randrange(len(sent)) for _ in range(min(12, len(sent) // 2)))
    # Repeat: replies contain times to live, and a second may have passed in one conversation only.
    for _ in range(3):
        theirs = fresh(kind, addresses[0], sent)
        ours = {"whole": fresh(kind, addresses[1], sent), "in pieces": fresh(kind, addresses[1], sent, cuts)}
        different = [what for what, reply in ours.items() if same(reply) != same(theirs)]
        if not different:
            return True
    what = different[0]
    print(f"FAIL {kind}: {name} ({what})\n  sent      {show(sent)}")
    print(f"  memcached {show(theirs)}\n  ours      {show(ours[what])}")
    return False


def version_of(address):
    """Version as three numbers; None before a login."""
    said = re.search(rb"VERSION (\d+)\.(\d+)\.(\d+)", converse(address, b"version\r\n"))
    return tuple(map(int, said.groups())) if said else None


def run(addresses, groups):
    done = failed = 0
    version = version_of(addresses[0])
    if version is not None and version < MEMCACHED_MIN:
        raise SystemExit(f"memcached is {version}; it must be {MEMCACHED_MIN} or newer")
    for kind, conversations, same in groups:
        for name, sent in conversations.items():
            sent = b"".join(sent) if isinstance(sent, list) and kind == "binary" else sent
            done += 1
            failed += not compare(kind, name, sent, same, addresses)
    return done, failed


def run_stats(addresses):
    failed = 0
    for command in STATS:
        # This memcached includes its proxy; ours has none.
        missing = {name for name in stat_names(addresses[0], command) - stat_names(addresses[1], command) if "proxy" not in name}
        if missing:
            failed += 1
            print(f"FAIL {command}: ours lacks {sorted(missing)}")
    return len(STATS), failed


def main(words):
    groups = [("text", TEXT, same_text), ("meta", META, same_text), ("binary", BINARY, same_binary)]
    auth = [("ascii auth", ASCII_AUTH, same_text)]
    if words == ["--list"]:
        for kind, conversations, _ in groups + auth:
            print(*(f"{kind}: {name}" for name in conversations), sep="\n")
        return 0
    is_auth = words[:1] == ["--ascii-auth"]
    addresses = words[is_auth:]
    if len(addresses) != 2:
        print(__doc__)
        return 2
    done, failed = run(addresses, auth if is_auth else groups)
    if not is_auth:
        more_done, more_failed = run_stats(addresses)
        done, failed = done + more_done, failed + more_failed
    print(f"{done} conversations, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
