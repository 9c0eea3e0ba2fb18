#!/usr/bin/env python3
"""Draws the pictures of examples/site, and synthesizes its one large file.

    examples/draw.py pictures              the SVG and PNG pictures, into examples/site
    examples/draw.py sound FILE [SECONDS]  a WAV of a hand loom at work (88 KB for every second)

The pictures are committed, so this need not be run; the sound is made by `./ci.sh site`. Python's
standard library is enough, and the same run writes the same bytes. WebP is made from two of the PNG
pictures when `cwebp` (Debian package webp) is there.

A weave is described as weavers do it, by a draft:

                threading                        tie-up
        shaft 4 . . . #  . . . #            . . # #
        shaft 3 . . # .  . . # .            . # # .     treadle t raises the
        shaft 2 . # . .  . # . .            # # . .     shafts in column t
        shaft 1 # . . .  # . . .            # . . #

        pick 1  # # . .  # # . .            # . . .
        pick 2  . # # .  . # # .            . # . .     treadling: which
        ...     drawdown: # is warp on top  . . # .     treadle at each pick
"""

import math
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import wave
import zlib

SITE = pathlib.Path(__file__).resolve().parent / "site"

LINEN, INDIGO, MADDER, WELD, CHALK = "#e9dfc9", "#2b4477", "#b4472f", "#cf9f3a", "#f7f2e6"


class Draft:
    """A weave: which shaft each warp end hangs on, which shafts each pick raises, and the colours."""

    def __init__(self, threading, tie_up, treadling, warp=(INDIGO,), weft=(MADDER,)):
        self.threading, self.tie_up, self.treadling = threading, tie_up, treadling
        self.warp, self.weft = warp, weft

    def warp_is_up(self, pick, end):
        treadle = self.treadling[pick % len(self.treadling)]
        return self.threading[end % len(self.threading)] in self.tie_up[treadle]

    def colour(self, pick, end):
        if self.warp_is_up(pick, end):
            return self.warp[end % len(self.warp)]
        return self.weft[pick % len(self.weft)]


STRAIGHT = [0, 1, 2, 3]
TWILL = [{0, 1}, {1, 2}, {2, 3}, {3, 0}]
POINT = [0, 1, 2, 3, 2, 1]

DRAFTS = {
    "plain": Draft([0, 1], [{0}, {1}], [0, 1]),
    "basket": Draft([0, 0, 1, 1], [{0}, {1}], [0, 0, 1, 1], weft=(WELD,)),
    "twill": Draft(STRAIGHT, TWILL, STRAIGHT, weft=(LINEN,)),
    "herringbone": Draft([0, 1, 2, 3, 0, 1, 3, 2, 1, 0, 3, 2], TWILL, STRAIGHT, weft=(WELD,)),
    "birdseye": Draft(POINT, TWILL, POINT, weft=(LINEN,)),
    "satin": Draft(
        [0, 1, 2, 3, 4], [{1, 2, 3, 4}, {0, 1, 3, 4}, {0, 1, 2, 3}, {0, 2, 3, 4}, {0, 1, 2, 4}],
        [0, 1, 2, 3, 4], weft=(MADDER,),
    ),
}

CLOTHS = {
    "houndstooth": Draft(STRAIGHT, TWILL, STRAIGHT, [INDIGO] * 4 + [CHALK] * 4, [INDIGO] * 4 + [CHALK] * 4),
    "diamond": Draft(
        [0, 1, 2, 3, 0, 1, 2, 3, 2, 1, 0, 3, 2, 1], TWILL, [0, 1, 2, 3, 0, 1, 2, 3, 2, 1, 0, 3, 2, 1],
        [LINEN], [MADDER] * 14 + [WELD] * 14,
    ),
    "plaid": Draft(
        STRAIGHT, TWILL, STRAIGHT,
        *2 * [[INDIGO] * 18 + [CHALK] * 2 + [INDIGO] * 4 + [MADDER] * 12 + [WELD] * 2 + [MADDER] * 12 + [INDIGO] * 4 + [CHALK] * 2],
    ),
    "indigo": Draft(POINT + [0] + [3, 2, 1, 0, 1, 2], TWILL, POINT, [INDIGO], [LINEN]),
}


