"""Pages in a browser: the position of elements, not only their presence.

A helper page shows the tested page in a frame of a given width, and writes the position of its elements into its own DOM,
which `chromium --dump-dom` prints.
"""

import html
import json
import os
import pathlib
import re
import shutil
import urllib.parse

from checks.clients import browse, chromium
from world import check, expect, expect_equal, wait_for

RULER = """<!doctype html><title>ruler</title><body><iframe id="frame" src="{path}"
 style="width:{width}px;height:3000px;border:0"></iframe><script>
const frame = document.getElementById("frame");
frame.onload = () => {{
  const page = frame.contentDocument, style = e => frame.contentWindow.getComputedStyle(e);
  const at = e => {{
    const box = e.getBoundingClientRect();
    return {{text: e.textContent.trim(), left: box.left, right: box.right, top: box.top, bottom: box.bottom, shown: box.width > 0}};
  }};
  const all = (selector, under = page) => [...under.querySelectorAll(selector)];
  const numbers = color => color.match(/[\\d.]+/g).map(Number);
  const behind = e => {{
    for (; e; e = e.parentElement) {{
      const color = numbers(style(e).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }}
    // The browser's own ground: dark where its own text is light.
    return light(numbers(style(page.documentElement).color)) > .5 ? [18, 18, 18] : [255, 255, 255];
  }};
  const light = color => {{
    const part = value => (value /= 255) <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4;
    return .2126 * part(color[0]) + .7152 * part(color[1]) + .0722 * part(color[2]);
  }};
  const contrast = e => {{
    const [a, b] = [light(numbers(style(e).color)), light(behind(e))];
    return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  }};
  const worded = all("body *").filter(e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()))
    .filter(e => !e.closest("svg, style, pre") && e.getBoundingClientRect().width > 1);
  const found = {{
    width: frame.clientWidth, needed: page.documentElement.scrollWidth,
    heads: all("thead th").map(at), rows: all("tbody tr").map(row => [...row.cells].map(at)),
    table: all("table").map(at), footer: all("footer").map(at), heading: all("h1").map(at), crumbs: all("h1 > *").map(at),
    pictures: all("img").map(e => [e.getAttribute("src"), e.naturalWidth]),
    faint: worded.filter(e => contrast(e) < 4.5).map(e => [e.tagName, e.textContent.trim().slice(0, 40), contrast(e)]),
    ground: light(behind(page.body)),
  }};
  const pre = document.createElement("pre");
  pre.id = "found";
  pre.textContent = JSON.stringify(found);
  document.body.append(pre);
}};
</script>"""

LOOKS = [("light", 1100), ("dark", 1100), ("light", 390), ("dark", 390)]


def look_at(world, server, path, theme, width):
    """Positions of the elements of the page at `path`."""
    name = f"ruler-{width}.html"
    (server.site / name).write_text(RULER.format(path=path, width=width))
    setting = f"--blink-settings=preferredColorScheme={0 if theme == 'dark' else 1}"
    dom = browse(world, setting, "--window-size=1280,1024", "--dump-dom", server.url(f"/{name}")).decode()
    (server.site / name).unlink()
    start = dom.find('<pre id="found">')
    expect(start >= 0, f"the browser did not look at {path}: {dom[-400:]}")
    text = dom[start + len('<pre id="found">'):dom.index("</pre>", start)]
    return json.loads(html.unescape(text))


def expect_readable(what, page, theme):
    expect(page["needed"] <= page["width"], f"{what} is {page['needed']} wide, in a window of {page['width']}")
    expect_equal(f"the ground of {what} is dark", page["ground"] < .2, theme == "dark")
    expect_equal(f"what is hard to read on {what}", page["faint"], [])
    for source, width in page["pictures"]:
        expect(width > 0, f"the picture {source} of {what} is not there")


@check(limit_s=180)
def a_listing_stands_in_columns(world):
    """Seen: sizes outside the table and dates under "Size", for 151 commits: checks tested only presence."""
    site = world.folder()
    folder = site / "folder"
    folder.mkdir()
    (folder / "another").mkdir()
    long = "a-name-" * 20 + "that-must-break.txt"
    for name in ("plain.txt", "photo\u202egpj.exe", "\u05e9\u05dc\u05d5\u05dd.txt", "line\nend", long):
        (folder / name).write_bytes(b"w" * 12_345)
    open(folder.as_posix().encode() + b"/gr\xfcn.txt", "wb").close()
    os.chmod(folder, 0o755)
    with world.server("--listing", site=site) as server:
        for theme, width in LOOKS:
            page = look_at(world, server, "/folder/", theme, width)
            what = f"the listing, {theme}, {width} wide"
            expect_readable(what, page, theme)
            expect_columns(what, page, page["width"])


