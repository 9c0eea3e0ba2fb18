"""Ordinary clients: curl, wget, a browser, and plain sockets."""

import os
import shutil

from world import ALL, check, expect, expect_equal, read_reply, request

WAV = "/data/loom.wav"


@check(*ALL)
def every_file_arrives_whole(world):
    with world.server() as server:
        for file in files_below(server.site):
            path = "/" + str(file.relative_to(server.site))
            reply = server.get(path)
            expect_equal(f"status of {path}", reply.status, 200)
            expect_equal(f"body of {path}", reply.body, file.read_bytes())
            expect(reply.header("Content-Type"), f"{path} has no Content-Type")
            expect(reply.header("ETag", "").startswith('"'), f"{path} has no strong ETag")


def files_below(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


@check(*ALL)
def curl_gets_ranges(world):
    whole = (world.site / "data/loom.wav").read_bytes()
    with world.server() as server:
        for text, should in [("0-99", whole[:100]), ("1000000-1999999", whole[1_000_000:2_000_000]), ("-77", whole[-77:]),
                             (f"{len(whole) - 1}-", whole[-1:])]:
            expect_equal(f"range {text}", world.output_of("curl", "-sf", "-r", text, server.url(WAV)), should)
        several = world.output_of("curl", "-sf", "-D", "-", "-r", "0-9,100-109", server.url(WAV))
        expect(b"multipart/byteranges" in several, "two ranges are no multipart/byteranges")
        expect(whole[:10] in several and whole[100:110] in several, "two ranges do not hold both parts")
        many = ",".join(f"{at * 9_000}-{at * 9_000 + 99 + at}" for at in range(256))
        parts = server.get(WAV, Range=f"bytes={many}")
        boundary = parts.header("Content-Type").split("boundary=")[1]
        bodies = [part.split(b"\r\n\r\n", 1)[1] for part in parts.body.split(f"\r\n--{boundary}".encode())[1:-1]]
        expect_equal("256 parts", bodies, [whole[at * 9_000:at * 9_000 + 100 + at] for at in range(256)])
        beyond = world.output_of("curl", "-s", "-o", world.scratch / "beyond", "-D", "-", "-r", f"{len(whole)}-", server.url(WAV))
        expect(b" 416 " in beyond and f"bytes */{len(whole)}".encode() in beyond, f"beyond the end: {beyond!r}")


@check(*ALL)
def curl_resumes_a_download(world):
    whole = (world.site / "data/loom.wav").read_bytes()
    part = world.scratch / "loom.wav"
    part.write_bytes(whole[:1_234_567])
    with world.server() as server:
        world.output_of("curl", "-sf", "-C", "-", "-o", part, server.url(WAV))
        expect_equal("the resumed file", part.read_bytes(), whole)


@check(*ALL)
def curl_gets_compressed_variants(world):
    page = (world.site / "style.css").read_bytes()
    with world.server() as server:
        expect_equal("--compressed", world.output_of("curl", "-sf", "--compressed", server.url("/style.css")), page)
        for coding, suffix in (("br", "br"), ("zstd", "zst"), ("gzip", "gz")):
            reply = server.get("/style.css", Accept_Encoding=coding)
            expect_equal(f"Content-Encoding for {coding}", reply.header("Content-Encoding"), coding)
            expect_equal(f"body for {coding}", reply.body, (world.site / f"style.css.{suffix}").read_bytes())
            expect("accept-encoding" in reply.header("Vary", "").lower(), f"no Vary for {coding}")
        plain = server.get("/style.css", Accept_Encoding="identity")
        expect_equal("Content-Encoding for identity", plain.header("Content-Encoding"), None)
        expect_equal("body for identity", plain.body, page)
        expect("accept-encoding" in plain.header("Vary", "").lower(), "no Vary for identity")


@check(*ALL)
def curl_heads(world):
    with world.server() as server:
        head = world.output_of("curl", "-sf", "-I", server.url(WAV)).decode()
        length = (world.site / "data/loom.wav").stat().st_size
        expect(f"content-length: {length}" in head.lower(), f"HEAD says {head!r}")


@check(*ALL)
def curl_uploads_and_goes_on(world):
    """Uploads with and without Expect are refused; the connection stays in use or closes cleanly."""
    upload = world.scratch / "upload"
    upload.write_bytes(b"w" * 300_000)
    with world.server() as server:
        for expects in ("Expect: 100-continue", "Expect:"):
            out = world.output_of("curl", "-s", "-H", expects, "--data-binary", f"@{upload}", "-o", world.scratch / "a",
                                  "-D", world.scratch / "heads", server.url("/"), "--next", "-s", "-o", world.scratch / "b",
                                  "-w", "%{http_code}", server.url("/style.css"))
            heads = (world.scratch / "heads").read_text()
            expect(" 405 " in heads and "allow:" in heads.lower(), f"POST with '{expects}': {heads!r}")
            expect_equal("the status of the request after it", out.decode(), "200")


@check(*ALL)
def pipelined_requests_are_answered_in_order(world):
    paths = ["/", "/style.css", "/favicon.svg", "/no/such/page", "/robots.txt", WAV] * 6
    with world.server() as server, server.connect() as socket:
        socket.sendall(b"".join(request(path) for path in paths))
        with socket.makefile("rb") as file:
            for path in paths:
                reply = read_reply(file)
                if path == "/no/such/page":
                    expect_equal(f"status of {path}", reply.status, 404)
                else:
                    name = "index.html" if path == "/" else path[1:]
                    expect_equal(f"body of {path}", reply.body, (world.site / name).read_bytes())


@check(*ALL)
def nobody_gets_out_of_the_folder(world):
    site = world.folder(index__html=b"in", __secret=b"hidden")
    (world.scratch / "outside").write_bytes(b"out")
    os.symlink(world.scratch / "outside", site / "link")
    os.symlink("index.html", site / "inside")
    with world.server(site=site) as server:
        for path in ("/../outside", "/%2e%2e/outside", "/..%2foutside", "/link", "/.secret", "//../outside", "/%00"):
            out = world.output_of("curl", "-s", "--path-as-is", "-w", "\n%{http_code}", server.url(path))
            body, status = out.rsplit(b"\n", 1)
            expect(status in (b"400", b"403", b"404"), f"{path} is answered with {status.decode()}")
            expect(body not in (b"out", b"hidden"), f"{path} gives {body!r}")
        expect_equal("a link that stays inside", server.get("/inside").body, b"in")
    with world.server("--hidden", "--follow-links", site=site) as server:
        expect_equal("a hidden file with --hidden", server.get("/.secret").body, b"hidden")
        expect_equal("a link with --follow-links", server.get("/link").body, b"out")


@check(*ALL)
def wget_mirrors_the_site(world):
    mirror = world.scratch / "mirror"
    with world.server() as server:
        # Status 8: a page of the site has a broken link, on purpose.
        world.output_of("wget", "--mirror", "--no-verbose", "--no-host-directories", "-P", mirror, server.url("/"), status=8)
    (mirror / "robots.txt").unlink(missing_ok=True)
    linked = world.scratch / "linked"
    shutil.copytree(world.site, linked, ignore=shutil.ignore_patterns("*.br", "*.gz", "*.zst", "404.html", "robots.txt", "loom.wav"))
    world.output_of("diff", "-r", linked, mirror)


@check(*ALL)
def directories_are_listed_when_asked_for(world):
    with world.server() as server:
        expect_equal("/data/ without --listing", server.get("/data/").status, 403)
    with world.server("--listing") as server:
        page = server.get("/data/").body.decode()
        listed = server.get("/data/", Accept="application/json")
        expect(listed.header("Content-Type").startswith("application/json"), "the listing is no JSON when asked for")
        for file in (world.site / "data").iterdir():
            expect(file.name in page, f"the page does not list {file.name}")
            expect(f'"{file.name}"' in listed.body.decode(), f"the JSON does not list {file.name}")


@check(*ALL)
def the_error_page_is_the_sites_own(world):
    with world.server("--error-page", "404=404.html") as server:
        reply = server.get("/no/such/page")
        expect_equal("status", reply.status, 404)
        expect_equal("body", reply.body, (world.site / "404.html").read_bytes())


@check(*ALL, limit_s=90)
def a_browser_shows_the_page(world):
    with world.server("--access-log", world.scratch / "access.log", "--error-page", "404=404.html") as server:
        dom = browse(world, "--dump-dom", server.url("/")).decode()
        expect("Many threads, carried across few cores" in dom, f"the page's heading is not in the DOM, which is {dom[:2000]!r}")
        picture = world.scratch.parent / f"page-{world.variant}.png"
        browse(world, "--window-size=1280,1600", f"--screenshot={picture}", server.url("/"))
        expect(picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n", "there is no screenshot")
        browse(world, "--dump-dom", server.url("/gallery/"))
    log = (world.scratch / "access.log").read_text()
    for path in ("/", "/style.css", "/img/motif.svg", "/gallery/", "/gallery/plaid.png", "/gallery/diamond.webp"):
        expect(f'"GET {path} HTTP/1.1" 200' in log, f"the browser did not get {path}; the log says {log[-600:]!r}")


def chromium(world, *arguments):
    """Command line of a Chromium that connects to no host but ours."""
    return ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
            f"--user-data-dir={world.scratch / 'profile'}", *arguments]


def browse(world, *arguments):
    return world.output_of(*chromium(world, *arguments), seconds=60)