# ---- drafts, as SVG

ENDS, PICKS, CELL = 24, 24, 10


def draft_svg(name, draft):
    """The whole draft: threading on top, tie-up in the corner, treadling at the right, cloth below."""
    shafts, treadles = max(draft.threading) + 1, len(draft.tie_up)
    left, top = 8, 8 + shafts * CELL + 8
    right = left + ENDS * CELL + 8
    width, height = right + treadles * CELL + 8, top + PICKS * CELL + 8
    marks = [(left + e * CELL, 8 + (shafts - 1 - draft.threading[e % len(draft.threading)]) * CELL) for e in range(ENDS)]
    marks += [(right + t * CELL, 8 + (shafts - 1 - s) * CELL) for t, tied in enumerate(draft.tie_up) for s in sorted(tied)]
    marks += [(right + draft.treadling[p % len(draft.treadling)] * CELL, top + p * CELL) for p in range(PICKS)]
    grids = [(left, 8, ENDS, shafts), (right, 8, treadles, shafts), (right, top, treadles, PICKS)]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="Weaving draft: {name}">',
        "<style>.g{fill:none;stroke:#8d8471;stroke-width:.6}.m{fill:#3b3527}"
        "@media(prefers-color-scheme:dark){.g{stroke:#7c86a0}.m{fill:#e9dfc9}}"
        "path{stroke-linecap:round;stroke-width:8.4}</style>",
        f'<path class="g" style="stroke-width:.6" d="{"".join(grid(*g) for g in grids)}"/>',
        f'<path class="m" d="{"".join(f"M{x + 2} {y + 2}h6v6h-6z" for x, y in marks)}"/>',
        f'<rect x="{left - 1}" y="{top - 1}" width="{ENDS * CELL + 2}" height="{PICKS * CELL + 2}" fill="#1d2233"/>',
        *floats(draft, left, top),
        "</svg>\n",
    ])


def grid(x, y, columns, rows):
    lines = "".join(f"M{x} {y + r * CELL}h{columns * CELL}" for r in range(rows + 1))
    return lines + "".join(f"M{x + c * CELL} {y}v{rows * CELL}" for c in range(columns + 1))


def floats(draft, left, top):
    """Each stretch of thread that lies on top is one line with round ends."""
    strokes = {}
    for end in range(ENDS):
        for start, length in runs([draft.warp_is_up(p, end) for p in range(PICKS)]):
            x, y = left + end * CELL + CELL // 2, top + start * CELL + CELL // 2
            strokes.setdefault(draft.warp[end % len(draft.warp)], []).append(f"M{x} {y}v{(length - 1) * CELL}")
    for pick in range(PICKS):
        for start, length in runs([not draft.warp_is_up(pick, e) for e in range(ENDS)]):
            x, y = left + start * CELL + CELL // 2, top + pick * CELL + CELL // 2
            strokes.setdefault(draft.weft[pick % len(draft.weft)], []).append(f"M{x} {y}h{(length - 1) * CELL}")
    return [f'<path stroke="{colour}" fill="none" d="{"".join(lines)}"/>' for colour, lines in strokes.items()]


def runs(flags):
    """The (start, length) of every stretch of true flags."""
    start = None
    for at, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = at
        elif not flag and start is not None:
            yield start, at - start
            start = None


# ---- the motif on the front page