def expect_columns(what, page, width):
    [table], [footer], [heading] = page["table"], page["footer"], page["heading"]
    expect_equal(f"heads of {what}", [head["text"].rstrip("\u2191\u2193") for head in page["heads"]], ["Name", "Size", "Modified"])
    expect(heading["bottom"] <= table["top"] and table["bottom"] <= footer["top"], f"{what}: heading, table, footer overlap")
    expect(0 <= table["left"] and table["right"] <= width, f"{what}: the table leaves the window")
    bottom = max(head["bottom"] for head in page["heads"])
    expect_equal(f"rows of {what}", len(page["rows"]), 8)
    for row in page["rows"]:
        expect_equal(f"cells of {row[0]['text']!r} in {what}", len(row), 3)
        for head, cell in zip(page["heads"], row):
            expect_equal(f"{what}: {head['text']} of {row[0]['text']!r} is shown", cell["shown"], head["shown"])
            expect(abs(head["left"] - cell["left"]) < 1 and abs(head["right"] - cell["right"]) < 1,
                   f"{what}: {cell['text']!r} does not stand under {head['text']}: {cell} {head}")
        expect(row[0]["top"] > bottom - 1, f"{what}: {row[0]['text']!r} stands over the row before")
        bottom = row[0]["bottom"]
        name, size, modified = (cell["text"] for cell in row)
        if name == "Parent directory" or "\ufffd" in name:
            expect_equal(f"size and date of {name!r}", (size, modified), ("", ""))
        else:
            expect_equal(f"size of {name!r}", size, "" if name.endswith("/") else "12 KB")
            expect(len(modified) == len("2026-11-20 12:00") and modified.startswith("20"), f"{name!r} was modified {modified!r}")
    expect(bottom <= table["bottom"] + 1, f"{what}: rows leave the table")
    expect(page["heads"][2]["shown"] == (width > 640), f"{what}: dates are shown where there is room, and only there")


@check(limit_s=180)
def the_pages_are_readable_in_any_light_and_width(world):
    site = world.scratch / "site"
    shutil.copytree(world.site, site)
    with world.server("--listing", site=site) as server:
        for theme, width in LOOKS:
            for path in ("/", "/guide/", "/gallery/", "/data/", "/no/such/page"):
                page = look_at(world, server, path, theme, width)
                expect_readable(f"{path}, {theme}, {width} wide", page, theme)


PICTURE = """<!doctype html><title>picture</title><body><iframe id="frame" src="report.html" style="width:{width}px;height:3000px"></iframe><script>
const frame = document.getElementById("frame");
// The picture is made after the load event, for which --dump-dom does not wait, so a request carries the findings.
const tell = found => new Image().src = "/found?" + encodeURIComponent(JSON.stringify(found));
frame.onload = () => look().then(tell, error => tell({{error: String(error)}}));
const look = async () => {{
  const page = frame.contentDocument, found = {{}};
  // A figure is drawn when a reader comes near it.
  await Promise.all([...page.querySelectorAll("figure")].map(frame.contentWindow.show));
  const svgs = [...page.querySelectorAll("figure svg")];
  found.figures = svgs.length;
  found.buttons = page.querySelectorAll("figure button[data-figure]").length;
  found.needed = page.documentElement.scrollWidth;
  found.width = frame.clientWidth;
  // Texts that leave their drawing, or stand in each other.
  const inside = svgs.map(svg => {{
    const box = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
    return texts.filter(([_, at]) => at.left < box.left - 1 || at.right > box.right + 1 || at.bottom > box.bottom + 1).map(([text]) => text)
      .concat(texts.filter(([_, a], i) => texts.some(([_, b], j) => i < j && Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4)).map(([text]) => "over another: " + text));
  }});
  found.outside = inside.flat();
  const picture = await createImageBitmap(await frame.contentWindow.png(svgs[0]));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [picture.width, picture.height];
  const context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0);
  const colours = new Set(), data = context.getImageData(0, 0, picture.width, picture.height).data;
  for (let at = 0; at < data.length; at += 4) colours.add(data.slice(at, at + 3).join());
  found.size = [picture.width, picture.height];
  found.box = [svgs[0].viewBox.baseVal.width, svgs[0].viewBox.baseVal.height];
  found.ground = [...data.slice(0, 3)];
  found.colours = colours.size;
  found.bar = colours.has("{bar}");
  return found;
}};
</script>"""


def told_in(log, at):
    """Findings in the browser's report number `at`, once it has arrived."""
    requests = re.findall(r'"GET /found\?(\S+) ', log.read_text())
    return urllib.parse.unquote(requests[at]) if len(requests) > at else None