def motif_svg():
    """Eight heavy warp cords (the cores) and twenty-six lighter wefts (the fibers), their ends still loose."""
    width, height, warps, wefts, step = 1200, 380, 8, 26, 12.5
    warp_x = [96 + 104 * i for i in range(warps)]
    weft_y = [34 + step * j for j in range(wefts)]
    dyes = ["#a83f2b", "#c05f35", "#d08a35", "#dcb45c", "#8fa58b", "#5f93a3", "#4a78ab"]
    chance = random.Random(11)
    dye_of = [dyes[min(len(dyes) - 1, max(0, int((j + chance.uniform(-1.6, 1.6)) * len(dyes) / wefts)))] for j in range(wefts)]
    wefts_by_dye, lights = {}, []
    for dye, y in zip(dye_of, weft_y):
        reach, rise, drop = 960 + chance.uniform(0, 215), chance.uniform(-16, 16), chance.uniform(-24, 24)
        tail = f"C{870 + (reach - 870) * .45:.0f} {y:g} {870 + (reach - 870) * .55:.0f} {y + rise:.0f} {reach:.0f} {y + drop:.0f}"
        wefts_by_dye.setdefault(dye, []).append(f"M44 {y:g}H870{tail}")
        lights.append(f"M44 {y - 1.8:g}H870")
    cord_up = [(x, y) for i, x in enumerate(warp_x) for j, y in enumerate(weft_y) if (i + j) % 2 == 0]
    weft_up = [(x, y) for i, x in enumerate(warp_x) for j, y in enumerate(weft_y) if (i + j) % 2 == 1]
    half = step / 2
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="Many coloured wefts carried across eight heavy warp cords">',
        "<style>path{fill:none}.r{stroke-linecap:round}.a{stroke:#22375f}.b{stroke:#4c69a6}.d{stroke:#0d1528;stroke-opacity:.3}.w{stroke:#fff;stroke-opacity:.28}"
        "@media(prefers-color-scheme:dark){.a{stroke:#35508c}.b{stroke:#6d8cd0}.d{stroke:#02040a;stroke-opacity:.32}.w{stroke-opacity:.18}}</style>",
        *cords(f"M{x} 16v{height - 32}" for x in warp_x),
        f'<path class="d" stroke-width="{step}" d="{"".join(f"M{x - 21} {y + 3:g}h42" for x, y in weft_up)}"/>',
        *(f'<path class="r" stroke="{dye}" stroke-width="9.5" d="{"".join(lines)}"/>' for dye, lines in wefts_by_dye.items()),
        f'<path class="w" stroke-width="2" d="{"".join(lights)}"/>',
        # Where a cord lies on top: first the shadow that it throws on the weft, then the cord again.
        f'<path class="d" stroke-width="48" d="{"".join(f"M{x + 2} {y - 5:g}v10" for x, y in cord_up)}"/>',
        *cords((f"M{x} {y - half:g}v{step:g}" for x, y in cord_up), ""),
        "</svg>\n",
    ])


def cords(lines, cap="r"):
    """A cord is a dark band with a lit one a little left of its middle."""
    lines = "".join(lines)
    return [
        f'<path class="a {cap}" stroke-width="36" d="{lines}"/>',
        f'<path class="b {cap}" stroke-width="9" transform="translate(-7)" d="{lines}"/>',
    ]


# ---- cloth, as pixels

SHADES = 24


def cloth_png(draft, width, height, thread):
    """Renders woven cloth: every thread a lit, twisted yarn which dips at the ends of its floats."""
    colours = sorted({*draft.warp, *draft.weft})
    palette = b"".join(bytes(lit(colour, shade)) for colour in colours for shade in range(SHADES))
    rows = []
    for y in range(height):
        pick, v = divmod(y, thread)
        row = bytearray(1)  # PNG filter type 0: none
        for x in range(width):
            end, u = divmod(x, thread)
            row.append(colours.index(draft.colour(pick, end)) * SHADES + shade_at(draft, pick, end, u, v, thread))
        rows.append(bytes(row))
    return png(width, height, palette, b"".join(rows))