@check(limit_s=180)
def a_report_of_the_lab_has_its_figures_whole_and_saves_them_as_pictures(world):
    site = world.folder()
    results = pathlib.Path(__file__).parents[3] / "results"
    shutil.copytree(results / "samples", site / "samples")
    world.output_of(world.laboratory, "lab", "report", "--out", site)
    # First colour and background of the page, in light and in dark.
    looks = 0
    themes = {"light": ("11,98,168", [255, 255, 255]), "dark": ("90,169,230", [20, 24, 29])}
    log = world.scratch / "access.log"
    with world.server("--access-log", log, site=site) as server:
        for theme, width in LOOKS:
            bar, ground = themes[theme]
            (site / "picture.html").write_text(PICTURE.format(width=width, bar=bar))
            setting = f"--blink-settings=preferredColorScheme={0 if theme == 'dark' else 1}"
            browser = world.start(*chromium(world, setting, "--window-size=1280,1024", server.url(f"/picture.html?{theme}-{width}")))
            told = wait_for("the browser tells what it found", lambda: told_in(log, looks), seconds=60)
            browser.terminate()
            browser.wait()
            looks += 1
            found = json.loads(told)
            what = f"the report, {theme}, {width} wide"
            expect("error" not in found, f"{what}: {found}")
            expect(found["figures"] > 60, f"{what} has {found['figures']} figures")
            expect_equal(f"buttons of {what}", found["buttons"], found["figures"])
            expect(found["needed"] <= found["width"], f"{what} is {found['needed']} wide, in a window of {found['width']}")
            expect_equal(f"texts of figures of {what} that are not whole", found["outside"], [])
            expect_equal(f"the picture's size in {what}", found["size"], [2 * side + 48 for side in found["box"]])
            expect_equal(f"the picture's ground in {what}", found["ground"], ground)
            expect(found["bar"] and found["colours"] > 20, f"{what}: a picture of {found['colours']} colours, without a bar's")


# Shows every page of the book in a frame, one after the other. A log field has space for four faults.
READER = """<!doctype html><title>reader</title><body><iframe id="frame" style="width:{width}px;height:2000px"></iframe><script>
const frame = document.getElementById("frame"), faults = [], pages = {pages};
const read = at => {{
  frame.onload = () => {{
    const page = frame.contentDocument.documentElement, ground = frame.contentWindow.getComputedStyle(page).backgroundColor;
    const fault = (is, what) => is && faults.push(`${{pages[at]}}: ${{what}}`);
    fault(page.scrollWidth > frame.clientWidth, `${{page.scrollWidth}} wide`);
    fault(Math.max(...ground.match(/\\d+/g).slice(0, 3)) < 64 != {dark}, `ground of ${{ground}}`);
    fault([...page.querySelectorAll("img")].some(picture => !picture.naturalWidth), "a picture is not there");
    fault(page.querySelectorAll("#mdbook-sidebar a").length < 50, "no table of contents");
    if (at + 1 < pages.length) read(at + 1);
    else new Image().src = "/found?" + encodeURIComponent(JSON.stringify([pages.length, faults.slice(0, 4)]));
  }};
  frame.src = pages[at];
}};
read(0);
</script>"""


@check(limit_s=240)
def the_book_reads_in_light_and_dark_on_a_phone(world):
    """All pages of `./ci.sh book`, served by weft: links work, and the browser reports no error."""
    made = world.binary.parents[1] / "book/html"
    expect(made.is_dir(), f"{made} is missing: run ./ci.sh book")
    site = world.scratch / "site"
    shutil.copytree(made, site)
    pages = sorted(f"/{path.relative_to(site)}" for path in site.rglob("*.html") if path.name not in ("404.html", "toc.html"))
    expect(len(pages) > 50, f"the book has {len(pages)} pages")
    log, errors = world.scratch / "access.log", world.scratch / "browser.log"
    with world.server("--access-log", log, site=site) as server:
        expect_links(server, pages)
        for seen, (theme, width) in enumerate(LOOKS):
            dark = "true" if theme == "dark" else "false"
            (site / "reader.html").write_text(READER.format(width=width, dark=dark, pages=json.dumps(pages)))
            setting = f"--blink-settings=preferredColorScheme={0 if theme == 'dark' else 1}"
            with errors.open("ab") as stderr:
                words = chromium(world, setting, "--enable-logging=stderr", server.url(f"/reader.html?{theme}-{width}"))
                browser = world.start(*words, stderr=stderr)
                told = wait_for("the browser tells what it found", lambda: told_in(log, seen), seconds=60)
                browser.terminate()
                browser.wait()
            expect_equal(f"pages and faults of the book, {theme}, {width} wide", json.loads(told), [len(pages), []])
    complaints = [line for line in errors.read_text(errors="replace").splitlines() if "CONSOLE" in line]
    expect_equal("what the browser complains of", complaints, [])
    expect_equal("requests without an answer", re.findall(r'"GET /(?!found|favicon)[^"]*" [45]\d\d .*', log.read_text()), [])


def expect_links(server, pages):
    """Checks that each link of the book leads to an existing file and anchor."""
    texts = {page: server.get(page).body.decode() for page in pages}
    for page, text in texts.items():
        # mdBook's own links precede `<main>`.
        for link in re.findall(r'(?:href|src)="([^"]+)"', text[text.index("<main>"):text.index("</main>")]):
            path, _, place = html.unescape(link).partition("#")
            if ":" in path:
                continue
            target = urllib.parse.urljoin(page, path)
            target = f"{target}index.html" if target.endswith("/") else target
            if target not in texts:
                expect_equal(f"status of {link} in {page}", server.get(target).status, 200)
            elif place:
                expect(f'id="{place}"' in texts[target], f"{link} in {page} leads to no place")