def shade_at(draft, pick, end, u, v, thread):
    up = draft.warp_is_up(pick, end)
    across, along = (u, v) if up else (v, u)
    neighbours = ((pick - 1, end), (pick + 1, end)) if up else ((pick, end - 1), (pick, end + 1))
    begins, ends = (draft.warp_is_up(*n) != up for n in neighbours)
    round_ = math.sin(math.pi * (across + 0.5) / thread)
    light = 0.30 + 0.62 * round_ ** 0.7 - 0.10 * (across / thread - 0.4)
    dip = thread * 0.45
    if begins and along < dip:
        light *= 0.55 + 0.45 * (along + 0.5) / dip
    if ends and thread - 1 - along < dip:
        light *= 0.55 + 0.45 * (thread - 0.5 - along) / dip
    light += 0.07 * math.sin(2 * math.pi * (along + across) * 2 / thread)  # the twist of the yarn
    return max(0, min(SHADES - 1, int(light * SHADES)))


def lit(colour, shade):
    level = 0.28 + 0.86 * shade / (SHADES - 1)
    return [min(255, int(int(colour[i:i + 2], 16) * level)) for i in (1, 3, 5)]


def png(width, height, palette, pixels):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"PLTE", palette)
            + chunk(b"IDAT", zlib.compress(pixels, 9)) + chunk(b"IEND", b""))


def pictures():
    gallery = SITE / "gallery"
    for name, draft in DRAFTS.items():
        (gallery / f"{name}.svg").write_text(draft_svg(name, draft))
    (SITE / "img" / "motif.svg").write_text(motif_svg())
    for name, draft in CLOTHS.items():
        (gallery / f"{name}.png").write_bytes(cloth_png(draft, 960, 640, 10))
    for name in ("diamond", "indigo"):
        if shutil.which("cwebp"):
            picture = gallery / f"{name}.png"
            subprocess.run(["cwebp", "-quiet", "-lossless", "-z", "9", picture, "-o", picture.with_suffix(".webp")], check=True)
            picture.unlink()


# ---- the large file

def sound(path, seconds):
    """A hand loom at 72 picks a minute: treadle, shuttle from one side to the other, beater. Mono, 16 bit."""
    rate, chance = 44_100, random.Random(1813)
    pick_len = int(rate * 60 / 72)
    noise = [chance.uniform(-1, 1) for _ in range(pick_len)]
    picks = [[loom(i, rate, noise, left) for i in range(pick_len)] for left in (False, True)]
    # Every pick differs a little, so that the file does not compress to nothing.
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        written, pick = 0, 0
        while written < seconds * rate:
            part = picks[pick % 2][: int(seconds * rate) - written]
            hiss = chance.randrange(1, 90)
            out.writeframes(b"".join(struct.pack("<h", int(s * 26_000) + (i * hiss * 2654435761 >> 13) % 97) for i, s in enumerate(part)))
            written += len(part)
            pick += 1


def loom(i, rate, noise, left):
    t = i / rate
    treadle = 0.30 * math.exp(-30 * t) * math.sin(2 * math.pi * 95 * t)
    fly = t - 0.22
    shuttle = 0.22 * math.exp(-9 * fly) * noise[i] * (0.5 + 0.5 * math.sin(2 * math.pi * (31 if left else 27) * fly)) if fly > 0 else 0
    beat = t - 0.56
    beater = math.exp(-22 * beat) * (0.6 * math.sin(2 * math.pi * 140 * beat) + 0.3 * noise[i]) if beat > 0 else 0
    return max(-1.0, min(1.0, treadle + shuttle + beater))


def main():
    match sys.argv[1:]:
        case ["pictures"]:
            pictures()
        case ["sound", path]:
            sound(path, 60)
        case ["sound", path, seconds]:
            sound(path, int(seconds))
        case _:
            sys.exit(__doc__.split("\n\n")[1])


if __name__ == "__main__":
    main()
